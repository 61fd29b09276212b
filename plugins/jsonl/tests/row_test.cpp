// What a row may hold, and what is said of one that holds something else.
#include "plugins/jsonl/row.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "given.h"
#include "meshwright/error.h"
#include "plugins/jsonl/row_pieces.h"

namespace row_test {

using jsonl_test::thrown;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::chat::parse_json;
using meshwright::jsonl::Chunk;
using meshwright::jsonl::parse_row;
using meshwright::jsonl::Row;
using meshwright::jsonl::RowFile;
using meshwright::jsonl::RowKind;
using meshwright::jsonl::RowPiece;

Row read(const std::string& json, RowKind kind = RowKind::messages) {
  return read_row(parse_json(json), kind, "f:7");
}

std::string said(const std::string& json, RowKind kind = RowKind::messages) {
  return thrown([&] { read(json, kind); }).what();
}

std::string text_of(const Row& row, size_t message, const char* key) {
  const meshwright::chat::Value* value = row.messages.as_list().at(message).get(key);
  return value != nullptr && value->is_string() ? value->as_string() : "?";
}

TEST_CASE("messages reach the template as they are") {
  const Row row = read(
      R"({"messages": [{"role": "user", "content": "a", "name": "n"}, {"role": "assistant", "content": null, "tool_calls": [1]}], "tools": [{"x": 1}]})");
  REQUIRE(row.messages.as_list().size() == 2);
  CHECK(text_of(row, 0, "name") == "n");
  CHECK(row.messages.as_list()[1].get("tool_calls") != nullptr);
  CHECK(row.messages.as_list()[1].get("content")->is_none());
  REQUIRE(row.tools.is_list());
  CHECK(row.trained == std::vector<bool>{true, true});
  CHECK(read(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})")
            .messages.as_list()[0]
            .get("content")
            ->is_list());
}

TEST_CASE("conversations of from and value") {
  const Row row = read(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"}, {"from": "gpt", "value": "g", "weight": 0}]})");
  CHECK(text_of(row, 0, "role") == "system");
  CHECK(text_of(row, 1, "role") == "user");
  CHECK(text_of(row, 2, "role") == "assistant");
  CHECK(text_of(row, 2, "content") == "g");
  CHECK(row.trained == std::vector<bool>{true, true, false});
  // All else reaches the template as that of other messages does.
  const Row more = read(
      R"({"conversations": [{"name": "n", "from": "gpt", "value": null, "tool_calls": [1], "content": "x"}]})");
  const meshwright::chat::Value& message = more.messages.as_list()[0];
  CHECK(message.as_dict().size() == 4);
  CHECK(text_of(more, 0, "name") == "n");
  CHECK(message.get("content")->is_none());
  CHECK(message.get("tool_calls")->is_list());
}

TEST_CASE("a key that is null is absent") {
  CHECK(read(R"({"messages": null, "text": "t"})", RowKind::text).completion == "t");
  CHECK(read(R"({"messages": null, "conversations": [{"from": "human", "value": "h"}]})")
            .messages.as_list()
            .size() == 1);
  CHECK(meshwright::jsonl::kind_of(
            parse_json(R"({"prompt": "p", "completion": null, "text": "t"})")) == RowKind::text);
  CHECK(said(R"({"messages": null, "id": 1})").ends_with("its keys: messages (null), id"));
}

TEST_CASE("turns have a weight of 0 or 1") {
  CHECK(
      read(
          R"({"messages": [{"role": "u", "weight": 0}, {"role": "u", "train": false}, {"role": "u", "train": 1.0}]})")
          .trained == std::vector<bool>{false, false, true});
  // Both may be there, and then they are one.
  CHECK(
      read(
          R"({"messages": [{"role": "u", "weight": 0, "train": false}, {"role": "u", "weight": 1, "train": null}]})")
          .trained == std::vector<bool>{false, true});
  CHECK(said(R"({"messages": [{"role": "u"}, {"role": "u", "weight": 0, "train": 1}]})") ==
        "error[E0701]: f:7: messages[1] has \"weight\": 0 and \"train\": 1, which contradict each "
        "other");
  CHECK(said(R"({"messages": [{"role": "u", "train": false, "weight": 1.0}]})") ==
        "error[E0701]: f:7: messages[0] has \"weight\": 1 and \"train\": 0, which contradict each "
        "other");
  CHECK(said(R"({"messages": [{"role": "u", "weight": 0.5}]})") ==
        "error[E0204]: f:7: messages[0].weight must be 0 or 1");
  CHECK(said(R"({"messages": [{"role": "u"}, {"role": "u", "train": "yes"}]})") ==
        "error[E0204]: f:7: messages[1].train must be 0 or 1");
}

