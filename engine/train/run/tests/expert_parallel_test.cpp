// Experts over ranks: what their own options change. The steps of one process, beside every axis,
// and their checkpoints: layouts_test.cpp. Before doctest: LibTorch has a CHECK
// of its own.
#include "engine/job/plan.h"
#include "engine/train/run/tests/curves.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace expert_parallel_test {

using namespace meshwright;

namespace {

const std::string kEp2 = "distributed.ep_size=2", kEp4 = "distributed.ep_size=4",
                  kAllGather = "distributed.moe.dispatcher=\"all_gather\"";

// By which of the dispatchers a plan sends tokens to experts.
std::string sent_by(const Layout& layout, MemoryFacts::Where where) {
  Job job = Rank::make(layout);
  const plan::JobPlan plan =
      plan::make_plan(job.impl(), {.world_size = layout.ranks, .where = where});
  const bool told = std::any_of(plan.notices.begin(), plan.notices.end(), [](const auto& text) {
    return text.find("tokens reach experts by all_gather") == 0;
  });
  for (const WireRow& row : plan.footprint->wire)
    if (row.axis == "ep" && row.op == "all_to_all") return told ? "both" : "all_to_all";
  return told ? "all_gather, told" : "all_gather";
}

}  // namespace

TEST_CASE("on a device tokens reach experts by all_gather where that costs little") {
  TestFolder folder("expert_dispatcher");
  // Of 2 experts a token of 8, and of 8 of 128.
  const std::string few = write_model(folder.path, kMixtral),
                    many = MESHWRIGHT_SOURCE_DIR "/configs/models/qwen3-30b-a3b.json";
  using Where = MemoryFacts::Where;
  struct Row {
    Layout layout;
    Where where;
    const char* by;
  };
  const std::string kAllToAll = "distributed.moe.dispatcher=\"all_to_all\"";
  for (const Row& row : {
           Row{{"moe_ep", 4, {kEp2}, few}, Where::device, "all_gather, told"},
           Row{{"fsdp2", 4, {kEp2}, few}, Where::device, "all_gather, told"},
           Row{{"moe_ep", 4, {kEp2, kAllToAll}, few}, Where::device, "all_to_all"},
           Row{{"moe_ep", 4, {kEp2}, few}, Where::host, "all_to_all"},
           Row{{"moe_ep", 4, {kEp2}, few}, Where::unknown, "all_to_all"},
           Row{{"moe_ep", 4, {kEp2, kAllGather}, few}, Where::host, "all_gather"},
           // It would send more rows; and have memory for eight times as many.
           Row{{"moe_ep", 4, {kEp4}, few}, Where::device, "all_to_all"},
           Row{{"moe_ep", 8, {"distributed.ep_size=8"}, many, 16}, Where::device, "all_to_all"},
       }) {
    INFO(row.layout.text());
    CHECK(sent_by(row.layout, row.where) == row.by);
  }
}

TEST_CASE("experts take the same steps with a head in float32, and without an outer root") {
  TestFolder folder("expert_parallel_options");
  const int steps = steps_of(5, 8);
  std::string model = write_model(folder.path, kMixtral);
  Curve truth = curve_of(calm_layout(model, kAlone), steps);
  for (const OnMesh& mesh : {OnMesh{2, {kEp2}}, {4, {kEp2}}})
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"distributed.moe.lm_head_precision=\"float32\""},
          {"distributed.moe.wrap_outer_model=false",
           "distributed.moe.reshard_after_forward=true"}}) {
      Layout layout = calm_layout(model, mesh, more);
      INFO(layout.text());
      CHECK(strays(curve_of(layout, steps), truth) == "");
    }
}

TEST_CASE("without an outer root the logits keep the dtype of the head") {
  TestFolder folder("expert_parallel_outer");
  std::string model = write_model(folder.path, kMixtral);
  // Only the outer root casts what the model returns.
  const std::string rounded = "distributed.mp_policy.output_dtype=\"bfloat16\"",
                    inner = "distributed.moe.wrap_outer_model=false";
  Curve exact = curve_of(calm_layout(model, {2, {kEp2}}), 2);
  Curve outer_root = curve_of(calm_layout(model, {2, {kEp2}}, {rounded}), 2);
  Curve inner_root = curve_of(calm_layout(model, {2, {kEp2}}, {rounded, inner}), 2);
  CHECK(outer_root.losses != exact.losses);
  CHECK(inner_root.losses == exact.losses);
}

TEST_CASE("autocast experts get and give rows in the dtype of the activations") {
  TestFolder folder("expert_parallel_autocast");
  std::string model = write_model(folder.path, kMixtral);
  const std::string autocast = "distributed.autocast_dtype=\"bfloat16\"";
  for (int64_t ranks : {2, 4}) {
    // Beside ranks that hold all experts: bfloat16 products of other batches round otherwise.
    Curve truth = curve_of(calm_layout(model, {ranks, {}}, {autocast}), 6);
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{autocast}, {autocast, kAllGather}}) {
      Layout layout = calm_layout(model, {ranks, {kEp2}}, more);
      INFO(layout.text());
      Curve found = curve_of(layout, 6);
      CHECK(std::abs(found.losses[0] / truth.losses[0] - 1) < 1e-6);
      CHECK(farthest(found.losses, truth.losses) < 5e-3);
      CHECK(farthest(found.norms, truth.norms) < 5e-2);
    }
  }
}

}  // namespace expert_parallel_test
