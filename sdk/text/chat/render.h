// Which bytes of a rendered chat are turns, and which are answers of the assistant: what is trained
// on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sdk/text/chat/chat_template.h"

namespace meshwright::chat {

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

}  // namespace meshwright::chat
