#include "sdk/text/chat/chat_template.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "meshwright/error.h"
#include "sdk/text/chat/parser.h"
#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

Renderer::Renderer(const ast::Program& program, const ChatTemplate::Request& request)
    : program_(program), request_(request) {}

Limits Limits::of_row(size_t messages, size_t values, size_t bytes) {
  constexpr size_t kMostOutput = size_t{1} << 30, kMostTurns = 1'000'000'000,
                   kMostWork = size_t{1} << 38;
  auto times = [](size_t a, size_t b) {
    size_t out = 0;
    return __builtin_mul_overflow(a, b, &out) ? SIZE_MAX / 8 : std::min(out, SIZE_MAX / 8);
  };
  Limits out;
  out.output = std::max(out.output, std::min(kMostOutput, out.output + times(8, bytes)));
  out.turns = std::min(kMostTurns, out.turns + 4 * times(messages, values));
  out.memory += times(16, bytes) + times(256, values);
  out.work = std::min(kMostWork, out.work + 4 * times(messages, values + bytes));
  return out;
}

// The limits that this row has.
void Renderer::measure() {
  size_t values = 0, bytes = 0;
  const auto count = [&](const auto& self, const Value& value) -> void {
    ++values;
    if (value.is_string()) {
      bytes += value.as_string().size();
    } else if (value.is_list()) {
      for (const Value& item : value.as_list()) self(self, item);
    } else if (value.is_dict()) {
      for (const auto& [key, member] : value.as_dict()) self(self, member);
    }
  };
  for (const Value* given :
       {request_.messages, request_.tools, request_.documents, request_.variables})
    if (given != nullptr) count(count, *given);
  const Value* messages = request_.messages;
  limits_ = Limits::of_row(
      messages != nullptr && messages->is_list() ? messages->as_list().size() : 0, values, bytes);
  budget_.limit = limits_.memory;
}

// A value of the row as one of the rendering, whose texts are borrowed.
Datum Renderer::import(const Value& value, int32_t message, int depth) {
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  Datum out = Datum::none();
  auto whole = [&](size_t size) {
    if (size > UINT32_MAX / 2) fail("a value is too large");
    return size;
  };
  if (value.is_string()) {
    whole(value.as_string().size());
    out = Datum::string(value.as_string());
  } else if (value.is_dict()) {
    const Value::Dict& members = value.as_dict();
    Datum* entries = take<Datum>(2 * whole(members.size()));
    for (size_t i = 0; i < members.size(); ++i) {
      entries[2 * i] = Datum::string(members[i].first, message);
      entries[2 * i + 1] = import(members[i].second, message, depth + 1);
    }
    out = Datum::sequence(Kind::dict, entries, members.size());
  } else if (value.is_list()) {
    const Value::List& values = value.as_list();
    Datum* items = take<Datum>(whole(values.size()));
    for (size_t i = 0; i < values.size(); ++i) items[i] = import(values[i], message, depth + 1);
    out = Datum::sequence(Kind::list, items, values.size());
  } else if (value.is_boolean()) {
    out = Datum::boolean(value.as_boolean());
  } else if (value.is_integer()) {
    out = Datum::whole(value.as_integer());
  } else if (value.is_real()) {
    out = Datum::number(value.as_real());
  } else if (value.is_big_integer()) {
    out = Datum::string(value.as_digits());
    out.kind = Kind::big;
  }
  out.message = message;
  return out;
}

// Each message knows its number, but for its role.
Datum Renderer::import_messages(const Value& messages) {
  if (!messages.is_list()) return import(messages, kNoMessage);
  size_t size = messages.as_list().size();
  if (request_.first_messages) size = std::min(size, *request_.first_messages);
  Datum* items = take<Datum>(size);
  for (size_t i = 0; i < size; ++i) {
    const Value& message = messages.as_list()[i];
    items[i] = import(message, static_cast<int32_t>(i));
    if (!message.is_dict()) continue;
    auto* entries = const_cast<Datum*>(items[i].items);  // made above
    for (uint32_t k = 0; k < items[i].size; ++k)
      if (entries[2 * k].view() == "role")
        entries[2 * k + 1] = import(*message.get("role"), kNoMessage);
  }
  return Datum::sequence(Kind::list, items, size);
}

Datum Renderer::global(const std::string& name) {
  if (request_.variables != nullptr)
    if (const Value* found = request_.variables->get(name)) return import(*found, kNoMessage);
  auto given = [&](const Value* value, int32_t message = kNoMessage) {
    return value == nullptr ? Datum::none() : import(*value, message);
  };
  if (name == "messages")
    return request_.messages == nullptr ? Datum::none() : import_messages(*request_.messages);
  if (name == "tools") return given(request_.tools, kOfTools);
  if (name == "documents") return given(request_.documents);
  if (name == "add_generation_prompt") return Datum::boolean(request_.add_generation_prompt);
  for (const auto& [key, text] : request_.special_tokens)
    if (key == name) return Datum::string(text);
  static constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"namespace", Function::space},
      {"dict", Function::dict},
      {"range", Function::range},
      {"joiner", Function::joiner},
      {"cycler", Function::cycler},
      {"raise_exception", Function::raise_exception},
      {"strftime_now", Function::strftime_now}};
  for (auto [known, function] : kFunctions) {
    if (known != name || (function == Function::strftime_now && !request_.date)) continue;
    Callable of{.type = Callable::Type::function, .function = function, .name = known};
    return callable(of);
  }
  return Datum::of(Kind::missing);
}

