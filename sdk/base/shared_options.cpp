#include "shared_schemas.h"

#include <algorithm>

#include "text.h"

namespace meshwright {
namespace {

int64_t at_least_one(const Options& table, std::string_view name) {
  return std::max<int64_t>(1, table.find_int(name).value_or(1));
}

bool any_given(const Options& table) {
  for (const meshwright_option* option : table.schema().options)
    if (table.is_given(option->name)) return true;
  return false;
}

TpPlanChoice read_tp_plan(const Options& distributed) {
  TpPlanChoice choice;
  const OptionValue& value = distributed.value("tp_plan");
  if (const auto* name = std::get_if<std::string>(&value)) {
    choice.kind = TpPlanChoice::Kind::named;
    choice.name = *name;
  } else if (const auto* patterns = std::get_if<StringMap>(&value)) {
    choice.kind = TpPlanChoice::Kind::custom;
    choice.patterns = *patterns;
  }
  return choice;
}

// `output`: where it is named elsewhere; otherwise outputs keep what they were computed in.
MixedPrecision read_precision(const Options& table, const MixedPrecision& fallback,
                              std::optional<DType> output) {
  const DType param = table.find_dtype("param_dtype").value_or(fallback.param);
  if (!output) output = param;
  return {param, table.find_dtype("reduce_dtype").value_or(fallback.reduce),
          table.find_dtype("output_dtype").value_or(*output),
          table.find_bool("cast_forward_inputs").value_or(fallback.cast_forward_inputs)};
}

ContextOptions read_context(const Options& table) {
  ContextOptions out;
  const std::string method = text::normal(table.get_string("method"));
  if (method == "all_gather") out.method = ContextMethod::all_gather;
  if (method == "ring") out.method = ContextMethod::ring;
  if (method == "ulysses") out.method = ContextMethod::ulysses;
  out.head_tail = text::normal(table.get_string("load_balancer")) != "none";
  out.ring_size = table.find_int("ring_size");
  out.ulysses_size = table.find_int("ulysses_size");
  return out;
}

PipelineOptions read_pipeline(const Options& table) {
  PipelineOptions out;
  out.schedule = table.get_string("pp_schedule");
  // A schedule by name and a file of actions exclude each other; the default name steps back when a
  // file is given.
  if (table.is_set("pp_schedule_csv") && !table.is_given("pp_schedule")) out.schedule.clear();
  out.schedule_csv = table.get_string("pp_schedule_csv");
  out.microbatch_size = table.get_int("pp_microbatch_size");
  out.batch_size = table.find_int("pp_batch_size");
  out.first_stage_less_layers = table.get_int("first_stage_less_layers");
  out.last_stage_less_layers = table.get_int("last_stage_less_layers");
  out.layers_per_stage = table.find_int("layers_per_stage");
  std::string round = table.get_string("round_virtual_stages_to_pp_multiple");
  out.round = round == "up"     ? PipelineOptions::Round::up
              : round == "down" ? PipelineOptions::Round::down
                                : PipelineOptions::Round::none;
  if (const auto* parts = std::get_if<StringTable>(&table.value("module_fqns_per_model_part")))
    out.module_fqns_per_model_part = *parts;
  out.dtype = table.find_dtype("dtype");
  out.scale_grads_in_schedule = table.get_bool("scale_grads_in_schedule");
  out.seq_len = table.find_int("pp_seq_len");
  return out;
}

}  // namespace

SharedOptions read_shared_options(const Options& distributed, const Options& mp_policy,
                                  const Options& moe, const Options& moe_mp_policy,
                                  const Options& pipeline, const Options& context,
                                  Diagnostics& diagnostics) {
  SharedOptions out;
  if (std::optional<int64_t> dp = distributed.find_int("dp_size"); dp && *dp > 0) out.sizes.dp = dp;
  out.sizes.dp_replicate = at_least_one(distributed, "dp_replicate_size");
  out.sizes.tp = at_least_one(distributed, "tp_size");
  out.sizes.cp = at_least_one(distributed, "cp_size");
  out.sizes.pp = at_least_one(distributed, "pp_size");
  out.sizes.ep = at_least_one(distributed, "ep_size");
  out.sequence_parallel = distributed.get_bool("sequence_parallel");
  out.tp_plan = read_tp_plan(distributed);
  try {
    out.activation_checkpointing =
        parse_activation_checkpointing(distributed.value("activation_checkpointing"));
    out.activation_checkpointing_scope =
        parse_checkpointing_scope(distributed.value("activation_checkpointing_scope"));
  } catch (Error& error) {
    diagnostics.add(error.at(distributed.origin(error.key().substr(error.key().rfind('.') + 1))));
  }
  out.autocast_dtype = distributed.find_dtype("autocast_dtype");
  out.enable_async_tensor_parallel = distributed.get_bool("enable_async_tensor_parallel");
  out.mp = read_precision(mp_policy, MixedPrecision{}, {});

  out.moe_given = any_given(moe) || any_given(moe_mp_policy);
  // "auto" is all_to_all until a plan knows better.
  if (moe.get_string("dispatcher") == "all_gather")
    out.moe.dispatcher = TokenDispatcher::all_gather;
  out.moe.ignore_router_for_ac = moe.get_bool("ignore_router_for_ac");
  out.moe.reshard_after_forward = moe.get_bool("reshard_after_forward");
  out.moe.lm_head_precision = moe.find_dtype("lm_head_precision");
  out.moe.wrap_outer_model = moe.get_bool("wrap_outer_model");
  out.moe.fake_balanced_gate = moe.get_bool("fake_balanced_gate");
  if (any_given(moe_mp_policy))
    out.moe.mp_policy = read_precision(moe_mp_policy, out.mp, mp_policy.find_dtype("output_dtype"));

  out.context = read_context(context);
  if (any_given(context) && out.sizes.cp <= 1)
    diagnostics.warning("[distributed.context] has no effect with cp_size = " +
                        std::to_string(out.sizes.cp) + "; it is left out");
  out.pipeline_given = any_given(pipeline);
  out.pipeline = read_pipeline(pipeline);
  if (out.pipeline_given && out.sizes.pp <= 1)
    diagnostics.warning("[distributed.pipeline] has no effect with pp_size = " +
                        std::to_string(out.sizes.pp) + "; it is left out");
  if (out.sizes.pp > 1) {
    // The experts' policy may have another output; what is not written follows the model's.
    const DType crossing = out.pipeline.dtype.value_or(out.mp.output);
    if (dtype_size(crossing) < dtype_size(out.mp.param))
      diagnostics.warning(
          "hidden states cross the stages of the pipeline in " + std::string(dtype_name(crossing)) +
          ", narrower than distributed.mp_policy.param_dtype = \"" +
          std::string(dtype_name(out.mp.param)) + "\": set distributed.pipeline.dtype = \"" +
          std::string(dtype_name(out.mp.param)) + "\" to lose no digits");
    else if (crossing != out.mp.output)
      diagnostics.warning("distributed.pipeline.dtype = \"" + std::string(dtype_name(crossing)) +
                          "\" differs from distributed.mp_policy.output_dtype = \"" +
                          std::string(dtype_name(out.mp.output)) + "\"; it is kept");
  }
  return out;
}

SharedOptions read_shared_options(const Options& distributed, Diagnostics& diagnostics) {
  return read_shared_options(distributed, Options(mp_policy_schema()), Options(moe_schema()),
                             Options(moe_mp_policy_schema()), Options(pipeline_schema()),
                             Options(context_schema()), diagnostics);
}

std::vector<std::string> parse_checkpointing_scope(const OptionValue& value) {
  const std::string key = "distributed.activation_checkpointing_scope";
  std::vector<std::string> parts;
  auto add = [&](const std::string& text) {
    std::string all = text::normal(text);
    std::replace(all.begin(), all.end(), '+', ',');
    for (std::string_view part : text::split(all, ',')) {
      std::string name(text::trim(part));
      if (name.empty()) continue;
      if (name == "default" || name == "auto") name = "all";
      if (std::find(parts.begin(), parts.end(), name) == parts.end()) parts.push_back(name);
    }
  };
  if (const auto* text = std::get_if<std::string>(&value)) {
    add(*text);
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *list) add(item);
  } else if (value.index() != 0) {
    throw Error(ErrorCode::wrong_type,
                key + " wants a string or a list of strings, found " + to_toml(value))
        .key(key)
        .help("set " + key + " = \"all\"");
  }
  const std::vector<std::string> known = {"all", "language", "vision", "audio", "multimodal"};
  for (const std::string& part : parts)
    if (std::find(known.begin(), known.end(), part) == known.end()) {
      Error error(ErrorCode::bad_choice,
                  key + ": \"" + part + "\" is not one of " + text::join(known, ", "));
      throw error.key(key)
          .help("set " + key + " = \"all\"")
          .help("set " + key + " = \"language+vision\"");
    }
  if (parts.size() > 1 && std::find(parts.begin(), parts.end(), "all") != parts.end())
    throw Error(ErrorCode::bad_choice, key + ": \"all\" stands beside another part")
        .key(key)
        .help("set " + key + " = \"all\"");
  if (parts.empty()) parts = {"all"};
  return parts;
}

ActivationCheckpointing parse_activation_checkpointing(const OptionValue& value) {
  const std::string key = "distributed.activation_checkpointing";
  if (value.index() == 0) return ActivationCheckpointing::none;
  if (const bool* on = std::get_if<bool>(&value))
    return *on ? ActivationCheckpointing::full : ActivationCheckpointing::none;
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::string word = text::normal(*text);
    for (const char* off : {"none", "false", "off", "disabled", "no"})
      if (word == off) return ActivationCheckpointing::none;
    for (const char* full : {"full", "true", "on", "enabled", "yes"})
      if (word == full) return ActivationCheckpointing::full;
    if (word == "selective") return ActivationCheckpointing::selective;
  }
  throw Error(ErrorCode::bad_choice,
              key + " = " + to_toml(value) + ", but it must be none, full or selective")
      .key(key)
      .help("set " + key + " = \"none\"")
      .help("set " + key + " = \"full\"")
      .help("set " + key + " = \"selective\"");
}

}  // namespace meshwright
