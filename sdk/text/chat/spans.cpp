#include "sdk/text/chat/spans.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "meshwright/error.h"

namespace meshwright::chat {

namespace {

using Origin = ChatTemplate::Origin;

// What the template writes after the last byte of a message when it asks for message `index`.
std::string prompt_before(const ChatTemplate& chat, const ChatTemplate::Request& request,
                          size_t index) {
  ChatTemplate::Request prefix = request;
  prefix.first_messages = index;
  prefix.add_generation_prompt = true;
  ChatTemplate::Rendered out = chat.render(prefix);
  return out.text.substr(out.origins.empty() ? 0 : out.origins.back().end);
}

// The end of the first special token in [begin, end) of the text; 0 without one.
size_t end_token(std::string_view text, size_t begin, size_t end,
                 std::span<const std::string> special_tokens) {
  std::string_view part = text.substr(begin, end - begin);
  size_t first = part.size(), size = 0;
  for (const std::string& token : special_tokens) {
    if (token.empty()) continue;
    // Of two at the same place the longer one is read.
    size_t at = part.substr(0, std::min(part.size(), first + token.size())).find(token);
    if (at == std::string_view::npos) continue;
    if (at < first || (at == first && token.size() > size)) {
      first = at;
      size = token.size();
    }
  }
  return size == 0 ? 0 : begin + first + size;
}

// Where bytes of the message end within [begin, end) and the text goes on with `closing`.
std::vector<size_t> closed_at(const ChatTemplate::Rendered& rendered, int32_t message, size_t begin,
                              size_t end, std::string_view closing) {
  std::vector<size_t> out;
  for (const Origin& origin : rendered.origins)
    if (origin.message == message && origin.begin >= begin && origin.end <= end &&
        std::string_view(rendered.text).substr(origin.end).starts_with(closing))
      out.push_back(origin.end);
  return out;
}

// A later turn may begin with a quotation of the answer, which then seems to go on through it. The
// answer ends where it does in the chat that goes no further: at the token that closes it there, of
// which there may be several, between thoughts and words say.
void end_before_quotations(const ChatTemplate& chat, const ChatTemplate::Request& request,
                           const ChatTemplate::Rendered& rendered,
                           std::span<const std::string> special_tokens, Span& answer) {
  const size_t begin = answer.begin, end = answer.end;
  const Origin *first = nullptr, *last = nullptr;
  for (const Origin& origin : rendered.origins)
    if (origin.message == answer.message && origin.begin >= begin && origin.end <= end) {
      if (first == nullptr) first = &origin;
      last = &origin;
    }
  if (first == last || end_token(rendered.text, first->end, last->begin, special_tokens) == 0)
    return;
  ChatTemplate::Request prefix = request;
  prefix.first_messages = static_cast<size_t>(answer.message) + 1;
  prefix.add_generation_prompt = false;
  ChatTemplate::Rendered alone;
  try {
    alone = chat.render(prefix);
  } catch (const Error&) {
    return;  // a template that wants more messages
  }
  if (alone.origins.empty() || alone.origins.back().message != answer.message) return;
  const size_t said = alone.origins.back().end,
               closed = end_token(alone.text, said, alone.text.size(), special_tokens);
  if (closed == 0) return;
  const std::string closing = alone.text.substr(said, closed - said);
  const size_t times = closed_at(alone, answer.message, 0, alone.text.size(), closing).size();
  const std::vector<size_t> here = closed_at(rendered, answer.message, begin, end, closing);
  if (here.size() < times) return;
  answer.end = here[times - 1] + closing.size();
  answer.ends = true;
}

// A block ends its answer where a special token stands behind its last byte of a message, or where
// another block of the same message follows.
std::vector<Span> block_spans(const ChatTemplate::Rendered& rendered,
                              std::span<const std::string> special_tokens) {
  std::vector<Span> spans;
  int32_t before = -1;
  auto origin = rendered.origins.begin();
  for (auto [begin, end] : rendered.generations) {
    while (origin != rendered.origins.end() && origin->end <= begin) ++origin;
    size_t last = begin;
    int32_t message = -1;
    for (auto at = origin; at != rendered.origins.end() && at->begin < end; ++at) {
      last = std::min(at->end, end);
      message = at->message;
    }
    if (message >= 0 && message == before) spans.back().ends = true;
    before = message;
    spans.push_back({begin, end, -1, end_token(rendered.text, last, end, special_tokens) != 0});
  }
  return spans;
}

}  // namespace

std::vector<Span> message_spans(const ChatTemplate::Rendered& rendered,
                                std::span<const std::string> special_tokens) {
  std::vector<Span> all;
  const std::vector<Origin>& origins = rendered.origins;
  for (size_t begin = 0, next = 0; begin < origins.size(); begin = next) {
    const int32_t message = origins[begin].message;
    while (next < origins.size() && origins[next].message == message) ++next;
    Span span{origins[begin].begin, origins[next - 1].end, message, false};
    const size_t until = next == origins.size() ? rendered.text.size() : origins[next].begin;
    if (size_t end = end_token(rendered.text, span.end, until, special_tokens); end != 0) {
      span.end = end;
      span.ends = true;
    }
    all.push_back(span);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Span& a, const Span& b) { return a.message < b.message; });
  return all;
}

std::vector<Span> assistant_spans(const ChatTemplate& chat, const ChatTemplate::Request& request,
                                  const ChatTemplate::Rendered& rendered,
                                  std::span<const std::string> special_tokens) {
  std::vector<Span> spans;
  if (chat.has_generation_blocks()) return block_spans(rendered, special_tokens);
  if (request.messages == nullptr || !request.messages->is_list()) return spans;
  const Value::List& messages = request.messages->as_list();
  std::string_view text = rendered.text;
  int32_t before = -1;
  for (Span span : message_spans(rendered, special_tokens)) {
    if (std::exchange(before, span.message) == span.message) continue;  // a quotation
    auto number = static_cast<size_t>(span.message);
    const Value* role = messages.at(number).get("role");
    if (role == nullptr || !role->is_string() || role->as_string() != "assistant") continue;
    size_t a = span.begin, p = 0;
    for (const Origin& origin : rendered.origins)
      if (origin.message < span.message && origin.end <= a) p = std::max(p, origin.end);
    auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::bad_template, chat.name() + ": cannot tell where answer " +
                                               std::to_string(number) + " begins" + why)
          .help(
              "put {% generation %} and {% endgeneration %} around what the assistant says in "
              "the template");
    };
    end_before_quotations(chat, request, rendered, special_tokens, span);
    std::string prompt;
    try {
      prompt = prompt_before(chat, request, number);
    } catch (const Error& error) {
      refuse(": the messages before it cannot be rendered: " + error.message());
    }
    std::string_view between = text.substr(p, a - p);
    if (between.starts_with(prompt))
      span.begin = p + prompt.size();
    else if (!std::string_view(prompt).starts_with(between))
      refuse("");
    spans.push_back(span);
  }
  return spans;
}

}  // namespace meshwright::chat
