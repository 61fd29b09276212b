// What a row may hold, and what is said of one that holds something else.
#include "plugins/jsonl/row.h"

#include <doctest/doctest.h>

#include <string>

#include "meshwright/error.h"

namespace row_test {

using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::chat::parse_json;
using meshwright::jsonl::Row;
using meshwright::jsonl::RowKind;

Row read(const std::string& json, RowKind kind = RowKind::messages) {
  return read_row(parse_json(json), kind, "f:7");
}

std::string said(const std::string& json, RowKind kind = RowKind::messages) {
  try {
    read(json, kind);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
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
  try {
    read_row(parse_json(R"({"text": "t"})"), RowKind::messages, "f:7", "validation_dataset.jsonl");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.key() == "validation_dataset.jsonl.format");
    CHECK(error.helps().at(1) ==
          "set validation_dataset.jsonl.format = \"text\", if the rows are of that kind");
  }
}

TEST_CASE("rows of other programs are told how they become rows here") {
  for (const auto& [row, help] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"instruction": "a", "input": "", "output": "b"})", "Alpaca's rows are prompts"},
           {R"({"instruction": "a", "output": "b", "system": "s"})",
            "Alpaca's rows with a system text"},
           {R"({"question": "a", "answer": "b"})", "{prompt: .question, completion: .answer}' f"}})
    try {
      read_row(parse_json(row), RowKind::messages, "f:7", "dataset.jsonl");
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.helps().at(0).find(help) != std::string::npos);
    }
}

TEST_CASE("what is no JSON has its line and column") {
  auto parse = [](const std::string& text, int64_t column = 1) -> std::string {
    try {
      meshwright::jsonl::parse_row(text, "f", 7, column);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_dataset);
      return error.message();
    }
    return "";
  };
  CHECK(parse("{\"a\": }").starts_with("f:7:"));
  CHECK(parse("{\"a\": 1,\n\n x}").starts_with("f:9:"));
  CHECK(parse("{} {}").starts_with("f:7:"));
  CHECK(parse("{\"a\": 1}").empty());
  CHECK(parse("", 4) == "f:7:4: not valid JSON: a comma stands where a row should begin");
  const std::string comma = ": not valid JSON: a comma stands before }, with nothing behind it";
  CHECK(parse("{\"a\": 1,}") == "f:7:9" + comma);
  // Of a row that is not the first on its line.
  CHECK(parse("{\"a\": 1,}", 21) == "f:7:29" + comma);
  CHECK(parse("{\"a\": 1,\n}", 21) == "f:8:1" + comma);
  CHECK(parse("{\"a\": \"\xE9\"}", 21) == "f:7:28: the text is not UTF-8 (byte 0xe9)");
  CHECK(parse("{\n\"\xE9\": 1}", 21) == "f:8:2: the text is not UTF-8 (byte 0xe9)");
}

TEST_CASE("what is not UTF-8 is told as that, with its line, column and byte") {
  auto parse = [](const std::string& text) {
    std::string message;
    size_t helps = 0;
    try {
      meshwright::jsonl::parse_row(text, "f", 7);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_dataset);
      message = error.message();
      helps = error.helps().size();
    }
    CHECK(helps == 1);
    return message;
  };
  CHECK(parse("{\"a\": \"caf\xE9\"}") == "f:7:11: the text is not UTF-8 (byte 0xe9)");
  CHECK(parse("{\"a\": 1,\n\"\x93\": 1}") == "f:8:2: the text is not UTF-8 (byte 0x93)");
  CHECK(parse("{\"a\": \"\xC3\"}") == "f:7:8: the text is not UTF-8 (byte 0xc3)");
  // Characters of several bytes are none of it.
  CHECK(meshwright::jsonl::parse_row("{\"a\": \"caf\xC3\xA9\"}", "f", 7).get("a")->as_string() ==
        "caf\xC3\xA9");
}

// Where an error stands: what --json has as file, line and column.
std::string place_of(const Error& error) {
  const meshwright::Origin& at = error.origin();
  return at.file + " " + std::to_string(at.line) + " " + std::to_string(at.column);
}

TEST_CASE("errors of rows have their place, beside the message that says it") {
  auto place = [](auto&& what) -> std::string {
    try {
      what();
    } catch (const Error& error) {
      CHECK(error.origin().source == meshwright::Origin::Source::file);
      return place_of(error);
    }
    return "no error";
  };
  using meshwright::jsonl::parse_row;
  CHECK(place([] { parse_row("{\"a\": 1,\n x}", "a:1.jsonl", 7); }) == "a:1.jsonl 8 2");
  CHECK(place([] { parse_row("{\"a\": \"caf\xE9\"}", "f", 7); }) == "f 7 11");
  CHECK(place([] { read(R"({"messages": [{"role": "u", "weight": 2}]})"); }) == "f 7 0");
  CHECK(place([] { read(R"({"messages": []})"); }) == "f 7 0");
  CHECK(place([] { read(R"({"text": "t"})"); }) == "f 7 0");
  CHECK(place([] { read_row(parse_json("3"), RowKind::text, "a:1.jsonl:12"); }) ==
        "a:1.jsonl 12 0");
}

TEST_CASE("a row that does not end on its line is told how rows are written") {
  auto help = [](const std::string& text) -> std::string {
    try {
      meshwright::jsonl::parse_row(text, "a b", 1);
    } catch (const Error& error) {
      return error.helps().empty() ? "" : error.helps()[0];
    }
    return "no error";
  };
  const std::string one_a_line =
      "a row is an object on one line, and this one does not end there: jq -c . 'a b' > rows.jsonl "
      "writes each on a line";
  CHECK(help("{") == one_a_line);
  CHECK(help(R"({"messages": [{"role": "us)") == one_a_line);
  CHECK(help("") == "remove that comma");
  CHECK(help(R"({"a": 1,})") == "remove that comma");
  CHECK(help(R"({"a" 1})").empty());
  CHECK(help("{} {}").empty());
}

TEST_CASE("messages have the names that the row gives them") {
  using meshwright::jsonl::name_of_message;
  CHECK(name_of_message(read(R"({"messages": [{"role": "u"}, {"role": "u"}]})"), 1) ==
        "messages[1]");
  CHECK(name_of_message(read(R"({"conversations": [{"role": "u"}]})"), 0) == "conversations[0]");
  const Row pair =
      read(R"({"prompt": [{"role": "u"}], "completion": [{"role": "a"}, {"role": "b"}]})",
           RowKind::prompt_completion);
  CHECK(name_of_message(pair, 0) == "prompt[0]");
  CHECK(name_of_message(pair, 2) == "completion[1]");
}

}  // namespace row_test
