// A kind of data set as a plugin would bring it, whose samples follow from their number.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/data/dataset.h"

namespace meshwright::data {

struct Numbers {
  int64_t samples = 100, vocabulary = 50, seq_len = 12;
  bool documents = true, weights = true;
  uint64_t fingerprint = 7;
  std::vector<std::string> files = {};
  std::chrono::milliseconds takes{0};  // of a sample
  // What else is done to a sample, last.
  std::function<void(int64_t sample, const SampleView& out)> spoil = {};
  std::shared_ptr<std::atomic<int64_t>> reads = std::make_shared<std::atomic<int64_t>>(0);
};

class NumbersSource final : public SampleSource {
 public:
  explicit NumbersSource(Numbers numbers) : numbers_(std::move(numbers)) {}
  int64_t samples() const override { return numbers_.samples; }
  void read(int64_t sample, const SampleView& out) const override {
    ++*numbers_.reads;
    if (numbers_.takes.count() > 0) std::this_thread::sleep_for(numbers_.takes);
    uint64_t state = static_cast<uint64_t>(sample) * 0x9e3779b97f4a7c15u + 11;
    int32_t document = 0;
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t drawn = state >> 33;
      out.tokens[i] = static_cast<int64_t>(drawn % static_cast<uint64_t>(numbers_.vocabulary));
      const bool last = i + 1 == out.tokens.size() || drawn % 5 == 0;
      out.targets[i] =
          last ? kNoTarget
               : static_cast<int64_t>((drawn >> 8) % static_cast<uint64_t>(numbers_.vocabulary));
      if (!out.documents.empty()) out.documents[i] = document;
      if (!out.weights.empty()) out.weights[i] = static_cast<float>(drawn % 4) * 0.5F;
      document += drawn % 5 == 0 ? 1 : 0;
    }
    if (numbers_.spoil) numbers_.spoil(sample, out);
  }
  std::string describe() const override { return std::to_string(numbers_.samples) + " numbers"; }
  uint64_t fingerprint() const override { return numbers_.fingerprint; }
  bool has_documents() const override { return numbers_.documents; }
  bool has_weights() const override { return numbers_.weights; }
  std::vector<std::string> files() const override { return numbers_.files; }

 private:
  Numbers numbers_;
};

class NumbersKind final : public DatasetKind {
 public:
  explicit NumbersKind(Numbers numbers) : numbers_(std::move(numbers)) {}
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override {
    Numbers made = numbers_;
    made.seq_len = request.seq_len;
    return std::make_unique<NumbersSource>(made);
  }

 private:
  Numbers numbers_;
};

inline DatasetConfig config_of(const Numbers& numbers) {
  return {.seq_len = numbers.seq_len,
          .vocab_size = numbers.vocabulary,
          .plugin = PluginData{.name = "numbers",
                               .kind = std::make_shared<NumbersKind>(numbers),
                               .options = Options(OptionSchema{"dataset.numbers", "numbers", {}})}};
}

}  // namespace meshwright::data
