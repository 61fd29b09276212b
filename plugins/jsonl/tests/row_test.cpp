// What a row may hold, and what is said of one that holds something else.
#include "plugins/jsonl/row.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "given.h"
#include "meshwright/error.h"
#include "plugins/jsonl/row_pieces.h"

namespace row_test {

using jsonl_test::thrown;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::chat::parse_json;
using meshwright::jsonl::Asked;
using meshwright::jsonl::Chunk;
using meshwright::jsonl::Form;
using meshwright::jsonl::form_of;
using meshwright::jsonl::parse_row;
using meshwright::jsonl::Row;
using meshwright::jsonl::RowFile;
using meshwright::jsonl::RowKind;
using meshwright::jsonl::RowPiece;

Row read(const std::string& json, RowKind kind = RowKind::messages) {
  const meshwright::chat::Value value = parse_json(json);
  Asked asked;
  asked.format = kind;
  return read_row(value, form_of(value, asked, "f:7"), "f:7");
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
  CHECK(form_of(parse_json(R"({"prompt": "p", "completion": null, "text": "t"})"), {}, "f:7")
            .shape() == Form::Shape::text);
  CHECK(said(R"({"messages": null, "id": 1})").ends_with("\"messages\" is null"));
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
  CHECK(row.names.at(0) == "system");
  CHECK(row.names.at(2) == "conversations[1]");
  const Row pair = read(
      R"({"system": "s", "prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]})",
      RowKind::prompt_completion);
  CHECK(text_of(pair, 0, "content") == "s");
  CHECK(pair.completion_at == 2);
  CHECK(pair.names.at(1) == "prompt[0]");
  CHECK(pair.names.at(2) == "completion[0]");
  // Without one they have the row's own numbers.
  CHECK(read(R"({"messages": [{"role": "u"}, {"role": "u"}]})").names.at(1) == "messages[1]");
  CHECK(read(R"({"conversations": [{"role": "u"}]})").names.at(0) == "conversations[0]");
  const Row own =
      read(R"({"prompt": [{"role": "u"}], "completion": [{"role": "a"}, {"role": "b"}]})",
           RowKind::prompt_completion);
  CHECK(own.names.at(0) == "prompt[0]");
  CHECK(own.names.at(2) == "completion[1]");
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
           {R"({"prompt": "x", "completion": null})", "\"completion\" is null"},
           {R"({"text": null, "id": 1})", "\"text\" is null"},
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

// "user: a | assistant: b" of messages, "a => b" of a pair that is joined, "a" of a text.
std::string shown(const Row& row) {
  if (row.messages.as_list().empty())
    return row.kind == RowKind::text ? row.completion : row.prompt + " => " + row.completion;
  std::string out;
  for (size_t i = 0; i < row.messages.as_list().size(); ++i)
    out += (i == 0 ? "" : " | ") + text_of(row, i, "role") + ": " + text_of(row, i, "content") +
           (row.trained[i] ? "" : " (0)");
  return out;
}

using Fields = std::vector<std::pair<const char*, const char*>>;

Asked asked_of(const std::string& format, const Fields& fields) {
  Asked out;
  for (const RowKind kind : {RowKind::messages, RowKind::prompt_completion, RowKind::text})
    if (format == name_of(kind)) out.format = kind;
  for (const auto& [part, column] : fields) out.set(part, column);
  out.check();
  return out;
}

