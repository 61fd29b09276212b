// The order of a mix: counts that follow from the shares at every position, the same whatever is
// asked before, over stages of a schedule, and at the end of a run that goes on by other weights.
#include "engine/data/mix.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/data/tests/fixtures.h"

namespace mix_test {

using namespace meshwright;
using namespace meshwright::data;

namespace {

using Counts = std::vector<int64_t>;

MixOrder order_of(const std::vector<double>& weights, uint64_t seed = 7) {
  return {{{.shares = shares_of(weights), .read = Counts(weights.size())}}, seed};
}

// Each position by itself, with what the sources have given before.
void check_from(const MixOrder& order, int64_t begin, int64_t end) {
  Counts read = order.read_before(begin);
  for (int64_t position = begin; position < end; ++position) {
    const MixOrder::Place place = order.at(position);
    REQUIRE(place.source < read.size());
    REQUIRE(place.index == read[place.source]);
    ++read[place.source];
  }
  CHECK(order.read_before(end) == read);
}

// `samples` samples, each of which says its own number and the source's.
class Numbered final : public SampleSource {
 public:
  Numbered(int64_t samples, int64_t mark, bool documents = false, bool weights = false)
      : samples_(samples), mark_(mark), documents_(documents), weights_(weights) {}
  int64_t samples() const override { return samples_; }
  void read(int64_t sample, const SampleView& out) const override {
    CHECK(out.documents.empty() != documents_);
    CHECK(out.weights.empty() != weights_);
    std::ranges::fill(out.tokens, sample);
    std::ranges::fill(out.targets, mark_);
    std::ranges::fill(out.documents, 3);
    std::ranges::fill(out.weights, 0.5F);
  }
  std::string describe() const override { return "numbers"; }
  uint64_t fingerprint() const override { return static_cast<uint64_t>(mark_); }
  bool has_documents() const override { return documents_; }
  bool has_weights() const override { return weights_; }

 private:
  int64_t samples_, mark_;
  bool documents_, weights_;
};

Mix::Source source(const std::string& name, int64_t samples, Share share, int64_t mark) {
  DatasetConfig config{.table = "dataset.mix", .name = name, .share = std::move(share)};
  return {name, std::move(config), std::make_shared<Numbered>(samples, mark),
          static_cast<uint64_t>(mark)};
}

struct Read {
  int64_t sample = 0, mark = 0;
  bool operator==(const Read&) const = default;
};

Read read_at(const SampleStream& stream, int64_t position) {
  int64_t token = 0, target = 0;
  stream.read(position, {{&token, 1}, {&target, 1}, {}, {}});
  return {token, target};
}

std::shared_ptr<const Mix> two(double web, double code,
                               std::vector<std::pair<int64_t, double>> schedule = {}) {
  std::vector<Mix::Source> sources;
  sources.push_back(source("web", 100, {.weight = web}, 1));
  sources.push_back(source("code", 40, {.weight = code, .schedule = std::move(schedule)}, 2));
  return std::make_shared<const Mix>(std::move(sources), /*shuffle=*/true, 11);
}

}  // namespace

TEST_CASE("mix: shares are whole, in the ratio of the weights, and sum to 2^30") {
  for (const auto& weights : std::vector<std::vector<double>>{
           {1}, {0.7, 0.3}, {1, 1, 1}, {0, 1, 2}, {1e-12, 1}, {3, 5, 7, 11, 1e6}}) {
    const Counts shares = shares_of(weights);
    CHECK(std::accumulate(shares.begin(), shares.end(), int64_t{0}) == int64_t{1} << 30);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK((shares[i] > 0) == (weights[i] > 0));
      CHECK(std::abs(static_cast<double>(shares[i]) - weights[i] / all * 0x1p30) <=
            static_cast<double>(weights.size()));
    }
  }
}

TEST_CASE("mix: over random weights every count is exact, rises, and keeps to its share") {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> weight(0, 1);
  for (int round = 0; round < 60; ++round) {
    std::vector<double> weights(1 + random() % 7);
    for (double& one : weights) one = random() % 5 == 0 ? 0 : std::exp(-12 * weight(random));
    weights[random() % weights.size()] = 0.5;
    const Counts shares = shares_of(weights);
    const MixOrder order = order_of(weights, random());
    CAPTURE(round);
    const int64_t far = static_cast<int64_t>(random() >> (2 + random() % 40));
    for (int64_t begin : {int64_t{0}, far}) {
      check_from(order, begin, begin + 300);
      for (int64_t at : {begin, begin + 64, begin + 77}) {
        const Counts read = order.read_before(at);
        CHECK(std::accumulate(read.begin(), read.end(), int64_t{0}) == at);
        for (size_t i = 0; i < read.size(); ++i) {
          const long double exact = static_cast<long double>(at) * shares[i] / 0x1p30L;
          CHECK(std::fabs(static_cast<long double>(read[i]) - exact) <=
                static_cast<long double>(MixOrder::kBlock + weights.size()));
          if (shares[i] == 0) CHECK(read[i] == 0);
        }
        if (at % MixOrder::kBlock != 0) continue;
        for (size_t i = 0; i < read.size(); ++i)
          CHECK(std::fabs(static_cast<long double>(read[i]) -
                          static_cast<long double>(at) * shares[i] / 0x1p30L) <=
                static_cast<long double>(weights.size()));
      }
    }
  }
}