TEST_CASE("prompt and completion") {
  Row row = read(R"({"prompt": "p", "completion": "c"})", RowKind::prompt_completion);
  CHECK(row.prompt == "p");
  CHECK(row.completion == "c");
  CHECK(row.messages.as_list().empty());
  row = read(
      R"({"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]})",
      RowKind::prompt_completion);
  CHECK(row.messages.as_list().size() == 2);
  CHECK(row.completion_at == 1);
  CHECK(said(R"({"prompt": "p", "completion": []})", RowKind::prompt_completion) ==
        "error[E0701]: f:7: \"prompt\" is a string and \"completion\" is a list; they are two "
        "strings or two lists of messages");
  CHECK(said(R"({"prompt": [{"role": "user", "content": "p"}], "completion": []})",
             RowKind::prompt_completion) == "error[E0701]: f:7: \"completion\" is empty");
}

TEST_CASE("tools may be a JSON string") {
  CHECK(read(R"({"messages": [{"role": "user"}], "tools": "[{\"a\": 1}]"})").tools.is_list());
  CHECK(read(R"({"messages": [{"role": "user"}], "tools": null})").tools.is_none());
  CHECK(read(R"({"messages": [{"role": "user"}]})").tools.is_none());
  // An empty list is not the same as none.
  for (const char* tools : {"[]", R"("[]")"}) {
    CAPTURE(tools);
    const Row row =
        read(R"({"messages": [{"role": "user"}], "tools": )" + std::string(tools) + "}");
    REQUIRE(row.tools.is_list());
    CHECK(row.tools.as_list().empty());
  }
  CHECK(said(R"({"messages": [{"role": "user"}], "tools": "[1"})")
            .starts_with("error[E0701]: f:7: \"tools\" is a string, but not one of JSON: 1:"));
  CHECK(said(R"({"messages": [{"role": "user"}], "tools": 3})")
            .starts_with("error[E0701]: f:7: \"tools\" is a number"));
}

TEST_CASE("a row's own system text is a message before the others") {
  const Row row = read(
      R"({"system": "s", "conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g", "weight": 0}]})");
  REQUIRE(row.messages.as_list().size() == 3);
  CHECK(text_of(row, 0, "role") == "system");
  CHECK(text_of(row, 0, "content") == "s");
  CHECK(row.own_system);
  CHECK(row.trained == std::vector<bool>{true, true, false});
  CHECK(name_of_message(row, 0) == "system");
  CHECK(name_of_message(row, 2) == "conversations[1]");
  const Row pair = read(
      R"({"system": "s", "prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]})",
      RowKind::prompt_completion);
  CHECK(text_of(pair, 0, "content") == "s");
  CHECK(pair.completion_at == 2);
  CHECK(name_of_message(pair, 1) == "prompt[0]");
  CHECK(name_of_message(pair, 2) == "completion[0]");
  // Without one they have the row's own numbers.
  CHECK(name_of_message(read(R"({"messages": [{"role": "u"}, {"role": "u"}]})"), 1) ==
        "messages[1]");
  CHECK(name_of_message(read(R"({"conversations": [{"role": "u"}]})"), 0) == "conversations[0]");
  const Row own =
      read(R"({"prompt": [{"role": "u"}], "completion": [{"role": "a"}, {"role": "b"}]})",
           RowKind::prompt_completion);
  CHECK(name_of_message(own, 0) == "prompt[0]");
  CHECK(name_of_message(own, 2) == "completion[1]");
  // None, or the one that is there.
  for (const char* none : {"null", "\"\""})
    CHECK_FALSE(read(R"({"messages": [{"role": "user"}], "system": )" + std::string(none) + "}")
                    .own_system);
  CHECK(read(R"({"messages": [{"role": "system", "content": "s"}], "system": "s"})")
            .messages.as_list()
            .size() == 1);
  CHECK(said(R"({"messages": [{"role": "system", "content": "t"}], "system": "s"})") ==
        "error[E0701]: f:7: the row has a \"system\" and, as messages[0], another message of the "
        "role system");
  CHECK(said(R"({"messages": [{"role": "user"}], "system": 1})") ==
        "error[E0701]: f:7: \"system\" is a number, where a string belongs");
  CHECK(said(R"({"system": "s", "prompt": "p", "completion": "c"})", RowKind::prompt_completion) ==
        "error[E0701]: f:7: the row has a \"system\" beside a \"prompt\" that is a string, and no "
        "template joins these two");
  CHECK(read(R"({"system": "", "prompt": "p", "completion": "c"})", RowKind::prompt_completion)
            .unread.empty());
}

