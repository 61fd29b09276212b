// Every family under context parallelism alone and beside every other axis: the steps are those of
// one process. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

namespace context_matrix_test {

using namespace meshwright;

namespace {

const std::string kEp2 = "distributed.ep_size=2",
                  kHeadsOverTp =
                      "distributed.tp_plan={\"model.layers.*.self_attn.[qkv]_proj\"=\"colwise\","
                      "\"model.layers.*.self_attn.o_proj\"=\"rowwise\"}";

// A layer of each kind, and so each of the two rotary embeddings.
const SmallModel kBothRopes{
    "both ropes",
    "Gemma3ForCausalLM",
    "gemma3_text",
    32,
    4,
    2,
    64,
    R"(, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "rope_local_base_freq": 100.0)"};

const int kSteps = steps_of(6, 20);

// Relative distances, of parameters after the last step to their largest element.
struct Apart {
  double losses, norms, parameters = 0;
  std::string farthest_parameter = {};
};

Apart apart(const Curve& curve, const Curve& truth) {
  Apart out{farthest(curve.losses, truth.losses), farthest(curve.norms, truth.norms)};
  if (curve.parameters.size() != truth.parameters.size() || truth.parameters.empty())
    out.parameters = HUGE_VAL;
  for (const auto& [name, tensor] : truth.parameters) {
    auto mine = curve.parameters.find(name);
    const double far = mine == curve.parameters.end()
                           ? HUGE_VAL
                           : farthest(mine->second, tensor) / tensor.abs().max().item<double>();
    if (far > out.parameters) out.parameters = far, out.farthest_parameter = name;
  }
  return out;
}

void check_near(const Layout& layout, const Curve& truth) {
  const Apart found = apart(curve_of(layout, kSteps, kSteps), truth);
  INFO(layout.text() << ": " << found.farthest_parameter);
  CHECK(found.losses < 1e-6);
  CHECK(found.norms < 1e-6);
  CHECK(found.parameters < 1e-5);
}

}  // namespace

TEST_CASE("context matrix: every family, alone and with tp, sequences, shards and replicas") {
  TestFolder folder("context_matrix");
  size_t turn = 0;
  for (const SmallModel& m : {kGrouped, kMistral, kBothRopes, kLongRope, kQwen3}) {
    const std::string model = write_model(folder.path, m);
    INFO(std::string(m.name));
    const Curve truth = curve_of(context_layout(model, kAlone), kSteps, kSteps);
    for (const OnMesh& mesh : std::vector<OnMesh>{{2, {kCp2, kGather}},
                                                  {2, {kCp2, kRing}},
                                                  {2, {kCp2, kUlysses}},
                                                  {4, {kCp4, kGather}},
                                                  {4, {kCp4, kRing}},
                                                  {4, {kCp4, kUlysses}},
                                                  {4, {kCp2, kTp2, kRing}},
                                                  {4, {kCp2, kTp2, kSequence, kGather}},
                                                  {4, {kCp2, kGather}},  // two shards
                                                  {8, {kCp2, kReplicate2, kGather}},
                                                  {8, {kCp4, kTp2, kGather}},
                                                  {8, {kCp4, kTp2, kSequence, kGather}},
                                                  {8, {kCp4, kGather}}})
      if (sampled(turn++, 3)) check_near(context_layout(model, mesh), truth);
  }
}

TEST_CASE("context matrix: experts with their balance loss, alone and with ep, tp and replicas") {
  TestFolder folder("context_matrix_experts");
  size_t turn = 0;
  for (const SmallModel& m : {kBalanced, kMixtral}) {
    const std::string model = write_model(folder.path, m);
    INFO(std::string(m.name));
    // A balance loss is one of each pass: one process takes the passes of the data-parallel ranks
    // in turns.
    std::map<int64_t, Curve> truths;
    for (int64_t dp : {1, 2, 4})
      truths[dp] = curve_of(
          context_layout(model, kAlone,
                         {"step_scheduler.local_batch_size=" + std::to_string(kBatch / dp)}),
          kSteps, kSteps);
    for (const auto& [dp, mesh] : std::vector<std::pair<int64_t, OnMesh>>{
             {1, {2, {kCp2, kGather}}},
             {1, {4, {kCp4, kRing}}},
             {1, {2, {kCp2, kEp2, kRing}}},
             {1, {4, {kCp4, kEp2, kGather}}},
             {1, {3, {kCp3, kRing}}},  // padding is routed nowhere
             {1, {4, {kCp2, kTp2, kEp2, kHeadsOverTp, kRing}}},
             {2, {4, {kCp2, kEp2, kUlysses}}},
             {2, {4, {kCp2, kGather}}},
             {2, {8, {kCp4, kEp2, kGather}}},
             {4, {8, {kCp2, kReplicate2, kEp2, kRing}}}})
      if ((std::string(m.name) == kBalanced.name || mesh.ranks < 8) &&  // eight take their time
          sampled(turn++, 2))
        check_near(context_layout(model, mesh), truths.at(dp));
  }
}

TEST_CASE("context matrix: what is computed again has the same bits") {
  TestFolder folder("context_again");
  for (const SmallModel& m : {kBothRopes, kBalanced}) {
    const std::string model = write_model(folder.path, m);
    const int steps = steps_of(3, 5);
    for (const OnMesh& mesh : std::vector<OnMesh>{
             {2, {kCp2, kGather}}, {2, {kCp2, kRing}}, {2, {kCp2, kUlysses}}, {4, {kCp4, kRing}}}) {
      const Curve kept = curve_of(context_layout(model, mesh), steps);
      for (const std::string what : {"full", "selective"}) {
        const Layout layout =
            context_layout(model, mesh, {"distributed.activation_checkpointing=\"" + what + "\""});
        INFO(m.name << ": " << layout.text());
        const Curve again = curve_of(layout, steps);
        CHECK(again.losses == kept.losses);
        CHECK(again.norms == kept.norms);
        CHECK(apart(again, kept).parameters == 0);
      }
    }
  }
}

}  // namespace context_matrix_test
