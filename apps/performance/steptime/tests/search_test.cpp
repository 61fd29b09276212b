#include "apps/performance/steptime/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <string>

#include "published.h"

namespace meshwright::steptime {
namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/published";
const std::string kMachines = MESHWRIGHT_SOURCE_DIR "/configs/machines";

const std::vector<PipelineSchedule> kHalved = {PipelineSchedule::interleaved_zero_bubble,
                                               PipelineSchedule::zbv_zero_bubble,
                                               PipelineSchedule::dual_pipe_v};

// A sharded optimizer, everything else whole: what the vendor's layouts are for.
Way sharded_optimizer() {
  Way way;
  way.strategy = "level 1";
  way.tp = way.cp = way.pp = true;
  way.level = 1;
  way.rows = false;
  way.weights = 2;
  way.gradients = 4;
  way.optimizer = 12;
  return way;
}
Way sharded() {
  Way way;
  way.strategy = "level 3";
  way.tp = way.cp = way.pp = way.replicas = true;
  return way;
}

// The vendor's layouts; 1: 70B on 64 ranks, with 64 and 8 heads and 80 layers; 2: 405B on 1,024.
published::Row layout(size_t number) { return published::layouts(kData)[number]; }

SearchRequest request_of(const published::Row& row, std::vector<Way> ways) {
  SearchRequest out;
  out.machine = published::machine_of(row, published::machines(kMachines));
  out.shape = row.shape;
  out.base.length = row.job.length;
  out.base.fusion = Fusion::fused;
  out.base.loss = Loss::fused;
  out.base.logits = 6;
  out.base.regathers = true;
  out.base.optimizer_bytes = 44;
  out.base.async_tp = AsyncTp::buffers;
  out.base.context = ContextWay::ring;
  out.ways = std::move(ways);
  out.ranks = row.job.ranks;
  out.global_batch = row.job.dp() * row.job.micro_batch * row.job.micro_batches;
  out.memory = out.machine.memory - out.machine.outside;
  return out;
}

Job laid_out(const Shape& shape, const Way& way, Job job) {
  lay_out(shape, way, job);
  return job;
}

// Seconds of a step of a layout that the vendor recommends.
double vendors_step(const published::Row& row, const SearchRequest& request) {
  Job vendor = request.base;
  vendor.ranks = row.job.ranks;
  vendor.tp = row.job.tp;
  vendor.pp = row.job.pp;
  vendor.cp = row.job.cp;
  vendor.stages = row.job.stages;
  if (vendor.stages > 1) vendor.schedule = PipelineSchedule::interleaved_1f1b;
  vendor.micro_batch = row.job.micro_batch;
  vendor.micro_batches = row.job.micro_batches;
  vendor.sequence_parallel = vendor.tp > 1;
  vendor.shard = vendor.dp() * vendor.cp;
  return predict(request.machine, row.shape, laid_out(row.shape, sharded_optimizer(), vendor))
      .seconds;
}

TEST_CASE("the vendor's five layouts are at most 3% slower than the best that the search finds") {
  for (const published::Row& row : published::layouts(kData)) {
    CAPTURE(row.id);
    // Whatever is sharded, over all ranks or those of a host, and whatever is recomputed.
    SearchRequest request = request_of(row, {sharded_optimizer(), sharded()});
    const double theirs = vendors_step(row, request);
    const SearchResult found = search(request, 5);
    REQUIRE(found.best.size() == 5);
    if (row.job.ranks == 1024) CHECK(found.enumerated > 4000);
    const double best = found.best.front().predicted.seconds;
    CAPTURE(theirs);
    CAPTURE(best);
    CHECK(theirs <= 1.03 * best);
    // Schedules that halve the backward, which theirs could not choose: 3.1% for one of the five.
    request.schedules = kHalved;
    const double with_halves = search(request, 5).best.front().predicted.seconds;
    CAPTURE(with_halves);
    CHECK(theirs <= 1.035 * with_halves);
  }
}

TEST_CASE("what is fixed stays, what is too large is left out, and more memory is never slower") {
  SearchRequest request = request_of(layout(1), {sharded(), sharded_optimizer()});
  const SearchResult all = search(request, 20);
  CHECK(all.fitting + all.rejected.at("more memory than a rank has") == all.enumerated);
  CHECK(std::ranges::is_sorted(all.best, [](const Layout& a, const Layout& b) {
    auto score = [](const Layout& l) {
      return l.predicted.seconds * (l.use > kComfortable ? 1.05 : 1);
    };
    return score(a) < score(b);
  }));
  for (const Layout& layout : all.best) {
    CHECK(layout.memory.peak() <= request.memory);
    CHECK(layout.job.tp * layout.job.cp * layout.job.pp * layout.job.dp() == 64);
    CHECK(layout.job.dp() * layout.job.micro_batch * layout.job.micro_batches ==
          request.global_batch);
  }
  request.fixed = {{"tp_size", 4}, {"pp_size", 2}};
  for (const Layout& layout : search(request, 20).best) {
    CHECK(layout.job.tp == 4);
    CHECK(layout.job.pp == 2);
  }
  request.fixed.clear();
  request.memory *= 0.5;
  const SearchResult tighter = search(request, 20);
  CHECK(tighter.fitting < all.fitting);
  REQUIRE(!tighter.best.empty());
  CHECK(tighter.best.front().predicted.seconds >= 0.95 * all.best.front().predicted.seconds);
}

// Ways that one strategy's options make of it.
std::vector<Way> variants() {
  Way kept = sharded(), each = sharded(), passes = sharded(), early = sharded();
  kept.options = {"distributed.x.reshard=false"};
  kept.reshards = false;
  each.options = {"distributed.x.defer=false"};
  each.reduces_each = true;
  passes.options = {"distributed.x.reshard=true"};
  passes.reshards_in_pipeline = true;
  early.options = {"distributed.x.prefetch=false"};
  early.ahead = 0;
  return {sharded(), kept, each, passes, early};
}

TEST_CASE("what a lower bound rules out is never among the best") {
  SearchRequest request = request_of(layout(1), variants());
  request.base.engine_memory = true;
  request.schedules = kHalved;
  const SearchResult some = search(request, 10);
  request.bounded = false;
  const SearchResult all = search(request, 10);
  CHECK(all.predicted == all.fitting);
  CHECK(some.predicted < all.predicted);
  CHECK(some.enumerated == all.enumerated);
  REQUIRE(some.best.size() == all.best.size());
  for (size_t i = 0; i < all.best.size(); ++i)
    CHECK(some.best[i].predicted.seconds == doctest::Approx(all.best[i].predicted.seconds));
}

TEST_CASE("ways of a strategy that come to the same are looked at once") {
  SearchRequest request = request_of(layout(1), {sharded()});
  request.fixed = {{"pp_size", 1}, {"cp_size", 1}};
  const int64_t one = search(request, 5).enumerated;
  Way passes = sharded();  // differs in pipelines alone
  passes.reshards_in_pipeline = true;
  request.ways = {sharded(), passes};
  CHECK(search(request, 5).enumerated == one);
  request.fixed = {{"pp_size", 2}, {"cp_size", 1}};
  const int64_t both = search(request, 5).enumerated;
  request.ways = {sharded()};
  CHECK(both == 2 * search(request, 5).enumerated);
}

TEST_CASE("what stays gathered is faster and holds more; what is reduced each time holds less") {
  SearchRequest request = request_of(layout(1), {});
  Job job = request.base;
  job.engine_memory = true;
  job.ranks = job.shard = 64;
  job.micro_batches = 4;
  struct Step : Prediction {
    Memory memory;
  };
  auto of = [&](const Way& way) {
    const Job laid = laid_out(request.shape, way, job);
    return Step{predict(request.machine, request.shape, laid), memory_of(request.shape, laid)};
  };
  const std::vector<Way> ways = variants();
  const Step base = of(ways[0]), kept = of(ways[1]), each = of(ways[2]), bare = of(ways[4]);
  CHECK(kept.seconds < base.seconds);
  CHECK(kept.memory.peak() > base.memory.peak());
  CHECK(each.seconds > base.seconds);
  CHECK(each.memory.peak() < base.memory.peak());
  CHECK(bare.seconds > base.seconds);  // nothing hides the gathers
  CHECK(bare.memory.peak() < base.memory.peak());
  // Levels: less is sharded, less is moved, more is held.
  Way level1 = sharded_optimizer(), level2 = level1;
  level2.level = 2;
  const auto one = of(level1), two = of(level2);
  CHECK(one.memory.states > two.memory.states);
  CHECK(one.parts.shard < base.parts.shard);
}

TEST_CASE("schedules of halved backwards are taken where they idle less, for what they hold") {
  SearchRequest request = request_of(layout(1), {sharded()});
  request.fixed = {{"pp_size", 4}, {"tp_size", 2}, {"cp_size", 1}};
  request.memory = 1e12;
  request.global_batch = 4 * request.ranks / 8;  // as many micro-batches as stages: much idles
  const SearchResult plain = search(request, 5);
  request.schedules = kHalved;
  const SearchResult halved = search(request, 5);
  REQUIRE(!plain.best.empty());
  REQUIRE(!halved.best.empty());
  CHECK(halved.best.front().predicted.seconds < plain.best.front().predicted.seconds);
  CHECK(halved.enumerated > plain.enumerated);
  Job folded = halved.best.front().job;
  folded.pp = 4;
  folded.stages = 2;
  folded.schedule = PipelineSchedule::zbv_zero_bubble;
  Job dealt = folded;
  dealt.schedule = PipelineSchedule::interleaved_1f1b;
  // Both ends of the model lie on the first rank.
  CHECK(memory_of(request.shape, folded).states > memory_of(request.shape, dealt).states);
}

TEST_CASE("stages of a rank and a schedule that are asked for are what layouts have") {
  SearchRequest request = request_of(layout(1), {sharded()});
  request.fixed = {{"pp_size", 4}, {"tp_size", 2}, {"cp_size", 1}, {"stages_per_rank", 2}};
  request.memory = 1e12;
  request.global_batch = 4 * request.ranks / 8;
  request.schedules = {PipelineSchedule::interleaved_zero_bubble};
  bool usual = false;
  for (const bool only : {false, true}) {
    request.only_schedules = only;
    const SearchResult found = search(request, 64);
    REQUIRE(!found.best.empty());
    for (const Layout& layout : found.best) {
      CHECK(layout.job.stages == 2);
      if (only) CHECK(layout.job.schedule == PipelineSchedule::interleaved_zero_bubble);
      usual = usual || layout.job.schedule == PipelineSchedule::interleaved_1f1b;
    }
  }
  CHECK(usual);  // where it is not asked for
  request.fixed = {{"pp_size", 1}, {"stages_per_rank", 2}};
  CHECK(search(request, 5).enumerated == 0);
}

TEST_CASE("of each tp, cp, pp and ep the smallest layout is kept") {
  const SearchRequest request = request_of(layout(1), {sharded(), sharded_optimizer()});
  const SearchResult found = search(request, 64);
  auto family = [](const Job& job) { return std::array{job.tp, job.cp, job.pp, job.ep}; };
  std::map<std::array<double, 4>, double> least;
  for (const Layout& layout : found.families)
    CHECK(least.emplace(family(layout.job), layout.use).second);
  CHECK(least.size() > 4);
  REQUIRE(!found.best.empty());
  for (const Layout& layout : found.best) {
    REQUIRE(least.contains(family(layout.job)));
    CHECK(least.at(family(layout.job)) <= layout.use);
  }
  double smallest = found.families.front().use;
  for (const auto& [sizes, use] : least) smallest = std::min(smallest, use);
  CHECK(smallest == found.smallest->use);
}

TEST_CASE("copies that are asked for are what layouts have") {
  SearchRequest request = request_of(layout(1), {sharded(), sharded_optimizer()});
  request.memory = 1e12;
  request.fixed = {{"dp_replicate_size", 4}};
  const SearchResult found = search(request, 20);
  REQUIRE(!found.best.empty());
  for (const Layout& layout : found.best) {
    CHECK(layout.strategy == "level 3");  // the other has no copies of shards
    CHECK(layout.job.replicas() == 4);
    CHECK(layout.job.dp() / 4 >= 2);  // and each is shared
  }
  CHECK(found.rejected.contains("the strategy has no copies of shards"));
  request.fixed = {{"dp_replicate_size", 3}};
  CHECK(search(request, 20).enumerated == 0);
}

TEST_CASE("sizes that cannot be are counted with their reason") {
  struct Sizes {
    std::map<std::string, int64_t> fixed;
    const char* reason;
  };
  for (const Sizes& sizes : {
           Sizes{{{"tp_size", 3}}, "tp does not divide the ranks"},
           Sizes{{{"tp_size", 16}}, "tp does not divide the heads"},
           Sizes{{{"pp_size", 3}}, "pp does not divide the ranks"},
           Sizes{{{"pp_size", 32}}, "the layers do not divide into the stages of pp"},
           Sizes{{{"cp_size", 3}}, "cp does not divide the ranks"},
           Sizes{{{"cp_size", 32}, {"tp_size", 1}},
                 "samples are too short for cp: under 512 tokens a rank"},
           Sizes{{{"ep_size", 2}}, "the model has no experts for ep"},
           Sizes{{{"local_batch_size", 3}},
                 "the micro-batch does not divide the samples of a rank"},
       }) {
    CAPTURE(sizes.reason);
    SearchRequest request = request_of(layout(1), {sharded()});
    request.fixed = sizes.fixed;
    const SearchResult found = search(request, 5);
    CHECK(found.enumerated == 0);
    CHECK(found.rejected.contains(sizes.reason));
  }
  Way short_of_axes = sharded();
  short_of_axes.tp = short_of_axes.cp = short_of_axes.pp = false;
  SearchRequest request = request_of(layout(1), {sharded(), short_of_axes});
  CHECK(search(request, 5).rejected.contains("the strategy has not all of these sizes"));
  request.ways = {short_of_axes};
  CHECK(search(request, 5).rejected.contains("no strategy here has tp"));
}

TEST_CASE("one rank alone has one layout, whatever strategies make of it") {
  SearchRequest request = request_of(layout(0), {sharded()});
  request.ranks = 1;
  const int64_t one = search(request, 5).enumerated;
  CHECK(one > 0);
  request.ways = variants();
  Way other = sharded();
  other.strategy = "level 2";
  other.level = 2;
  request.ways.push_back(other);
  CHECK(search(request, 5).enumerated == one);
  request.ranks = 8;
  CHECK(search(request, 5).enumerated > one);
}

TEST_CASE(
    "heads change for tokens where that sends less, and async tp leaves less of its exchanges") {
  SearchRequest request = request_of(layout(1), {sharded()});
  request.base.context = ContextWay::gather;
  request.shape.kv_heads = 8;  // so few that keys are less than heads
  request.base.async_tp = AsyncTp::no;
  request.fixed = {{"cp_size", 8}, {"tp_size", 1}, {"pp_size", 1}};
  request.memory = 1e12;
  const double keys = search(request, 1).best.front().predicted.parts.cp;
  request.exchange = Exchange::where_it_sends_less;
  const double heads = search(request, 1).best.front().predicted.parts.cp;
  CHECK(heads < keys);
  CHECK(heads > 0);
  request.exchange = Exchange::never;
  request.fixed = {{"cp_size", 1}, {"tp_size", 8}, {"pp_size", 1}};
  const Layout bare = search(request, 1).best.front();
  request.ways.front().async = true;
  const Layout async = search(request, 1).best.front();
  CHECK(async.job.async_tp == AsyncTp::torch);
  CHECK(async.predicted.parts.tp < bare.predicted.parts.tp);
  request.ways.front().sequence = false;  // nothing to lie beside
  CHECK(search(request, 1).best.front().job.async_tp == AsyncTp::no);
}

TEST_CASE("layouts that count a little too much stay until a plan of their kind is known") {
  SearchRequest request = request_of(layout(1), {sharded()});
  auto of = [&](int64_t pp, double unknown) {
    request.fixed = {{"pp_size", pp}};
    request.unknown = unknown;
    return search(request, 64);
  };
  for (const int64_t pp : {1, 4}) {
    CAPTURE(pp);
    request.counts = {};
    request.bounded = false;
    auto above = [&](const SearchResult& found, double share) {
      return std::ranges::count_if(found.best, [&](const Layout& layout) {
        return layout.memory.peak() > share * request.memory;
      });
    };
    const SearchResult wide = of(pp, 0.8);
    CHECK(wide.fitting > of(pp, 1).fitting);
    CHECK(above(wide, 1) > 0);
    CHECK(above(wide, 1.25) == 0);
    CHECK(above(of(pp, 1), 1) == 0);
    for (const Layout& layout : wide.best) request.counts[kind_of(layout)] = 1;
    for (const Layout& layout : of(pp, 0.8).best)
      CHECK((layout.memory.peak() <= request.memory || !request.counts.contains(kind_of(layout))));
  }
}

TEST_CASE("keys of attention go round where the ranks of cp are on several hosts") {
  SearchRequest request = request_of(layout(1), {sharded()});
  request.ways.front().cp = true;
  request.exchange = Exchange::where_it_sends_less;
  request.base.length = 65536;
  request.base.ranks_per_host = 8;
  request.base.context = ContextWay::gather;
  for (const int64_t tp : {1, 8}) {
    CAPTURE(tp);
    request.fixed = {{"tp_size", tp}, {"cp_size", 4}};
    request.memory = 1e15;
    const SearchResult found = search(request, 1);
    REQUIRE(!found.best.empty());
    const Job& job = found.best.front().job;
    CHECK(job.cp_seconds < 0);  // no heads are changed
    CHECK((job.context == ContextWay::ring) == (tp == 8));
  }
}

TEST_CASE("where nothing fits, the search says what the smallest layout needs") {
  SearchRequest request = request_of(layout(2), {sharded_optimizer()});
  request.ranks = 8;
  const SearchResult found = search(request, 5);
  CHECK(found.best.empty());
  REQUIRE(found.smallest);
  CHECK(found.smallest->memory.peak() > request.memory);
  CHECK(found.smallest->use > 1);
}

// What ways come to at sizes, in bytes counted by hand.

TEST_CASE("experts that ep divides move over their own ranks, and not where ep alone cuts them") {
  Shape shape;
  shape.hidden = 1024;
  shape.layers = 4;
  shape.heads = shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.vocabulary = 1000;
  shape.experts = 8;
  shape.experts_a_token = 2;
  shape.expert_ffn = 512;
  const double routed = 3.0 * 1024 * 8 * 512;
  CHECK(shape.routed_parameters() == routed);
  const double dense = shape.layer_parameters() - routed;
  Job job;
  job.ranks = job.shard = 16;
  job.micro_batches = 2;
  job.engine_memory = true;
  auto with = [&](double ep) {
    job.ep = ep;
    return laid_out(shape, sharded(), job);
  };
  CHECK(with(1).data.layer_gathered == 2 * (dense + routed));
  CHECK(with(4).data.layer_gathered == 2 * (dense + routed / 4));
  job.ranks = job.shard = 8;
  CHECK(with(8).data.layer_gathered == 2 * dense);
  // Gradients that wait for the last micro-batch are those of the rank's own experts.
  CHECK(memory_of(shape, with(1)).transient - memory_of(shape, with(2)).transient >=
        4 * 4 * routed / 2);
}

TEST_CASE("what is frozen has neither gradients nor states, and may be whole on every rank") {
  Shape shape = layout(0).shape;
  Job job;
  job.ranks = job.shard = 8;
  job.engine_memory = true;
  Way way = sharded();
  auto laid = [&] { return laid_out(shape, way, job); };
  auto states = [&] { return memory_of(shape, laid()).states; };
  shape.frozen.parameters = 0.75;
  way.frozen = 2;
  const double layer = shape.layer_parameters(), held = shape.parameters();
  CHECK(states() == doctest::Approx(held * (0.25 * 16 / 8 + 0.75 * 2 / 8)));
  CHECK(laid().data.layer_reduced == doctest::Approx(0.25 * 4 * layer));
  CHECK(laid().data.layer_gathered == doctest::Approx(2 * layer));
  way.frozen_whole = true;
  CHECK(states() == doctest::Approx(held * (0.25 * 16 / 8 + 0.75 * 2)));
  CHECK(laid().data.layer_gathered == doctest::Approx(0.25 * 2 * layer));
  way.on_host = true;  // nothing of it on the device
  CHECK(states() == 0);
}

TEST_CASE("copies of everything hold what is cast, and buckets of another dtype") {
  const Shape shape = layout(0).shape;
  Job job;
  job.ranks = 8;
  job.engine_memory = true;
  Way way = sharded();
  way.whole = true;
  auto transient = [&] { return memory_of(shape, laid_out(shape, way, job)).transient; };
  const double all = shape.parameters();
  CHECK(transient() == doctest::Approx(2 * all));  // float32 computes in bfloat16
  way.weights = way.gradients = 2;
  CHECK(transient() == 0);
  way.buckets = true;
  CHECK(transient() == doctest::Approx(4 * all));
}

TEST_CASE("a strategy's own count is that of as many ranks, or of the next fewer it knows") {
  const Shape shape = layout(0).shape;
  Way way = sharded();
  auto laid = [&](double ranks, double micro_batches) {
    Job job;
    job.ranks = job.shard = ranks;
    job.micro_batches = micro_batches;
    job.engine_memory = true;
    return laid_out(shape, way, job);
  };
  auto held = [&](double ranks, double micro_batches) {
    const Memory memory = memory_of(shape, laid(ranks, micro_batches));
    return memory.states + memory.transient;
  };
  const double once = held(8, 1), waiting = held(8, 2), alone = held(2, 1),
               bytes = laid(8, 1).optimizer_bytes;
  way.own[4] = {0.5, 0.75, 0.25};
  way.own[16] = {0.125, 0.125, 0.125};
  CHECK(held(8, 1) == doctest::Approx(0.5 * once));
  CHECK(held(8, 2) == doctest::Approx(0.75 * waiting));
  CHECK(laid(8, 1).optimizer_bytes == 0.25 * bytes);
  CHECK(held(2, 1) == alone);
}

#ifdef NDEBUG
TEST_CASE("a layout is predicted in 100 us") {
  const SearchRequest request = request_of(layout(2), {sharded()});
  Job job = request.base;
  job.ranks = 1024;
  job.tp = 8;
  job.pp = 8;
  job.micro_batches = 32;
  job.shard = job.dp();
  lay_out(request.shape, request.ways.front(), job);
  constexpr int kTimes = 1000;
  double seconds = 0;
  const std::clock_t begin = std::clock();
  for (int i = 0; i < kTimes; ++i) {
    job.micro_batch = 1 + i % 2;
    seconds += predict(request.machine, request.shape, job, Bubble::closed_form).seconds;
  }
  const double each = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kTimes;
  CHECK(seconds > 0);
  CHECK(each < 100e-6);
}

TEST_CASE("with all ways and schedules that takes less than a second of one core") {
  std::vector<Way> ways = variants();
  ways.push_back(sharded_optimizer());
  SearchRequest request = request_of(layout(2), ways);
  request.base.engine_memory = true;
  request.schedules = kHalved;
  const std::clock_t begin = std::clock();
  const SearchResult found = search(request, 5);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CAPTURE(found.enumerated);
  CAPTURE(found.predicted);
  CHECK(seconds < 1);
}
#endif

}  // namespace
}  // namespace meshwright::steptime