TEST_CASE("mix: a position is read alike whatever was asked before, and by its seed") {
  const std::vector<double> weights{0.5, 0.3, 0.2};
  const MixOrder one = order_of(weights), same = order_of(weights), other = order_of(weights, 8);
  std::vector<MixOrder::Place> forwards, backwards, others;
  for (int64_t i = 0; i < 500; ++i) forwards.push_back(one.at(i));
  for (int64_t i = 500; i-- > 0;) backwards.push_back(same.at(i));
  std::ranges::reverse(backwards);
  for (int64_t i = 0; i < 500; ++i) others.push_back(other.at(i));
  CHECK(forwards == backwards);
  CHECK(forwards != others);
  // No rank that reads every other position sees one source alone.
  for (int64_t stride : {2, 3, 4, 8})
    for (int64_t rank = 0; rank < stride; ++rank) {
      std::set<size_t> seen;
      for (int64_t i = rank; i < 400; i += stride) seen.insert(one.at(i).source);
      CHECK(seen.size() == weights.size());
    }
}

TEST_CASE("mix: stages go on where the one before has come to") {
  const MixOrder order({{.shares = {3, 1}, .read = {0, 0}},
                        {.first = 100, .shares = {0, 5}, .read = {}},
                        {.first = 130, .shares = {1, 1}, .read = {}},
                        {.first = 131, .shares = {1, 0}, .read = {}}},
                       4);
  check_from(order, 0, 400);
  const Counts at_100 = order.read_before(100), at_130 = order.read_before(130);
  CHECK(std::abs(at_100[0] - 75) <= 13);
  CHECK(at_130[0] == at_100[0]);
  CHECK(at_130[1] == at_100[1] + 30);
  CHECK(order.read_before(400)[1] == order.read_before(131)[1]);
  CHECK(order.stage_at(99).first == 0);
  CHECK(order.stage_at(100).read == at_100);
}

TEST_CASE("mix: a run that goes on reads what it would have read, by weights that changed or not") {
  const int64_t batch = 6;
  const auto mix = two(3, 1, {{9, 4}, {20, 0}});
  const MixOrder whole = mix->order(batch);
  REQUIRE(whole.stages().size() == 3);
  check_from(whole, 0, 200);
  for (int64_t steps : {0, 1, 5, 8, 9, 10, 19, 20, 21, 30}) {
    CAPTURE(steps);
    const int64_t samples = steps * batch;
    const MixOrder after = mix->order_after(whole.stage_at(samples), steps, samples, batch);
    for (int64_t i = samples; i < samples + 150; ++i) REQUIRE(after.at(i) == whole.at(i));
    CHECK(after.stage_at(samples) == whole.stage_at(samples));
    // Other weights, and a source more: what was read is read.
    std::vector<Mix::Source> more{source("new", 7, {.weight = 2}, 3),
                                  source("code", 40, {.weight = 1}, 2),
                                  source("web", 100, {.weight = 1}, 1)};
    const auto changed = std::make_shared<const Mix>(more, true, 11)->in_order_of({"web", "code"});
    REQUIRE(changed->sources()[0].name == "web");
    REQUIRE(changed->sources()[2].name == "new");
    const MixOrder other = changed->order_after(whole.stage_at(samples), steps, samples, batch);
    Counts read = whole.read_before(samples);
    read.push_back(0);
    CHECK(other.read_before(samples) == read);
    check_from(other, samples, samples + 200);
    const Counts later = other.read_before(samples + 64 * 4);
    CHECK(std::abs(later[2] - 128) <= 3);
    // Saved there at once, and continued: the same.
    const MixOrder again =
        changed->order_after(other.stage_at(samples + 30), steps + 5, samples + 30, batch);
    for (int64_t i = samples + 30; i < samples + 100; ++i) REQUIRE(again.at(i) == other.at(i));
  }
}

