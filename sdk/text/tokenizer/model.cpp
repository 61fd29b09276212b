#include "sdk/text/tokenizer/model.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

namespace meshwright::tokenizer {

namespace {

uint64_t next_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Older files leave the type out; then the fields tell.
std::string kind_of(const Field& model) {
  if (!model.at("type").absent()) return std::string(model.type());
  if (!model.at("merges").absent()) return "BPE";
  if (!model.at("max_input_chars_per_word").absent()) return "WordPiece";
  return model.at("unk_token").absent() ? "Unigram" : "WordLevel";
}

}  // namespace

Model::Model() : serial_(next_serial()) {}

void read_vocabulary(const Field& field, Vocabulary& vocabulary) {
  const boost::json::object& entries = field.object();
  if (entries.empty()) field.refuse("is empty");
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.key().size();
  vocabulary.reserve(entries.size(), bytes);
  for (const auto& entry : entries) {
    std::string_view token(entry.key().data(), entry.key().size());
    if (!entry.value().is_int64() || entry.value().get_int64() < 0 ||
        entry.value().get_int64() > INT32_MAX)
      (void)Field(field.file(), &entry.value(), field.place() + "[" + shown(token) + "]").id();
    vocabulary.add(token, static_cast<uint32_t>(entry.value().get_int64()));
  }
  if (auto same = vocabulary.seal())
    field.refuse("gives " + shown(same->first) + " and " + shown(same->second) + " the same id");
}

std::unique_ptr<Model> read_model(const Field& model) {
  using Read = std::unique_ptr<Model> (*)(const Field& field);
  static constexpr std::pair<std::string_view, Read> kKinds[] = {{"BPE", read_bpe},
                                                                 {"Unigram", read_unigram},
                                                                 {"WordPiece", read_word_piece},
                                                                 {"WordLevel", read_word_level}};
  const std::string kind = kind_of(model);
  const auto* known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const auto& it) { return it.first == kind; });
  if (known == std::end(kKinds))
    model.refuse("is of the kind " + shown(kind) +
                 "; those read here are BPE, Unigram, WordPiece, WordLevel");
  return known->second(model);
}

}  // namespace meshwright::tokenizer
