#include "apps/performance/steptime/predict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "apps/performance/steptime/kernels.h"
#include "published.h"
#include "sdk/base/pipeline.h"

namespace meshwright::steptime {
namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/published";
const std::string kMachines = MESHWRIGHT_SOURCE_DIR "/configs/machines";

// All runs that others published.
const std::vector<published::Compared>& runs() {
  static const std::vector<published::Compared> all =
      published::compare(published::runs(kData), published::machines(kMachines));
  return all;
}

TEST_CASE("the parts of a step add up to it, and none is negative") {
  for (const published::Compared& run : runs()) {
    CAPTURE(run.row.id);
    const Parts& q = run.predicted.parts;
    CHECK(q.sum() == doctest::Approx(run.predicted.seconds));
    for (const double part : {q.products, q.attention, q.elementwise, q.recompute, q.tp, q.cp, q.ep,
                              q.shard, q.bubble, q.optimizer, q.host, q.stragglers})
      CHECK(part >= 0);
  }
}

TEST_CASE("no job is faster on a machine that is worse in one figure") {
  struct Worse {
    const char* what;
    void (*change)(Machine&);
  };
  const Worse table[] = {
      {"peak bf16", [](Machine& m) { m.peak_bf16 *= 0.7; }},
      {"peak fp8", [](Machine& m) { m.peak_fp8 *= 0.7; }},
      {"bandwidth", [](Machine& m) { m.bandwidth *= 0.7; }},
      {"bus", [](Machine& m) { m.network.bus *= 0.7; }},
      {"nic", [](Machine& m) { m.network.nic *= 0.7; }},
      {"kappa", [](Machine& m) { m.overlap.kappa *= 1.5; }},
      {"ring steps", [](Machine& m) { m.network.step_outside *= 2; }},
      {"launch", [](Machine& m) { m.host.fixed *= 2; }},
      {"stragglers", [](Machine& m) { m.overlap.jitter *= 2; }},
  };
  for (const published::Compared& run : runs())
    for (const Worse& worse : table) {
      CAPTURE(run.row.id);
      CAPTURE(worse.what);
      Machine changed = run.machine;
      worse.change(changed);
      CHECK(predict(changed, run.row.shape, run.row.job).seconds >=
            run.predicted.seconds * (1 - 1e-12));
    }
}

TEST_CASE("the steady part of a pipeline goes on as it began") {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved_1f1b,
        PipelineSchedule::zbv_zero_bubble})
    for (const int64_t ranks : {2, 4}) {
      const int64_t local = is_multi_stage(schedule) ? 2 : 1;
      std::vector<PipelineTimes> times;
      for (int64_t s = 0; s < ranks * local; ++s)
        times.push_back({1.0 + 0.1 * static_cast<double>(s), 1.2, 0.9});
      CAPTURE(static_cast<int>(schedule));
      auto simulated = [&](double message) {
        return simulate_pipeline(make_actions(schedule, ranks, local, 16 * ranks), times, message)
            .makespan;
      };
      CHECK(simulated(0.05) > simulated(0));
      CHECK(makespan(schedule, ranks, local, 16 * ranks, times, 0.05) ==
            doctest::Approx(simulated(0.05)).epsilon(0.01));
    }
}

TEST_CASE("ranks that share a processor fill each other's bubbles, at most all of them") {
  int pipelines = 0;
  for (const published::Compared& run : runs()) {
    const published::Row& row = run.row;
    if (row.job.pp <= 1) continue;
    ++pipelines;
    CAPTURE(row.id);
    Machine machine = run.machine;
    const Prediction& apart = run.predicted;
    machine.overlap.alone = 1.5;
    const Prediction some = predict(machine, row.shape, row.job);
    machine.overlap.alone = row.job.ranks_per_host;
    const Prediction most = predict(machine, row.shape, row.job);
    CHECK(some.seconds <= apart.seconds * (1 + 1e-12));
    CHECK(most.seconds <= some.seconds * (1 + 1e-12));
    if (apart.parts.bubble > 0) CHECK(some.seconds < apart.seconds);
    CHECK(most.parts.bubble >= 0);
    // The work itself stays: that of a rank on average.
    CHECK(most.seconds > 0.5 * (apart.seconds - apart.parts.bubble));
  }
  CHECK(pipelines > 10);
}

