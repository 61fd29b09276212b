// Each flag of megatron_fsdp does what it says.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/trace_bars.h"

#include <ATen/ops/isnan.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "engine/job/plan.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/tests/causal_loss.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <tuple>

namespace megatron_fsdp_options_test {

using namespace meshwright;

namespace {

// How many bars of one name begin within bars of another.
int begin_within(const std::vector<Bar>& bars, const std::string& name, const std::string& around) {
  int out = 0;
  for (const Bar& bar : bars)
    for (const Bar& other : bars)
      out += bar.name == name && other.name == around && bar.begin >= other.begin &&
             bar.begin < other.end;
  return out;
}

// Gradients of rank 0 after end_step(), before they are clipped.
std::map<std::string, at::Tensor> gradients_of(const Layout& layout) {
  std::map<std::string, at::Tensor> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    ParallelModel& model = rank.trainer.model();
    model.begin_step();
    model.begin_micro_batch(GradientSync::reduce);
    at::Tensor ids = at::empty({1, kLength + 1}, at::kLong);
    fill_sample(world->rank(), rank.net->outline().vocab_size, ids.mutable_data_ptr<int64_t>());
    train::loss_of(rank.trainer, rank.net, ids).sum.backward();
    model.end_step();
    if (world->rank() == 0)
      for (const ParallelParameter& p : model.parameters()) out[p.name] = p.grad.clone();
  });
  return out;
}

const std::string kUp = "model.layers.1.mlp.up_proj.weight";

// What each rank throws in a step in which rank 1's gradient of kUp has such a value.
std::vector<std::string> errors_with(double value, const Layout& layout) {
  std::vector<std::string> out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    rank.step();
    if (world->rank() == 1)
      rank.net->named_parameters()[kUp].register_hook([value](const at::Tensor& gradient) {
        at::Tensor broken = gradient.clone();
        broken.view({-1}).narrow(0, 5, 1).fill_(value);
        return broken;
      });
    std::string said = "nothing";
    try {
      rank.step();
    } catch (const Error& error) {
      said = std::to_string(exit_status(error.code())) + " " + error.key() + " " + error.what();
    }
    std::lock_guard lock(mutex);
    out.push_back(said);
  });
  return out;
}

struct Allocations : c10::MemoryReportingInfoBase {
  std::multiset<int64_t> sizes;
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) sizes.insert(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

TEST_CASE(
    "overlap_grad_reduce and overlap_param_gather move the communication, which the trace shows, "
    "and change no bit") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  const int steps = 3, units = 3;  // two layers and what lies outside
  for (int n : {0, 1, 2}) {
    CAPTURE(n);
    std::string reduction = n == 0 ? "dp all_reduce" : "dp reduce_scatter";
    Layout beside = flat_layout(model, 2, 1, 2, {flat_level(n)}), after = beside;
    after.sets.push_back(flat_option("overlap_grad_reduce", "false"));
    after.sets.push_back(flat_option("overlap_param_gather", "false"));
    std::vector<Bar> bars = trace_of(beside, steps), late = trace_of(after, steps);
    CHECK(begin_within(bars, reduction, "backward") >= steps * (units - 1));
    if (n < 2)
      CHECK(begin_within(late, reduction, "backward") == 0);  // from level 2 on it always overlaps
    if (n > 0) {
      CHECK(begin_within(bars, "dp all_gather", "forward") >= steps * (units - 2));
      CHECK(begin_within(late, "dp all_gather", "forward") == 0);
      CHECK(begin_within(late, "dp all_gather", "optimizer") == steps * units);
    }
    Curve one = curve_of(beside, 3), other = curve_of(after, 3);
    CHECK(one.losses == other.losses);
    CHECK(one.norms == other.norms);
  }
}

