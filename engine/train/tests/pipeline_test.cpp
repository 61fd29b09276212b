// Stages of a model on the ranks of pp: every schedule takes the steps of one process, alone to the
// bit, and with the other axes but for rounding. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/tests/context_layouts.h"

#include <doctest/doctest.h>

namespace pipeline_test {

using namespace meshwright;

namespace {

const char* const kFour = R"(, "num_hidden_layers": 4, "tie_word_embeddings": false)";
const SmallModel kStaged{"staged", "LlamaForCausalLM", "llama", 32, 4, 2, 64, kFour};
const SmallModel kDeep{
    "deep", "LlamaForCausalLM", "llama", 32, 4, 2, 64,
    R"(, "num_hidden_layers": 8, "tie_word_embeddings": false)"};
const std::string kPp2 = "distributed.pp_size=2", kPp4 = "distributed.pp_size=4",
                  kEp2 = "distributed.ep_size=2";

std::string schedule(const std::string& name) {
  return "distributed.pipeline.pp_schedule=\"" + name + "\"";
}
// Micro-batches of so many samples, whatever the mesh; the truth adds up as many.
Layout staged_layout(const std::string& model, const OnMesh& mesh,
                     const std::vector<std::string>& more = {}, int64_t rows = 1) {
  Layout out{"fsdp2",
             mesh.ranks,
             {"optimizer.eps=1e-5", "step_scheduler.local_batch_size=" + std::to_string(rows),
              "distributed.pipeline.pp_microbatch_size=" + std::to_string(rows)},
             model};
  for (const std::vector<std::string>* sets : {&mesh.sets, &more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

// Where two curves are not the same bits.
std::string unlike(const Curve& curve, const Curve& truth) {
  std::string out;
  if (curve.losses != truth.losses) out += "losses; ";
  if (!(farthest(curve.norms, truth.norms) < 1e-12)) out += "norms; ";
  if (curve.parameters.size() != truth.parameters.size()) out += "another number of parameters; ";
  for (const auto& [name, tensor] : truth.parameters)
    if (!curve.parameters.contains(name) || !curve.parameters.at(name).equal(tensor))
      out += name + "; ";
  return out;
}

}  // namespace

TEST_CASE("pipelines: every schedule alone gives the bits of one process") {
  TestFolder folder("pipelines");
  const std::string model = write_model(folder.path, kStaged);
  const Curve truth = curve_of(staged_layout(model, kAlone), 20, 20);
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble",
                           "ZBVZeroBubble", "DualPipeV"}) {
    const Layout layout = staged_layout(model, {2, {kPp2}}, {schedule(name)});
    INFO(layout.text());
    CHECK(unlike(curve_of(layout, 20, 20), truth) == "");
  }
  const Layout breadth = staged_layout(model, {2, {kPp2}}, {schedule("LoopedBFS")});
  CHECK(strays(curve_of(breadth, 20, 20), truth) == "");
}

}  // namespace pipeline_test