TEST_CASE("rows of other programs are known by their columns, and what they become is told") {
  struct Case {
    const char *row, *shown, *told;
    const char* format = "auto";
    Fields fields = {};
  };
  for (
      const Case& one : std::initializer_list<Case>{
          {R"({"instruction": "I", "input": "", "output": "O"})", "user: I | assistant: O",
           "rows are alpaca: instruction, input -> user; output -> assistant"},
          {R"({"instruction": "I", "input": "X", "output": "O"})", "user: I\nX | assistant: O",
           "rows are alpaca: instruction, input -> user; output -> assistant"},
          {R"({"instruction": "I", "output": "O", "system": "S", "history": [["a", "b"]]})",
           "system: S | user: a | assistant: b | user: I | assistant: O",
           "rows are alpaca: system -> system; history -> earlier turns; instruction -> user; "
           "output -> assistant"},
          {R"({"instruction": "I", "input": "X", "output": "O"})", "I\nX => O",
           "rows are alpaca: instruction, input -> prompt; output -> completion",
           "prompt_completion"},
          {R"({"instruction": "I", "context": "C", "response": "R", "category": "c"})",
           "user: I\nC | assistant: R",
           "rows are instruction/response: instruction, context -> user; response -> assistant"},
          {R"({"question": "Q", "answer": 4})", "user: Q | assistant: 4",
           "rows are question/answer: question -> user; answer -> assistant"},
          {R"({"context": "C", "question": "Q", "answer": "A"})", "user: C\nQ | assistant: A",
           "rows are question/answer: context, question -> user; answer -> assistant"},
          {R"({"system_prompt": "S", "question": "Q", "response": "R"})",
           "system: S | user: Q | assistant: R",
           "rows are question/response: system_prompt -> system; question -> user; response -> "
           "assistant"},
          {R"({"query": "Q", "response": "R"})", "user: Q | assistant: R",
           "rows are query/response: query -> user; response -> assistant"},
          {R"({"prompt": "P", "response": "R"})", "user: P | assistant: R",
           "rows are prompt/response: prompt -> user; response -> assistant"},
          {R"({"input": "I", "output": "O"})", "user: I | assistant: O",
           "rows are input/output: input -> user; output -> assistant"},
          // Their own names, which TRL joins too; a system text makes a chat of them.
          {R"({"prompt": "p", "completion": "c"})", "p => c", ""},
          {R"({"prompt": "p", "completion": "c"})", "user: p | assistant: c",
           "rows are prompt_completion: prompt -> user; completion -> assistant", "messages"},
          {R"({"system": "Sys", "prompt": "hi", "completion": "yo"})",
           "system: Sys | user: hi | assistant: yo",
           "rows are prompt_completion: system -> system; prompt -> user; completion -> "
           "assistant"},
          {R"({"text": "t", "input": "i"})", "t", ""},
          {R"({"instruction": "I", "output": "O", "text": "t"})", "t", "", "text"},
          // Conversations.
          {R"({"system": "You are X", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]})",
           "system: You are X | user: hi | assistant: yo",
           "rows are ShareGPT: conversations -> messages; system -> system"},
          {R"({"conversation": [{"role": "Human", "content": "hi"}, {"role": "bot", "content": "yo"}]})",
           "user: hi | assistant: yo", "rows are ShareGPT: conversation -> messages"},
          {R"({"messages": [{"speaker": "human", "text": "hi"}, {"speaker": "model", "text": "yo", "weight": 0}]})",
           "user: hi | assistant: yo (0)", ""},
          {R"({"messages": [{"role": "user", "content": "hi"}, {"role": "bot", "content": "yo"}]})",
           "user: hi | bot: yo", ""},
          {R"({"conversations": [{"from": "user", "value": "a"}, {"from": "function-call", "value": "{\"name\": \"f\", \"arguments\": {}}"}, {"from": "observation", "value": "b"}, {"from": "assistant", "value": "c"}]})",
           "user: a | assistant:  | tool: b | assistant: c",
           "rows are ShareGPT: conversations -> messages"},
          // As `fields` says.
          {R"({"data": {"question": "Q"}, "answers": [{"text": "A"}]})",
           "user: Q | assistant: A",
           "rows are read by dataset.jsonl.fields: data.question -> user; answers.0.text -> "
           "assistant",
           "auto",
           {{"prompt", "data.question"}, {"completion", "answers.0.text"}}},
          {R"({"a.b": "Q", "c": "A"})",
           "Q => A",
           "rows are read by dataset.jsonl.fields: a.b -> prompt; c -> completion",
           "prompt_completion",
           {{"prompt", "a.b"}, {"completion", "c"}}},
          {R"({"i": "I", "x": null, "o": "O", "s": "S"})",
           "system: S | user: # I\n | assistant: O",
           "rows are read by dataset.jsonl.fields: s -> system; i, x -> user; o -> assistant",
           "auto",
           {{"prompt", "# {i}\n## {x}\n"}, {"completion", "o"}, {"system", "s"}}},
          {R"({"i": "I", "o": "O"})",
           "{I} => O",
           "rows are read by dataset.jsonl.fields: i -> prompt; o -> completion",
           "prompt_completion",
           {{"prompt", "{x?}\n\n{{{i}}}"}, {"completion", "o"}}},
          {R"({"prompt": "P", "chosen": "C", "rejected": "R"})",
           "user: P | assistant: C",
           "rows are read by dataset.jsonl.fields: prompt -> user; chosen -> assistant",
           "auto",
           {{"completion", "chosen"}}},
          {R"({"prompt": [{"role": "user", "content": "P"}], "chosen": [{"role": "assistant", "content": "C"}]})",
           "user: P | assistant: C",
           "rows are read by dataset.jsonl.fields: prompt -> user; chosen -> assistant",
           "auto",
           {{"completion", "chosen"}}},
          {R"({"question": "P", "chosen": [{"from": "gpt", "value": "C"}]})",
           "user: P | assistant: C",
           "rows are read by dataset.jsonl.fields: question -> user; chosen -> assistant",
           "auto",
           {{"completion", "chosen"}}},
          {R"({"talk": [{"from": "human", "value": "hi"}], "prompt": "p", "completion": "c"})",
           "user: hi",
           "rows are read by dataset.jsonl.fields: talk -> messages",
           "auto",
           {{"messages", "talk"}}},
          {R"({"title": "T", "body": "B"})",
           "T\nB",
           "rows are read by dataset.jsonl.fields: title, body -> text",
           "auto",
           {{"text", "{title}\n{body}"}}},
          {R"({"question": "Q", "answer": "A", "score": 0.5})",
           "user: Q | assistant: A",
           "rows are question/answer: question -> user; answer -> assistant; score -> weight",
           "auto",
           {{"weight", "score"}}},
          {R"({"messages": [{"role": "user", "content": "a"}], "persona": "S"})",
           "system: S | user: a",
           "",
           "auto",
           {{"system", "persona"}}}}) {
    CAPTURE(one.row);
    CAPTURE(one.format);
    const meshwright::chat::Value row = parse_json(one.row);
    const Form form = form_of(row, asked_of(one.format, one.fields), "f:7");
    CHECK(form.told == one.told);
    CHECK(shown(read_row(row, form, "f:7")) == one.shown);
  }
}