TEST_CASE(
    "NaN and infinite gradients are found after or before the reduction, and their parameter is "
    "named on every rank") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  for (const auto& [value, is, norm] :
       {std::tuple(std::nan(""), "NaN", "nan"), {HUGE_VAL, "infinite", "infinite"}})
    for (int n = 0; n <= 3; ++n) {
      CAPTURE(n);
      Layout layout = flat_layout(model, 2, 1, 2, {flat_level(n)});
      for (const std::string& said : errors_with(value, layout)) {
        CAPTURE(said);
        CHECK(said.find("5 distributed.megatron_fsdp.check_for_nan_in_grad error[E0801]: rank ") ==
              0);
        CHECK(said.find("the gradient of " + kUp + " is " + is + " after the reduction") !=
              std::string::npos);
      }
      Layout own = layout, none = layout;
      own.sets.push_back(flat_option("report_nan_in_param_grad", "true"));
      for (const std::string& said : errors_with(value, own)) {
        CAPTURE(said);
        CHECK(said.find("5 distributed.megatron_fsdp.report_nan_in_param_grad error[E0801]: rank "
                        "1: the gradient of " +
                        kUp + " is " + is + " before") == 0);
      }
      none.sets.push_back(flat_option("check_for_nan_in_grad", "false"));
      for (const std::string& said : errors_with(value, none)) {
        CAPTURE(said);
        CHECK(said.find(std::string(
                            "5 run.stop_on_nonfinite error[E0801]: step 1: the gradient norm is ") +
                        norm) == 0);
      }
      none.sets.push_back("run.stop_on_nonfinite=false");
      for (const std::string& said : errors_with(value, none)) CHECK(said == "nothing");
    }
}

TEST_CASE("a norm is finite where the squares of gradients are beyond float32") {
  TestFolder folder("megatron_fsdp_options");
  Layout layout = flat_layout(write_model(folder.path, kLlama), 2, 1, 2, {flat_level(3)});
  for (const std::string& said : errors_with(1e30, layout)) CHECK(said == "nothing");
}

TEST_CASE(
    "gradients are averaged before the sum or in it: the same where the division is exact, another "
    "rounding where it is not") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  for (int n = 0; n <= 3; ++n)
    for (int64_t ranks : {2, 3}) {
      CAPTURE(n);
      CAPTURE(ranks);
      Layout before =
                 flat_layout(model, ranks, 1, 1,
                             {flat_level(n), "distributed.mp_policy.reduce_dtype=\"bfloat16\""}),
             within = before;
      within.sets.push_back(flat_option("average_in_collective", "true"));
      std::map<std::string, at::Tensor> one = gradients_of(before), other = gradients_of(within);
      bool same = true;
      for (const auto& [name, gradient] : one) {
        same = same && gradient.equal(other.at(name));
        if (gradient.numel() > 0)
          CHECK(farthest(gradient, other.at(name)) <= 0.02 * gradient.abs().max().item<double>());
      }
      CHECK(same == (ranks == 2));
    }
}

TEST_CASE("calculate_per_token_loss sums gradients, and the training comes to the same") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  for (int n = 0; n <= 3; ++n) {
    CAPTURE(n);
    Layout mean = flat_layout(model, 2, 1, 4, {flat_level(n)}), sum = mean;
    sum.sets.push_back(flat_option("calculate_per_token_loss", "true"));
    std::map<std::string, at::Tensor> means = gradients_of(mean), sums = gradients_of(sum);
    for (const auto& [name, gradient] : means) CHECK(sums.at(name).equal(gradient * 2));
    Curve one = curve_of(mean, 5), other = curve_of(sum, 5);
    CHECK(farthest(one.losses, other.losses) < 1e-6);
    CHECK(farthest(one.norms, other.norms) < 1e-6);
  }
}

TEST_CASE("with double buffering, no communication buffer is allocated after the first step") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  ::setenv("MESHWRIGHT_SHARED_MEMORY", "0", 1);  // through sockets everything needs a buffer
  for (int n : {1, 2, 3})
    for (bool twice : {false, true}) {
      CAPTURE(n);
      CAPTURE(twice);
      Layout layout =
          flat_layout(model, 2, 1, 1,
                      {flat_level(n), flat_option("fsdp_double_buffer", twice ? "true" : "false"),
                       "optimizer.name=\"sgd\""});
      std::mutex mutex;
      int first = 0, later = 0;
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        std::set<int64_t> buffers;
        for (const UnitCost& unit : rank.trainer.plan().footprint->units) {
          if (n == 3) buffers.insert(unit.padded_bytes);
          buffers.insert(unit.padded_bytes / 2);
        }
        auto count = [&](int steps) {
          auto seen = std::make_shared<Allocations>();
          c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, seen);
          for (int i = 0; i < steps; ++i) rank.step();
          int out = 0;
          for (int64_t size : buffers) out += static_cast<int>(seen->sizes.count(size));
          return out;
        };
        int in_first = count(1), in_later = count(3);
        std::lock_guard lock(mutex);
        first += in_first;
        later += in_later;
      });
      CHECK(later == 0);
      if (twice && n < 3)
        CHECK(first == 0);
      else if (twice)
        CHECK(first ==
              2);  // what lies outside units stays gathered, in memory of its own: once per rank
      else
        CHECK(first > 2);
    }
  ::unsetenv("MESHWRIGHT_SHARED_MEMORY");
}

