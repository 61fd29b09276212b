// A function for each section of what `plan` shows: long because there are so many.
#include "engine/job/render.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::render {

// Which tokens the ranks of cp have, and what each way to meet the others' costs.

namespace {

constexpr int64_t kStrip = 32, kMostShown = 8;

// A sample from left to right, the rank's tokens in it filled.
std::string strip(const report::Style& style, const ContextSplit& split,
                  const std::vector<PositionRun>& runs) {
  std::string out;
  const int64_t cells = std::min(kStrip, split.padded());
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t position = cell * split.padded() / cells;
    const bool mine = std::ranges::any_of(runs, [&](const PositionRun& run) {
      return run.position <= position && position < run.position + run.count;
    });
    out += mine ? (style.unicode ? "█" : "#") : (style.unicode ? "·" : ".");
  }
  return out;
}

std::string words(const std::vector<PositionRun>& runs) {
  std::vector<std::string> out;
  for (const PositionRun& run : runs)
    out.push_back(std::to_string(run.position) + " to " +
                  std::to_string(run.position + run.count - 1));
  return text::join(out, ", ");
}

}  // namespace

// The plan has a context. Not indented.
std::string context_text(const report::Style& style, const plan::JobPlan& plan) {
  const Mesh& mesh = *plan.mesh.device_mesh;
  const int64_t mine = mesh.coordinate(plan.rank, "cp");
  std::string out =
      text::join(report::wrap("method " + context_method_name(*plan.context) +
                                  (plan.context->why.empty() ? "" : ": " + plan.context->why),
                              static_cast<size_t>(style.width)),
                 "\n") +
      "\n";
  if (plan.workload.seq_len == 0)
    return out + "set dataset.seq_len to see which tokens each rank has\n";
  const ContextSplit split(plan.workload.seq_len, mesh.size("cp"), plan.context->balance);
  out += std::to_string(split.length()) + " tokens a sample" +
         (split.padded() > split.length() ? ", padded to " + std::to_string(split.padded()) : "") +
         "; [" + std::to_string(plan.rank) + "] = with the chosen rank\n";
  std::vector<std::vector<std::string>> rows{{"cp", "a sample", "positions"}};
  for (int64_t rank = 0; rank < split.ranks(); ++rank) {
    if (split.ranks() > kMostShown && rank >= kMostShown - 1 && rank != mine) continue;
    const std::vector<PositionRun> runs = split.runs_of(rank);
    rows.push_back(
        {std::to_string(rank) + (rank == mine ? " [" + std::to_string(plan.rank) + "]" : ""),
         strip(style, split, runs), words(runs)});
  }
  out += report::table(style, rows);
  if (split.ranks() > kMostShown) out += "and so on for the others\n";
  if (plan.context_costs.empty()) return out;
  rows = {{"method", "sends a step", "holds at its peak", ""}};
  for (const ContextCost& cost : plan.context_costs)
    rows.push_back({cost.method, report::human_bytes(cost.bytes),
                    report::human_bytes(cost.transient), cost.chosen ? "chosen" : ""});
  constexpr std::array<size_t, 2> right = {1, 2};
  return out + report::table(style, rows, right);
}

