// What [distributed.mp_policy], its twin of [distributed.moe] and offloading do to a run, as the
// keys of a file say it. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace policies_test {

using namespace meshwright;
using at::Tensor;

namespace {

const std::string kStored = "model.torch_dtype=\"bfloat16\"", kEp2 = "distributed.ep_size=2";

std::string policy(const std::string& key, const std::string& value) {
  return "distributed.mp_policy." + key + "=\"" + value + '"';
}
std::string moe_policy(const std::string& key, const std::string& value) {
  return "distributed.moe.mp_policy." + key + "=\"" + value + '"';
}

// This rank's part of a whole tensor.
Tensor part_of(const Tensor& whole, const ParallelParameter& p) {
  if (p.region.flat()) return whole.view({-1}).narrow(0, p.region.begin, p.grad.numel());
  Tensor part = whole;
  for (int64_t d = 0; d < p.grad.dim(); ++d)
    part = part.narrow(d, p.region.offsets[static_cast<size_t>(d)], p.grad.size(d));
  return part;
}

struct Distance {
  double relative = 0;  // the largest difference beside the largest element of its tensor
  int64_t other_bits = 0, all = 0;  // elements
};

// The gradients of the first step, unclipped, beside those of one process; `truth` is filled where
// it is empty.
Distance gradients_beside(std::map<std::string, Tensor>& truth, const Layout& layout) {
  Distance out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    rank.trainer.before_update([&] {
      std::lock_guard lock(mutex);
      for (const ParallelParameter& p : rank.trainer.model().parameters()) {
        if (layout.ranks == 1) {
          truth[p.name] = p.grad.clone();
          continue;
        }
        if (p.grad.numel() == 0) continue;
        Tensor wanted = part_of(truth.at(p.name), p).to(p.grad.scalar_type()).view(p.grad.sizes());
        double scale = truth.at(p.name).abs().max().item<double>();
        out.relative = std::max(
            out.relative,
            (p.grad.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>() / scale);
        out.other_bits += (p.grad != wanted).sum().item<int64_t>();
        out.all += p.grad.numel();
      }
    });
    rank.step();
  });
  return out;
}

// Twelve micro-batches of one sample, over all ranks.
Layout layout_of(const std::string& model, const char* strategy, int64_t ranks,
                 std::vector<std::string> sets) {
  sets.insert(sets.end(), {kStored, "optimizer.max_grad_norm=\"none\""});
  return {.strategy = strategy,
          .ranks = ranks,
          .sets = std::move(sets),
          .model = model,
          .storage = DType::bfloat16};
}

}  // namespace

TEST_CASE(
    "bfloat16 weights with a float32 reduce_dtype have the gradients of one process, rounded once, "
    "under every strategy") {
  TestFolder folder("policies");
  std::string dense = write_model(folder.path, kQwen3),
              experts = write_model(folder.path, kMixtral);
  for (const std::string& model : {dense, experts}) {
    std::map<std::string, Tensor> truth;
    gradients_beside(truth, layout_of(model, "ddp", 1, {}));
    std::vector<Layout> layouts = {
        layout_of(model, "fsdp2", 2, {}), layout_of(model, "fsdp2", 4, {kReplicate2}),
        layout_of(model, "ddp", 3, {}),
        layout_of(model, "ddp", 2, {"distributed.ddp.gradient_as_bucket_view=false"})};
    if (model == experts) {
      layouts = {layout_of(model, "fsdp2", 2, {kEp2}), layout_of(model, "fsdp2", 4, {kEp2})};
    } else {
      layouts.push_back(layout_of(model, "fsdp2", 4, {kTp2}));
      for (int n = 0; n <= 3; ++n)
        layouts.push_back(layout_of(model, "megatron_fsdp", 4,
                                    {flat_level(n), flat_option("grad_reduce_in_fp32", "true")}));
    }
    for (const Layout& layout : layouts) {
      Distance near = gradients_beside(truth, layout);
      Layout rough = layout;
      rough.sets.push_back(policy("reduce_dtype", "bfloat16"));
      Distance far = gradients_beside(truth, rough);
      INFO(layout.text());
      MESSAGE(layout.text(), std::string(": "), near.other_bits, std::string(" of "), near.all,
              std::string(" elements have other bits, "), far.other_bits,
              std::string(" with a bfloat16 reduce_dtype"));
      REQUIRE(near.all > 0);
      CHECK(near.relative < 1.0 / 128);  // one digit of bfloat16
      bool float32_gradients = std::string(layout.strategy) == "megatron_fsdp";
      if (!float32_gradients) {
        CHECK(near.other_bits < near.all / 50);
        CHECK(far.other_bits > near.other_bits * 4);
      }
    }
  }
}

TEST_CASE(
    "moe.mp_policy takes the place of the shared policy under expert parallelism, key by key, and "
    "does so in the run") {
  TestFolder folder("policies_moe");
  std::string model = write_model(folder.path, kMixtral);
  Curve plain = curve_of(calm_layout(model, {4, {kEp2}}), 3);
  // All keys there, or all keys in the shared table: bitwise identical.
  Curve shared =
      curve_of(calm_layout(model, {4, {kEp2}},
                           {policy("param_dtype", "bfloat16"), policy("reduce_dtype", "bfloat16")}),
               3);
  Curve own = curve_of(
      calm_layout(model, {4, {kEp2}},
                  {moe_policy("param_dtype", "bfloat16"), moe_policy("reduce_dtype", "bfloat16")}),
      3);
  CHECK(own.losses == shared.losses);
  CHECK(own.norms == shared.norms);
  CHECK(own.losses != plain.losses);
  // One key: the others are those of the shared table.
  Curve reduce =
      curve_of(calm_layout(model, {4, {kEp2}}, {moe_policy("reduce_dtype", "bfloat16")}), 3);
  Curve reduce_shared =
      curve_of(calm_layout(model, {4, {kEp2}}, {policy("reduce_dtype", "bfloat16")}), 3);
  CHECK(reduce.losses[0] == plain.losses[0]);
  CHECK(reduce.norms != plain.norms);
  CHECK(reduce.norms == reduce_shared.norms);
  // It is the stronger one.
  Curve against = curve_of(
      calm_layout(model, {4, {kEp2}},
                  {policy("param_dtype", "bfloat16"), moe_policy("param_dtype", "float32")}),
      3);
  CHECK(against.losses == plain.losses);
}

TEST_CASE(
    "offload_pin_memory that cannot do anything is told in the run, and nothing is told that was "
    "not asked for") {
  TestFolder folder("policies_offload");
  std::string model = write_model(folder.path, kLlama);
  const std::string offload = "distributed.fsdp2.offload_policy=\"cpu\"";
  auto told = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> notices;
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Rank rank(calm_layout(model, {2, {}}, sets), world);
      rank.initialize();
      rank.step();
      if (world->rank() == 0) notices = world->notices();
    });
    return std::any_of(notices.begin(), notices.end(), [](const std::string& text) {
      return text.find("distributed.fsdp2.offload_pin_memory has no effect") != std::string::npos;
    });
  };
  for (const char* value : {"true", "false"})
    CHECK(told({offload, std::string("distributed.fsdp2.offload_pin_memory=") + value}));
  CHECK(!told({offload}));
}

}  // namespace policies_test