TEST_CASE("a call in a conversation of other names is one of tools") {
  const Row row = read(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]"}, {"from": "bot", "value": "b"}]})");
  const meshwright::chat::Value& call =
      row.messages.as_list().at(1).get("tool_calls")->as_list().at(0);
  CHECK(call.get("function")->get("name")->as_string() == "f");
  CHECK(call.get("function")->get("arguments")->get("x")->as_integer() == 1);
  CHECK(row.renamed == 2);  // human is no news
  CHECK(said(R"({"conversations": [{"from": "function_call", "value": "f"}]})") ==
        "error[E0701]: f:7: conversations[0] is a function_call without {\"name\": ..., "
        "\"arguments\": ...} as JSON");
}

TEST_CASE("the first row decides, and rows that do not fit are named") {
  struct Case {
    const char *first, *row, *said;
    Fields fields = {};
  };
  for (const Case& one : std::initializer_list<Case>{
           {R"({"instruction": "I", "output": "O"})",
            R"({"instruction": "I", "input": "X", "output": ""})", "user: I\nX | assistant: "},
           {R"({"instruction": "I", "output": "O"})", R"({"instruction": "I", "out": "O"})",
            "f:9: the row has no \"output\"; its keys: instruction, out"},
           {R"({"question": "Q", "answer": "A"})", R"({"question": "Q", "response": "A"})",
            "f:9: the row is of kind question/response, but the rows of this data set are of kind "
            "question/answer"},
           {R"({"question": "Q", "answer": "A"})", R"({"messages": [{"role": "user"}]})",
            "f:9: the row is of kind messages, but the rows of this data set are of kind "
            "question/answer"},
           {R"({"question": "Q", "answer": "A"})",
            R"({"question": "Q", "answer": "A", "text": "t"})", "user: Q | assistant: A"},
           {R"({"question": "Q", "answer": "A"})", R"({"question": "Q", "answer": {"a": 1}})",
            "f:9: \"answer\" is an object, where a string belongs"},
           {R"({"messages": [{"role": "user", "content": "a"}]})",
            R"({"conversations": [{"from": "human", "value": "a"}]})", "user: a"},
           // A template or none: not by the row.
           {R"({"system": "S", "prompt": "p", "completion": "c"})",
            R"({"prompt": "p", "completion": "c"})", "user: p | assistant: c"},
           {R"({"prompt": "p", "completion": "c"})",
            R"({"system": "S", "prompt": "p", "completion": "c"})",
            "f:9: the row has a \"system\" beside a \"prompt\" that is a string, and no template "
            "joins these two"},
           {R"({"prompt": "p", "completion": "c"})",
            R"({"prompt": "p", "completion": [{"role": "assistant", "content": "c"}]})",
            "f:9: \"prompt\" is a string and \"completion\" is a list; they are two strings or two "
            "lists of messages"},
           {R"({"q": "Q", "a": "A"})",
            R"({"q": "Q", "A": "A"})",
            "f:9: the row has no \"a\"; its keys: q, A",
            {{"prompt", "q"}, {"completion", "a"}}},
           {R"({"q": {"t": "Q"}, "a": ["A"]})",
            R"({"q": {"u": "Q"}, "a": ["A"]})",
            "f:9: \"q\" has no \"t\"; its keys: u",
            {{"prompt", "q.t"}, {"completion", "a.0"}}},
           {R"({"q": {"t": "Q"}, "a": ["A"]})",
            R"({"q": {"t": "Q"}, "a": []})",
            "f:9: \"a\" is a list without \"0\": it has 0 items",
            {{"prompt", "q.t"}, {"completion", "a.0"}}},
           {R"({"q": "Q", "a": "A"})",
            R"({"q": "Q", "a": null})",
            "f:9: \"a\" is null",
            {{"prompt", "q"}, {"completion", "a"}}},
           {R"({"p": "Q", "c": "A"})",
            R"({"p": "Q", "c": [{"role": "user", "content": "Q"}]})",
            "f:9: c[0] is of the role \"user\", and not an answer to the prompt",
            {{"prompt", "p"}, {"completion", "c"}}}}) {
    CAPTURE(one.first);
    CAPTURE(one.row);
    const Form form = form_of(parse_json(one.first), asked_of("auto", one.fields), "f:1");
    std::string said;
    try {
      said = shown(read_row(parse_json(one.row), form, "f:9"));
    } catch (const Error& error) {
      said = error.message();
      CHECK(error.code() == ErrorCode::bad_dataset);
    }
    CHECK(said == one.said);
  }
}

