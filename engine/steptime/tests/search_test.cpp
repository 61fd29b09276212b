#include "engine/steptime/search.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "published.h"

namespace meshwright::steptime {
namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/published";
const std::string kMachines = MESHWRIGHT_SOURCE_DIR "/configs/machines";

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

TEST_CASE("the vendor's five layouts are at most 3% slower than the best that the search finds") {
  for (const published::Row& row : published::layouts(kData)) {
    CAPTURE(row.id);
    SearchRequest request = request_of(row, {sharded_optimizer()});
    request.recompute = Recompute::none;
    const SearchResult found = search(request, 5);
    REQUIRE(!found.best.empty());
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
    lay_out(row.shape, request.ways.front(), vendor);
    const double theirs = predict(request.machine, row.shape, vendor).seconds,
                 best = found.best.front().predicted.seconds;
    CAPTURE(theirs);
    CAPTURE(best);
    CHECK(theirs <= 1.03 * best);
  }
}

TEST_CASE("what is fixed stays, what is too large is left out, and more memory is never slower") {
  const published::Row row = published::layouts(kData)[1];  // 70B on 64
  SearchRequest request = request_of(row, {sharded(), sharded_optimizer()});
  const SearchResult all = search(request, 20);
  CHECK(all.fitting + all.rejected.at("more memory than a rank has") == all.enumerated);
  CHECK(std::is_sorted(all.best.begin(), all.best.end(), [](const Layout& a, const Layout& b) {
    auto score = [](const Layout& l) {
      return l.predicted.seconds * (l.use > kComfortable ? 1.05 : 1);
    };
    return score(a) < score(b);
  }));
  for (const Layout& layout : all.best) {
    CHECK(layout.predicted.memory.peak() <= request.memory);
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

TEST_CASE("where nothing fits, the search says what the smallest layout needs") {
  const published::Row row = published::layouts(kData)[2];  // 405B
  SearchRequest request = request_of(row, {sharded_optimizer()});
  request.ranks = 8;
  const SearchResult found = search(request, 5);
  CHECK(found.best.empty());
  REQUIRE(found.smallest);
  CHECK(found.smallest->predicted.memory.peak() > request.memory);
  CHECK(found.smallest->use > 1);
}

TEST_CASE("the search for 405B on 1,024 ranks looks at thousands of layouts") {
  const published::Row row = published::layouts(kData)[2];
  const SearchResult found = search(request_of(row, {sharded(), sharded_optimizer()}), 5);
  CHECK(found.enumerated > 4000);
  CHECK(found.best.size() == 5);
}

}  // namespace
}  // namespace meshwright::steptime