namespace {

using report::Style;
using report::Tone;

std::string heading(const Style& style, const std::string& title) {
  return "\n" + report::paint(style, Tone::bold, title) + "\n";
}

std::string indented(const std::string& text) {
  std::vector<std::string> lines = text::split(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  std::string out;
  for (const std::string& line : lines) out += (line.empty() ? "" : "  " + line) + "\n";
  return out;
}

Style narrower(Style style, int by) {
  style.width = std::max(40, style.width - by);
  return style;
}

const char* meaning(const std::string& axis) {
  static const std::map<std::string, const char*> words = {
      {"pp", "pipeline stages"},
      {"dp_replicate", "copies of all shards"},
      {"dp_shard", "shards of the parameters"},
      {"cp", "pieces of one sequence"},
      {"tp", "slices of one layer"},
      {"dp", "different samples"},
      {"dp_shard_cp", "shards, context ranks included"},
      {"dp_cp", "loss and gradient average"},
      {"ep", "experts divided"},
      {"ep_shard", "shards of the experts"},
  };
  auto it = words.find(axis);
  return it == words.end() ? "" : it->second;
}

std::string axes_table(const Style& style, const plan::JobPlan& plan) {
  std::vector<std::vector<std::string>> rows = {
      {"axis", "size", "what it is", "rank " + std::to_string(plan.rank) + "'s group"}};
  std::vector<std::string> single;
  for (const plan::AxisView& axis : plan::axes_of(plan)) {
    if (axis.size == 1) {
      single.push_back(axis.name);
      continue;
    }
    std::string words = meaning(axis.name);
    if (axis.flattened)
      for (const FlattenedAxis& f : plan.mesh.device_mesh->flattened())
        if (f.name == axis.name) words = "= " + text::join(f.axes, " x ");
    rows.push_back({axis.name, report::human_count(axis.size), words, ranks_text(axis.group, 24)});
  }
  constexpr std::array<size_t, 1> right = {1};
  std::string out =
      rows.size() > 1 ? report::table(narrower(style, 2), rows, right) : std::string();
  if (!single.empty()) out += "of size 1: " + text::join(single, ", ") + "\n";
  return indented(out);
}

// A frame for each rank of the pipeline, its stages inside.
std::string pipeline_text(const Style& style, const plan::JobPlan& plan) {
  const PipelinePlan& pipeline = *plan.pipeline;
  int64_t ranks = plan.mesh.device_mesh->size("pp"),
          mine = plan.mesh.device_mesh->coordinate(plan.rank, "pp");
  auto on_every_stage = [&](const std::string& module) {
    return std::ranges::all_of(pipeline.stages, [&](const PipelineStage& stage) {
      return std::ranges::find(stage.modules, module) != stage.modules.end();
    });
  };
  std::vector<std::string> everywhere;
  for (const std::string& module : pipeline.stages.front().modules)
    if (pipeline.stages.size() > 1 && on_every_stage(module)) everywhere.push_back(module);
  auto stage_lines = [&](const PipelineStage& stage, size_t digits) {
    std::vector<std::string> modules;
    for (const std::string& module : stage.modules)
      if (std::ranges::find(everywhere, module) == everywhere.end()) modules.push_back(module);
    std::string title = "stage " + report::pad(std::to_string(stage.index), digits) + "  ";
    Lines lines;
    for (const Collapsed& c : collapse(modules))
      for (const std::string& part : report::wrap(c.name, 24)) {
        lines.push_back(title + part);
        title.assign(title.size(), ' ');
      }
    if (lines.empty()) lines.push_back(title + "nothing");
    return lines;
  };
  std::vector<Lines> boxes;  // what is in them first, so that all can be made as wide as the widest
  std::vector<int64_t> drawn = shown(ranks, 16, mine);
  size_t widest = 0;
  for (int64_t rank : drawn) {
    Lines& inside = boxes.emplace_back();
    std::vector<const PipelineStage*> stages;
    for (const PipelineStage& stage : pipeline.stages)
      if (stage.rank == rank) stages.push_back(&stage);
    for (int64_t i : shown(static_cast<int64_t>(stages.size()), 6, 0)) {
      Lines more = i < 0 ? Lines{dots(style)}
                         : stage_lines(*stages[static_cast<size_t>(i)],
                                       std::to_string(stages.back()->index).size());
      inside.insert(inside.end(), more.begin(), more.end());
    }
    widest = std::max(widest, width_of(inside));
  }
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (drawn[i] < 0) {
      boxes[i] = {"", std::string(" ") + dots(style)};
      continue;
    }
    boxes[i].front() = report::pad(boxes[i].front(), widest);
    bool here = drawn[i] == mine;
    std::string title =
        "pp " + std::to_string(drawn[i]) + (here ? " [" + std::to_string(plan.rank) + "]" : "");
    boxes[i] = frame(style, here ? Tone::bold : Tone::magenta, title, boxes[i]);
  }
  std::string out = "schedule " + schedule_text(pipeline) + ", " +
                    text::counted(std::ssize(pipeline.stages), "stage") + "; [" +
                    std::to_string(plan.rank) + "] = with the chosen rank\n";
  for (const std::string& line : flow(boxes, static_cast<size_t>(narrower(style, 2).width)))
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  for (const Collapsed& c : collapse(everywhere)) out += "on every stage: " + c.name + "\n";
  return indented(out);
}

// Rows whose first cells share what stands before their last part(s) become a heading row and
// indented rows.
void group_by_prefix(std::vector<std::vector<std::string>>& rows, const std::string& marker) {
  std::vector<std::vector<std::string>> out;
  std::string open;
  for (std::vector<std::string>& row : rows) {
    const size_t at = row[0].find(marker),
                 end = at == std::string::npos ? at : row[0].find('.', at + marker.size());
    const std::string prefix = end == std::string::npos ? "" : row[0].substr(0, end + 1);
    if (!prefix.empty()) {
      if (prefix != open) {
        out.push_back(std::vector<std::string>(row.size()));
        out.back()[0] = prefix.substr(0, prefix.size() - 1);
      }
      row[0] = "  " + row[0].substr(prefix.size());
    }
    open = prefix;
    out.push_back(std::move(row));
  }
  rows = std::move(out);
}

std::string tp_text(const Style& style, const plan::JobPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"modules", "style", "input", "output", "count"}};
  bool tracked = false;
  for (const TpEntry& entry : plan.tp.entries) {
    bool sharded = entry.style.output_kind == TpOutputKind::sharded;
    tracked = tracked || sharded;
    std::string name(style_name(entry.style.kind));
    if (entry.style.kind == TpStyleKind::sequence_all_gather) name = "sequence, gathered";
    if (entry.style.kind == TpStyleKind::sequence) name = "sequence";
    rows.push_back({entry.pattern, name, std::string(layout_name(entry.style.input)),
                    std::string(layout_name(entry.style.output)) + (sharded ? " *" : ""),
                    std::to_string(entry.modules.size())});
  }
  constexpr std::array<size_t, 1> right = {4};
  std::string out = "from: " + plan.tp.source + "\n";
  if (plan.tp.entries.empty()) return indented(out + "nothing is split over tp\n");
  group_by_prefix(rows, ".layers.");
  out += report::table(narrower(style, 2), rows, right);
  if (tracked) out += "* the layout is tracked for the next style or the loss, not gathered\n";
  return indented(out);
}