TEST_CASE("mix: each source is read in an order of its own, which others do not change") {
  const auto mix = two(1, 1), skewed = two(5, 1);
  auto of = [](const std::shared_ptr<const Mix>& one, int64_t mark) {
    const SampleStream stream(one, one->order(1));
    std::vector<int64_t> out;
    for (int64_t i = 0; out.size() < 80; ++i)
      if (const Read read = read_at(stream, i); read.mark == mark) out.push_back(read.sample);
    return out;
  };
  CHECK(of(mix, 2) == of(skewed, 2));
  CHECK(of(mix, 1) == of(skewed, 1));
  // An epoch of the source has each of its samples once, and the next one another order.
  std::vector<int64_t> code = of(mix, 2), first(code.begin(), code.begin() + 40),
                       second(code.begin() + 40, code.end());
  CHECK(first != second);
  std::ranges::sort(first);
  for (size_t i = 0; i < first.size(); ++i) REQUIRE(first[i] == static_cast<int64_t>(i));
}

TEST_CASE("mix: an epoch is what epochs say, or ends before a source is read again") {
  std::vector<Mix::Source> sources{source("a", 10, {.epochs = 2}, 1),
                                   source("b", 30, {.epochs = 0.5}, 2)};
  const Mix epochs(sources, true, 1);
  CHECK(epochs.samples() == 35);
  // Where an epoch of the mix and a block end together.
  CHECK(epochs.order(1).read_before(35 * MixOrder::kBlock) ==
        Counts{20 * MixOrder::kBlock, 15 * MixOrder::kBlock});
  const auto weights = two(1, 1);
  const Counts fits = weights->order(1).read_before(weights->samples());
  CHECK(fits[1] == 40);
  CHECK(weights->order(1).read_before(weights->samples() + 1)[1] == 41);
}

TEST_CASE("mix: samples without documents or weights are one document of weight 1") {
  std::vector<Mix::Source> sources{source("plain", 5, {}, 1), source("rich", 5, {}, 2)};
  sources[1].samples = std::make_shared<Numbered>(5, 2, true, true);
  const auto mix = std::make_shared<const Mix>(sources, false, 1);
  CHECK(mix->has_documents());
  CHECK(mix->has_weights());
  const SampleStream stream(mix, mix->order(1));
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 64; ++i) {
    int64_t token = 0, target = 0;
    int32_t document = -1;
    float weight = -1;
    stream.read(i, {{&token, 1}, {&target, 1}, {&document, 1}, {&weight, 1}});
    CHECK(document == (target == 2 ? 3 : 0));
    CHECK(weight == (target == 2 ? 0.5F : 1.0F));
    seen.insert(target);
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("mix: of files of two kinds, opened, looked at, and told from another") {
  Folder folder;
  const std::string text = folder.put("a.txt", std::string(100, 'x')),
                    tokens = folder.put("b.bin", pack<uint16_t>(std::vector<uint16_t>(40, 5)));
  auto config = [&](const std::string& path) {
    DatasetConfig out{.seq_len = 4, .vocab_size = 256, .seed = 5};
    DatasetConfig one{.table = "dataset.mix", .kind = "text", .path = text, .seq_len = 4};
    one.name = "text";
    one.vocab_size = 256;
    DatasetConfig other{.table = "dataset.mix", .kind = "tokens", .path = path, .dtype = "uint16"};
    other.seq_len = 4;
    other.vocab_size = 256;
    other.name = "ids";
    other.place = {Origin::Source::file, "job.toml", 12, 3};
    out.sources = {one, other};
    return out;
  };
  const std::unique_ptr<SampleSource> source = open_samples(config(tokens));
  const auto* mix = dynamic_cast<const Mix*>(source.get());
  REQUIRE(mix != nullptr);
  CHECK(mix->order(1).read_before(mix->samples())[1] == 9);
  CHECK(source->files() == std::vector<std::string>{text, tokens});
  CHECK(source->describe() == "a mix of text 50%, ids 50%");
  const DataFingerprint found = *look_at_data(config(tokens), true);
  REQUIRE(found.sources.size() == 2);
  CHECK(found.whole == fingerprint_of(config(tokens), *source));
  folder.put("b.bin", pack<uint16_t>(std::vector<uint16_t>(40, 6)));
  const DataFingerprint now = *look_at_data(config(tokens), true);
  CHECK(now.whole != found.whole);
  CHECK(now.sources[0] == found.sources[0]);
  CHECK(now.sources[1] != found.sources[1]);
  const Error error = thrown([&] { open_samples(config(folder.path / "none.bin")); });
  CHECK(error.key() == "dataset.mix.path");
  CHECK(error.origin().line == 12);
  REQUIRE(error.notes().size() == 1);
  CHECK(error.notes()[0] == "of [[dataset.mix]] \"ids\"");
  folder.put("b.bin", pack<uint16_t>(std::vector<uint16_t>(40, 256)));
  CHECK(thrown([&] { look_at_data(config(tokens)); }).code() == ErrorCode::bad_token);
}

}  // namespace mix_test
