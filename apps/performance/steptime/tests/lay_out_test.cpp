// What ways come to at sizes, in bytes counted by hand.
#include <doctest/doctest.h>

#include "apps/performance/steptime/search.h"
#include "published.h"

namespace meshwright::steptime {
namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/published";

Way sharded() {
  Way way;
  way.strategy = "level 3";
  return way;
}

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
  auto gathered = [&](double ep) {
    Job laid = job;
    laid.ep = ep;
    lay_out(shape, sharded(), laid);
    return laid.data.layer_gathered;
  };
  CHECK(gathered(1) == 2 * (dense + routed));
  CHECK(gathered(4) == 2 * (dense + routed / 4));
  job.ranks = job.shard = 8;
  CHECK(gathered(8) == 2 * dense);
  // Gradients that wait for the last micro-batch are those of the rank's own experts.
  auto transient = [&](double ep) {
    Job laid = job;
    laid.ep = ep;
    lay_out(shape, sharded(), laid);
    return memory_of(shape, laid).transient;
  };
  CHECK(transient(1) - transient(2) >= 4 * 4 * routed / 2);
}

TEST_CASE("what is frozen has neither gradients nor states, and may be whole on every rank") {
  const published::Row row = published::layouts(kData)[0];
  Shape shape = row.shape;
  Job job;
  job.ranks = job.shard = 8;
  job.engine_memory = true;
  auto of = [&](const Way& way) {
    Job laid = job;
    lay_out(shape, way, laid);
    return laid;
  };
  shape.frozen.parameters = 0.75;
  Way way = sharded();
  way.frozen = 2;
  const double held = shape.layers * shape.layer_parameters() + shape.root_parameters();
  CHECK(memory_of(shape, of(way)).states == doctest::Approx(held * (0.25 * 16 / 8 + 0.75 * 2 / 8)));
  CHECK(of(way).data.layer_reduced == doctest::Approx(0.25 * 4 * shape.layer_parameters()));
  CHECK(of(way).data.layer_gathered == doctest::Approx(2 * shape.layer_parameters()));
  way.frozen_whole = true;
  CHECK(memory_of(shape, of(way)).states == doctest::Approx(held * (0.25 * 16 / 8 + 0.75 * 2)));
  CHECK(of(way).data.layer_gathered == doctest::Approx(0.25 * 2 * shape.layer_parameters()));
  way.on_host = true;  // nothing of it on the device
  CHECK(memory_of(shape, of(way)).states == 0);
}

TEST_CASE("copies of everything hold what is cast, and buckets of another dtype") {
  const published::Row row = published::layouts(kData)[0];
  Job job;
  job.ranks = 8;
  job.engine_memory = true;
  Way way = sharded();
  way.whole = true;
  auto transient = [&] {
    Job laid = job;
    lay_out(row.shape, way, laid);
    return memory_of(row.shape, laid).transient;
  };
  const double all = row.shape.layers * row.shape.layer_parameters() + row.shape.root_parameters();
  CHECK(transient() == doctest::Approx(2 * all));  // float32 computes in bfloat16
  way.weights = way.gradients = 2;
  CHECK(transient() == 0);
  way.buckets = true;
  CHECK(transient() == doctest::Approx(4 * all));
}

TEST_CASE("a strategy's own count is that of as many ranks, or of the next fewer it knows") {
  const published::Row row = published::layouts(kData)[0];
  Way way = sharded();
  auto laid = [&](double ranks, double micro_batches) {
    Job job;
    job.ranks = job.shard = ranks;
    job.micro_batches = micro_batches;
    job.engine_memory = true;
    lay_out(row.shape, way, job);
    return job;
  };
  auto held = [&](double ranks, double micro_batches) {
    const Memory memory = memory_of(row.shape, laid(ranks, micro_batches));
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

}  // namespace
}  // namespace meshwright::steptime
