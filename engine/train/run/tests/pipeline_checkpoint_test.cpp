// Checkpoints of pipelines; that each goes on on every other layout, bit for bit: layouts_test.cpp.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/saved.h"

#include <doctest/doctest.h>

#include <functional>
#include <utility>

#include "engine/checkpoint/export.h"
#include "engine/train/run/saver.h"
#include "sdk/base/files/foreign_file.h"

namespace pipeline_checkpoint_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const std::string kTurns = schedule("Interleaved1F1B"), kV = schedule("ZBVZeroBubble"),
                  kBreadth = schedule("LoopedBFS");

// Every file of an export, by name.
std::map<std::string, std::string> exported(const fs::path& checkpoint, const fs::path& target) {
  fs::copy_file(kModel, checkpoint / "config.json", fs::copy_options::skip_existing);
  checkpoint::Source source(checkpoint);
  checkpoint::export_folder(source, target, {});
  std::map<std::string, std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(target))
    out[entry.path().filename()] = base::read_file(entry.path());
  return out;
}

using Trains = std::function<bool(std::string_view parameter)>;

// Steps of a model of which a part trains, after loading `from` ("": from fresh weights), then
// saved in `to`. Losses.
std::vector<double> trained_in_part(const Layout& layout, const Trains& trains, int steps,
                                    const fs::path& from, const fs::path& to) {
  std::vector<double> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world, [&](torch::nn::Module& net) {
      for (auto& item : net.named_parameters())
        if (!trains(item.key())) item.value().set_requires_grad(false);
    });
    if (from.empty())
      rank.initialize();
    else
      rank.trainer.load(from.string());
    std::vector<double> mine;
    for (int step = 0; step < steps; ++step) mine.push_back(rank.step().loss);
    rank.trainer.save(to.string());
    if (world->rank() == 0) out = mine;
  });
  return out;
}

bool holds(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

}  // namespace

TEST_CASE("pipeline checkpoints: a run goes on as if nothing had been, whatever the schedule") {
  TestFolder folder("pipeline_resume");
  const std::string model = write_model(folder.path, kStaged);
  const auto at = [&](const OnMesh& mesh, const std::vector<std::string>& more = {}) {
    return staged_layout(model, mesh, more);
  };
  const std::vector<double> unbroken = losses_of(at(kAlone), {}, 12);
  const fs::path runs = folder.path / "runs";
  // Every schedule one step, no pipeline in between, and two ranks, four ranks.
  std::vector<Layout> ways;
  for (const std::string& name : kSchedules)
    if (name != "LoopedBFS") ways.push_back(at({2, {kPp2}}, {schedule(name)}));
  ways.insert(ways.begin() + 3, at(kAlone));
  ways.push_back(at({4, {kPp4}}));
  ways.push_back(at(kAlone));
  std::vector<double> pieces;
  losses_of(at({2, {kPp2}}, {kV}), {}, 0, runs, 0);  // what is saved before the first step trains
  for (size_t i = 0; i < ways.size(); ++i) {
    INFO(ways[i].text());
    const std::vector<double> losses = losses_of(ways[i], runs, 1, runs, 1);
    pieces.insert(pieces.end(), losses.begin(), losses.end());
    CHECK(pieces.back() == unbroken.at(i));
  }
  // Breadth first adds up in another order.
  const double last = losses_of(at({2, {kPp2}}, {kBreadth}), runs, 2).back();
  CHECK(last == doctest::Approx(unbroken.at(ways.size() + 1)).epsilon(1e-6));
}

TEST_CASE("pipeline checkpoints: the export is that of one process, and meta.json names the mesh") {
  TestFolder folder("pipeline_export");
  const std::string model = write_model(folder.path, kStaged);
  std::map<std::string, std::string> truth;
  int number = 0;
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {kAlone, {}}, {{2, {kPp2}}, {kTurns}}, {{2, {kPp2}}, {kV}}, {{4, {kPp4}}, {}}}) {
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    const fs::path runs = folder.path / std::to_string(number++);
    losses_of(layout, {}, 3, runs, 3);
    const fs::path saved = runs / "step_00000003";
    const auto files = exported(saved, runs / "hf");
    CHECK(files.contains("model.safetensors"));
    if (truth.empty()) truth = files;
    CHECK(files == truth);
    const checkpoint::Meta meta = checkpoint::Checkpoint(saved).meta();
    CHECK(meta.world_size == mesh.ranks);
    CHECK(meta.data_parallel == 1);
    REQUIRE(meta.axes.size() == meta.mesh_shape.size());
    int64_t ranks = 1, stages = 1;
    for (size_t i = 0; i < meta.axes.size(); ++i) {
      ranks *= meta.mesh_shape[i];
      if (meta.axes[i] == "pp") stages = meta.mesh_shape[i];
    }
    CHECK(ranks == mesh.ranks);
    CHECK(stages == mesh.ranks);
  }
}