std::string parameters_text(const Style& style, const plan::JobPlan& plan) {
  const std::vector<ParameterPlacement>& all = plan.footprint->parameters;
  const ModelOutline outline = plan::outline_of_rank(plan);
  const plan::ParametersByName outlines(outline);
  // How it is updated, where that is not as [optimizer] says.
  auto updated = [&](const std::string& name) -> std::string {
    const ParameterOutline* found = outlines.find(name);
    if (found != nullptr && !found->trainable)
      return ", frozen" + (found->dtype == plan.workload.storage
                               ? std::string()
                               : ", " + std::string(dtype_name(found->dtype)));
    const auto rule = plan.groups.rule_of.find(
        found != nullptr && !found->copy_of.empty() ? found->copy_of : name);
    if (rule == plan.groups.rule_of.end()) return "";
    const auto& [factor, decay] = plan.groups.rules[rule->second];
    return (factor == 1 ? "" : ", lr x " + to_toml(factor)) +
           (decay == plan.groups.other.weight_decay ? "" : ", decay " + to_toml(decay));
  };
  // Lines for parameters that agree in everything but a layer number.
  std::map<std::string, size_t> line_of;
  std::vector<std::vector<std::string>> names;
  std::vector<size_t> first;
  for (size_t i = 0; i < all.size(); ++i) {
    std::string place = updated(all[i].name) + " ";
    for (const auto& [axis, where] : all[i].placement) place += axis + ":" + where + " ";
    std::string key = all[i].name;
    std::erase_if(key, [](unsigned char c) { return std::isdigit(c) != 0; });
    key += report::shape_text(all[i].global_shape) + report::shape_text(all[i].local_shape) + place;
    auto [it, fresh] = line_of.emplace(key, names.size());
    if (fresh) {
      names.emplace_back();
      first.push_back(i);
    }
    names[it->second].push_back(all[i].name);
  }
  std::vector<std::vector<std::string>> rows = {
      {"parameter", "global", "on rank " + std::to_string(plan.rank), "split over (dim)"}};
  for (size_t line = 0; line < names.size(); ++line) {
    const ParameterPlacement& p = all[first[line]];
    std::string place;
    for (const auto& [axis, where] : p.placement)
      if (where != "replicate")
        place +=
            (place.empty() ? "" : ", ") + axis +
            (where.starts_with("shard(") ? " " + where.substr(6, where.size() - 7) : " " + where);
    if (place.empty()) place = "replicated";
    place += updated(p.name);
    for (const Collapsed& c : collapse(names[line]))
      rows.push_back(
          {c.name, report::shape_text(p.global_shape), report::shape_text(p.local_shape), place});
  }
  group_by_prefix(rows, ".layers.");
  return indented(report::table(narrower(style, 2), rows));
}

std::string bar(const Style& style, int64_t value, int64_t most, size_t width) {
  double share = most > 0 ? static_cast<double>(value) / static_cast<double>(most) : 0;
  auto full = static_cast<size_t>(std::llround(share * static_cast<double>(width)));
  std::string out;
  for (size_t i = 0; i < full; ++i) out += style.unicode ? "█" : "#";
  return out;
}

