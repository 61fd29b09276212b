// What is said of a row that a template refuses, and counted of one that it does not write whole.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "plugins/jsonl/encode_row.h"
#include "plugins/jsonl/row_pieces.h"
#include "temporary_folder.h"

namespace template_test {

using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::jsonl::Encoded;
using meshwright::jsonl::EncodeSettings;
using meshwright::jsonl::Language;
using meshwright::jsonl::RowEncoder;

// The small tokenizer with a template of a test's own.
struct Template {
  jsonl_test::TemporaryFolder folder;
  void write(const std::string& text) const { jsonl_test::write(folder / "t.jinja", text); }
  Encoded encode(const std::string& json) const {
    const meshwright::chat::Value value = meshwright::chat::parse_json(json);
    return RowEncoder(Language::read(jsonl_test::kTokenizer, folder / "t.jinja"), EncodeSettings{})
        .encode(read_row(value, meshwright::jsonl::kind_of(value).value(), "f:1"), "f:1");
  }
};

const std::string kChat =
    R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]})";

TEST_CASE("a template that refuses a row says what may be done") {
  const Template chat_template;
  auto help = [&](const std::string& json, const std::string& chat) -> std::string {
    chat_template.write(chat);
    try {
      chat_template.encode(json);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_template);
      CHECK(error.origin().file == "f");
      CHECK(error.origin().line == 1);
      REQUIRE(error.helps().size() == 1);
      return error.helps()[0];
    }
    return "nothing";
  };
  const std::string joins = "{% for m in messages %}{{ m.role + m.content }}<|im_end|>{% endfor %}";
  CHECK(help(kChat, "{{ strftime_now('%d') }}") ==
        "set dataset.jsonl.date = \"2024-07-26\": the day that strftime_now says");
  CHECK(help(kChat, "{{ 'in ' + style }}") ==
        "if it is a variable of the template, set dataset.jsonl.template_variables = { style = ... "
        "}");
  CHECK(help(kChat, "{{ raise_exception('no') }}") ==
        "change the row, or set dataset.jsonl.chat_template to a template that takes it");
  CHECK(help(kChat, "{% nobody %}") ==
        "mend the template, or set dataset.jsonl.chat_template to another");
  const std::string other = ", or set dataset.jsonl.chat_template to one that does";
  CHECK(
      help(
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null}]})",
          joins) ==
      "messages[1].content is null, which this template does not take: write \"\" in its place" +
          other);
  CHECK(
      help(
          R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})",
          joins) ==
      "completion[0].content is a list of texts, which this template does not take: write its "
      "texts as one string" +
          other);
  // The one that it stumbles over, and not one before.
  const std::string second =
      "{% for m in messages %}{% if m.content is none %}none{% else %}{{ m.role + m.content }}"
      "{% endif %}<|im_end|>{% endfor %}";
  CHECK(
      help(R"({"messages": [{"role": "user", "content": null}, {"role": "assistant"}]})", second) ==
      "messages[1] has no \"content\", which this template does not take: write "
      "\"\" in its place" +
          other);
  // It would not take a string either.
  CHECK(help(R"({"messages": [{"role": "user", "content": null}]})", "{{ 1 + 'a' }}") ==
        "change the row, or set dataset.jsonl.chat_template to a template that takes it");
}

TEST_CASE("what a template leaves out of a chat is counted, and changes nothing") {
  const Template chat_template;
  auto counts = [&](const std::string& json, const std::string& chat) {
    chat_template.write(chat);
    const auto met = chat_template.encode(json).counts;
    return std::vector<int64_t>{met.calls_left_out, met.tools_left_out};
  };
  using Counts = std::vector<int64_t>;
  const std::string row =
      R"({"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "go"}}, {"function": {"name": "stop"}}]}, {"role": "assistant", "content": "", "function_call": {"name": "go"}}], "tools": [{"name": "go"}]})";
  auto turns = [](const std::string& inner) {
    return "{% for m in messages %}" + inner + "<|im_end|>{% endfor %}";
  };
  CHECK(counts(row, turns("{{ m.content }}")) == Counts{3, 1});
  CHECK(counts(row, "{{ tools|tojson }}" + turns("{{ m.content }}")) == Counts{3, 0});
  CHECK(counts(row, turns("{{ m|tojson }}")) == Counts{0, 1});
  CHECK(counts(row, turns("{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}"
                          "{{ m.function_call|tojson if m.function_call }}")) == Counts{0, 1});
  // Of two kinds of calls one is written; calls beside words are not.
  CHECK(counts(row, turns("{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}")) ==
        Counts{1, 1});
  CHECK(counts(row, turns("{{ m.content if m.content else m.function_call|tojson }}")) ==
        Counts{2, 1});
  CHECK(counts(kChat, turns("{{ m.content }}")) == Counts{0, 0});
  CHECK(
      counts(
          R"({"messages": [{"role": "user", "content": "a", "tool_calls": null}, {"role": "user", "content": "a", "tool_calls": []}], "tools": []})",
          turns("{{ m.content }}")) == Counts{0, 0});
}

TEST_CASE("roles that are not known are counted") {
  const Template chat_template;
  auto roles = [&](const std::string& role, const std::string& more = "") {
    chat_template.write("{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}" +
                        more);
    const auto met =
        chat_template.encode(R"({"messages": [{"role": ")" + role + R"(", "content": "a"}]})")
            .counts;
    CHECK(met.chats == 1);
    return met.roles.named;
  };
  using Roles = std::map<std::string, int64_t>;
  for (const char* known : {"system", "developer", "user", "assistant", "tool", "ipython"})
    CHECK(roles(known).empty());
  CHECK(roles("asistant") == Roles{{"asistant", 1}});
  CHECK(roles("Assistant") == Roles{{"Assistant", 1}});
  CHECK(roles("observation") == Roles{{"observation", 1}});
  // One of the template's own; that does not make answers of what it calls a model.
  CHECK(roles("observation", "{% if x == 'observation' %}{% endif %}").empty());
  CHECK(roles("model", "{% if x == 'model' %}{% endif %}") == Roles{{"model", 1}});
  CHECK(chat_template.encode(R"({"text": "a"})").counts.chats == 0);
}

TEST_CASE("what role was meant") {
  using meshwright::jsonl::role_meant;
  for (const char* role :
       {"asistant", "Assistant", "ASSISTANT", "asssistant", "GPT", "gpt", "bot", "model"})
    CHECK(role_meant(role) == "assistant");
  CHECK(role_meant("Human") == "user");
  CHECK(role_meant("usr") == "user");
  CHECK(role_meant("sytem") == "system");
  CHECK(role_meant("observation").empty());
}

}  // namespace template_test
