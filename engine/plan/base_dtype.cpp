#include "engine/plan/base_dtype.h"

#include "meshwright/error.h"
#include "meshwright/unit_rules.h"

namespace meshwright::plan {
namespace {

// Of all units: experts and heads may compute in more than the rest.
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

BaseDtype::BaseDtype(const config::Config& config, const ModelOutline& outline) {
  const Options& table = config.table("lora");
  const std::string name = table.get_string("base_dtype");
  const bool given = name != "auto";
  if (find_unit_rule(outline.architecture)) {
    if (given)
      throw Error(
          ErrorCode::not_in_release,
          "units of " + outline.architecture +
              " hold one dtype each, so its base has none of its own: lora.base_dtype = \"" + name +
              "\" is not in this version")
          .key("lora.base_dtype")
          .at(table.origin("base_dtype"))
          .help("set lora.base_dtype = \"auto\": it is stored as model.torch_dtype says");
    return;
  }
  if (given) asked_ = parse_dtype(name);
  computes_ = widest_of(config.shared);
}

DType BaseDtype::of(DType now) const {
  if (asked_) return *asked_;
  return dtype_size(computes_) < dtype_size(now) ? computes_ : now;
}

}  // namespace meshwright::plan