// What stands in the help between this and its end, as the options take it.
std::vector<std::pair<std::string, std::string>> settings_in(const std::string& help) {
  std::vector<std::pair<std::string, std::string>> out;
  const size_t table = help.find("fields = { ");
  size_t at = table == std::string::npos ? help.find("fields.") + 7 : table + 11;
  for (;;) {
    const size_t equals = help.find(" = \"", at);
    if (equals == std::string::npos) return out;
    const size_t end = help.find('"', equals + 4);
    std::string value = help.substr(equals + 4, end - equals - 4);
    for (size_t feed; (feed = value.find("\\n")) != std::string::npos;)
      value.replace(feed, 2, "\n");
    out.emplace_back(help.substr(at, equals - at), value);
    at = help.find(", ", end);
    if (at == std::string::npos || table == std::string::npos) return out;
    at += 2;
  }
}

TEST_CASE(
    "rows that can be read in several ways, or in none, are refused with settings that work") {
  struct Case {
    const char *row, *said;
    std::vector<std::string> become;  // by each setting
  };
  for (
      const Case& one : std::initializer_list<Case>{
          {R"({"instruction": "I", "input": "", "output": "O", "text": "t"})",
           "the row can be read as a question with its answer (instruction, output), or a text "
           "(text)",
           {"user: I | assistant: O", "t"}},
          {R"({"question": "Q", "answer": "A", "response": "R"})",
           "the row can be read as a question with its answer (question, response), or a question "
           "with its answer (question, answer)",
           {"user: Q | assistant: R", "user: Q | assistant: A"}},
          {R"({"messages": [{"role": "user", "content": "a"}], "conversations": [{"from": "human", "value": "b"}]})",
           "the row can be read as a conversation (messages), or a conversation (conversations)",
           {"user: a", "user: b"}},
          {R"({"conversation": [{"role": "user", "content": "a"}], "text": "t"})",
           "the row can be read as a conversation (conversation), or a text (text)",
           {"user: a", "t"}},
          {R"({"prompt": "P", "chosen": "C", "rejected": "R"})",
           "the row has a \"chosen\" and a \"rejected\" answer: preferences are not learnt; its "
           "keys: prompt, chosen, rejected",
           {"user: P | assistant: C"}},
          {R"({"question": "P", "chosen": "C", "rejected": "R", "system": "S"})",
           "the row has a \"chosen\" and a \"rejected\" answer: preferences are not learnt; its "
           "keys: question, chosen, rejected, system",
           {"system: S | user: P | assistant: C"}},
          {R"({"prompt": "P", "chosen": [{"role": "user", "content": "P"}, {"role": "assistant", "content": "C"}], "rejected": []})",
           "the row has a \"chosen\" and a \"rejected\" answer: preferences are not learnt; its "
           "keys: prompt, chosen, rejected",
           {"user: P | assistant: C"}},
          {R"({"chosen": "C", "rejected": "R"})",
           "the row has a \"chosen\" and a \"rejected\" answer: preferences are not learnt; its "
           "keys: chosen, rejected",
           {"C"}},
          {R"({"id": 1, "problem": "P", "solution": "S"})",
           "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor \"text\"; its "
           "keys: id, problem, solution",
           {"user: P | assistant: S"}},
          {R"({"talk": [{"from": "human", "value": "hi"}]})",
           "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor \"text\"; its "
           "keys: talk",
           {"user: hi"}}}) {
    CAPTURE(one.row);
    const meshwright::chat::Value row = parse_json(one.row);
    const Error error = thrown([&] { form_of(row, {}, "f:7"); });
    CHECK(error.message() == "f:7: " + std::string(one.said));
    CHECK(error.key() == "dataset.jsonl.fields");
    REQUIRE(error.helps().size() >= one.become.size());
    for (size_t i = 0; i < one.become.size(); ++i) {
      const std::string& help = error.helps()[i];
      CAPTURE(help);
      Asked asked;
      if (help.find("format = \"text\"") != std::string::npos)
        asked.format = RowKind::text;
      else
        for (const auto& [part, column] : settings_in(help)) asked.set(part, column);
      asked.check();
      CHECK(shown(read_row(row, form_of(row, asked, "f:7"), "f:7")) == one.become[i]);
    }
  }
}