TEST_CASE("messages that share the cores with the work are hidden by nothing") {
  Machine machine = runs().front().machine;
  machine.overlap.adds = true;
  machine.overlap.alone = 1024;  // others fill every bubble
  Shape shape;
  shape.hidden = 256;
  shape.layers = 8;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = 64;
  shape.ffn = 1024;
  shape.vocabulary = 1000;
  Job job;
  job.ranks = job.ranks_per_host = job.pp = 4;
  job.length = 256;
  job.micro_batch = 1;
  job.micro_batches = 8;
  job.width = 4;
  machine.network.bus = machine.network.nic = 1e9;
  const double fast = predict(machine, shape, job).seconds;
  machine.network.bus = machine.network.nic = 0.5e9;
  // Each rank sends, and is sent, the other way as well, 8 times 256 x 256 float32.
  CHECK(predict(machine, shape, job).seconds - fast ==
        doctest::Approx(2 * 8 * 256 * 256 * 4 / 1e9).epsilon(0.05));

  // Gathers and reductions of its shards neither.
  job.ranks = job.ranks_per_host = 8;
  job.shard = 2;
  job.data.gather_forward = job.data.reduce = When::once;
  job.data.layer_gathered = job.data.layer_reduced = 4e6;
  const Prediction once = predict(machine, shape, job);
  CHECK(once.parts.shard == doctest::Approx(2 * 2 * 0.5 * 4e6 / 0.5e9).epsilon(0.05));
  machine.overlap.kappa = 0.9;
  CHECK(predict(machine, shape, job).seconds == once.seconds);
}

TEST_CASE("what is frozen takes less time, the more of it the less, and nothing frozen as much") {
  for (const published::Compared& run : runs()) {
    const published::Row& row = run.row;
    CAPTURE(row.id);
    auto step = [&](const Frozen& frozen) {
      Shape shape = row.shape;
      shape.frozen = frozen;
      return predict(run.machine, shape, row.job);
    };
    const Prediction all = step({}), products = step({.products = 0.5}),
                     beginning = step({.layers = row.shape.layers / 2, .parameters = 0.4}),
                     layers = step({.layers = row.shape.layers, .parameters = 0.9});
    CHECK(products.seconds <= all.seconds);
    CHECK(products.parts.products <= all.parts.products);
    CHECK(beginning.seconds < all.seconds);
    CHECK(layers.seconds < beginning.seconds);
    Shape frozen = row.shape;
    frozen.frozen = {.layers = row.shape.layers / 2, .parameters = 0.4};
    CHECK(memory_of(frozen, row.job).peak() <= memory_of(row.shape, row.job).peak());
    for (const Prediction* one : {&products, &beginning, &layers})
      for (const double part :
           {one->parts.products, one->parts.attention, one->parts.recompute, one->parts.tp,
            one->parts.shard, one->parts.optimizer, one->parts.host})
        CHECK(part >= 0);
    // Half of the layers without a backward: between a half and all of its time is left.
    if (row.job.pp == 1 && row.job.recompute == Recompute::none)
      CHECK(beginning.parts.attention < 0.8 * all.parts.attention);
  }
}

// Llama 3 8B.
Shape shape_of_8b() {
  Shape shape;
  shape.hidden = 4096;
  shape.layers = 32;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.ffn = 14336;
  shape.vocabulary = 128256;
  return shape;
}

TEST_CASE(
    "products of float32 in TF32 are as much faster as its peak is higher, and nothing else") {
  Machine machine = find_machine("h100", kMachines);
  const Shape shape = shape_of_8b();
  auto parts = [&](double width, bool tf32) {
    Job job;
    job.length = 4096;
    job.width = width;
    job.tf32 = tf32;
    return predict(machine, shape, job).parts;
  };
  const Parts full = parts(4, false), tf32 = parts(4, true);
  CHECK(full.products / tf32.products ==
        doctest::Approx(machine.peak_tf32 / machine.peak_fp32).epsilon(0.02));
  CHECK(tf32.attention == full.attention);
  CHECK(tf32.elementwise == full.elementwise);
  CHECK(parts(2, true).products == parts(2, false).products);
  machine.peak_tf32 = 0;  // as a file has it that does not say
  CHECK(parts(4, true).products == full.products);
}

