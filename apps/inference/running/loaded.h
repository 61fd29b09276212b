// A model that a folder holds, filled on the ranks that write with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/inference/adapter.h"
#include "apps/inference/ask.h"
#include "engine/train/step/model.h"
#include "meshwright/trainer.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::generate {

class Loaded {
 public:
  // Collective: joins the ranks, which must mean the same, and fills the model. `notice`: hears
  // what rank 0 has to tell. Throws Error.
  Loaded(const Source& source, const Ask& ask, const std::vector<int64_t>& prompt,
         rendezvous::Ending& ending, const std::function<void(const std::string&)>& notice);

  World& world() const { return *world_; }
  Trainer& trainer() const { return *trainer_; }
  RunningModel& net() const { return *model_.running; }
  // How far the model looks back.
  int64_t context() const { return context_; }

 private:
  std::optional<Adapter> adapter_;
  Job job_;
  std::shared_ptr<World> world_;
  train::Model model_;
  std::unique_ptr<Trainer> trainer_;
  int64_t context_ = 0;
};

}  // namespace meshwright::generate