// For which settings the activations are, and what sequence parallelism makes of them.
std::string activations_text(const plan::JobPlan& plan) {
  int64_t bytes = plan.footprint->bytes.activations;
  if (bytes == 0) return {};
  const char* recomputed = "nothing";
  if (plan.shared.activation_checkpointing == ActivationCheckpointing::full) recomputed = "layers";
  if (plan.shared.activation_checkpointing == ActivationCheckpointing::selective)
    recomputed = "mlps and norms";
  bool sequence = plan::cuts_sequence(plan.tp);
  std::string out = "  activations: " + std::string(recomputed) + " recomputed";
  if (plan.shared.sizes.tp > 1)
    out += std::string(", sequence parallelism ") + (sequence ? "on" : "off");
  out += "\n";
  if (!plan.other_activations) return out;
  int64_t saved = sequence ? *plan.other_activations - bytes : bytes - *plan.other_activations;
  return out + "  sequence_parallel = true " + (sequence ? "saves " : "would save ") +
         report::human_bytes(saved) + " of them" +
         (sequence ? " (" + report::human_bytes(*plan.other_activations) + " without)" : "") + "\n";
}

std::string bytes_text(const Style& style, const plan::JobPlan& plan) {
  const Bytes& b = plan.footprint->bytes;
  int64_t state = b.weights + b.gradients + b.optimizer;
  std::vector<std::pair<std::string, int64_t>> items = {{"weights", b.weights},
                                                        {"gradients", b.gradients},
                                                        {"optimizer", b.optimizer},
                                                        {"transient", b.transient}};
  if (b.activations > 0) items.emplace_back("activations", b.activations);
  int64_t most = 1, total = state + b.transient + b.activations;
  for (const auto& [name, value] : items) most = std::max(most, value);
  std::vector<std::vector<std::string>> rows = {{"bytes a rank", "", ""}};
  for (const auto& [name, value] : items)
    rows.push_back({name, report::human_bytes(value),
                    report::paint(style, Tone::blue, bar(style, value, most, 24))});
  rows.push_back({"total", report::human_bytes(total), ""});
  constexpr std::array<size_t, 1> right = {1};
  return indented(report::table(narrower(style, 2), rows, right)) + activations_text(plan);
}

std::string wire_text(const Style& style, const plan::JobPlan& plan) {
  if (plan.footprint->wire.empty()) return "  nothing: no two ranks need to talk\n";
  std::vector<std::vector<std::string>> rows = {{"axis", "operation", "calls", "sent by a rank"}};
  for (const WireRow& row : plan.footprint->wire)
    rows.push_back(
        {row.axis,
         row.op + (row.every > 1 ? ", every " + report::human_count(row.every) + " steps" : ""),
         report::human_count(row.count), report::human_bytes(row.bytes)});
  constexpr std::array<size_t, 2> right = {2, 3};
  return indented(report::table(narrower(style, 2), rows, right));
}

std::string title(const Style& style, const plan::JobPlan& plan) {
  std::string strategy = plan.strategy.info->name;
  if (strategy != plan.requested_strategy)
    strategy += " (asked for: " + report::printable(plan.requested_strategy) + ")";
  std::string mesh;
  if (plan.mesh.device_mesh)
    for (const MeshAxis& axis : plan.mesh.device_mesh->axes())
      if (axis.size > 1)
        mesh += (mesh.empty()    ? ""
                 : style.unicode ? " × "
                                 : " x ") +
                axis.name + " " + std::to_string(axis.size);
  if (mesh.empty())
    mesh = plan.mesh.device_mesh || plan.world_size == 1 ? "one rank"
                                                         : "dp " + std::to_string(plan.world_size);
  return report::paint(style, Tone::bold, strategy) + " on " +
         report::human_count(plan.world_size) + (plan.world_size == 1 ? " rank: " : " ranks: ") +
         mesh + "\n";
}

}  // namespace

std::string ranks_text(const std::vector<int64_t>& ranks, size_t width) {
  if (ranks.empty()) return "-";
  if (ranks.size() > 2 && std::ranges::adjacent_find(ranks, [](int64_t one, int64_t next) {
                            return next != one + 1;
                          }) == ranks.end())
    return std::to_string(ranks.front()) + "-" + std::to_string(ranks.back());
  std::string all;
  for (int64_t r : ranks) all += (all.empty() ? "" : " ") + std::to_string(r);
  if (all.size() <= width || ranks.size() <= 4) return all;
  return std::to_string(ranks[0]) + " " + std::to_string(ranks[1]) + " .. " +
         std::to_string(ranks.back());
}

