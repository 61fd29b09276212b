#include "encode_row.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "prepare.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/roles.h"
#include "sdk/text/tokenizer/folder.h"
#include "sdk/text/tokenizer/normalize.h"
#include "token_store.h"

namespace meshwright::jsonl {

// What of a chat its template does not write.

namespace {

using chat::ChatTemplate;
using chat::Value;

bool is_call_key(std::string_view key) { return key == "tool_calls" || key == "function_call"; }

// The calls of a message, which hold names where they are as they should be.
std::vector<const Value*> calls_of(const Value& message) {
  std::vector<const Value*> out;
  for (const auto& [key, value] : message.as_dict()) {
    if (!is_call_key(key) || value.is_none()) continue;
    if (!value.is_list()) {
      out.push_back(&value);
      continue;
    }
    for (const Value& call : value.as_list()) out.push_back(&call);
  }
  return out;
}

Value without_calls(const Value& message) {
  Value::Dict out;
  for (const auto& member : message.as_dict())
    if (!is_call_key(member.first)) out.push_back(member);
  return Value::dict(std::move(out));
}

// The template writes the same text of other messages. One that refuses these has looked.
bool same_text(const ChatTemplate& chat, ChatTemplate::Request request, const Value& messages,
               const std::string& text) {
  request.messages = &messages;
  try {
    return chat.render(request).text == text;
  } catch (const Error&) {
    return false;
  }
}

// What a message left in the text names all functions that it calls.
bool names_all(const ChatTemplate::Rendered& rendered, size_t message,
               const std::vector<const Value*>& calls) {
  std::string said;
  for (const ChatTemplate::Origin& origin : rendered.origins)
    if (static_cast<size_t>(origin.message) == message)
      said += rendered.text.substr(origin.begin, origin.end - origin.begin) + "\n";
  for (const Value* call : calls) {
    const Value* function = call->get("function");
    const Value* name = (function != nullptr ? function : call)->get("name");
    if (name == nullptr || !name->is_string() || said.find(name->as_string()) == std::string::npos)
      return false;
  }
  return true;
}

}  // namespace

// Adds to `counts` the calls of tools and the tools of `request` that are not in `rendered`, which
// `chat` made of it: a text is the same without them. Messages are dicts.
void count_left_out(const ChatTemplate& chat, const ChatTemplate::Request& request,
                    const ChatTemplate::Rendered& rendered, StoreCounts& counts) {
  if (request.tools != nullptr && !request.tools->as_list().empty() && rendered.tools.empty())
    ++counts.tools_left_out;
  const Value::List& messages = request.messages->as_list();
  std::vector<std::pair<size_t, std::vector<const Value*>>> calling;
  int64_t all = 0;
  for (size_t i = 0; i < messages.size(); ++i)
    if (std::vector<const Value*> calls = calls_of(messages[i]); !calls.empty()) {
      all += static_cast<int64_t>(calls.size());
      calling.emplace_back(i, std::move(calls));
    }
  if (all == 0) return;
  Value bare = *request.messages;
  for (const auto& [i, calls] : calling) bare.as_list()[i] = without_calls(messages[i]);
  if (same_text(chat, request, bare, rendered.text)) {
    counts.calls_left_out += all;
    return;
  }
  // Some are written: most templates write all, and then each names its function.
  if (calling.size() == 1) return;
  for (const auto& [i, calls] : calling) {
    if (names_all(rendered, i, calls)) continue;
    Value one = *request.messages;
    one.as_list()[i] = without_calls(messages[i]);
    if (same_text(chat, request, one, rendered.text))
      counts.calls_left_out += static_cast<int64_t>(calls.size());
  }
}

namespace {

namespace fs = std::filesystem;

// Runs of tokens that overlap one of the ascending spans. A token that stands for no bytes (the
// tokenizer's own template adds it) overlaps none.
std::vector<Run> overlapping(std::span<const Bytes> tokens, std::span<const Bytes> spans) {
  std::vector<Run> out;
  size_t span = 0;
  for (uint32_t token = 0; token < tokens.size(); ++token) {
    const Bytes& bytes = tokens[token];
    while (span < spans.size() && spans[span].end <= bytes.begin) ++span;
    if (span == spans.size()) break;
    if (bytes.begin == bytes.end || bytes.end <= spans[span].begin) continue;
    if (!out.empty() && out.back().end == token)
      ++out.back().end;
    else
      out.push_back({token, token + 1});
  }
  return out;
}

// All of `tokens` tokens but those of ascending runs.
std::vector<Run> others(uint32_t tokens, const std::vector<Run>& runs) {
  std::vector<Run> out;
  uint32_t done = 0;
  for (const Run& run : runs) {
    if (run.begin > done) out.push_back({done, run.begin});
    done = run.end;
  }
  if (done < tokens) out.push_back({done, tokens});
  return out;
}

void sort_by_begin(std::vector<Bytes>& spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
}

using Rendered = chat::ChatTemplate::Rendered;

// The message that an answer is of; -1: none. A generation block is of the one whose bytes it has.
int32_t message_of(const chat::Span& answer, const Rendered& rendered) {
  if (answer.message >= 0) return answer.message;
  for (const chat::ChatTemplate::Origin& origin : rendered.origins)
    if (origin.end > answer.begin && origin.begin < answer.end) return origin.message;
  return -1;
}

// What of a chat is learnt.
struct Learning {
  std::vector<Bytes> spans;  // ascending; of training on all what is not learnt
  int64_t open_ends = 0;     // answers that are learnt, and that no special token ends
};

Learning answers_learnt(const std::vector<chat::Span>& answers, const Row& row,
                        const Rendered& rendered, TrainOn train_on) {
  Learning out;
  // An answer may be several spans: generation blocks for its thoughts and its words.
  const int32_t last = answers.empty() ? -1 : message_of(answers.back(), rendered);
  for (const chat::Span& answer : answers) {
    const int32_t message = message_of(answer, rendered);
    if (train_on == TrainOn::last && &answer != &answers.back() && (message < 0 || message != last))
      continue;
    if (message >= 0 && !row.trained[static_cast<size_t>(message)]) continue;
    if (row.completion_at && (message < 0 || static_cast<size_t>(message) < *row.completion_at))
      continue;
    out.spans.push_back({answer.begin, answer.end});
    if (!answer.ends) ++out.open_ends;
  }
  sort_by_begin(out.spans);
  return out;
}

bool is_assistant(const chat::Value& message) {
  const chat::Value* role = message.get("role");
  return role != nullptr && role->is_string() && role->as_string() == "assistant";
}

// All but the turns of weight 0. What the template writes before a message (its role) is not of the
// turn; what it writes of an answer is.
Learning all_learnt(const chat::ChatTemplate& chat, const chat::ChatTemplate::Request& request,
                    const Rendered& rendered, const Row& row,
                    std::span<const std::string> special_tokens) {
  Learning out;
  bool answers = false;  // of weight 0
  int32_t before = -1;
  for (const chat::Span& turn : chat::message_spans(rendered, special_tokens)) {
    const auto message = static_cast<size_t>(turn.message);
    const bool answer = is_assistant(row.messages.as_list()[message]),
               first = std::exchange(before, turn.message) != turn.message;
    if (row.trained[message]) {
      out.open_ends += answer && first && !turn.ends ? 1 : 0;
    } else {
      out.spans.push_back({turn.begin, turn.end});
      answers = answers || answer;
    }
  }
  if (answers)
    for (const chat::Span& answer : chat::assistant_spans(chat, request, rendered, special_tokens))
      if (const int32_t message = message_of(answer, rendered);
          message >= 0 && !row.trained[static_cast<size_t>(message)])
        out.spans.push_back({answer.begin, answer.end});
  sort_by_begin(out.spans);
  return out;
}

// What of a chat's text its row wrote: messages and tools.
std::vector<Bytes> written_by_row(const Rendered& rendered) {
  std::vector<Bytes> out;
  for (const chat::ChatTemplate::Origin& origin : rendered.origins)
    out.push_back({origin.begin, origin.end});
  for (auto [begin, end] : rendered.tools) out.push_back({begin, end});
  sort_by_begin(out);
  return out;
}

// A text less the token that may begin and the one that may end it: a row may write these itself.
Bytes inner_part(std::string_view text, const Language& language) {
  Bytes out{0, text.size()};
  if (language.bos && text.starts_with(language.bos->text)) out.begin = language.bos->text.size();
  if (language.eos && text.substr(out.begin).ends_with(language.eos->text))
    out.end -= language.eos->text.size();
  return out;
}

// The last of `tokens` tokens is learnt.
void learn_last(std::vector<Run>& runs, uint32_t tokens) {
  if (!runs.empty() && runs.back().end == tokens) return;
  if (!runs.empty() && runs.back().end == tokens - 1)
    ++runs.back().end;
  else
    runs.push_back({tokens - 1, tokens});
}

}  // namespace

std::shared_ptr<const Language> Language::read(const std::string& folder,
                                               const std::string& chat_template,
                                               const std::string& table) {
  Language out{tokenizer::Tokenizer::load(
                   tokenizer::tokenizer_file(folder).value_or(fs::path(folder) / "tokenizer.json")),
               chat::Store::open(folder, chat_template, table + ".chat_template"),
               {},
               {},
               {}};
  for (const std::string_view token : out.tokenizer.special_tokens())
    out.special_tokens.emplace_back(token);
  for (const auto& [key, text] : out.templates.special_tokens()) {
    if (key != "bos_token" && key != "eos_token") continue;
    if (const std::optional<int64_t> id = out.tokenizer.id_of(text))
      (key == "bos_token" ? out.bos : out.eos) = EdgeToken{*id, text};
  }
  return std::make_shared<const Language>(std::move(out));
}

RowEncoder::RowEncoder(std::shared_ptr<const Language> language, EncodeSettings settings)
    : language_(std::move(language)), settings_(std::move(settings)) {}

Encoded RowEncoder::encode(const Row& row, const std::string& where) const {
  Encoded out = row.messages.as_list().empty() ? encode_text(row, where) : encode_chat(row, where);
  out.counts.rows = 1;
  out.counts.own_systems = row.own_system ? 1 : 0;
  out.counts.renamed = row.renamed;
  out.document.weight = row.weight;
  out.counts.own_variables = row.variables.is_none() ? 0 : 1;
  for (const std::string& key : row.unread) out.counts.columns.add(key);
  out.counts.young = tokenizer::young_characters(out.text);
  const std::vector<int64_t>& ids = out.document.ids;
  if (const auto& bos = language_->bos;
      bos && ids.size() > 1 && ids[0] == bos->id && ids[1] == bos->id)
    out.counts.double_begins = 1;
  return out;
}

Encoded RowEncoder::encode_chat(const Row& row, const std::string& where) const {
  chat::ChatTemplate::Request request;
  request.messages = &row.messages;
  if (!row.tools.is_none()) request.tools = &row.tools;
  request.special_tokens = language_->templates.special_tokens();
  chat::Value variables = settings_.variables;
  if (row.variables.is_dict())
    for (const auto& [name, value] : row.variables.as_dict()) variables.set(name, value);
  request.variables = &variables;
  request.date = settings_.date;

  Encoded out;
  Rendered rendered;
  Learning learning;
  const bool all = settings_.train_on == TrainOn::all;
  const chat::ChatTemplate* chosen = nullptr;
  try {
    chosen = &language_->templates.choose(request.tools != nullptr);
    const chat::ChatTemplate& chat = *chosen;
    rendered = chat.render(request);
    const std::vector<std::string>& special = language_->special_tokens;
    learning = all ? all_learnt(chat, request, rendered, row, special)
                   : answers_learnt(chat::assistant_spans(chat, request, rendered, special), row,
                                    rendered, settings_.train_on);
  } catch (const Error& error) {
    Error placed(error.code(), where + ": " + error.message());
    placed.key(error.key());
    for (const std::string& help : error.helps()) placed.help(help);
    if (chosen == nullptr && row.of_strings)
      placed.help("or set " + settings_.table +
                  ".format = \"prompt_completion\": prompt and completion are joined as they are");
    if (error.helps().empty() && error.code() == ErrorCode::bad_template)
      for (std::string& help :
           template_help(error.message(), chosen, request, row, settings_.table))
        placed.help(std::move(help));
    throw at_row(std::move(placed), where);
  }
  out.counts.chats = 1;
  out.counts.open_ends = learning.open_ends;
  count_left_out(*chosen, request, rendered, out.counts);
  for (const chat::Value& message : row.messages.as_list())
    if (const std::string& role = message.get("role")->as_string();
        !chat::is_known_role(role, chosen->text()))
      out.counts.roles.add(role);

  // The template writes what stands around a text.
  tokenizer::Encoded tokens = encode_row(rendered.text, false, written_by_row(rendered), where);
  out.counts.kept_as_text = tokens.kept_as_text;
  out.document.targets = overlapping(tokens.ranges, learning.spans);
  if (all)
    out.document.targets = others(static_cast<uint32_t>(tokens.ids.size()), out.document.targets);
  out.document.ids = std::move(tokens.ids);
  out.ranges = std::move(tokens.ranges);
  out.text = std::move(rendered.text);
  return out;
}

tokenizer::Encoded RowEncoder::encode_row(std::string_view text, bool special,
                                          std::span<const Bytes> written,
                                          const std::string& where) const {
  if (settings_.special == SpecialInContent::parse) written = {};
  tokenizer::Encoded out =
      language_->tokenizer.encode_ranges(text, {.special = special, .plain = written});
  if (settings_.special == SpecialInContent::error && out.kept_as_text > 0)
    throw at_row(
        Error(ErrorCode::bad_dataset, where + ": the row contains the text of a special token")
            .key(settings_.table + ".special_tokens_in_content")
            .help("set " + settings_.table +
                  ".special_tokens_in_content = \"text\": it is read as plain text")
            .help("or \"parse\": it is read as that token"),
        where);
  return out;
}

// Strings get what the tokenizer puts around a text, once, and an end unless they have one.
Encoded RowEncoder::encode_text(const Row& row, const std::string& where) const {
  Encoded out;
  out.text = row.prompt + row.completion;
  const Bytes inner = inner_part(out.text, *language_);
  tokenizer::Encoded tokens = encode_row(out.text, true, std::span(&inner, 1), where);
  out.counts.kept_as_text = tokens.kept_as_text;
  std::vector<int64_t>& ids = tokens.ids;
  if (const auto& bos = language_->bos;
      bos && ids.size() > 1 && ids[0] == bos->id && ids[1] == bos->id) {
    ids.erase(ids.begin());
    tokens.ranges.erase(tokens.ranges.begin());
  }
  const Bytes completion{row.prompt.size(), out.text.size()};
  out.document.targets = row.kind == RowKind::text || settings_.train_on == TrainOn::all
                             ? std::vector<Run>{{0, static_cast<uint32_t>(ids.size())}}
                             : overlapping(tokens.ranges, std::span(&completion, 1));
  if (ids.empty()) out.document.targets.clear();
  if (!language_->eos) {
    out.counts.endless_texts = 1;
  } else {
    if (ids.empty() || ids.back() != language_->eos->id) {
      ids.push_back(language_->eos->id);
      tokens.ranges.push_back({out.text.size(), out.text.size()});
    }
    learn_last(out.document.targets, static_cast<uint32_t>(ids.size()));
  }
  out.document.ids = std::move(ids);
  out.ranges = std::move(tokens.ranges);
  return out;
}

}  // namespace meshwright::jsonl