TEST_CASE("casts of the engine to fp8 are counted by its kernels, of the Linears that take part") {
  const Machine machine = find_machine("h100", kMachines);
  Shape shape = shape_of_8b();
  Job job;
  job.length = 4096;
  job.fusion = Fusion::fused;
  auto products = [&](bool fp8, bool engine) {
    job.fp8 = fp8;
    job.engine_casts = engine;
    return predict(machine, shape, job).parts.products;
  };
  // Of q, k and v together, o, gate and up together, down; the engine's six before down cast
  // theirs.
  const double together = 4096.0 * (3 * 4096 + 14336), input = 4096.0 * (6 * 4096 + 14336),
               weight = 4096.0 * (6144 + 4096 + 28672 + 14336),
               result = 4096.0 * (6144 + 4096 + 28672 + 4096);
  auto seconds = [](double bytes) { return 32 * bytes / (0.8 * 3.35e12); };
  const double theirs = 2 * (together + result);
  auto ours = [&](double each) {
    return each * (2 * input + 2 * weight + result) + 2 * (input + weight + result);
  };
  CHECK(products(true, true) - products(true, false) ==
        doctest::Approx(seconds(ours(21) - theirs)));
  job.width = 4;
  CHECK(products(true, true) - products(true, false) ==
        doctest::Approx(seconds(ours(17) - theirs)));
  job.width = 2;
  CHECK(products(false, true) == products(false, false));
  CHECK(products(true, false) < 0.7 * products(false, false));
  // Frozen weights have no gradient, and their inputs are not cast for one.
  shape.frozen.products = 1;
  CHECK(products(true, true) - products(true, false) ==
        doctest::Approx(seconds(21 * (input + 2 * weight + result) + 2 * weight - theirs)));
  shape.frozen.products = 0;
  // Sizes of 8 and 88 are no multiples of 16, and experts are multiplied as before.
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 8;
  shape.ffn = 88;
  CHECK(products(true, true) == products(false, true));
  shape.experts = 8;
  shape.experts_a_token = 2;
  shape.expert_ffn = 512;
  CHECK(products(true, true) == products(false, true));
  CHECK(products(true, false) != products(false, true));
  shape.shared_ffn = 512;
  CHECK(products(true, true) != products(false, true));
}

TEST_CASE("adapters move 10 bytes an element of the Linears beside which they are, both ways") {
  const Machine machine = find_machine("h100", kMachines);
  Shape shape = shape_of_8b();
  Job job;
  job.length = 4096;
  auto products = [&](double adapted) {
    shape.frozen.adapted = adapted;
    return predict(machine, shape, job).parts.products;
  };
  // Ends of q, k and v together, o, gate and up together, down.
  const double ends = 4096 + 6144 + 2 * 4096 + 4096 + 28672 + 14336 + 4096;
  const double all = 32 * 2 * 10 * 4096 * ends / (0.8 * 3.35e12);
  CHECK(products(1) - products(0) == doctest::Approx(all));
  CHECK(products(0.25) - products(0) == doctest::Approx(all / 4));
  job.width = 4;  // the bytes are those that runs showed, whatever the width
  CHECK(products(1) - products(0) == doctest::Approx(all));
}

TEST_CASE("states on the host are copied over its link and updated in its memory") {
  for (const published::Compared& run : runs()) {
    const published::Row& row = run.row;
    const Machine& machine = run.machine;
    CAPTURE(row.id);
    Job job = row.job;
    job.offload = {.on = true, .pinned = true, .copied = 50e9};
    const Parts here = run.predicted.parts, there = predict(machine, row.shape, job).parts;
    CHECK(there.shard - here.shard == doctest::Approx(50e9 / 25e9));
    CHECK(there.optimizer * 20e9 ==
          doctest::Approx(here.optimizer * machine.rate.elementwise * machine.bandwidth));
    job.offload.pinned = false;
    CHECK(predict(machine, row.shape, job).parts.shard - here.shard == doctest::Approx(50e9 / 8e9));
  }
}

TEST_CASE("a pipeline's message takes the ring's rate, or its own inside a host and between them") {
  Machine machine = find_machine("h100", kMachines);
  const Group inside{4, 2, 8}, apart{4, 8, 8};
  const double bus = machine.network.bus, nic = machine.network.nic;
  CHECK(send(machine, inside, 1e9) == 1e9 / bus + 15e-6);
  CHECK(send(machine, apart, 1e9) == 1e9 / nic + 15e-6);
  machine.network.send_inside = 100e9;
  machine.network.send_latency_inside = 5e-6;
  CHECK(send(machine, inside, 1e9) == doctest::Approx(0.01 + 5e-6).epsilon(1e-9));
  CHECK(send(machine, apart, 1e9) == 1e9 / nic + 15e-6);
  machine.network.send_outside = 10e9;
  machine.network.send_latency_outside = 50e-6;
  CHECK(send(machine, apart, 1e9) == doctest::Approx(0.1 + 50e-6).epsilon(1e-9));
  CHECK(send(machine, inside, 1e9) == doctest::Approx(0.01 + 5e-6).epsilon(1e-9));
  CHECK(send(machine, {1, 1, 8}, 1e9) == 0);

  // A step of a pipeline is no faster where messages are slower, inside a host and outside.
  int slower = 0;
  for (const published::Compared& run : runs()) {
    const published::Row& row = run.row;
    if (row.job.pp <= 1) continue;
    CAPTURE(row.id);
    Machine one = run.machine;
    one.network.send_inside = one.network.bus;
    one.network.send_outside = one.network.nic;
    const double same = predict(one, row.shape, row.job).seconds;
    CHECK(same == run.predicted.seconds);
    for (double* rate : {&one.network.send_inside, &one.network.send_outside}) *rate /= 2;
    const double less = predict(one, row.shape, row.job).seconds;
    CHECK(less >= same * (1 - 1e-12));
    for (double* latency : {&one.network.send_latency_inside, &one.network.send_latency_outside})
      *latency *= 4;
    CHECK(predict(one, row.shape, row.job).seconds >= less * (1 - 1e-12));
    slower += less > same;
  }
  CHECK(slower > 10);
}