TEST_CASE("a column that a row lacks has its nearest name, and a setting that works") {
  struct Case {
    const char* row;
    Fields fields;
    const char *help, *become;
  };
  for (const Case& one : std::initializer_list<Case>{
           {R"({"question": "Q", "reply": "A"})",
            {{"prompt", "quesion"}, {"completion", "reply"}},
            "did you mean \"question\"? set dataset.jsonl.fields.prompt = \"question\"",
            "user: Q | assistant: A"},
           {R"({"data": {"question": "Q"}, "reply": "A"})",
            {{"prompt", "data.quesion"}, {"completion", "reply"}},
            "did you mean \"question\"? set dataset.jsonl.fields.prompt = \"data.question\"",
            "user: Q | assistant: A"},
           {R"({"question": "Q", "reply": "A"})",
            {{"prompt", "question"}, {"completion", "xyz"}},
            "name one of its columns: set dataset.jsonl.fields.completion = \"question\"",
            "user: Q | assistant: Q"}}) {
    CAPTURE(one.row);
    const meshwright::chat::Value row = parse_json(one.row);
    Asked asked = asked_of("auto", one.fields);
    const Error error = thrown([&] { read_row(row, form_of(row, asked, "f:7"), "f:7"); });
    REQUIRE_FALSE(error.helps().empty());
    CHECK(error.helps()[0] == one.help);
    for (const auto& [part, column] : settings_in(one.help)) asked.set(part, column);
    CHECK(shown(read_row(row, form_of(row, asked, "f:7"), "f:7")) == one.become);
  }
}

