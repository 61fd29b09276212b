#include "engine/job/base_dtype.h"

#include <string>

#include "meshwright/error.h"
#include "meshwright/unit_rules.h"

namespace meshwright::plan {
namespace {

// Experts and heads may compute in more than the rest.
DType widest_of(const SharedOptions& shared) {
  DType out = shared.mp.param;
  auto add = [&](DType dtype) {
    if (dtype_size(dtype) > dtype_size(out)) out = dtype;
  };
  if (shared.moe.mp_policy) add(shared.moe.mp_policy->param);
  if (shared.moe.lm_head_precision) add(*shared.moe.lm_head_precision);
  return out;
}

}  // namespace

DType trained_dtype(const ModelOutline& outline, DType model) {
  const bool wide = dtype_size(model) >= dtype_size(DType::float32);
  return wide || find_unit_rule(outline.architecture) ? model : DType::float32;
}

BaseDtype::BaseDtype(const config::Config& config, const ModelOutline& outline)
    : table_(config.table("lora")) {
  const SharedOptions& shared = config.shared;
  const std::string name = table_.get_string("base_dtype");
  const bool given = name != "auto";
  if (table_.get_string("base_sharding") == "replicate")
    whole_ =
        shared.sizes.ep > 1 && shared.moe.mp_policy ? shared.moe.mp_policy->param : shared.mp.param;
  if (!find_unit_rule(outline.architecture)) {
    if (given) asked_ = parse_dtype(name);
    widest_ = widest_of(shared);
  } else if (given) {
    throw Error(ErrorCode::not_in_release,
                "units of " + outline.architecture +
                    " hold one dtype each, so its base has none of its own: lora.base_dtype = \"" +
                    name + "\" is not in this version")
        .key("lora.base_dtype")
        .at(table_.origin("base_dtype"))
        .help("set lora.base_dtype = \"auto\": it is stored as model.torch_dtype says");
  }
}

DType BaseDtype::of(DType now) const {
  DType out = asked_.value_or(now);
  if (!asked_ && widest_ && dtype_size(*widest_) < dtype_size(now)) out = *widest_;
  if (!whole_ || out == *whole_) return out;
  const std::string computes(dtype_name(*whole_));
  // Units of one dtype each have no base of its own.
  const std::string key = widest_ ? "lora.base_dtype" : "model.torch_dtype";
  throw Error(ErrorCode::conflict,
              "lora.base_sharding = \"replicate\" keeps the base as it computes, in " + computes +
                  ", and it is stored in " + std::string(dtype_name(out)))
      .key("lora.base_sharding")
      .at(table_.origin("base_sharding"))
      .help("set " + key + " = \"" + computes + "\"")
      .help("set lora.base_sharding = \"shard\"");
}

}  // namespace meshwright::plan