TEST_CASE("messages of a ring count where they exceed the kernels beside them, and 15% always") {
  Machine machine = find_machine("h100", kMachines);
  CHECK(exposed_ring(machine, 2, 5) == doctest::Approx(0.3));
  CHECK(exposed_ring(machine, 5, 2) == doctest::Approx(3.75));
  machine.overlap.adds = true;
  CHECK(exposed_ring(machine, 2, 5) == 2);
}

TEST_CASE("a group over whole hosts has the sum of their NICs, one of a rank a host a single NIC") {
  const Machine machine = find_machine("h100", kMachines);
  const double nic = machine.network.nic * machine.network.nic_attained;
  CHECK(ring_of(machine, {8, 1, 8}).rate == machine.network.bus);
  CHECK(ring_of(machine, {32, 1, 8}).rate ==
        doctest::Approx(std::min(machine.network.bus, 8 * nic)));
  CHECK(ring_of(machine, {4, 8, 8}).rate == doctest::Approx(nic));
  CHECK(ring_of(machine, {16, 2, 8}).rate == doctest::Approx(4 * nic));
  CHECK(all_gather(machine, {1, 1, 8}, 1e9) == 0);
  const double gather = all_gather(machine, {32, 1, 8}, 1e9);
  CHECK(all_reduce(machine, {32, 1, 8}, 1e9) <= 2 * gather * (1 + 1e-9));
  CHECK(all_reduce(machine, {4, 1, 8}, 1e9) ==
        doctest::Approx(2 * all_gather(machine, {4, 1, 8}, 1e9)).epsilon(0.06));
}

TEST_CASE("groups that do not divide the hosts have the fewest ranks a host that one of them has") {
  // Rank by rank: the fewest members on a host that a group is on, and the most hosts.
  auto counted = [](int stride, int size, int host, int ranks) {
    int fewest = size, most = 1;
    for (int block = 0; block + stride * size <= ranks; block += stride * size)
      for (int offset = 0; offset < stride; ++offset) {
        std::map<int, int> members;
        for (int i = 0; i < size; ++i) ++members[(block + offset + i * stride) / host];
        for (const auto& [on, count] : members) fewest = std::min(fewest, count);
        most = std::max(most, static_cast<int>(members.size()));
      }
    return std::pair<double, double>(fewest, most);
  };
  int split = 0;
  for (int host = 1; host <= 12; ++host)
    for (int stride = 1; stride <= 12; ++stride)
      for (int size = 2; size <= 12; ++size)
        for (int blocks = 1; blocks <= 4; ++blocks) {
          const int ranks = stride * size * blocks, here = std::min(host, ranks);
          const Group group{double(size), double(stride), double(here), double(ranks)};
          const Group begins{double(size), double(stride), double(here)};
          const bool divides =
              stride >= here || here % (stride * size) == 0 || stride * size % here == 0;
          const double members = group.members_a_host(), hosts = group.hosts();
          const auto wanted = divides ? std::pair(begins.members_a_host(), begins.hosts())
                                      : counted(stride, size, here, ranks);
          split += members != begins.members_a_host();
          if (std::pair(members, hosts) == wanted) continue;  // thousands are right
          INFO("host ", host, " stride ", stride, " size ", size, " ranks ", ranks);
          CHECK(members == wanted.first);
          CHECK(hosts == wanted.second);
        }
  CHECK(split > 100);
  // tp 4 on hosts of 6: ranks 4 to 7 lie on two of them, two on each.
  const Machine machine = find_machine("h100x6", kMachines);
  const double nic = machine.network.nic * machine.network.nic_attained;
  CHECK(ring_of(machine, {4, 1, 6, 24}).rate == doctest::Approx(2 * nic));
  CHECK(ring_of(machine, {3, 1, 6, 24}).rate == machine.network.bus);
  Job job;
  job.ranks = 24;
  job.ranks_per_host = 6;
  job.length = 4096;
  job.tp = 4;
  const double split_tp = predict(machine, shape_of_8b(), job).parts.tp;
  job.ranks_per_host = 8;
  CHECK(split_tp > 2 * predict(find_machine("h100x8", kMachines), shape_of_8b(), job).parts.tp);
}

}  // namespace
}  // namespace meshwright::steptime