TEST_CASE("a row's own variables of the template") {
  for (const char* given : {R"({"enable_thinking": false})", R"("{\"enable_thinking\": false}")"}) {
    const Row row = read(R"({"messages": [{"role": "user"}], "chat_template_kwargs": )" +
                         std::string(given) + "}");
    REQUIRE(row.variables.is_dict());
    CHECK_FALSE(row.variables.get("enable_thinking")->as_boolean());
  }
  CHECK(read(R"({"messages": [{"role": "user"}], "chat_template_kwargs": null})")
            .variables.is_none());
  CHECK(said(R"({"messages": [{"role": "user"}], "chat_template_kwargs": [1]})") ==
        "error[E0701]: f:7: \"chat_template_kwargs\" is a list, where an object belongs: "
        "{\"enable_thinking\": false}");
  CHECK(
      said(R"({"messages": [{"role": "user"}], "chat_template_kwargs": "{"})")
          .starts_with("error[E0701]: f:7: \"chat_template_kwargs\" is a string, but not one of"));
  CHECK(said(R"({"messages": [{"role": "user"}], "chat_template_kwargs": {"tools": []}})") ==
        "error[E0701]: f:7: \"chat_template_kwargs\" has \"tools\", which is no variable of a "
        "template");
}

TEST_CASE("keys that nothing is made of are told") {
  using Keys = std::vector<std::string>;
  CHECK(
      read(R"({"id": 1, "messages": [{"role": "user"}], "tools": [], "source": null, "text": "t"})")
          .unread == Keys{"id", "text"});
  CHECK(read(R"({"text": "t", "system": "s"})", RowKind::text).unread == Keys{"system"});
  CHECK(read(R"({"prompt": "p", "completion": "c", "tools": [], "chat_template_kwargs": {}})",
             RowKind::prompt_completion)
            .unread == Keys{"tools", "chat_template_kwargs"});
}

TEST_CASE("rows that are refused") {
  struct Case {
    const char* row;
    const char* said;
  };
  for (const auto& [row, expected] : std::initializer_list<Case>{
           {"3", "the row is a number, and not an object"},
           {"{}",
            "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor "
            "\"text\"; its keys: none"},
           {R"({"prompt": "x", "id": 1})",
            "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor \"text\"; "
            "its keys: prompt, id"},
           {R"({"text": "t"})",
            "the row is of kind text, but the rows of this data set are of "
            "kind messages"},
           {R"({"messages": []})", "\"messages\" is empty"},
           {R"({"messages": "x"})", "\"messages\" is a string, where a list of messages belongs"},
           {R"({"messages": [1]})", "messages[0] is a number, and not a message"},
           {R"({"messages": [{"content": "x"}]})", "messages[0] has no \"role\""},
           {R"({"messages": [{"role": "a b"}]})",
            "messages[0].role is \"a b\"; a role consists of letters, digits, _ and -"},
           {R"({"messages": [{"role": 1}]})",
            "messages[0].role is a number; a role consists of letters, digits, _ and -"},
           {R"({"messages": [{"from": "human"}]})", "messages[0] has \"from\" and no \"value\""},
           {R"({"messages": [{"role": "user", "content": 1}]})",
            "messages[0].content is a number, where a string, null or a list of texts belongs"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
            "messages[0].content has a part that is \"image_url\"; only {\"type\": \"text\", "
            "\"text\": \"...\"} is read"},
           {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
            "messages[0].content has a part of type \"text\" without \"text\"; only {\"type\": "
            "\"text\", \"text\": \"...\"} is read"},
           {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]})",
            "messages[0].content has a part of type \"text\" whose \"text\" is a number; only "
            "{\"type\": \"text\", \"text\": \"...\"} is read"},
       }) {
    CAPTURE(row);
    CHECK(said(row) == "error[E0701]: f:7: " + std::string(expected));
  }
}

