#include "apps/observe/report/pictures.h"

#include <algorithm>
#include <stdexcept>

#include "engine/job/render.h"
#include "meshwright/mesh.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;

constexpr size_t kMostRanks = 16;  // that have a row of a picture

std::optional<Mesh> mesh_of(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const json::array &names = value.at("axes").as_array(), &shape = value.at("shape").as_array();
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < names.size(); ++i)
    axes.push_back({std::string(names.at(i).as_string()), shape.at(i).to_number<int64_t>()});
  return Mesh(std::move(axes));
}

// Axes of more than one place; the two innermost are a grid, the others frames.
json::object mesh_json(const Mesh& mesh, int64_t rank, const std::string& what) {
  const std::vector<int64_t> mine = mesh.coordinates(rank);
  std::vector<size_t> places;
  for (size_t i = 0; i < mesh.axes().size(); ++i)
    if (mesh.axes()[i].size > 1) places.push_back(i);
  json::array axes;
  std::string words;
  for (size_t i = 0; i < places.size(); ++i) {
    const MeshAxis& axis = mesh.axes()[places[i]];
    const std::vector<int64_t> shown =
        render::shown(axis.size, i + 2 < places.size() ? 5 : 8, mine[places[i]]);
    axes.push_back(json::object{{"name", axis.name},
                                {"size", axis.size},
                                {"mine", mine[places[i]]},
                                {"shown", json::array(shown.begin(), shown.end())}});
    words += (words.empty() ? "" : " × ") + axis.name + " " + report::human_count(axis.size);
  }
  return {{"words", what + ": " + words}, {"axes", axes}};
}

json::array meshes_json(const json::object& plan) {
  const auto world = plan.at("world_size").to_number<int64_t>();
  if (world <= 1) return {};
  std::optional<Mesh> device = mesh_of(plan.at("device_mesh"));
  // Under ddp there is no mesh; its replicas are drawn as one axis.
  if (!device) device.emplace(std::vector<MeshAxis>{{"dp", world}});
  const auto mine = plan.at("rank").at("rank").to_number<int64_t>();
  json::array out = {mesh_json(*device, mine, "Ranks")};
  if (std::optional<Mesh> experts = mesh_of(plan.at("moe_mesh")))
    if (experts->place_of(mine))
      out.push_back(mesh_json(*experts, mine, "The same ranks, as experts see them"));
  return out;
}

json::array memory_json(const json::object& plan, double measured) {
  if (plan.at("bytes").is_null()) return {};
  json::array out;
  auto add = [&](const char* name, double bytes, const char* classes) {
    out.push_back(json::object{
        {"name", name}, {"bytes", bytes}, {"text", value_text(bytes, true)}, {"class", classes}});
  };
  double planned = 0;
  for (const char* key : {"weights", "gradients", "optimizer", "transient", "activations"})
    if (const json::value* value = plan.at("bytes").as_object().if_contains(key)) {
      add(key, value->to_number<double>(), "bar");
      planned += value->to_number<double>();
    }
  add("planned, together", planned, "bar all");
  if (measured > 0) add("measured peak", measured, "bar measured");
  return out;
}

// Of a stage or a micro-batch, and of all pairs of both: the file may be anybody's.
constexpr int64_t kMostNumber = 65535, kMostPasses = int64_t{1} << 22;

// "0F0,(0F1;7B0)OVERLAP_F_B": what actions_row() writes.
PipelineList list_of(std::string_view row) {
  PipelineList out;
  auto number = [&](size_t& i) {
    int64_t value = 0;
    while (i < row.size() && row[i] >= '0' && row[i] <= '9') {
      value = value * 10 + (row[i++] - '0');
      if (value > kMostNumber) throw std::invalid_argument("no action");
    }
    return value;
  };
  for (size_t i = 0; i < row.size();) {
    if (row[i] < '0' || row[i] > '9') {
      // A name in capitals stands behind a pair.
      ++i;
      continue;
    }
    PipelineAction action;
    action.stage = number(i);
    if (i >= row.size() || std::string_view("FBIW").find(row[i]) == std::string_view::npos)
      throw std::invalid_argument("no action");
    action.kind = static_cast<PipelineAction::Kind>(row[i++]);
    action.micro_batch = number(i);
    out.push_back(action);
  }
  return out;
}