TEST_CASE("fields that are none") {
  struct Case {
    Fields fields;
    const char *said, *help, *format = "auto";
  };
  for (const Case& one : std::initializer_list<Case>{
           {{{"promt", "q"}},
            "error[E0202]: dataset.jsonl.fields.promt is no part of a row: prompt, completion, "
            "system, messages, text, weight",
            "did you mean dataset.jsonl.fields.prompt?"},
           {{{"chosen", "good"}},
            "error[E0202]: dataset.jsonl.fields.chosen is no part of a row: prompt, completion, "
            "system, messages, text, weight",
            "preferences are not learnt; set dataset.jsonl.fields.completion = \"good\" to learn "
            "the answers chosen"},
           {{{"prompt", "{q"}},
            "error[E0205]: dataset.jsonl.fields.prompt = \"{q\": a { has no other beside it: "
            "{column} stands for a column, {{ and }} for braces",
            "set dataset.jsonl.fields.prompt to the path of a column, \"data.question\", or to a "
            "text with columns in it, \"{instruction}\\n{input?}\""},
           {{{"prompt", ""}},
            "error[E0205]: dataset.jsonl.fields.prompt = \"\": it names no column",
            ""},
           {{{"prompt", "{{}}"}},
            "error[E0205]: dataset.jsonl.fields.prompt = \"{{}}\": it names no column",
            ""},
           {{{"weight", "{w}"}},
            "error[E0205]: dataset.jsonl.fields.weight is one column, and not a text with columns "
            "in it",
            "set dataset.jsonl.fields.weight = \"w\""},
           {{{"messages", "m"}, {"completion", "c"}},
            "error[E0208]: dataset.jsonl.fields names messages and completion, which no row has "
            "together",
            "keep one: messages, prompt with completion, or text"},
           {{{"text", "t"}, {"system", "s"}},
            "error[E0208]: dataset.jsonl.fields names text and system, and no template joins these "
            "two",
            "put both into the text: set dataset.jsonl.fields.text = \"{s}\\n{t}\""},
           {{{"prompt", "p"}},
            "error[E0208]: dataset.jsonl.format is \"text\", but dataset.jsonl.fields names prompt",
            "leave dataset.jsonl.format out",
            "text"}}) {
    const Error error = thrown([&] { asked_of(one.format, one.fields); });
    CHECK(std::string(error.what()) == one.said);
    if (*one.help != '\0') CHECK(error.helps().at(0) == one.help);
  }
}