TEST_CASE("a row of another kind names the setting") {
  const Error error = thrown([] {
    read_row(parse_json(R"({"text": "t"})"), RowKind::messages, "f:7", "validation_dataset.jsonl");
  });
  CHECK(error.key() == "validation_dataset.jsonl.format");
  CHECK(error.helps().at(1) ==
        "set validation_dataset.jsonl.format = \"text\", if the rows are of that kind");
}

TEST_CASE("rows of other programs are told how they become rows here") {
  for (const auto& [row, help] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"instruction": "a", "input": "", "output": "b"})", "Alpaca's rows are prompts"},
           {R"({"instruction": "a", "output": "b", "system": "s"})",
            "Alpaca's rows with a system text"},
           {R"({"question": "a", "answer": "b"})", "{prompt: .question, completion: .answer}' f"}})
    CHECK(thrown([&, text = row] { read(text); }).helps().at(0).find(help) != std::string::npos);
}

TEST_CASE("what is no JSON, or not UTF-8, has its line and column, and what helps") {
  const std::string comma = ": not valid JSON: a comma stands before }, with nothing behind it",
                    byte = ": the text is not UTF-8 (byte 0x",
                    utf8 = "save the file as UTF-8: iconv -f CP1252 -t UTF-8",
                    one_a_line =
                        "a row is an object on one line, and this one does not end there: jq -c . "
                        "'f' > rows.jsonl writes each on a line";
  struct Case {
    std::string text, message, help;  // "": none
    int64_t column = 1;               // of the row, which need not be the first on its line
  };
  for (const Case& one :
       std::vector<Case>{{"{\"a\": }", "f:7:", ""},
                         {"{\"a\": 1,\n\n x}", "f:9:", ""},
                         {"{} {}", "f:7:", ""},
                         {R"({"a" 1})", "f:7:", ""},
                         {"{", "f:7:", one_a_line},
                         {R"({"messages": [{"role": "us)", "f:7:", one_a_line},
                         {"", "f:7:4: not valid JSON: a comma stands where a row should begin",
                          "remove that comma", 4},
                         {"{\"a\": 1,}", "f:7:9" + comma, "remove that comma"},
                         {"{\"a\": 1,}", "f:7:29" + comma, "remove that comma", 21},
                         {"{\"a\": 1,\n}", "f:8:1" + comma, "remove that comma", 21},
                         {"{\"a\": \"\xE9\"}", "f:7:28" + byte + "e9)", utf8, 21},
                         {"{\n\"\xE9\": 1}", "f:8:2" + byte + "e9)", utf8, 21},
                         {"{\"a\": \"caf\xE9\"}", "f:7:11" + byte + "e9)", utf8},
                         {"{\"a\": 1,\n\"\x93\": 1}", "f:8:2" + byte + "93)", utf8},
                         {"{\"a\": \"\xC3\"}", "f:7:8" + byte + "c3)", utf8}}) {
    CAPTURE(one.text);
    const Error error = thrown([&] { parse_row(one.text, "f", 7, one.column); });
    CHECK(error.code() == ErrorCode::bad_dataset);
    CHECK(error.message().starts_with(one.message));
    REQUIRE(error.helps().size() == (one.help.empty() ? 0 : 1));
    if (!one.help.empty()) CHECK(error.helps()[0].starts_with(one.help));
  }
  CHECK_NOTHROW(parse_row("{\"a\": 1}", "f", 7));
  // Characters of several bytes are none of it.
  CHECK(parse_row("{\"a\": \"caf\xC3\xA9\"}", "f", 7).get("a")->as_string() == "caf\xC3\xA9");
}

TEST_CASE("errors of rows have their place, beside the message that says it") {
  // What --json has as file, line and column.
  auto place = [](auto&& what) {
    const meshwright::Origin at = thrown(what).origin();
    CHECK(at.source == meshwright::Origin::Source::file);
    return at.file + " " + std::to_string(at.line) + " " + std::to_string(at.column);
  };
  CHECK(place([] { parse_row("{\"a\": 1,\n x}", "a:1.jsonl", 7); }) == "a:1.jsonl 8 2");
  CHECK(place([] { parse_row("{\"a\": \"caf\xE9\"}", "f", 7); }) == "f 7 11");
  CHECK(place([] { read(R"({"messages": [{"role": "u", "weight": 2}]})"); }) == "f 7 0");
  CHECK(place([] { read(R"({"messages": []})"); }) == "f 7 0");
  CHECK(place([] { read(R"({"text": "t"})"); }) == "f 7 0");
  CHECK(place([] { read_row(parse_json("3"), RowKind::text, "a:1.jsonl:12"); }) ==
        "a:1.jsonl 12 0");
}

