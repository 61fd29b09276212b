#include "engine/job/parameter_groups.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/job/adapters.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/text.h"

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

namespace {

// As others begin with. A gradient of the mean loss above 1 would overflow.
constexpr double kMost = 65536;

std::string whole_number(double value) { return std::to_string(static_cast<int64_t>(value)); }

double power_below(double value) { return std::exp2(std::floor(std::log2(value))); }

}  // namespace

LossScale loss_scale(const config::Config& config, bool float16, double targets) {
  const Options& optimizer = config.table("optimizer");
  if (optimizer.is_set("loss_scale")) {
    const double given = optimizer.get_number("loss_scale");
    if (int exponent = 0; std::frexp(given, &exponent) != 0.5)
      throw Error(ErrorCode::out_of_range,
                  "optimizer.loss_scale is no power of two, which alone rounds nothing")
          .key("optimizer.loss_scale")
          .at(optimizer.origin("loss_scale"))
          .help("set optimizer.loss_scale = " +
                whole_number(power_below(std::clamp(given, 1.0, 0x1p40))));
  }
  if (!float16) return {};
  return {optimizer.is_set("loss_scale") ? optimizer.get_number("loss_scale")
                                         : power_below(std::clamp(targets, 1.0, kMost)),
          optimizer.get_bool("dynamic_loss_scale")};
}

std::string loss_scale_notice(const LossScale& scale) {
  return "some gradients are float16: losses are multiplied by " + whole_number(scale.start) +
         " (optimizer.loss_scale) before backward, and gradients divided by it in the update" +
         (scale.dynamic ? "; the factor adapts (optimizer.dynamic_loss_scale)" : "");
}

namespace {

const std::string kKey = config::kGroupTable;

std::string quoted_pattern(const Options& group) { return to_toml(group.get_string("pattern")); }

std::string place_of(const Options& group) {
  const Origin origin = group.origin("pattern");
  return origin.source == Origin::Source::file && origin.line > 0
             ? " (line " + std::to_string(origin.line) + ")"
             : "";
}

bool matches_any(const std::string& pattern, const ModelOutline& outline) {
  return std::any_of(outline.parameters.begin(), outline.parameters.end(),
                     [&](const ParameterOutline& p) { return glob_matches(pattern, p.name); });
}

// The pattern with `like`, so many of a name's parts, in place of its own; parts with a wildcard
// stay.
std::string with_parts(const std::vector<std::string>& pattern,
                       const std::vector<std::string>& like) {
  std::vector<std::string> out;
  for (size_t i = 0; i < pattern.size(); ++i)
    out.push_back(pattern[i].find_first_of("*?[") == std::string::npos ? like[i] : pattern[i]);
  return text::join(out, ".");
}

// What may be meant by a pattern that no name matches: the module's parameters, the same further
// in, or what is spelt nearly like it. "": nothing is near.
std::string near_pattern(const std::string& pattern, const ModelOutline& outline) {
  for (const std::string& wider : {pattern + ".*", "*." + pattern, "*." + pattern + ".*"})
    if (matches_any(wider, outline)) return wider;
  const std::vector<std::string> parts = text::split(pattern, '.');
  std::vector<std::string> candidates;
  for (const ParameterOutline& p : outline.parameters) {
    const std::vector<std::string> names = text::split(p.name, '.');
    for (size_t at = 0; at + parts.size() <= names.size(); ++at) {
      std::string one = with_parts(parts, {names.begin() + static_cast<int64_t>(at), names.end()});
      if (matches_any(one, outline)) candidates.push_back(std::move(one));
    }
  }
  return nearest_name(pattern, candidates);
}

// A group that is of no parameter: a mistake in its pattern, or it comes too late, or all are
// frozen beside adapters. `matches`: of its pattern, whichever group they are of. `beside`: of the
// group, frozen beside adapters.
std::string unused_text(const Options& group, size_t matches, size_t beside,
                        const ModelOutline& outline) {
  const std::string which =
      "[[" + kKey + "]] with pattern = " + quoted_pattern(group) + place_of(group);
  if (beside > 0)
    return which +
           " has no effect: with [lora] the adapters train alone; write frozen = false in " +
           "the group to train its " +
           report::counted(static_cast<int64_t>(beside), "parameter", "parameters") + " as well";
  if (matches > 0)
    return which + " has no effect: groups before it match all of its " +
           report::counted(static_cast<int64_t>(matches), "parameter", "parameters") +
           ", and the first one counts";
  const std::string near = near_pattern(group.get_string("pattern"), outline);
  std::string none =
      which + " has no effect: no parameter of " + outline.architecture + " has such a name";
  if (!near.empty()) return none + "; did you mean " + near + "?";
  if (outline.parameters.empty()) return none;
  return none + "; names are like " + outline.parameters[outline.parameters.size() / 2].name +
         ", and `meshwright plan --json` lists them";
}

[[noreturn]] void refuse_all_frozen(const std::vector<const Options*>& freezing,
                                    const ModelOutline& outline, bool beside_adapters) {
  const Options& last = *freezing.back();
  Error error(ErrorCode::conflict, "[[" + kKey + "]] freezes all " +
                                       (beside_adapters ? "adapters" : "parameters") + " of " +
                                       outline.architecture + ": nothing would be trained");
  error.key(kKey + ".frozen").at(last.origin("frozen"));
  for (const Options* group : freezing)
    error.note("frozen: pattern = " + quoted_pattern(*group) + place_of(*group));
  error.help("set frozen = false in the group with pattern = " + quoted_pattern(last));
  // Beside adapters such a group would have to say frozen = false as well.
  if (!beside_adapters && !outline.parameters.empty())
    error.help("write a group before the others whose pattern names what trains: pattern = " +
               to_toml(outline.parameters.back().name));
  throw error;
}

}  // namespace