TEST_CASE("a row's weight in the loss") {
  auto weight = [](const std::string& value) {
    const meshwright::chat::Value row = parse_json(R"({"text": "t", "w": )" + value + "}");
    return read_row(row, form_of(row, asked_of("auto", {{"weight", "w"}}), "f:7"), "f:7").weight;
  };
  CHECK(weight("0.1") == 0.1F);
  CHECK(weight("3") == 3);
  CHECK(weight("0") == 0);
  for (const auto& [value, what] : std::initializer_list<std::pair<const char*, const char*>>{
           {"-0.5", "is negative"},
           {"1e39", "is none that float32 has"},
           {"1e-60", "is none that float32 has"},
           {"null", "is null or absent"},
           {"true", "is a boolean, and not one of 64 bits"},
           {"\"1\"", "is a string, and not one of 64 bits"}}) {
    CAPTURE(value);
    const Error error = thrown([&, text = value] { weight(text); });
    CHECK(std::string(error.what()) ==
          "error[E0204]: f:7: the weight of the row, \"w\", " + std::string(what));
    CHECK(error.key() == "dataset.jsonl.fields.weight");
    CHECK(error.origin().line == 7);
  }
  // Python writes these, and JSON has none of them.
  for (const char* value : {"NaN", "Infinity"})
    CHECK(thrown([&] { weight(value); }).code() == ErrorCode::bad_dataset);
}

TEST_CASE("a row of another kind names the setting") {
  const Error error = thrown([] {
    Asked asked;
    asked.format = RowKind::messages;
    asked.table = "validation_dataset.jsonl";
    form_of(parse_json(R"({"text": "t"})"), asked, "f:7");
  });
  CHECK(error.key() == "validation_dataset.jsonl.format");
  CHECK(error.helps().at(1) ==
        "set validation_dataset.jsonl.format = \"text\", if the rows are of that kind");
}

TEST_CASE("what is no JSON, or not UTF-8, has its line and column, and what helps") {
  const std::string
      comma = ": not valid JSON: a comma stands before }, with nothing behind it",
      byte = ": the text is not UTF-8 (byte 0x",
      utf8 = "save the file as UTF-8: iconv -f CP1252 -t UTF-8",
      one_a_line =
          "a row is an object on one line, and this one does not end there: jq -c "
          "'if type == \"array\" then .[] else . end' 'f' > rows.jsonl writes each on "
          "a line";
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
  CHECK(place([] { form_of(parse_json("3"), {}, "a:1.jsonl:12"); }) == "a:1.jsonl 12 0");
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
                         {"\xFD\x37zXZ\0\0"sv, "compressed by xz", unpack + "xz -dc <"},
                         {"BZh91AY&SY", "compressed by bzip2", unpack + "bunzip2 <"},
                         {"PK\x03\x04\x14"sv, "a zip archive", unpack + "unzip -p"}}) {
    CAPTURE(one.what);
    const Error error = thrown([&] { RowFile(one.text, "rows/a b.jsonl"); });
    CHECK(error.code() == ErrorCode::bad_dataset);
    REQUIRE(error.helps().size() == 1);
    CHECK(error.origin().file == "rows/a b.jsonl");
    CHECK(error.message() + "; " + error.helps()[0] ==
          "rows/a b.jsonl: the file is " + one.what + one.how + " 'rows/a b.jsonl' > rows.jsonl");
  }
  for (const auto& [text, what] : {std::pair("\x1F\x8B\b"sv, "gzip"),
                                   {"\x28\xB5\x2F\xFD\x04"sv, "zstd"},
                                   {"PAR1\x15....PAR1"sv, "Parquet"}}) {
    const Error error = thrown([&, &text = text] { RowFile(text, "rows.jsonl.gz"); });
    CHECK(error.message() ==
          std::string("rows.jsonl.gz: the file is packed, and what comes out is ") + what);
    CHECK(error.helps().at(0) == "unpack it once: gzip -d rows.jsonl.gz");
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
