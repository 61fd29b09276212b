// Several data sets read as one: which of them a position of a run is read from, and how far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"

namespace meshwright::data {

// Shares of the sources from a position on. Shares are whole numbers, so that counts are exact.
struct MixStage {
  int64_t first = 0;
  std::vector<int64_t> shares;  // 0: nothing is read of it; at least one is more
  std::vector<int64_t> read;    // samples of each source before `first`
  bool operator==(const MixStage&) const = default;
};

// Position in the training run -> source, and which of its samples in the order of that source.
// Positions of a stage are cut into blocks of kBlock. How many samples of each source stand before
// a block follows from the shares: P w / W of the first one, rounded down, then of the next one
// among the positions that are left, and so on. So they sum to P, none ever falls, and each is
// within the number of sources of its share. Within a block the seed decides the order. Nothing is
// remembered: the time is that of a block and of the sources, wherever the position lies.
class MixOrder {
 public:
  static constexpr int64_t kBlock = 64;

  // Stages in the order of `first`; of the first one `read` is given, for the others it follows.
  MixOrder(std::vector<MixStage> stages, uint64_t seed);

  struct Place {
    size_t source = 0;
    int64_t index = 0;  // how many of its samples stand before
    bool operator==(const Place&) const = default;
  };
  Place at(int64_t position) const;
  // Samples of each source at positions below this one.
  std::vector<int64_t> read_before(int64_t position) const;
  // That of the position, with what was read before it.
  const MixStage& stage_at(int64_t position) const;
  const std::vector<MixStage>& stages() const { return stages_; }

 private:
  std::vector<MixStage> stages_;
  Sampler blocks_;
};

// Whole numbers in the ratio of the weights, 2^30 in all; those of weights above 0 are, too.
std::vector<int64_t> shares_of(const std::vector<double>& weights);

// The samples that a run reads of these sources. A mix as a SampleSource is the beginning of that:
// sample i is what stands at position i of a run that begins with it.
class Mix final : public SampleSource {
 public:
  struct Source {
    std::string name;
    DatasetConfig config;
    std::shared_ptr<const SampleSource> samples;
    uint64_t fingerprint = 0;
  };
  // `shuffle`, `seed`: of the order in which samples of a source are read, and of the blocks.
  Mix(std::vector<Source> sources, bool shuffle, uint64_t seed);

  const std::vector<Source>& sources() const { return sources_; }
  // Shares of a step, counted from 0.
  std::vector<int64_t> shares(int64_t step) const;
  // Steps at which they change.
  std::vector<int64_t> changes() const;
  // Of a run that begins, with `batch` samples a step.
  MixOrder order(int64_t batch) const;
  // Of one that goes on after `steps` steps and `samples` samples, of which `then` says how the
  // last ones were read: on as before where the shares are the same now, else from here on by those
  // of now.
  MixOrder order_after(const MixStage& then, int64_t steps, int64_t samples, int64_t batch) const;
  // With the sources in the order of these names, which it has, and others behind them.
  std::shared_ptr<const Mix> in_order_of(const std::vector<std::string>& names) const;
  void read_at(const MixOrder& order, int64_t position, const SampleView& out) const;

  // With epochs: those of all sources. With weights, those of the beginning: as many as stand
  // before one source would be read a second time.
  int64_t samples() const override { return samples_; }
  void read(int64_t sample, const SampleView& out) const override;
  std::string describe() const override;
  uint64_t fingerprint() const override;
  bool has_documents() const override { return documents_; }
  bool has_weights() const override { return weights_; }
  std::vector<std::string> files() const override;
  std::vector<std::string> report() const override;

 private:
  // Of a source with epochs: its samples in an epoch of the mix.
  static double wanted(const Source& source);
  int64_t samples_of_an_epoch() const;
  void add_changes(std::vector<MixStage>& stages, int64_t steps, int64_t samples,
                   int64_t batch) const;
  std::vector<Source> sources_;
  bool shuffle_, documents_ = false, weights_ = false;
  uint64_t seed_;
  int64_t samples_ = 0;
  std::vector<Sampler> samplers_;
  std::optional<MixOrder> begun_;
};

// "30%"
std::string share_text(const std::vector<int64_t>& shares, size_t source);

// Of each source: "web: 70%, 12,345 samples, of which the run reads 8,960: 0.726 epochs". `read`:
// how many a run reads of each.
std::vector<std::string> lines_of(const Mix& mix, const std::vector<int64_t>& read);

// Opens the sources of a configuration that has some. Throws as open_samples(), with the source's
// name and place.
std::unique_ptr<Mix> open_mix(const DatasetConfig& config);

// What stands at each position of a run, without an end: samples of one source in a sampler's
// order, or of a mix.
class SampleStream {
 public:
  SampleStream(std::shared_ptr<const SampleSource> source, Sampler sampler);
  SampleStream(std::shared_ptr<const Mix> mix, MixOrder order);
  void read(int64_t position, const SampleView& out) const;
  bool has_documents() const { return documents_; }
  bool has_weights() const { return weights_; }

 private:
  std::shared_ptr<const SampleSource> source_;  // one of both
  std::optional<Sampler> sampler_;
  std::shared_ptr<const Mix> mix_;
  std::optional<MixOrder> order_;
  bool documents_, weights_;
};

}  // namespace meshwright::data