TEST_CASE("on the meta device no rank ever holds the whole model") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, {"wide", "LlamaForCausalLM", "llama", 128, 4, 4, 64,
                                                R"(, "tie_word_embeddings": false)"});
  for (bool meta : {false, true}) {
    Layout layout = flat_layout(
        model, 4, 1, 1,
        {flat_level(3), flat_option("init_fsdp_with_meta_device", meta ? "true" : "false")});
    std::mutex mutex;
    run_ranks(4, [&](const std::shared_ptr<World>& world) {
      train::MemoryMeter meter(at::kCPU);
      Rank rank(layout, world);
      int64_t whole = 0, peak = meter.peak(), live = meter.live();
      for (const ParameterOutline& p : rank.net->outline().parameters)
        whole += element_count(p.shape) * 4;
      std::lock_guard lock(mutex);
      CAPTURE(meta);
      CHECK(live < whole * 6 / 10);  // values and gradients, a quarter each
      if (meta)
        CHECK(peak < whole * 6 / 10);
      else
        CHECK(peak >= whole);
    });
  }
}

TEST_CASE(
    "units by class: named ones train alike, a misspelt one is an error that names those there "
    "are") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  Curve truth = curve_of(flat_layout(model, 2, 1, 1, {flat_level(3)}), 3);
  for (const char* classes :
       {"[\"LlamaDecoderLayer\"]", "[\"LlamaMLP\", \"LlamaAttention\"]", "[\"LlamaForCausalLM\"]"})
    for (int n : {1, 3}) {
      Layout layout = flat_layout(
          model, 2, 1, 1, {flat_level(n), flat_option("megatron_fsdp_unit_modules", classes)});
      INFO(layout.text());
      Curve curve = curve_of(layout, 3);
      CHECK(farthest(curve.losses, truth.losses) < 1e-6);
      CHECK(farthest(curve.norms, truth.norms) < 1e-6);
    }
  try {
    curve_of(flat_layout(model, 2, 1, 1,
                         {flat_option("megatron_fsdp_unit_modules", "[\"LlamaDecodrLayer\"]")}),
             1);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unit_class_missing);
    CHECK(std::string(error.what()).find("LlamaDecodrLayer") != std::string::npos);
    CHECK(error.helps().at(0) ==
          "set distributed.megatron_fsdp.megatron_fsdp_unit_modules = [\"LlamaDecoderLayer\"]");
  }
}

TEST_CASE("a unit around a tied embedding leaves it to the head") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, {"tied", "LlamaForCausalLM", "llama", 32, 4, 4, 64,
                                                R"(, "tie_word_embeddings": true)"});
  Curve truth = curve_of(flat_layout(model, 2, 1, 1, {flat_level(3)}), 3);
  Curve curve = curve_of(
      flat_layout(model, 2, 1, 1,
                  {flat_level(3), flat_option("megatron_fsdp_unit_modules", "[\"LlamaModel\"]")}),
      3);
  CHECK(farthest(curve.losses, truth.losses) < 1e-6);
  CHECK(farthest(curve.norms, truth.norms) < 1e-6);
}

TEST_CASE("buckets switched off change no curve") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  for (int n = 0; n <= 3; ++n) {
    CAPTURE(n);
    Layout plain = flat_layout(model, 2, 1, 2, {flat_level(n)});
    Curve truth = curve_of(plain, 4);
    Layout single = plain;
    single.sets.push_back(flat_option("disable_bucketing", "true"));
    Curve curve = curve_of(single, 4);
    CHECK(farthest(curve.losses, truth.losses) < 1e-6);
    CHECK(farthest(curve.norms, truth.norms) < 1e-6);
  }
}

TEST_CASE("registered buffers have no effect through gloo, and the run says so") {
  TestFolder folder("megatron_fsdp_options");
  std::string model = write_model(folder.path, kLlama);
  Layout layout = flat_layout(model, 2, 1, 1, {flat_level(3), flat_option("nccl_ub", "true")});
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    rank.step();
    std::lock_guard lock(mutex);
    REQUIRE(world->notices().size() == 1);
    CHECK(world->notices()[0] ==
          "distributed.megatron_fsdp.nccl_ub = true has no effect: the ranks of this job talk "
          "through gloo");
  });
}

}  // namespace megatron_fsdp_options_test
