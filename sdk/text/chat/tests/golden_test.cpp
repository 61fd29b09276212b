#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "cases.h"
#include "meshwright/error.h"
#include "sdk/text/chat/chat_template.h"

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

// The answer of message i as a trainer without origins finds it: what render(messages[:i + 1])
// adds to render(messages[:i]) with the prompt for an answer. Where either is no beginning of the
// chat (a template that drops older thoughts, say, or ends a chat otherwise), it finds nothing.
TEST_CASE("spans are the differences of prefixes where prefixes tell") {
  int starts = 0, ends = 0;
  for (const Value& one : golden().get("cases")->as_list()) {
    const Conversation conversation(one);
    const std::optional<std::string> source = source_of(text(one, "template"), *conversation.form);
    if (!source || one.get("error") != nullptr) continue;
    const ChatTemplate chat = ChatTemplate::parse(*source, "T");
    if (chat.has_generation_blocks()) continue;
    const ChatTemplate::Request& request = conversation.request;
    const ChatTemplate::Rendered whole = chat.render(request);
    // The text of the first messages if the chat begins with it.
    const auto beginning = [&](size_t messages, bool prompt) -> std::optional<std::string> {
      ChatTemplate::Request prefix = request;
      prefix.first_messages = messages;
      prefix.add_generation_prompt = prompt;
      try {
        std::string out = chat.render(prefix).text;
        if (whole.text.starts_with(out)) return out;
      } catch (const Error&) {
      }  // a template that wants more messages
      return std::nullopt;
    };
    std::vector<Span> spans;
    if (one.get("assistant_spans") != nullptr)
      spans = assistant_spans(chat, request, whole, conversation.special_tokens);
    for (const Span& span : spans) {
      std::string name = text(one, "template") + " " + text(one, "conversation") + ", message " +
                         std::to_string(span.message);
      CAPTURE(name);
      const auto message = static_cast<size_t>(span.message);
      const std::optional<std::string> before = beginning(message, true),
                                       with = beginning(message + 1, false);
      if (!before) continue;
      CHECK(span.begin == before->size());
      ++starts;
      if (!with || with->size() <= before->size()) continue;
      // What follows the token that ends the answer is out: a new line, and the end of the chat
      // where the template closes it with a token of its own.
      REQUIRE(span.end <= with->size());
      std::string_view rest = std::string_view(*with).substr(span.end);
      if (rest.starts_with('\n')) rest.remove_prefix(1);
      const std::string eos = text(*conversation.form, "eos_token");
      CHECK((rest.empty() || rest == eos));
      ++ends;
    }
  }
  CHECK(starts >= 76);
  CHECK(ends >= 62);
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

TEST_CASE("expressions and templates mean what they mean to Jinja") {
  Value file = parse_json(chat::testing::file_text("semantics.json"));
  const Value* context = file.get("context");
  int texts = 0, errors = 0;
  for (const Value& one : file.get("cases")->as_list()) {
    std::string source = text(one, "template");
    CAPTURE(source);
    std::optional<std::string> refused = chat::testing::refusal(source, context);
    if (one.get("error") != nullptr) {
      std::string jinja = text(one, "error");
      CAPTURE(jinja);
      CHECK(refused.has_value());
      ++errors;
      continue;
    }
    CHECK(refused.value_or("") == "");
    if (!refused) CHECK(chat::testing::rendered(source, context) == text(one, "text"));
    ++texts;
  }
  CHECK(texts == 4432);
  CHECK(errors == 2048);
}

}  // namespace golden_test
