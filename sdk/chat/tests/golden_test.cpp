#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "cases.h"
#include "meshwright/error.h"
#include "sdk/chat/spans.h"

namespace golden_test {

using namespace meshwright;
using namespace meshwright::chat;
using chat::testing::Conversation;
using chat::testing::golden;
using chat::testing::text;

using Spans = std::vector<std::pair<size_t, size_t>>;

Spans spans_of(const Value& list) {
  Spans out;
  for (const Value& span : list.as_list())
    out.emplace_back(span.as_list()[0].as_integer(), span.as_list()[1].as_integer());
  return out;
}

// Templates whose licence forbids a copy are not in the file; NAME.jinja in the folder
// $MESHWRIGHT_CHAT_TEMPLATES takes their place.
std::optional<std::string> source_of(const std::string& name, const Value& form) {
  if (form.get("source")->is_string()) return form.get("source")->as_string();
  const char* folder = std::getenv("MESHWRIGHT_CHAT_TEMPLATES");
  if (folder == nullptr) return std::nullopt;
  std::ifstream in(std::filesystem::path(folder) / (name + ".jinja"), std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST_CASE("chats come out as transformers renders them, to the byte, and so do their spans") {
  int rendered = 0, refused = 0, spans = 0, blocks = 0, absent = 0, prompt_forms = 0;
  for (const Value& one : golden().get("cases")->as_list()) {
    Conversation conversation(one);
    std::string name = text(one, "template") + " " + text(one, "conversation");
    CAPTURE(name);
    std::optional<std::string> source = source_of(text(one, "template"), *conversation.form);
    if (!source) {
      ++absent;
      continue;
    }
    ChatTemplate chat = ChatTemplate::parse(*source, "T");
    if (const Value* error = one.get("error")) {
      std::string found;
      try {
        chat.render(conversation.request);
      } catch (const Error& problem) {
        CHECK(problem.code() == ErrorCode::bad_template);
        found = problem.message();
      }
      CHECK(found.find(": " + error->as_string()) != std::string::npos);
      ++refused;
      continue;
    }
    ChatTemplate::Rendered out = chat.render(conversation.request);
    if (const Value* bytes = one.get("text_bytes"))  // its prose may not be copied either
      CHECK(out.text.size() == static_cast<size_t>(bytes->as_integer()));
    else
      CHECK(out.text == text(one, "text"));
    ++rendered;
    if (conversation.request.add_generation_prompt) ++prompt_forms;
    if (const Value* expected = one.get("generation_spans")) {
      CHECK(out.generations == spans_of(*expected));
      ++blocks;
    }
    if (const Value* expected = one.get("assistant_spans")) {
      Spans found;
      for (const Span& span :
           assistant_spans(chat, conversation.request, out, conversation.special_tokens))
        found.emplace_back(span.begin, span.end);
      CHECK(found == spans_of(*expected));
      ++spans;
    }
  }
  CHECK(rendered + refused + absent == 116);
  CHECK(absent <= 29);
  CHECK(rendered >= 81);
  CHECK(refused >= 6);
  CHECK(spans >= 66);
  CHECK(blocks == 19);
  CHECK(prompt_forms >= 22);
}

TEST_CASE("each rule of Jinja holds") {
  int texts = 0, errors = 0;
  for (const Value& one : golden().get("jinja")->as_list()) {
    std::string name = text(one, "name");
    CAPTURE(name);
    std::string source = text(one, "template");
    std::optional<std::string> refused = chat::testing::refusal(source, one.get("context"));
    if (const Value* error = one.get("error")) {
      CHECK(refused.has_value());
      CHECK(!error->as_string().empty());
      ++errors;
      continue;
    }
    CHECK(refused.value_or("") == "");
    if (!refused) CHECK(chat::testing::rendered(source, one.get("context")) == text(one, "text"));
    ++texts;
  }
  CHECK(texts == 96);
  CHECK(errors == 16);
}

}  // namespace golden_test
