#include "engine/data/mix.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::data {

namespace {

// All shares of a stage together: products with what is left of a division by them fit an int64.
constexpr int64_t kShares = int64_t{1} << 30;

// floor(count * share / all), whatever the count is.
int64_t part_of(int64_t count, int64_t share, int64_t all) {
  return count / all * share + count % all * share / all;
}

// Samples of each source among the first `count` of a stage.
void counts_of(const std::vector<int64_t>& shares, int64_t count, std::vector<int64_t>& out) {
  int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  out.resize(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    out[i] = shares[i] == 0 ? 0 : part_of(count, shares[i], all);
    count -= out[i];
    all -= shares[i];
  }
}

// A block of a stage: what stands before it, and how its places are dealt out.
class Block {
 public:
  Block(const MixStage& stage, int64_t number) {
    counts_of(stage.shares, number * MixOrder::kBlock, before_);
    counts_of(stage.shares, (number + 1) * MixOrder::kBlock, ends_);
    for (size_t i = 0; i < ends_.size(); ++i) ends_[i] += (i > 0 ? ends_[i - 1] : 0) - before_[i];
  }
  int64_t before(size_t source) const { return before_[source]; }
  size_t source_of(int64_t dealt) const {
    return static_cast<size_t>(std::ranges::upper_bound(ends_, dealt) - ends_.begin());
  }

 private:
  std::vector<int64_t> before_, ends_;
};

}  // namespace

MixOrder::MixOrder(std::vector<MixStage> stages, uint64_t seed)
    : stages_(std::move(stages)), blocks_(kBlock, /*shuffle=*/true, seed) {
  for (size_t i = 1; i < stages_.size(); ++i) stages_[i].read = read_before(stages_[i].first);
}

const MixStage& MixOrder::stage_at(int64_t position) const {
  const auto next = std::ranges::upper_bound(stages_, position, {}, &MixStage::first);
  if (next == stages_.begin())
    throw Error(ErrorCode::internal,
                "no stage of the mix has the position " + std::to_string(position));
  return *std::prev(next);
}

MixOrder::Place MixOrder::at(int64_t position) const {
  const MixStage& stage = stage_at(position);
  const int64_t here = position - stage.first, begin = here / kBlock * kBlock;
  const Block block(stage, here / kBlock);
  const size_t source = block.source_of(blocks_.at(here));
  int64_t index = stage.read[source] + block.before(source);
  for (int64_t other = begin; other < here; ++other)
    if (block.source_of(blocks_.at(other)) == source) ++index;
  return {source, index};
}

std::vector<int64_t> MixOrder::read_before(int64_t position) const {
  // A stage that begins at the position has read nothing yet: the one before it knows.
  auto stage = std::ranges::lower_bound(stages_, position, {}, &MixStage::first);
  if (stage != stages_.begin()) --stage;
  std::vector<int64_t> out = stage->read;
  const int64_t here = position - stage->first;
  const Block block(*stage, here / kBlock);
  for (size_t i = 0; i < out.size(); ++i) out[i] += block.before(i);
  for (int64_t other = here / kBlock * kBlock; other < here; ++other)
    ++out[block.source_of(blocks_.at(other))];
  return out;
}

std::vector<int64_t> shares_of(const std::vector<double>& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> out;
  std::vector<double> rests;
  int64_t left = kShares;
  for (double weight : weights) {
    const double exact = weight / all * static_cast<double>(kShares);
    out.push_back(std::max(static_cast<int64_t>(exact), int64_t{weight > 0 ? 1 : 0}));
    rests.push_back(weight > 0 ? exact - static_cast<double>(out.back()) : -1);
    left -= out.back();
  }
  // By the largest remainder; what the smallest shares were raised by is the largest one's.
  std::vector<size_t> by_rest(weights.size());
  std::iota(by_rest.begin(), by_rest.end(), size_t{0});
  std::ranges::stable_sort(by_rest, std::greater(), [&](size_t i) { return rests[i]; });
  for (size_t i : by_rest)
    if (left > 0 && weights[i] > 0) ++out[i], --left;
  *std::ranges::max_element(out) += left;
  return out;
}

