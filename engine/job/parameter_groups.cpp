#include "engine/job/parameter_groups.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"
#include "sdk/base/words.h"

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
  return std::ranges::any_of(
      outline.parameters, [&](const ParameterOutline& p) { return glob_matches(pattern, p.name); });
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
           "the group to train its " + text::counted(static_cast<int64_t>(beside), "parameter") +
           " as well";
  if (matches > 0)
    return which + " has no effect: groups before it match all of its " +
           text::counted(static_cast<int64_t>(matches), "parameter") + ", and the first one counts";
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
    const auto at = std::ranges::find(out.rules, rule);
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

namespace {

bool is_narrow(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

std::string quoted(DType dtype) { return '"' + std::string(dtype_name(dtype)) + '"'; }

// The bytes of the optimizer's row if it kept so many tensors beside the weights that it updates.
int64_t optimizer_bytes(const JobPlan& plan, const ShardingRequest& cost, int64_t states) {
  ShardingRequest asked = cost;
  asked.workload.optimizer_states = states;
  asked.workload.seq_len = 0;  // without a length nothing of passes is counted
  // A cost of the strategy's own goes by the states asked about.
  return plan.sharding->own_cost
             ? footprint_of(asked, plan.strategy.strategy->plan_sharding(asked)).bytes.optimizer
             : footprint_of(asked, *plan.sharding).bytes.optimizer;
}

int64_t product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

}  // namespace

void check_state(const std::string& optimizer, DType weights) {
  if (optimizer != "adamw" || weights != DType::float16) return;
  throw Error(
      ErrorCode::conflict,
      "optimizer.name = \"adamw\" keeps its state in the dtype of the weights, and squares "
      "of gradients are mostly zero in float16: updates would be divided by next to nothing")
      .key("model.torch_dtype")
      .help("set optimizer.main_dtype = \"float32\"")
      .help("set model.torch_dtype = \"bfloat16\"");
}

std::string narrow_update_warning(const std::string& optimizer, DType weights) {
  const char* lost = weights == DType::bfloat16 ? "1/256" : "1/2048";
  return optimizer + " updates " + std::string(dtype_name(weights)) +
         " weights and keeps its state in " + std::string(dtype_name(weights)) +
         ": what changes a weight by less than " + lost +
         " of it is lost. Set optimizer.main_dtype = \"float32\" to keep float32 weights and state "
         "beside them, or model.torch_dtype = "
         "\"float32\"";
}

// A strategy that keeps main weights of its own counts bytes for them even where the optimizer
// keeps nothing else.
void count_main_weights(JobPlan& plan, const config::Config& config, const ShardingRequest& cost) {
  const Options& optimizer = config.table("optimizer");
  DType storage = plan.workload.storage;
  std::optional<DType> main = optimizer.find_dtype("main_dtype");
  if (!main && !is_narrow(storage)) return;
  std::string asked = main ? "optimizer.main_dtype = " + quoted(*main) : "";
  if (main && dtype_size(*main) < dtype_size(storage))
    throw Error(ErrorCode::conflict,
                asked + " is narrower than model.torch_dtype = " + quoted(storage) +
                    ": main weights are there to hold more than what is stored")
        .key("optimizer.main_dtype")
        .at(optimizer.origin("main_dtype"))
        .help("leave out optimizer.main_dtype")
        .help("set model.torch_dtype = " + quoted(*main));
  if (main == storage) {
    plan.notices.push_back(asked + " has no effect: that is the dtype in which " +
                           (config.table("lora").get_int("r") > 0
                                ? "adapters and what trains beside them are stored"
                                : "the weights are stored (model.torch_dtype)"));
    return;
  }
  const int64_t own = optimizer_bytes(plan, cost, 0);
  if (!main) {
    if (own == 0) check_state(optimizer.get_string("name"), storage);
    if (own == 0)
      plan.warnings.push_back(narrow_update_warning(optimizer.get_string("name"), storage));
    return;
  }
  // Main weights of strategies are float32, and so is one tensor of the optimizer's state beside
  // them.
  if (own > 0 && *main == DType::float32) {
    plan.notices.push_back(asked + " has no effect: the strategy " + plan.strategy.info->name +
                           " keeps float32 main weights of its own, which the optimizer updates");
    return;
  }
  const int64_t one = optimizer_bytes(plan, cost, 1) - own;
  int64_t elements = one / dtype_size(own > 0 ? DType::float32 : storage),
          tensors = 1 + plan.workload.optimizer_states;
  int64_t added = product(elements, tensors * dtype_size(*main));
  if (__builtin_add_overflow(own, added, &plan.footprint->bytes.optimizer))
    plan.footprint->bytes.optimizer = INT64_MAX;
}

}  // namespace meshwright::plan