ChatTemplate::Rendered Renderer::run() {
  Writer out;
  out.text.reserve(1024);
  out_ = &out;
  measure();
  globals_ = take<Datum>(program_.globals.size());
  for (size_t i = 0; i < program_.globals.size(); ++i) globals_[i] = global(program_.globals[i]);
  execute(program_.body, *open(*program_.root, nullptr));
  ChatTemplate::Rendered rendered;
  uint32_t block = 0;
  for (const Run& run : out.runs) {
    if (run.message == kOfTools) {
      auto& tools = rendered.tools;
      if (!tools.empty() && tools.back().second == run.begin)
        tools.back().second = run.end;
      else
        tools.emplace_back(run.begin, run.end);
    } else if (run.message != kNoMessage) {
      auto& origins = rendered.origins;
      if (!origins.empty() && origins.back().end == run.begin &&
          origins.back().message == run.message)
        origins.back().end = run.end;
      else
        origins.push_back({run.begin, run.end, run.message});
    }
    if (run.generation == 0) continue;
    auto& blocks = rendered.generations;
    if (!blocks.empty() && blocks.back().second == run.begin && block == run.generation)
      blocks.back().second = run.end;
    else
      blocks.emplace_back(run.begin, run.end);
    block = run.generation;
  }
  rendered.text = std::move(out.text);
  return rendered;
}

ChatTemplate::ChatTemplate(std::shared_ptr<const ast::Program> program)
    : program_(std::move(program)) {}

ChatTemplate ChatTemplate::parse(std::string text, std::string name) {
  std::string shown = name;
  try {
    return ChatTemplate(parse_program(std::move(text), std::move(name)));
  } catch (const SyntaxProblem& problem) {
    throw Error(ErrorCode::bad_template,
                shown + ":" + std::to_string(problem.line) + ": " + problem.what);
  }
}

ChatTemplate::Rendered ChatTemplate::render(const Request& request) const {
  return Renderer(*program_, request).run();
}

bool ChatTemplate::has_generation_blocks() const { return program_->has_generation; }
const std::string& ChatTemplate::name() const { return program_->name; }
const std::string& ChatTemplate::text() const { return program_->source; }

std::string_view chatml() {
  return R"({%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";
}

// What outlives the turn of a loop: namespaces hold it. It moves to an arena of its own, and texts
// and lists that grow there grow in place, so that adding to them turn by turn is linear.

namespace {

constexpr size_t kFewBytes = 1024;  // are copied

}  // namespace

template <class T>
T* Renderer::grown(const T* values, size_t size, size_t more) {
  if (size * sizeof(T) < kFewBytes) return nullptr;
  const auto found = room_.find(values + size);
  if (found == room_.end()) return nullptr;
  T* out = const_cast<T*>(values);  // of ours, with nothing behind them
  size_t room = found->second;
  if (room >= more * sizeof(T)) {
    room_.erase(found);
  } else {
    const size_t wanted = 2 * (size + more);
    out = take_from<T>(kept_, wanted);
    std::copy_n(values, size, out);
    spend(size);
    room = (wanted - size) * sizeof(T);
  }
  room_.insert_or_assign(out + size + more, room - more * sizeof(T));
  return out;
}

template char* Renderer::grown<char>(const char*, size_t, size_t);
template Run* Renderer::grown<Run>(const Run*, size_t, size_t);
template Datum* Renderer::grown<Datum>(const Datum*, size_t, size_t);

Datum Renderer::keep(const Datum& value, int depth) {
  if (turns_open_.empty() || pinned_) return value;
  auto copy = [&]<class T>(const T* from, size_t size) {
    T* out = take_from<T>(kept_, size);
    std::copy_n(from, size, out);
    spend(size);
    if (size * sizeof(T) >= kFewBytes) room_.try_emplace(out + size, 0);
    return out;
  };
  auto copy_values = [&](const Datum* from, size_t size) {
    Datum* out = copy(from, size);
    for (size_t i = 0; i < size; ++i) out[i] = keep(out[i], depth + 1);
    return out;
  };
  Datum out = value;
  switch (value.kind) {
    case Kind::missing:
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
      return value;
    case Kind::string:
      if (value.mixed) {
        if (!is_young(value.parts)) return value;
        Mixed parts = *value.parts;
        if (is_young(parts.text)) parts.text = copy(parts.text, value.size);
        if (is_young(parts.runs)) parts.runs = copy(parts.runs, parts.count);
        out.parts = new (take_from<Mixed>(kept_, 1)) Mixed(parts);
        return out;
      }
      [[fallthrough]];
    case Kind::big:
    case Kind::undefined:
      if (value.size > 0 && is_young(value.text)) out.text = copy(value.text, value.size);
      return out;
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
    case Kind::dict: {
      const size_t before = value.kind == Kind::range ? 3 : 0,
                   size = (value.kind == Kind::dict ? 2 : 1) * size_t{value.size} + before;
      if (size == 0 || !is_young(value.items - before)) return value;
      if (depth > kDeepestValue) break;
      out.items = copy_values(value.items - before, size) + before;
      return out;
    }
    case Kind::iterator:
    case Kind::space:
    case Kind::loop:
    case Kind::callable:
      break;
  }
  // These hold on to frames, or are changed by whoever has them.
  pinned_ = pinned_ || is_young(value.stream);
  return value;
}

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
