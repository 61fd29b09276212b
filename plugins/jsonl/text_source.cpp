#include "text_source.h"

#include <algorithm>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::jsonl {

void check_vocabulary(const TokenStore& store, int64_t vocab_size, const std::string& table,
                      const std::string& path) {
  if (vocab_size <= 0 || store.largest_id() < vocab_size) return;
  throw Error(ErrorCode::bad_token,
              path + ": the tokenizer gives id " + std::to_string(store.largest_id()) +
                  ", but the model's vocabulary has " + std::to_string(vocab_size) + " entries")
      .key(table + ".path")
      .help(
          "use the tokenizer of the model, or a model whose config.json has a vocab_size "
          "above " +
          std::to_string(store.largest_id()));
}

std::vector<std::string> tell_texts(const TokenStore& store, const StreamSettings& settings) {
  const StoreCounts& met = store.origin().counts;
  const auto tokens = static_cast<int64_t>(store.tokens());
  std::vector<std::string> out;
  out.push_back(text::counted(met.rows, "document") + ", " + text::counted(tokens, "token") +
                (met.rows > 1 ? ", " + text::grouped(tokens / met.rows) + " each" : "") +
                "; tokens " + store.origin().key +
                (store.is_file() ? " in " + settings.place : ", in memory"));
  if (!settings.left_out.empty())
    out.push_back(text::counted(std::ssize(settings.left_out), "hidden file") + " left out: " +
                  settings.left_out.front() + (settings.left_out.size() > 1 ? ", ..." : ""));
  if (met.young > 0) out.push_back(tokenizer::tell_young(met.young));
  if (met.endless_texts > 0)
    out.push_back("no end token is put behind " + text::counted(met.endless_texts, "document") +
                  ": the model will not learn to stop there, and one begins where another ends");
  return out;
}

StreamSource::StreamSource(std::shared_ptr<const TokenStore> store, StreamSettings settings)
    : store_(std::move(store)), settings_(std::move(settings)) {
  check_vocabulary(*store_, settings_.vocab_size, settings_.table, settings_.path);
  if (samples() > 0) return;
  const auto tokens = static_cast<int64_t>(store_->tokens());
  Error error(ErrorCode::bad_dataset,
              settings_.table + ".path = \"" + settings_.path + "\" holds " +
                  text::counted(tokens, "token") +
                  ", but one sample takes seq_len + 1 = " + std::to_string(settings_.seq_len + 1));
  error.key(settings_.table + ".path");
  if (tokens > 1) error.help("set " + settings_.table + ".seq_len = " + std::to_string(tokens - 1));
  throw error.help("or name more data");
}

int64_t StreamSource::samples() const {
  return (static_cast<int64_t>(store_->tokens()) - 1) / settings_.seq_len;
}

void StreamSource::read(int64_t sample, const SampleView& out) const {
  if (sample < 0 || sample >= samples())
    throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
  store_->check();
  const auto begin = static_cast<uint64_t>(sample * settings_.seq_len);
  const size_t length = out.tokens.size();
  for (size_t i = 0; i < length; ++i) {
    out.tokens[i] = store_->id(begin + i);
    out.targets[i] = store_->id(begin + i + 1);
  }
  if (!settings_.apart) return;
  uint64_t document = store_->document_of(begin);
  int32_t number = 0;
  for (size_t i = 0; i < length; ++i) {
    out.documents[i] = number;
    if (begin + i + 1 < store_->begin(document + 1)) continue;
    out.targets[i] = kNoTarget;
    ++document;
    ++number;
  }
}

std::string StreamSource::describe() const {
  return text::counted(settings_.texts, "file") + ", " +
         text::counted(store_->origin().counts.rows, "document") + ", " +
         text::counted(static_cast<int64_t>(store_->tokens()), "token");
}

uint64_t StreamSource::fingerprint() const {
  const std::string text = store_->origin().key + " stream " + std::to_string(settings_.seq_len) +
                           (settings_.apart ? " apart" : "");
  base::Hash hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

std::vector<std::string> StreamSource::report() const {
  std::vector<std::string> out = tell_texts(*store_, settings_);
  const auto left = static_cast<int64_t>(store_->tokens()) - 1 - samples() * settings_.seq_len;
  if (left > 0)
    out.push_back("the last " + text::counted(left, "token") + " fill no sample of " +
                  text::grouped(settings_.seq_len) + " and " + (left == 1 ? "is" : "are") +
                  " not learnt");
  return out;
}

}  // namespace meshwright::jsonl