json::value pipeline_json(const json::object& plan) {
  if (plan.at("pipeline").is_null()) return nullptr;
  const json::object& pipeline = plan.at("pipeline").as_object();
  json::array stages, ranks;
  for (const json::value& stage : pipeline.at("stages").as_array()) {
    const auto first = stage.at("first_layer").to_number<int64_t>(),
               count = stage.at("layers").to_number<int64_t>();
    stages.push_back(json::array{
        std::to_string(stage.at("rank").to_number<int64_t>()),
        std::to_string(stage.at("index").to_number<int64_t>()),
        count == 0   ? "none"
        : count == 1 ? std::to_string(first)
                     : std::to_string(first) + " to " + std::to_string(first + count - 1)});
  }
  PipelineLists lists;
  for (const json::value& row : pipeline.at("actions").as_array())
    lists.push_back(list_of(std::string_view(row.as_string())));
  int64_t of_stages = 1, of_batches = 1;
  for (const PipelineList& list : lists)
    for (const PipelineAction& action : list) {
      of_stages = std::max(of_stages, action.stage + 1);
      of_batches = std::max(of_batches, action.micro_batch + 1);
    }
  if (of_stages * of_batches > kMostPasses) throw std::invalid_argument("no pipeline");
  const PipelineRun run = simulate_pipeline(lists);
  for (const std::vector<PipelineSpan>& spans : run.spans) {
    if (ranks.size() == kMostRanks) break;
    json::array& row = ranks.emplace_back(json::array()).as_array();
    for (const PipelineSpan& span : spans)
      row.push_back(json::array{span.action.stage,
                                std::string(1, static_cast<char>(span.action.kind)),
                                span.action.micro_batch, span.start, span.end});
  }
  return json::object{{"schedule", pipeline.at("schedule").as_string()},
                      {"idle", format("%.1f%%", pipeline.at("bubble").to_number<double>() * 100)},
                      {"makespan", run.makespan},
                      {"stages", stages},
                      {"ranks", ranks}};
}

json::array wire_json(const json::object& plan) {
  json::array out;
  for (const json::value& row : plan.at("wire").as_array()) {
    std::string times = report::human_count(row.at("count").to_number<int64_t>());
    if (const json::value* every = row.as_object().if_contains("every"))
      times += ", every " + std::to_string(every->to_number<int64_t>()) + " steps";
    out.push_back(json::array{row.at("axis").as_string(), row.at("op").as_string(), times,
                              report::human_bytes(row.at("bytes").to_number<int64_t>())});
  }
  return out;
}

}  // namespace

json::object plan_json(const json::object& plan, double measured) {
  return {{"memory", memory_json(plan, measured)},
          {"meshes", meshes_json(plan)},
          {"pipeline", pipeline_json(plan)},
          {"wire", wire_json(plan)}};
}

json::object times_json(const std::vector<RankTimes>& times) {
  json::array ranks;
  RankTimes all;
  for (const RankTimes& rank : times) {
    all.computing += rank.computing, all.overlapped += rank.overlapped;
    all.waiting += rank.waiting, all.rest += rank.rest;
    all.communicating += rank.communicating, all.steps += rank.steps;
    if (ranks.size() < kMostRanks)
      ranks.push_back(json::object{
          {"rank", rank.rank},
          {"steps", rank.steps},
          {"parts", json::array{rank.computing, rank.overlapped, rank.waiting, rank.rest}}});
  }
  auto share = [](int64_t part, int64_t of) {
    return of > 0 ? 100 * static_cast<double>(part) / static_cast<double>(of) : 0;
  };
  const int64_t total = all.total();
  std::string words =
      "From the traces of " + report::counted(static_cast<int64_t>(times.size()), "rank", "ranks") +
      format(
          ": computation %.1f%%, of it %.1f%% while messages travel; waiting for messages %.1f%%; "
          "none of these %.1f%%. ",
          share(all.computing + all.overlapped, total), share(all.overlapped, total),
          share(all.waiting, total), share(all.rest, total));
  if (all.overlapped > 0)
    words += format("%.0f%% of the time of messages lies behind computation. ",
                    share(all.overlapped, all.communicating));
  if (all.steps > 0)
    words += format("A step took %.4g ms.",
                    static_cast<double>(total) / static_cast<double>(all.steps) / 1000);
  return {{"words", words}, {"ranks", ranks}};
}

json::array experts_json(const json::object& load) {
  json::array out;
  for (const json::value& block : load.at("blocks").as_array()) {
    json::array tokens;
    for (const json::value& count : block.at("tokens").as_array())
      tokens.push_back(count.to_number<double>());
    out.push_back(json::object{{"name", block.at("block").as_string()},
                               {"imbalance", block.at("imbalance").to_number<double>()},
                               {"tokens", tokens}});
  }
  return out;
}

}  // namespace meshwright::runs
