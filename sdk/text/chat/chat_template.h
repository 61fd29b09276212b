// Chat templates of Hugging Face models: the part of Jinja that they use, rendered as
// transformers' apply_chat_template renders it (trim_blocks, lstrip_blocks, the sandbox,
// break/continue, generation blocks), with the origin of every byte.
//
//   ChatTemplate chat = ChatTemplate::parse(text, "chat_template.jinja");
//   ChatTemplate::Request request;
//   request.messages = row.get("messages");
//   ChatTemplate::Rendered out = chat.render(request);
//
// A ChatTemplate does not change once parsed; render() may be called by several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/text/chat/value.h"

namespace meshwright::chat {

namespace ast {
struct Program;
}

// What strftime_now() says.
struct Date {
  int year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0;
};

// What one rendering may take, so that no template runs away. Beyond: Error(bad_template). Of a row
// that is small; of a larger one more, as of_row() says.
struct Limits {
  static constexpr size_t kCalls = 64;  // macros, callers and recursive loops
  size_t output = size_t{16} << 20;     // bytes of one text
  size_t turns = 1'000'000;             // of all loops together
  size_t memory = size_t{512} << 20;    // of values that live at one time
  size_t work = size_t{4} << 30;        // bytes or items looked at
  // Templates look at each message again for each message, and at each value. `values` of messages,
  // tools, documents and variables, those within others too; `bytes` of their texts.
  static Limits of_row(size_t messages, size_t values, size_t bytes);
};

class ChatTemplate {
 public:
  // `name` begins the messages. Throws Error(bad_template) "NAME:LINE: ..." for what is not a
  // template, a tag that is not known included. Filters, tests and functions that are not known are
  // errors only when they are reached.
  static ChatTemplate parse(std::string text, std::string name);

  // The values are only read, and only during render().
  struct Request {
    const Value* messages = nullptr;   // a list of dicts; absent: none
    const Value* tools = nullptr;      // absent: none
    const Value* documents = nullptr;  // absent: none
    bool add_generation_prompt = false;
    std::vector<std::pair<std::string, std::string>> special_tokens;  // {"bos_token", "<s>"}
    const Value* variables = nullptr;  // a dict: template_variables; wins over all the above
    std::optional<Date> date;          // absent: strftime_now is undefined
    // Renders messages[:first_messages] only.
    std::optional<size_t> first_messages;
  };
  // Bytes [begin, end) of the text that come from values of message `message`. What neither an
  // Origin nor `Rendered::tools` covers comes from the template, a role or other variables.
  struct Origin {
    size_t begin = 0, end = 0;
    int32_t message = 0;
    bool operator==(const Origin&) const = default;
  };
  struct Rendered {
    std::string text;
    std::vector<Origin> origins;                         // in order, disjoint, none empty
    std::vector<std::pair<size_t, size_t>> tools;        // bytes of the tools; likewise
    std::vector<std::pair<size_t, size_t>> generations;  // bytes of {% generation %}, none empty
  };
  // Throws Error(bad_template) "NAME:LINE: ...": raise_exception() with its text, and all else that
  // Jinja refuses.
  Rendered render(const Request& request) const;

  // Whether {% generation %} occurs in the text.
  bool has_generation_blocks() const;
  const std::string& name() const;
  const std::string& text() const;  // as given to parse()

 private:
  explicit ChatTemplate(std::shared_ptr<const ast::Program> program);
  std::shared_ptr<const ast::Program> program_;
};

// Which bytes of a rendered chat are turns, and which are answers of the assistant: what is trained
// on.

struct Span {
  size_t begin = 0, end = 0;
  int32_t message = -1;  // -1: a generation block, which may belong to any
  bool ends = true;      // false: no special token closes it; the model will not learn to stop
  bool operator==(const Span&) const = default;
};

// Of each message that left something in the text, in their order: from its first byte through the
// special token that ends the turn, which stands before the next message's byte. What it left
// behind another message's bytes has a span of its own: a template may quote a call beside its
// result.
std::vector<Span> message_spans(const ChatTemplate::Rendered& rendered,
                                std::span<const std::string> special_tokens);

// One for each assistant message that left something in the text, in their order: the first span
// of the message, so that no answer holds what another message says; the generation blocks instead
// if the template has any. `rendered` is what `chat` made of `request`;
// `special_tokens` are the texts of all tokens that are special. A span includes the token that
// ends the turn. Throws Error(bad_template) "cannot tell where answer i begins" (i counts the
// messages from 0).
std::vector<Span> assistant_spans(const ChatTemplate& chat, const ChatTemplate::Request& request,
                                  const ChatTemplate::Rendered& rendered,
                                  std::span<const std::string> special_tokens);

// The built-in template "chatml".
std::string_view chatml();

}  // namespace meshwright::chat