TEST_CASE("pipeline checkpoints: what is frozen on one stage alone has no states, and moves on") {
  TestFolder folder("pipeline_frozen");
  const std::string model = write_model(folder.path, kStaged);
  int number = 0;
  auto next = [&] { return folder.path / std::to_string(number++); };
  // A stage in front whose optimizer has nothing to do; one behind, through which gradients pass;
  // one in the middle of four; and the embedding alone.
  const std::vector<std::pair<std::string, Trains>> parts = {
      {"the second half",
       [](std::string_view name) {
         return !holds(name, "embed") && !holds(name, ".0.") && !holds(name, ".1.");
       }},
      {"the first half",
       [](std::string_view name) {
         return holds(name, "embed") || holds(name, ".0.") || holds(name, ".1.");
       }},
      {"all but a layer", [](std::string_view name) { return !holds(name, "layers.1."); }},
      {"all but the embedding", [](std::string_view name) { return !holds(name, "embed"); }}};
  size_t number_of_part = 0;  // half: each part on every second layout, each layout with two parts
  for (const auto& [name, trains] : parts) {
    size_t turn = number_of_part++;
    const Layout alone = staged_layout(model, kAlone);
    const fs::path before = next(), after = next();
    trained_in_part(alone, trains, 2, {}, before);
    const std::vector<double> on = trained_in_part(alone, trains, 2, before, after);
    const auto kept = contents(before / "step_00000002"), done = contents(after / "step_00000004");
    for (const auto& [mesh, more] :
         std::vector<std::pair<OnMesh, std::vector<std::string>>>{{{2, {kPp2}}, {}},
                                                                  {{2, {kPp2}}, {kTurns}},
                                                                  {{2, {kPp2}}, {kV}},
                                                                  {{4, {kPp4}}, {}},
                                                                  {{4, {kPp2}}, {}}}) {
      if (!sampled(turn++, 2)) continue;
      const Layout layout = staged_layout(model, mesh, more);
      INFO(name << ": " << layout.text());
      const fs::path again = next(), went = next(), back = next(), own = next();
      trained_in_part(layout, trains, 0, before, again);
      CHECK(contents(again / "step_00000002") == kept);
      const std::vector<double> losses = trained_in_part(layout, trains, 2, before, went);
      if (mesh.ranks == 2 || mesh.sets[0] == kPp4) {
        CHECK(losses == on);
        CHECK(contents(went / "step_00000004") == done);
      }
      // From its own first step on, and back to one process.
      trained_in_part(layout, trains, 2, {}, own);
      trained_in_part(alone, trains, 0, own, back);
      CHECK(contents(back / "step_00000002") == contents(own / "step_00000002"));
      CHECK(contents(own / "step_00000002").size() == kept.size());
    }
  }
}

TEST_CASE("pipeline checkpoints: a save beside training equals one that waits") {
  TestFolder folder("pipeline_beside");
  const std::string model = write_model(folder.path, kStaged);
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{2, {kPp2}}, {kV}}, {{4, {kPp2}}, {}}, {{4, {kPp2, kTp2}}, {kTurns}}}) {
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    const fs::path waits = folder.path / (layout.text() + " waits"),
                   beside = folder.path / (layout.text() + " beside");
    const std::vector<double> plain = losses_of(layout, {}, 6, waits, 2);
    std::vector<double> losses;
    std::vector<int64_t> saved(static_cast<size_t>(mesh.ranks));
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      train::Saver::Settings settings;
      settings.folder = beside;
      settings.background = true;
      train::Saver saver(rank.trainer, std::move(settings));
      std::vector<double> mine;
      for (int step = 0; step < 6; ++step) {
        saver.before_step();
        const StepResult result = rank.step();
        saver.after_step(result);
        mine.push_back(result.loss);
        if (step == 1) saver.save((step + 1) * kBatch, 0);
      }
      saver.finish();
      saved[static_cast<size_t>(world->rank())] = saver.last_step();
      if (world->rank() == 0) losses = mine;
    });
    CHECK(losses == plain);
    CHECK(saved == std::vector<int64_t>(static_cast<size_t>(mesh.ranks), 2));
    CHECK(contents(beside / "step_00000002") == contents(waits / "step_00000002"));
  }
}

}  // namespace pipeline_checkpoint_test