std::vector<Collapsed> collapse(const std::vector<std::string>& names) {
  // Names are alike but for their numbers: a run of numbers in one place becomes {first-last}.
  struct Parts {
    std::string before, after;
    int64_t number = -1;
  };
  auto parts_of = [](const std::string& name) {
    Parts p{name, "", -1};
    for (size_t at = 0; at < name.size(); ++at) {
      bool starts =
          std::isdigit(static_cast<unsigned char>(name[at])) && (at == 0 || name[at - 1] == '.');
      if (!starts) continue;
      size_t end = at;
      while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
      if (end < name.size() && name[end] != '.') continue;
      if (end - at > 9) continue;
      return Parts{name.substr(0, at), name.substr(end), std::stoll(name.substr(at, end - at))};
    }
    return p;
  };
  std::vector<Collapsed> out;
  std::vector<Parts> run;
  size_t run_start = 0;
  auto flush = [&] {
    if (run.empty()) return;
    const Parts& p = run.front();
    std::string name = p.before;
    if (p.number >= 0 && run.size() == 1) name += std::to_string(p.number);
    if (run.size() > 1) {
      std::string ranges;
      for (size_t i = 0; i < run.size();) {
        size_t j = i;
        while (j + 1 < run.size() && run[j + 1].number == run[j].number + 1) ++j;
        ranges += (ranges.empty() ? "" : ",") + std::to_string(run[i].number) +
                  (j > i ? "-" + std::to_string(run[j].number) : "");
        i = j + 1;
      }
      name += "{" + ranges + "}";
    }
    out.push_back({name + p.after, run.size(), run_start});
    run.clear();
  };
  for (size_t i = 0; i < names.size(); ++i) {
    Parts p = parts_of(names[i]);
    bool follows = !run.empty() && p.number >= 0 && p.before == run.back().before &&
                   p.after == run.back().after && p.number > run.back().number;
    if (!follows) {
      flush();
      run_start = i;
    }
    run.push_back(std::move(p));
  }
  flush();
  return out;
}

std::string draw(const Style& style, const plan::JobPlan& plan) {
  std::string out = title(style, plan);
  out += heading(style, "Mesh") + draw_mesh(style, plan);
  out += heading(style, "Axes") + axes_table(style, plan);
  if (plan.pipeline)
    out += heading(style, "Pipeline") + pipeline_text(style, plan) + "\n" +
           indented(pipeline_timeline(narrower(style, 2), plan));
  if (plan.context)
    out += heading(style, "Context") + indented(context_text(narrower(style, 2), plan));
  if (!plan.outline) {
    out +=
        "\n  No [model] in the configuration: set model.config to a config.json to see its\n  "
        "tensor-parallel plan, memory and traffic.\n";
    return out;
  }
  int64_t elements = 0, trained = 0;
  for (const ParameterOutline& p : plan.outline->parameters) {
    elements += element_count(p.shape);
    if (p.trainable) trained += element_count(p.shape);
  }
  out += heading(style, "Model");
  out += "  " + plan.outline->architecture + ": " + report::human_count(elements) + " parameters" +
         (trained < elements ? " (" + report::human_count(trained) + " of them trained)" : "") +
         ", " + std::to_string(plan.outline->layers) + " layers\n";
  if (plan.shared.sizes.tp > 1)
    out += heading(style, "Tensor-parallel plan") + tp_text(style, plan);
  out += heading(style, "Parameters") + parameters_text(style, plan);
  out += heading(style, "Memory") + bytes_text(style, plan);
  out += heading(style, "Traffic in a step");
  const bool staged = plan.pipeline.has_value();
  const int64_t micro_batches = staged ? pipeline_micro_batches(plan.shared.pipeline) *
                                             pipeline_runs(plan.shared.pipeline, plan.workload)
                                       : plan.workload.accumulation;
  if (plan.workload.accumulation > 1 || plan.workload.seq_len > 0)
    out += "  " +
           (staged ? "pipeline micro-batch of " +
                         text::counted(plan.shared.pipeline.microbatch_size, "sample")
                   : "local batch " + std::to_string(plan.workload.local_batch)) +
           ", " + text::counted(micro_batches, "micro-batch", "es") +
           (plan.workload.seq_len > 0
                ? ", " + std::to_string(plan.workload.seq_len) + " tokens a sample"
                : "") +
           "\n";
  out += wire_text(style, plan);
  return out;
}

}  // namespace meshwright::render
