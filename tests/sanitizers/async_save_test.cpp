// A save beside training under the thread sanitizer. The saver, the writing of files and the
// publication are instrumented, and this file; the rest of the engine and LibTorch are not. So that
// the sanitizer knows when weights and optimizer states change, each rank writes to all of them
// itself right after the step that the optimizer wrote them in: whatever lets the optimizer begin
// before the copy of the snapshot is complete lets these writes race with it.
#include "engine/train/run/saver.h"

// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/saved.h"
#include "engine/train/run/tests/small_models.h"

#include <doctest/doctest.h>

#include <fstream>

#include "engine/train/step/local_state.h"

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

// Writes every byte anew, as it is.
void touch(const at::Tensor& tensor) {
  auto* bytes = static_cast<volatile char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = bytes[i];
}

void touch_all(Trainer& trainer) {
  for (const FlatParameterGroup& group : trainer.model().update_groups()) touch(group.values);
  for (const train::LocalTensor& tensor : train::local_state(trainer))
    if (tensor.local.defined() && tensor.state != "buffer") touch(tensor.local);
}

}  // namespace

TEST_CASE(
    "saves beside training: weights and states may change as soon as the optimizer does, and what "
    "is saved is of its step") {
  TestFolder folder("async_save");
  for (const Layout& layout : {Layout{"fsdp2", 2}, Layout{"ddp", 3}}) {
    INFO(layout.text());
    fs::path waits = folder.path / (layout.text() + " waits"),
             beside = folder.path / (layout.text() + " beside");
    losses_of(layout, {}, 12, waits, 12);
    std::vector<std::string> reports;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      train::Saver::Settings settings;
      settings.folder = beside;
      settings.keep.newest = 2;
      settings.background = true;
      settings.published = [&](const fs::path& path) {
        std::ofstream(path / "seen") << "by the thread that publishes";
      };
      settings.done = [&](const train::SaveReport& report) {
        if (world->rank() == 0)
          reports.push_back(std::to_string(report.step) +
                            (report.error ? " " + report.error->message() : ""));
      };
      train::Saver saver(rank.trainer, std::move(settings));
      for (int step = 0; step < 12; ++step) {
        saver.before_step();
        StepResult result = rank.step();
        touch_all(rank.trainer);
        saver.after_step(result);
        if (step % 3 == 2) saver.save((step + 1) * kBatch, 0);
      }
      saver.finish();
      CHECK(saver.last_step() == 12);
    });
    CHECK(reports == std::vector<std::string>{"3", "6", "9", "12"});
    CHECK(contents(beside / "step_00000012") == contents(waits / "step_00000012"));
    CHECK(fs::exists(beside / "step_00000012" / "seen"));
    CHECK(!fs::exists(beside / "step_00000003"));  // two are kept
  }
}

TEST_CASE(
    "a save beside training that fails ends with its reason on every rank, and the next one goes "
    "on") {
  TestFolder folder("async_save_fails");
  fs::path place = folder.path / "checkpoints";
  std::ofstream(place) << "in the way";
  std::vector<std::string> reports;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank({"fsdp2", 2}, world);
    rank.initialize();
    train::Saver::Settings settings;
    settings.folder = place;
    settings.background = true;
    settings.done = [&](const train::SaveReport& report) {
      if (world->rank() == 0)
        reports.push_back(report.error ? code_string(report.error->code())
                                       : std::to_string(report.step));
    };
    train::Saver saver(rank.trainer, std::move(settings));
    for (int step = 0; step < 4; ++step) {
      saver.before_step();
      StepResult result = rank.step();
      touch_all(rank.trainer);
      saver.after_step(result);
      if (step == 0 || step == 1) saver.save((step + 1) * kBatch, 0);
      if (step == 0) {
        saver.finish();
        if (world->rank() == 0) fs::remove(place);
        world->everyone()->barrier();
      }
    }
    saver.finish();
  });
  CHECK(reports == std::vector<std::string>{"E0705", "2"});
}