// Files are cut at rows, with the line of each.

std::vector<std::string> all(std::string_view text, size_t size = 1 << 20) {
  const RowFile file(text, "f");
  std::vector<std::string> out;
  size_t expected = file.chunks(size).empty() ? 0 : file.chunks(size).front().begin;
  for (const Chunk& chunk : file.chunks(size)) {
    CHECK(chunk.begin == expected);
    CHECK(chunk.end > chunk.begin);
    expected = chunk.end;
    for (const RowPiece& piece : file.rows(chunk)) {
      CHECK(text.substr(piece.offset, piece.text.size()) == piece.text);
      out.push_back(std::to_string(piece.line) + ": " + std::string(piece.text));
    }
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST_CASE("an object on every line that is not blank") {
  CHECK(all("{\"a\":1}\n\n  {\"b\":2}  \r\n\t\n{\"c\":3}") ==
        Lines{"1: {\"a\":1}", "3: {\"b\":2}", "5: {\"c\":3}"});
  CHECK(all("\xEF\xBB\xBF{}\n{}\n") == Lines{"1: {}", "2: {}"});
  CHECK(all("").empty());
  CHECK(all("\n \n").empty());
}

TEST_CASE("one list") {
  CHECK(all("[{\"a\": [1, 2]},\n {\"b\": \"],{\\\"\"}\n,\n\n{}\n]\n") ==
        Lines{"1: {\"a\": [1, 2]}", "2: {\"b\": \"],{\\\"\"}", "5: {}"});
  CHECK(all("\n\n [ 1 , 2 ]") == Lines{"3: 1", "3: 2"});
  CHECK(all("[]").empty());
  CHECK(all("[ \n ]").empty());
  // What is missing is a row, and no JSON.
  CHECK(all("[1,,2]") == Lines{"1: 1", "1: ", "1: 2"});
  CHECK(all("[,1]") == Lines{"1: ", "1: 1"});
  CHECK_THROWS_WITH_AS(all("[1,\n2\n"),
                       "error[E0701]: f:2: the file begins with [ and does not end with ]", Error);
  CHECK_THROWS_AS(all("["), Error);
  const Error error = thrown([] { all("\n[1,\n2\n"); });
  CHECK(error.origin().file == "f");
  CHECK(error.origin().line == 3);
}

TEST_CASE("a list that ends with a comma is told as that, at the comma") {
  struct Case {
    const char *text, *place;
    int line, column;
  };
  for (const Case& one : std::initializer_list<Case>{{"[1,]", "f:1:3", 1, 3},
                                                     {"[{\"a\": 1},]\n", "f:1:10", 1, 10},
                                                     {"\xEF\xBB\xBF[1,]", "f:1:3", 1, 3},
                                                     {"\n [1,\n  2 ,\n\n ]\n", "f:3:5", 3, 5},
                                                     {"[,]", "f:1:2", 1, 2}}) {
    CAPTURE(one.text);
    const Error error = thrown([&] { all(one.text); });
    CHECK(error.code() == ErrorCode::bad_dataset);
    CHECK(error.message() ==
          std::string(one.place) +
              ": not valid JSON: a comma stands before ], with nothing behind it");
    CHECK(error.helps() == std::vector<std::string>{"remove that comma"});
    CHECK(error.origin().file == "f");
    CHECK(error.origin().line == one.line);
    CHECK(error.origin().column == one.column);
  }
  // One within a string is none.
  CHECK(all("[\"a,\"]") == Lines{"1: \"a,\""});
}

TEST_CASE("rows have the column at which they begin, whatever the size of chunks") {
  for (const std::string_view text :
       {" {\"a\":1}\n{}\n", "[{\"a\": [1, 2]}, {\"b\": 1}\n , {},3\n,\n\n 4 ]",
        "\xEF\xBB\xBF{}\n {}", "\n [1,,22,  3]"}) {
    CAPTURE(text);
    const RowFile file(text, "f");
    const size_t begin = text.starts_with("\xEF") ? 3 : 0;
    size_t rows = 0;
    for (const size_t size : {size_t{1}, size_t{9}, size_t{1000}})
      for (const Chunk& chunk : file.chunks(size))
        for (const RowPiece& piece : file.rows(chunk)) {
          const std::string_view before = text.substr(begin, piece.offset - begin);
          const size_t feed = before.rfind('\n');
          CHECK(piece.column == static_cast<int64_t>(feed == std::string_view::npos
                                                         ? before.size() + 1
                                                         : before.size() - feed));
          ++rows;
        }
    CHECK(rows >= 6);
  }
}

TEST_CASE("files that are no text in UTF-8 say what they are, and how they become that") {
  using namespace std::string_view_literals;
  const std::string unpack = "; unpack it: ", convert = "; convert it: iconv -f UTF-";
  struct Case {
    std::string_view text;
    std::string what, how;
  };
  for (const Case& one :
       std::vector<Case>{{"\xFF\xFE{\0}\0"sv, "UTF-16, not UTF-8", convert + "16 -t UTF-8"},
                         {"\xFE\xFF\0{\0}"sv, "UTF-16, not UTF-8", convert + "16 -t UTF-8"},
                         {"\xFF\xFE\0\0{\0\0\0"sv, "UTF-32, not UTF-8", convert + "32 -t UTF-8"},
                         {"\0\0\xFE\xFF\0\0\0{"sv, "UTF-32, not UTF-8", convert + "32 -t UTF-8"},
                         // No mark says it, but nothing else begins so.
                         {"{\0\"\0"sv, "UTF-16, not UTF-8", convert + "16LE -t UTF-8"},
                         {"\0[\0{"sv, "UTF-16, not UTF-8", convert + "16BE -t UTF-8"},
                         {"{\0\0\0\"\0\0\0"sv, "UTF-32, not UTF-8", convert + "32LE -t UTF-8"},
                         {"\0\0\0{"sv, "UTF-32, not UTF-8", convert + "32BE -t UTF-8"},
                         {"\x1F\x8B\b"sv, "compressed by gzip", unpack + "gunzip <"},
                         {"\xFD\x37zXZ\0\0"sv, "compressed by xz", unpack + "xz -dc <"},
                         {"\x28\xB5\x2F\xFD\x04"sv, "compressed by zstd", unpack + "zstd -dc <"},
                         {"BZh91AY&SY", "compressed by bzip2", unpack + "bunzip2 <"},
                         {"PK\x03\x04\x14"sv, "a zip archive", unpack + "unzip -p"},
                         {"PAR1\x15"sv, "Parquet, which is not read",
                          "; convert it to JSON lines: an object on every line"}}) {
    CAPTURE(one.what);
    const Error error = thrown([&] { RowFile(one.text, "rows/a b.jsonl"); });
    CHECK(error.code() == ErrorCode::bad_dataset);
    REQUIRE(error.helps().size() == 1);
    CHECK(error.origin().file == "rows/a b.jsonl");
    CHECK(error.message() + "; " + error.helps()[0] ==
          "rows/a b.jsonl: the file is " + one.what + one.how +
              (one.text.starts_with("PAR1") ? "" : " 'rows/a b.jsonl' > rows.jsonl"));
  }
  for (const std::string_view text : {"\xEF\xBB\xBF{}"sv, "{}"sv})
    CHECK_NOTHROW(RowFile(text, "rows/a b.jsonl"));
}

TEST_CASE("rows are the same for any size of chunk") {
  std::string lines, list = "[";
  for (int i = 0; i < 200; ++i) {
    const std::string row = "{\"n\": " + std::to_string(i) + ", \"t\": \"" +
                            std::string(static_cast<size_t>(i % 17), ',') + "\"}";
    lines += row + (i % 5 == 0 ? "\n\n" : "\n");
    list += row + (i == 199 ? "\n]" : i % 3 == 0 ? ",\n" : ",");
  }
  for (const std::string& text : {lines, list}) {
    const Lines whole = all(text);
    CHECK(whole.size() == 200);
    for (size_t size : {1, 7, 40, 100, 1000, 5000}) CHECK(all(text, size) == whole);
  }
}

}  // namespace row_test
