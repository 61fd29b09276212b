#include "rows_fuzz_samples.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace meshwright::fuzz {

namespace {

bool has_targets(const Positions& document) {
  return std::any_of(document.begin(), document.end(),
                     [](const auto& one) { return one.second != kNoTarget; });
}

// The documents of a sample, without what pads it; where samples have no documents, all of it.
std::vector<Positions> read_sample(const SampleSource& source, int64_t sample, int64_t seq_len,
                                   int64_t vocab) {
  constexpr int32_t kUntouched = -77777;
  constexpr size_t kMargin = 16;  // behind what may be written
  const auto size = static_cast<size_t>(seq_len);
  const bool apart = source.has_documents();
  std::vector<int64_t> tokens(size + kMargin, kUntouched), targets(size + kMargin, kUntouched);
  std::vector<int32_t> documents(size + kMargin, kUntouched);
  SampleView view;
  view.tokens = std::span(tokens).first(size);
  view.targets = std::span(targets).first(size);
  if (apart) view.documents = std::span(documents).first(size);
  source.read(sample, view);
  auto in_vocabulary = [vocab](int64_t token) {
    return token >= 0 && (vocab == 0 || token < vocab);
  };
  std::vector<Positions> out;
  for (size_t i = 0; i < size + kMargin; ++i) {
    if (i >= size) {
      check(tokens[i] == kUntouched && targets[i] == kUntouched && documents[i] == kUntouched,
            "a sample was written over its end");
      continue;
    }
    check(in_vocabulary(tokens[i]), "a token outside of the vocabulary");
    check(targets[i] == kNoTarget || in_vocabulary(targets[i]),
          "a target outside of the vocabulary");
    const int64_t document = apart ? documents[i] : 0;
    if (document == static_cast<int64_t>(out.size())) out.emplace_back();
    check(document + 1 == static_cast<int64_t>(out.size()), "documents out of order");
    out.back().emplace_back(tokens[i], targets[i]);
  }
  if (apart && !has_targets(out.back())) {
    for (const auto& [token, target] : out.back()) check(token == 0, "what pads is not 0");
    out.pop_back();
  }
  return out;
}

}  // namespace

Packs read_all(const SampleSource& source, int64_t seq_len, int64_t vocab) {
  check(source.samples() >= 1, "no samples");
  Packs out;
  for (int64_t sample = 0; sample < source.samples(); ++sample)
    out.push_back(read_sample(source, sample, seq_len, vocab));
  return out;
}

void Expected::add(const DatasetRow& row, int64_t seq_len, const std::string& truncate) {
  const auto tokens = static_cast<int64_t>(row.tokens.size());
  longest = std::max(longest, tokens);
  for (const DatasetRow::Token& token : row.tokens) {
    check(token.begin <= token.end && token.end <= row.text.size(), "a token outside of its row");
    largest_id = std::max(largest_id, token.id);
  }
  int64_t begin = 0, end = tokens;
  if (tokens > seq_len + 1) {
    if (truncate == "drop") {
      ++too_long;
      return;
    }
    ++truncated;
    (truncate == "left" ? begin : end) = truncate == "left" ? tokens - seq_len - 1 : seq_len + 1;
  }
  Positions document;
  for (int64_t i = begin; i + 1 < end; ++i) {
    const DatasetRow::Token& next = row.tokens[static_cast<size_t>(i + 1)];
    document.emplace_back(row.tokens[static_cast<size_t>(i)].id, next.target ? next.id : kNoTarget);
  }
  if (!has_targets(document)) {
    ++without;
    return;
  }
  positions += static_cast<int64_t>(document.size());
  targets += std::count_if(document.begin(), document.end(),
                           [](const auto& one) { return one.second != kNoTarget; });
  documents.push_back(std::move(document));
}

void check_packs(const Packs& packs, const std::string& packing, size_t room) {
  std::vector<size_t> filled;
  for (const std::vector<Positions>& pack : packs) {
    check(!pack.empty(), "an empty pack");
    size_t sum = 0;
    for (const Positions& document : pack) sum += document.size();
    if (packing == "sequential" && !filled.empty())
      check(filled.back() + pack.front().size() > room, "a document begins a pack without need");
    filled.push_back(sum);
  }
  if (packing != "bfd" || filled.size() < 2) return;
  std::sort(filled.begin(), filled.end());
  check(filled[0] + filled[1] > room, "two packs would fit into one");
}

}  // namespace meshwright::fuzz
