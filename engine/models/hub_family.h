// The families built in, described by a Hugging Face config.json, in the form that a plugin brings
// its own.
#pragma once

#include <memory>

#include "meshwright/model/config_json.h"
#include "meshwright/model/model_family.h"

namespace meshwright::outlines {

class HubFamily final : public ModelFamily {
 public:
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override;
  ModelOutline outline(const ModelRequest& request) const override;
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override;

  // Where planning has no LibTorch nothing can be made: who runs models says how.
  using Maker = std::unique_ptr<RunningModel> (*)(const ModelRequest& request);
  static void made_by(Maker maker);
};

// max_position_embeddings as the file states it, stretched; 0: it does not, and a family's default
// is no statement of this model.
int64_t stated_positions(const ConfigJson& config);

}  // namespace meshwright::outlines