Mix::Mix(std::vector<Source> sources, bool shuffle, uint64_t seed)
    : sources_(std::move(sources)), shuffle_(shuffle), seed_(seed) {
  for (const Source& source : sources_) {
    documents_ = documents_ || source.samples->has_documents();
    weights_ = weights_ || source.samples->has_weights();
    // By name: another source beside it changes nothing of its order.
    samplers_.emplace_back(source.samples->samples(), shuffle,
                           base::mix64(seed ^ base::fnv1a(source.name)));
  }
  begun_.emplace(
      std::vector<MixStage>{{.shares = shares(0), .read = std::vector<int64_t>(sources_.size())}},
      seed);
  samples_ = samples_of_an_epoch();
}

int64_t Mix::samples_of_an_epoch() const {
  constexpr int64_t kMost = int64_t{1} << 60;
  if (sources_.front().config.share.epochs) {
    double all = 0;
    for (const Source& source : sources_) all += wanted(source);
    return static_cast<int64_t>(std::min(all, static_cast<double>(kMost)));
  }
  auto fits = [&](int64_t count) {
    const std::vector<int64_t> read = begun_->read_before(count);
    for (size_t i = 0; i < read.size(); ++i)
      if (read[i] > sources_[i].samples->samples()) return false;
    return true;
  };
  // Of one more than the last one that fits, and of all after it, it does not hold.
  int64_t low = 1, high = kMost;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

double Mix::wanted(const Source& source) {
  const double samples = static_cast<double>(source.samples->samples());
  return std::max(1.0, std::round(samples * source.config.share.epochs.value_or(1)));
}

std::vector<int64_t> Mix::shares(int64_t step) const {
  std::vector<double> weights;
  double all = 0;
  const bool epochs = sources_.front().config.share.epochs.has_value();
  for (const Source& source : sources_) {
    const Share& share = source.config.share;
    double weight = epochs ? wanted(source) : share.weight.value_or(1);
    for (const auto& [from, now] : share.schedule)
      if (from <= step) weight = now;
    weights.push_back(weight);
    all += weight;
  }
  // As they are, they are in the ratio of what is wanted without rounding.
  if (epochs && all <= static_cast<double>(kShares)) return {weights.begin(), weights.end()};
  return shares_of(weights);
}

std::vector<int64_t> Mix::changes() const {
  std::set<int64_t> out;
  for (const Source& source : sources_)
    for (const auto& [step, weight] : source.config.share.schedule) out.insert(step);
  return {out.begin(), out.end()};
}

void Mix::add_changes(std::vector<MixStage>& stages, int64_t steps, int64_t samples,
                      int64_t batch) const {
  for (int64_t step : changes()) {
    int64_t first = 0;
    if (step <= steps || __builtin_mul_overflow(step - steps, batch, &first) ||
        __builtin_add_overflow(first, samples, &first))
      continue;
    if (std::vector<int64_t> now = shares(step); now != stages.back().shares)
      stages.push_back({.first = first, .shares = std::move(now), .read = {}});
  }
}

MixOrder Mix::order(int64_t batch) const {
  std::vector<MixStage> stages = begun_->stages();
  add_changes(stages, 0, 0, batch);
  return {std::move(stages), seed_};
}

MixOrder Mix::order_after(const MixStage& then, int64_t steps, int64_t samples,
                          int64_t batch) const {
  std::vector<MixStage> stages{then};
  stages[0].shares.resize(sources_.size());
  stages[0].read.resize(sources_.size());
  if (std::vector<int64_t> now = shares(steps); now != stages[0].shares) {
    if (then.first == samples)
      stages[0].shares = std::move(now);
    else
      stages.push_back({.first = samples, .shares = std::move(now), .read = {}});
  }
  add_changes(stages, steps, samples, batch);
  return {std::move(stages), seed_};
}

std::shared_ptr<const Mix> Mix::in_order_of(const std::vector<std::string>& names) const {
  std::vector<Source> sources = sources_;
  auto place = [&](const Source& source) { return std::ranges::find(names, source.name); };
  std::ranges::stable_sort(sources, {}, place);
  return std::make_shared<const Mix>(std::move(sources), shuffle_, seed_);
}

void Mix::read_at(const MixOrder& order, int64_t position, const SampleView& out) const {
  const MixOrder::Place place = order.at(position);
  const Source& source = sources_[place.source];
  SampleView view = out;
  // What the source does not say of its samples is so of all of them.
  if (!source.samples->has_documents()) {
    std::ranges::fill(out.documents, 0);
    view.documents = {};
  }
  if (!source.samples->has_weights()) {
    std::ranges::fill(out.weights, 1.0F);
    view.weights = {};
  }
  try {
    source.samples->read(samplers_[place.source].at(place.index), view);
  } catch (const Error& error) {
    throw named(error, source.config);
  }
}

void Mix::read(int64_t sample, const SampleView& out) const { read_at(*begun_, sample, out); }

std::string share_text(const std::vector<int64_t>& shares, size_t source) {
  const int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  return text::format("%.3g%%",
                      100 * static_cast<double>(shares[source]) / static_cast<double>(all));
}

std::vector<std::string> lines_of(const Mix& mix, const std::vector<int64_t>& read) {
  const std::vector<int64_t> shares = mix.shares(0);
  std::vector<std::string> out;
  for (size_t i = 0; i < read.size(); ++i) {
    const Mix::Source& source = mix.sources()[i];
    const int64_t samples = source.samples->samples();
    out.push_back(
        source.name + ": " + share_text(shares, i) + ", " + text::counted(samples, "sample") +
        ", of which the run reads " + text::grouped(read[i]) +
        text::format(": %.3g epochs", static_cast<double>(read[i]) / static_cast<double>(samples)));
  }
  return out;
}

std::string Mix::describe() const {
  const std::vector<int64_t> now = shares(0);
  std::string out = "a mix of ";
  for (size_t i = 0; i < sources_.size(); ++i)
    out += (i > 0 ? ", " : "") + sources_[i].name + " " + share_text(now, i);
  return out;
}

uint64_t Mix::fingerprint() const {
  base::Hash hash;
  for (const Source& source : sources_) {
    hash.add(source.name);
    hash.add(static_cast<int64_t>(source.fingerprint));
  }
  return hash.value();
}

std::vector<std::string> Mix::files() const {
  std::vector<std::string> out;
  for (const Source& source : sources_)
    for (std::string& file : source.samples->files()) out.push_back(std::move(file));
  return out;
}

std::vector<std::string> Mix::report() const {
  std::vector<std::string> out;
  for (const Source& source : sources_) {
    out.push_back(source.name + ": " + source.samples->describe() + ", " +
                  text::counted(source.samples->samples(), "sample"));
    for (const std::string& line : source.samples->report())
      out.push_back(source.name + ": " + line);
  }
  return out;
}

std::unique_ptr<Mix> open_mix(const DatasetConfig& config) {
  std::vector<Mix::Source> sources;
  for (const DatasetConfig& one : config.sources) try {
      std::shared_ptr<const SampleSource> samples = open_samples(one);
      const uint64_t fingerprint = fingerprint_of(one, *samples);
      sources.push_back({one.name, one, std::move(samples), fingerprint});
    } catch (const Error& error) {
      throw named(error, one);
    }
  return std::make_unique<Mix>(std::move(sources), config.shuffle, config.seed);
}

SampleStream::SampleStream(std::shared_ptr<const SampleSource> source, Sampler sampler)
    : source_(std::move(source)),
      sampler_(sampler),
      documents_(source_->has_documents()),
      weights_(source_->has_weights()) {}

SampleStream::SampleStream(std::shared_ptr<const Mix> mix, MixOrder order)
    : mix_(std::move(mix)),
      order_(std::move(order)),
      documents_(mix_->has_documents()),
      weights_(mix_->has_weights()) {}

void SampleStream::read(int64_t position, const SampleView& out) const {
  mix_ ? mix_->read_at(*order_, position, out) : source_->read(sampler_->at(position), out);
}

}  // namespace meshwright::data
