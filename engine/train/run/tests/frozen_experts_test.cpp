// Frozen experts under expert parallelism: each rank holds experts of its own, wherever
// frozen_sharding puts what is frozen. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "engine/train/run/tests/saved.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include <functional>
#include <utility>

namespace frozen_experts_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const std::string kEp2 = "distributed.ep_size=2", kEp4 = "distributed.ep_size=4";

using Trains = std::function<bool(std::string_view parameter)>;

bool holds(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// The head alone; the head and what lies before the frozen layers, so that gradients pass through
// these; and all but the experts.
const std::vector<std::pair<std::string, Trains>> kFrozen = {
    {"head", [](std::string_view name) { return holds(name, "lm_head"); }},
    {"head and embedding",
     [](std::string_view name) { return holds(name, "lm_head") || holds(name, "embed_tokens"); }},
    {"all but the experts", [](std::string_view name) { return !holds(name, ".experts."); }}};

struct Came {
  Curve curve;
  std::map<std::string, std::string> saved;  // after the last step
};

// A model of which a part trains, for some steps after loading `from` (""; from fresh weights),
// then saved in `to`.
Came came_of(const Layout& layout, const Trains& trains, int steps, const fs::path& from,
             const fs::path& to) {
  Came out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world, [&](torch::nn::Module& net) {
      for (auto& item : net.named_parameters())
        if (!trains(item.key())) item.value().set_requires_grad(false);
    });
    ParallelModel& model = rank.trainer.model();
    if (from.empty())
      rank.initialize();
    else
      rank.trainer.load(from.string());
    Curve mine;
    for (int step = 0; step < steps; ++step) {
      const StepResult result = rank.step();
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : model.parameters())
      mine.parameters[p.name] = model.full_tensor(p.name).clone();
    rank.trainer.save(to.string());
    if (world->rank() == 0) out.curve = std::move(mine);
  });
  for (const fs::directory_entry& entry : fs::directory_iterator(to))
    if (entry.path().filename().string().starts_with("step_")) out.saved = contents(entry.path());
  return out;
}

Layout layout_of(const std::string& model, const OnMesh& mesh, const char* frozen_sharding) {
  return calm_layout(
      model, mesh, {"distributed.fsdp2.frozen_sharding=\"" + std::string(frozen_sharding) + "\""});
}

}  // namespace

TEST_CASE(
    "frozen experts compute as in one process, whatever frozen_sharding says, and their "
    "checkpoints are the same") {
  TestFolder folder("frozen_experts");
  std::string model = write_model(folder.path, kMixtral);
  int number = 0;
  auto next = [&] { return folder.path / std::to_string(number++); };
  size_t place = 0;  // a third: of what trains, mesh and value every pair
  for (const auto& [name, trains] : kFrozen) {
    size_t of_mesh = place++;
    Came alone = came_of(layout_of(model, kAlone, "root"), trains, 4, {}, next());
    REQUIRE(alone.curve.losses.size() == 4);
    CHECK(alone.curve.losses[0] != alone.curve.losses[3]);
    fs::path before = next();
    came_of(layout_of(model, kAlone, "root"), trains, 2, {}, before);
    for (const OnMesh& mesh :
         {OnMesh{4, {kEp2}}, {4, {kEp4}}, {2, {kEp2}}, {4, {kEp2, kReplicate2}}}) {
      size_t turn = of_mesh++;
      for (const char* value : {"root", "per_layer", "replicate"}) {
        if (!sampled(turn++, 3)) continue;
        Layout layout = layout_of(model, mesh, value);
        INFO(name, ": ", layout.text());
        fs::path first = next(), again = next();
        Came whole = came_of(layout, trains, 4, {}, first);
        CHECK(strays(whole.curve, alone.curve) == "");
        REQUIRE(whole.saved.size() == alone.saved.size());
        for (const auto& [tensor, bytes] : alone.saved) {
          bool frozen = tensor.starts_with("/") && !trains(std::string_view(tensor).substr(1));
          CAPTURE(tensor);
          if (frozen) CHECK(whole.saved.at(tensor) == bytes);
        }
        // What one process saved is read by the mesh, and saved again as it was; what the mesh
        // saved goes back.
        CHECK(came_of(layout, trains, 0, before, again).saved ==
              contents(before / "step_00000002"));
        CHECK(came_of(layout_of(model, kAlone, "root"), trains, 0, first, next()).saved ==
              whole.saved);
      }
    }
  }
}

}  // namespace frozen_experts_test