// Where there are adapters, what is no part of one and of no group that says frozen = false is
// frozen as well.
ParameterGroups group_parameters(const config::Config& config, ModelOutline& outline,
                                 std::vector<std::string>& warnings) {
  const Adapters adapters = adapters_in(config, outline);
  const Options& optimizer = config.table("optimizer");
  const std::vector<Options>& groups = config.list(kKey);
  const double decay = optimizer.get_number("weight_decay");
  const bool spares = optimizer.get_string("no_decay") == "norms_and_biases";
  ParameterGroups out;
  out.other.weight_decay = decay;
  std::vector<size_t> matched(groups.size()), used(groups.size()), beside(groups.size());
  bool trains = false;
  std::optional<BaseDtype> base;
  if (adapters.any()) base.emplace(config, outline);
  // Somebody wrote that it trains.
  auto thaws = [](const Options* group) {
    return group != nullptr && group->is_given("frozen") && !group->get_bool("frozen");
  };
  for (ParameterOutline& p : outline.parameters) {
    const Options* group = nullptr;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!glob_matches(groups[g].get_string("pattern"), p.name)) continue;
      ++matched[g];
      if (group != nullptr) continue;
      group = &groups[g];
    }
    const bool by_group = group != nullptr && group->get_bool("frozen"),
               by_adapters = adapters.any() && !adapters.hold(p.name) && !thaws(group);
    if (group != nullptr)
      ++(by_adapters && !by_group ? beside : used)[static_cast<size_t>(group - groups.data())];
    if (by_group || by_adapters) {
      p.trainable = false;
      if (base && !adapters.hold(p.name)) p.dtype = base->of(p.dtype);
      out.frozen.push_back(p.name);
      continue;
    }
    UpdateRule rule{1, spares && p.shape.size() <= 1 ? 0 : decay};
    if (group != nullptr) {
      rule.lr_factor = group->get_number("lr_factor");
      if (group->is_set("weight_decay")) rule.weight_decay = group->get_number("weight_decay");
    }
    if (!p.trainable) continue;
    if (adapters.any()) p.dtype = trained_dtype(outline, p.dtype);
    trains = true;
    const auto at = std::find(out.rules.begin(), out.rules.end(), rule);
    out.rule_of[p.name] = static_cast<size_t>(at - out.rules.begin());
    if (at == out.rules.end()) out.rules.push_back(rule);
  }
  for (size_t g = 0; g < groups.size(); ++g)
    if (used[g] == 0) warnings.push_back(unused_text(groups[g], matched[g], beside[g], outline));
  if (!trains && !out.frozen.empty()) {
    std::vector<const Options*> freezing;
    for (size_t g = 0; g < groups.size(); ++g)
      if (used[g] > 0 && groups[g].get_bool("frozen")) freezing.push_back(&groups[g]);
    refuse_all_frozen(freezing, outline, adapters.any());
  }
  return out;
}

}  // namespace meshwright::plan
