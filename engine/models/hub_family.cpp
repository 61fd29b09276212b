#include "engine/models/decoder_family.h"

#include <algorithm>
#include <atomic>

#include "engine/models/models.h"
#include "engine/models/net_config.h"
#include "meshwright/model/running_model.h"

namespace meshwright::outlines {

namespace {

std::atomic<HubFamily::Maker> maker{nullptr};

}  // namespace

int64_t stated_positions(const ConfigJson& whole) {
  const ConfigJson config = whole.has("text_config") ? whole.object("text_config") : whole;
  if (!config.has("max_position_embeddings")) return 0;
  int64_t positions = config.integer("max_position_embeddings", 1, INT64_MAX);
  if (!config.has("rope_scaling")) return positions;
  // Stretched positions reach further than the field says where it was left at the length of the
  // first training.
  const ConfigJson scaling = config.object("rope_scaling");
  const double original = scaling.number("original_max_position_embeddings", 1, 1e12,
                                         static_cast<double>(positions)),
               stretched = original * scaling.number("factor", 0, 1e6, 1.0);
  return std::max(positions, static_cast<int64_t>(stretched));
}

void HubFamily::made_by(Maker given) { maker = given; }

// Its family, its rotary embedding, its activations and dropouts.
void HubFamily::check_runs(const ModelRequest& request, Diagnostics& diagnostics) const {
  const NetConfig net = read_net_config(load_config(request.config));
  if (request.sizes.cp > 1 && net.attention_dropout > 0)
    diagnostics.add(Error(ErrorCode::model_does_not_fit,
                          "the model drops attention out in training (attention_dropout), which "
                          "ranks that share a sample would do each in its own way")
                        .key("distributed.cp_size")
                        .help("set attention_dropout to 0 in the model's config.json")
                        .help("set distributed.cp_size = 1"));
  if (request.sizes.pp > 1 && net.moe.balance_coefficient > 0)
    diagnostics.add(Error(ErrorCode::not_in_release,
                          "the auxiliary loss of this model is one of all its routers together, "
                          "which the stages of a pipeline do not yet add up")
                        .key("distributed.pp_size")
                        .help("set \"router_aux_loss_coef\": 0 or \"output_router_logits\": "
                              "false in the model's config.json")
                        .help("set distributed.pp_size = 1"));
}

ModelOutline HubFamily::outline(const ModelRequest& request) const {
  const ConfigJson config = load_config(request.config);
  ModelOutline out = make_outline(config, request.storage);
  out.max_positions = stated_positions(config);
  return out;
}

std::unique_ptr<RunningModel> HubFamily::make(const ModelRequest& request) const {
  const Maker make = maker;
  if (make == nullptr)
    throw Error(ErrorCode::internal, "nothing here makes models of a config.json");
  return make(request);
}

}  // namespace meshwright::outlines
