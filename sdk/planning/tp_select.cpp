// Which plan a model gets (semantics 2.1), and whether it fits (semantics 2.7, 2.8, 2.9).
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "footprint_parts.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/checks.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/text.h"
#include "tp_tables.h"

namespace meshwright {
namespace {

using enum TpStyleKind;

using TpPlanMaker = std::function<TpPlanEntries(const ModelOutline&, bool sequence_parallel)>;

struct NamedPlans {
  std::mutex mutex;
  std::map<std::string, decltype(meshwright_tp_plan::make)> makers;
};
NamedPlans& named_plans() {
  static NamedPlans plans;
  return plans;
}

TpPlanEntries llama_nemotron_super(const ModelOutline& outline, bool sp) {
  ModelOutline like = outline;
  bool deci = outline.architecture == "DeciLMForCausalLM" && outline.model_type == "nemotron-nas";
  if (!deci) like.architecture = "LlamaForCausalLM";
  std::vector<std::string> notices;
  return *architecture_tp_plan(like, sp, notices);
}

std::map<std::string, TpPlanMaker> built_in_plans() {
  return {{"llama_nemotron_super_tp_plan", llama_nemotron_super},
          {"base", [](const ModelOutline&, bool sp) { return base_tp_plan(sp); }},
          {"own", [](const ModelOutline& outline, bool sp) { return own_tp_plan(outline, sp); }}};
}

TpPlanMaker find_named(const std::string& name) {
  static const std::map<std::string, TpPlanMaker> built_in = built_in_plans();
  if (auto it = built_in.find(name); it != built_in.end()) return it->second;
  NamedPlans& plans = named_plans();
  std::lock_guard lock(plans.mutex);
  auto it = plans.makers.find(name);
  if (it == plans.makers.end()) return {};
  return [make = it->second](const ModelOutline& outline, bool sequence_parallel) {
    TpPlanEntries entries;
    make(&outline, sequence_parallel ? 1 : 0, &entries);
    return entries;
  };
}

TpPlanEntries custom_plan(const StringMap& patterns) {
  TpPlanEntries out;
  for (const auto& [pattern, style] : patterns) {
    try {
      if (std::optional<TpStyle> parsed = parse_style(style)) out.emplace_back(pattern, *parsed);
    } catch (Error& error) {
      throw error.key("distributed.tp_plan." + text::quote(pattern));
    }
  }
  return out;
}

TpPlanEntries named_plan(const ModelOutline& outline, const TpPlanRequest& request) {
  TpPlanMaker maker = find_named(request.choice.name);
  if (!maker) {
    std::vector<std::string> names = tp::plan_names();
    Error error(ErrorCode::unknown_tp_plan, "there is no tensor-parallel plan named \"" +
                                                request.choice.name + "\"; there are " +
                                                text::join(names, ", "));
    error.key("distributed.tp_plan");
    if (std::string near = nearest_name(request.choice.name, names); !near.empty())
      error.help("set distributed.tp_plan = " + text::quote(near));
    throw error.help(
        "leave distributed.tp_plan out: the plan is then chosen by the model's architecture");
  }
  try {
    return maker(outline, request.sequence_parallel);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::bad_tp_plan, "the plan \"" + request.choice.name +
                                            "\" cannot be made for " + outline.architecture + ": " +
                                            error.what())
        .key("distributed.tp_plan")
        .help("leave distributed.tp_plan out");
  }
}

bool runs(const ModelOutline& outline, const TpPlanEntries& entries);

// Steps 3 to 5 of the selection (semantics 2.1).
TpPlanEntries automatic_plan(const ModelOutline& outline, const TpPlanRequest& request,
                             TpPlan& plan) {
  std::string why;
  try {
    if (std::optional<TpPlanEntries> entries =
            architecture_tp_plan(outline, request.sequence_parallel, plan.notices)) {
      plan.source = "table " + outline.architecture;
      return *entries;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::option_refused) throw;
    // A row that fails gives way to the model's own plan; if that fails too, its failure stands: no
    // base plan.
    plan.warnings.push_back("the plan of " + outline.architecture + " does not apply (" +
                            error.message() + "); its own plan is used");
    plan.source = "own plan";
    return own_tp_plan(outline, request.sequence_parallel);
  }
  try {
    TpPlanEntries entries = own_tp_plan(outline, request.sequence_parallel);
    if (request.sequence_parallel && outline.own_sequence_plan.empty() &&
        runs(outline, base_tp_plan(true))) {
      plan.source = "base plan";
      plan.notices.push_back("the own plan of " + outline.architecture +
                             " has no sequence parallelism; the base plan, which has it, is used");
      return base_tp_plan(true);
    }
    plan.source = "own plan";
    return entries;
  } catch (const Error& error) {
    why = error.message();
  }
  if (outline.remote_code)
    throw tp_plan_does_not_fit(outline.architecture +
                               " is not a known class, and its own plan cannot be used: " + why)
        .help(
            "write a [distributed.tp_plan] table of pattern = style for its Linear and Embedding "
            "modules")
        .help("set distributed.tp_size = 1");
  if (outline.moe)
    throw tp_plan_does_not_fit(
        "mixture-of-experts models need a registered, explicit or own plan, and " +
        outline.architecture + " has none: " + why)
        .help("write a [distributed.tp_plan] table of pattern = style")
        .help("set distributed.tp_size = 1");
  plan.source = "base plan";
  plan.warnings.push_back("no plan is known for " + outline.architecture +
                          "; the base plan is used (" + why + ")");
  return base_tp_plan(request.sequence_parallel);
}

bool cuts(const TpStyle& style) { return style.kind == column || style.kind == row; }

// Whether a module of the model's own has parameters that no module below it has.
bool holds_parameters(const ModelOutline& outline, const ModuleOutline& module) {
  return module.kind == ModuleKind::other && !module.name.empty() &&
         std::any_of(outline.parameters.begin(), outline.parameters.end(),
                     [&](const ParameterOutline& p) { return module_of(p.name) == module.name; });
}

[[noreturn]] void refuse_style(const ModelOutline& outline, const std::string& pattern,
                               const TpStyle& style, const ModuleOutline& module) {
  Error error = tp_plan_does_not_fit(
      "the pattern " + text::quote(pattern) + " gives " + std::string(style_name(style.kind)) +
      " to " + (module.name.empty() ? "the model itself" : module.name) + ", which is of class " +
      module.class_name + (cuts(style) ? "; it works on Linear and Embedding only" : ""));
  if (module.kind == ModuleKind::norm)
    error.help("give it the style \"sequence_parallel\", or none");
  else if (module.kind == ModuleKind::embedding)
    error.help("give it the style \"rowwise_rep\", which cuts the vocabulary");
  else if (holds_parameters(outline, module))
    error.help(
        "give it the style \"colwise\" if its own parameters have rows by head: they are cut along "
        "their first dimension");
  if (error.helps().empty() || module.kind == ModuleKind::other)
    error.help("name the Linear modules themselves, for example \"model.layers.*.mlp.up_proj\"");
  throw error;
}

// The base plan, the tables and the copies of Hugging Face's plans name modules that only some
// models have; a pattern of theirs without a match is no mistake. In a plan of the user's, or of a
// user's model, it most likely is one.
bool optional_patterns(const TpPlan& plan, const TpPlanRequest& request,
                       const ModelOutline& outline) {
  bool own = plan.source == "own plan";
  if (request.choice.kind == TpPlanChoice::Kind::named) {
    if (!built_in_plans().contains(request.choice.name)) return false;
    own = request.choice.name == "own";
  }
  return own ? !outline.remote_code : request.choice.kind != TpPlanChoice::Kind::custom;
}

void match(const ModelOutline& outline, const TpPlanEntries& entries, bool optional, TpPlan& plan) {
  std::unordered_map<std::string_view, std::string_view> styled;  // module -> pattern
  styled.reserve(outline.modules.size());
  for (const auto& [pattern, style] : entries) {
    TpEntry entry{pattern, style, {}};
    for (const ModuleOutline& module : outline.modules) {
      if (!pattern_matches(pattern, module.name)) continue;
      if (is_added_factor(module))
        throw tp_plan_does_not_fit("the pattern " + text::quote(pattern) + " matches " +
                                   module.name +
                                   ", a part of an adapter, which is cut as its Linear is")
            .help("remove the pattern");
      if (!tp::can_have(module.kind, style) ||
          (module.kind == ModuleKind::other && cuts(style) && !holds_parameters(outline, module)))
        refuse_style(outline, pattern, style, module);
      auto [it, first] = styled.emplace(module.name, pattern);
      if (!first)
        throw tp_plan_does_not_fit("two patterns give a style to " + module.name + ": " +
                                   text::quote(it->second) + " and " + text::quote(pattern))
            .help("remove one of the two patterns");
      entry.modules.push_back(module.name);
    }
    if (entry.modules.empty()) {
      if (!optional)
        plan.warnings.push_back("the pattern " + text::quote(pattern) +
                                " of the tensor-parallel plan matches no module");
      continue;
    }
    plan.entries.push_back(std::move(entry));
  }
}

// Whether a plan that was not made for the model fits it all the same.
bool runs(const ModelOutline& outline, const TpPlanEntries& entries) {
  if (outline.remote_code || outline.moe) return false;
  try {
    TpPlan plan;
    match(outline, entries, /*optional=*/true, plan);
    resolve_tp_modules(plan, outline);
    check_tp_blocks(plan, outline);
    return std::any_of(plan.entries.begin(), plan.entries.end(),
                       [](const TpEntry& e) { return e.style.kind == row; });
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void tp::register_plans(const meshwright_strategy& strategy) {
  NamedPlans& known = named_plans();
  std::lock_guard lock(known.mutex);
  std::map<std::string, decltype(meshwright_tp_plan::make)> all = known.makers;
  for (size_t i = 0; i < strategy.tp_plan_count; ++i) {
    const meshwright_tp_plan& plan = element(strategy.tp_plans, i);
    const auto [it, added] = all.emplace(plan.name, plan.make);
    if (built_in_plans().contains(plan.name) || it->second != plan.make)
      throw Error(ErrorCode::conflict, "a tensor-parallel plan named \"" + std::string(plan.name) +
                                           "\" is already registered")
          .help("give the strategy's plan another name in its description (.tp_plans)");
  }
  known.makers = std::move(all);
}

std::vector<std::string> tp::plan_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : built_in_plans()) names.push_back(name);
  NamedPlans& plans = named_plans();
  std::lock_guard lock(plans.mutex);
  for (const auto& [name, maker] : plans.makers) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

// Activations between the blocks are then cut along the sequence.
void cut_sequence(const StringMap& norms, TpPlanEntries& entries) {
  for (auto& [pattern, style] : entries)
    if (style.kind == row && style.output == TpLayout::replicate) {
      style.output = TpLayout::shard_1;
      style.output_kind = TpOutputKind::sharded;
    }
  for (const auto& [pattern, text] : norms)
    if (std::optional<TpStyle> style = parse_style(text, StyleContext::own_plan))
      entries.emplace_back(pattern, *style);
}

}  // namespace

TpPlanEntries own_tp_plan(const ModelOutline& outline, bool sequence_parallel) {
  TpPlanEntries out;
  for (const auto& [pattern, style_text] : outline.own_tp_plan) {
    std::optional<TpStyle> style = parse_style(style_text, StyleContext::own_plan);
    // Expert tensors are the expert axis's business, whatever style a plan gives them.
    if (!style || pattern.find(".experts") != std::string::npos) continue;
    if ((pattern == "lm_head" || pattern == "language_model.lm_head") && style->kind == column &&
        style->output == TpLayout::replicate)
      style = TpStyle{column, TpLayout::replicate, TpLayout::shard_last,
                      TpOutputKind::sharded};  // logits stay sharded
    auto same = std::find_if(out.begin(), out.end(),
                             [&](const auto& entry) { return entry.first == pattern; });
    if (same != out.end())
      same->second = *style;  // the later entry wins
    else
      out.emplace_back(pattern, *style);
  }
  if (out.empty())
    throw tp_plan_does_not_fit(outline.architecture + " has no tensor-parallel plan of its own")
        .help("leave distributed.tp_plan out")
        .help("write a [distributed.tp_plan] table of pattern = style");
  std::string embedding =
      outline.inner_prefix.empty() ? "embed_tokens" : outline.inner_prefix + ".embed_tokens";
  if (std::none_of(out.begin(), out.end(),
                   [&](const auto& entry) { return entry.first == embedding; }))
    out.emplace_back(embedding, *parse_style("rowwise_rep"));
  if (sequence_parallel && !outline.own_sequence_plan.empty())
    cut_sequence(outline.own_sequence_plan, out);
  return out;
}

void check_heads(const ModelOutline& outline, int64_t tp) {
  auto fits = [&](int64_t d) {
    for (int64_t heads : {outline.key_value_heads, outline.attention_heads})
      if (heads % d != 0) return false;
    for (const ParameterOutline& p : outline.parameters)
      if (p.fused && p.fused->groups % d != 0) return false;
    return true;
  };
  auto check = [&](int64_t parts, const std::string& has, const char* why) {
    if (parts % tp == 0) return;
    Error error(ErrorCode::heads_not_divisible,
                has + ", which do not divide by tp " + std::to_string(tp) + "; " + why);
    error.key("distributed.tp_size");
    std::vector<std::string> valid;
    for (int64_t d = 1; d <= std::max(outline.attention_heads, parts); ++d)
      if (fits(d)) valid.push_back(std::to_string(d));
    // The largest sizes are the ones a user who asked for more would take.
    for (size_t i = valid.size(), shown = 0; i-- > 0 && shown < 3; ++shown)
      error.help("set distributed.tp_size = " + valid[i]);
    throw error.note("valid tensor-parallel sizes: " + text::join(valid, ", "));
  };
  for (auto [heads, what] : {std::pair(outline.key_value_heads, " key-value heads"),
                             std::pair(outline.attention_heads, " attention heads")})
    check(heads, outline.architecture + " has " + std::to_string(heads) + what,
          "there is no replication of heads");
  for (const ParameterOutline& p : outline.parameters)
    if (p.fused)
      check(p.fused->groups,
            "the rows of " + p.name + " lie in " + std::to_string(p.fused->groups) + " groups",
            "a rank needs whole groups of them");
}

namespace {

// What the experts of a model allow of a plan.
void check_moe_tp_plan(const ModelOutline& outline, const TpPlanRequest& request,
                       const TpPlanEntries& entries) {
  if (request.sequence_parallel)
    throw Error(ErrorCode::option_refused,
                outline.architecture +
                    " has experts: sequence parallelism is not possible, routers need whole tokens")
        .key("distributed.sequence_parallel")
        .help("set distributed.sequence_parallel = false");
  if (entries.empty())
    throw tp_plan_does_not_fit(
        "the tensor-parallel plan of a mixture-of-experts model must not be empty")
        .help("set distributed.tp_size = 1");
  auto forbidden = [](std::string_view name) {
    for (std::string_view part : text::split(name, '.'))
      for (std::string_view word :
           {"experts", "gate_and_up_projs", "down_projs", "router", "gate", "shared_expert_gate"})
        if (part == word) return true;
    std::string_view last = name.substr(name.rfind('.') + 1);
    return last == "mlp" || last == "moe";
  };
  for (const auto& [pattern, style] : entries) {
    bool any = false;
    // Here globs run over the whole dotted name, so `*` crosses dots.
    for (const ModuleOutline& module : outline.modules) {
      if (!glob_matches(pattern, module.name)) continue;
      any = any || pattern_matches(pattern, module.name);
      if (pattern_matches(pattern, module.name) && forbidden(module.name))
        throw tp_plan_does_not_fit("the pattern " + text::quote(pattern) + " matches " +
                                   module.name + ", which belongs to the experts or their router")
            .help("remove the pattern: experts are divided by ep_size");
    }
    if (forbidden(pattern))
      throw tp_plan_does_not_fit("the pattern " + text::quote(pattern) +
                                 " names a part of the experts or their router")
          .help("remove the pattern: experts are divided by ep_size");
    if (!any && request.choice.kind == TpPlanChoice::Kind::custom)
      throw tp_plan_does_not_fit("the pattern " + text::quote(pattern) + " matches no module")
          .help("remove the pattern, or correct its spelling");
  }
}

}  // namespace

TpPlan select_tp_plan(const ModelOutline& outline, const TpPlanRequest& request) {
  TpPlan plan;
  plan.source = "none";
  if (request.tp_size <= 1) return plan;
  check_heads(outline, request.tp_size);
  TpPlanEntries entries;
  switch (request.choice.kind) {
    case TpPlanChoice::Kind::custom:
      plan.source = "custom";
      entries = custom_plan(request.choice.patterns);
      break;
    case TpPlanChoice::Kind::named:
      plan.source = "named " + request.choice.name;
      entries = named_plan(outline, request);
      break;
    case TpPlanChoice::Kind::automatic:
      entries = automatic_plan(outline, request, plan);
      break;
  }
  // Nemotron-Flash divides the logits by the norms of the head's rows: both sharded or both plain,
  // so a gathered head is left whole.
  if (outline.architecture == "NemotronFlashForCausalLM")
    std::erase_if(entries, [](const auto& e) {
      return e.first == "lm_head" && e.second.output == TpLayout::replicate;
    });
  if (outline.moe) check_moe_tp_plan(outline, request, entries);
  match(outline, entries, optional_patterns(plan, request, outline), plan);
  if (request.sequence_parallel && plan.notices.empty() &&
      std::ranges::none_of(plan.entries, [](const TpEntry& e) {
        return e.style.kind == sequence || e.style.kind == sequence_all_gather;
      }))
    plan.notices.push_back("the tensor-parallel plan (" + plan.source +
                           ") has no sequence-parallel styles: sequence_parallel and "
                           "enable_async_tensor_parallel have no effect");
  if (entries.empty())
    plan.notices.push_back(
        "the tensor-parallel plan is empty: the ranks of tp all compute the same");
  resolve_tp_modules(plan, outline);  // refuses what could not run
  try {
    check_tp_blocks(plan, outline);
  } catch (const Error& error) {
    plan.warnings.push_back(error.message() + "; train refuses this plan");
  }
  return plan;
}

std::optional<int64_t> tp_shard_dim(const TpPlan& plan, const ModelOutline& outline,
                                    std::string_view parameter) {
  return footprint::CutDims(plan, outline).find(parameter);
}

}  // namespace meshwright
