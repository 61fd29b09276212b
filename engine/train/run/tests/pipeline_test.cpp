// Stages of a model on the ranks of pp: every schedule takes the steps of one process, alone to the
// bit, and with the other axes but for rounding. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pipeline_layouts.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <tuple>

#include "engine/job/plan.h"
#include "meshwright/error.h"
#include "sdk/base/pipeline.h"

namespace pipeline_test {

using namespace meshwright;

TEST_CASE("pipelines: every schedule alone gives the bits of one process") {
  TestFolder folder("pipelines");
  const std::string model = write_model(folder.path, kStaged);
  const int steps = steps_of(6, 20);
  const Curve truth = curve_of(staged_layout(model, kAlone), steps, steps);
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble",
                           "ZBVZeroBubble", "DualPipeV"}) {
    const Layout layout = staged_layout(model, {2, {kPp2}}, {schedule(name)});
    INFO(layout.text());
    CHECK(unlike(curve_of(layout, steps, steps), truth) == "");
  }
  // Beside parts of samples those of the same ranks without stages.
  for (const auto& [method, name] : {std::pair(kGather, "1F1B"), std::pair(kRing, "ZBVZeroBubble"),
                                     std::pair(kUlysses, "Interleaved1F1B")}) {
    const Layout layout = staged_layout(model, {4, {kPp2, kCp2}}, {method, schedule(name)});
    INFO(layout.text());
    CHECK(unlike(curve_of(layout, 3, 3), curve_of(without_stages(layout), 3, 3)) == "");
  }
  const Layout breadth = staged_layout(model, {2, {kPp2}}, {schedule("LoopedBFS")});
  CHECK(strays(curve_of(breadth, steps, steps), truth) == "");
}

TEST_CASE("pipelines: four ranks, any number of micro-batches") {
  TestFolder folder("pipelines_of_four");
  const std::string model = write_model(folder.path, kDeep);
  const int steps = steps_of(3, 6);
  size_t number = 0;  // half: each schedule with every second one
  // m = 1, p, 2p - 1, 2p, 3p, p + 1
  for (int64_t micro : {1, 4, 7, 8, 12, 5}) {
    size_t turn = number++;
    auto with = [&](const OnMesh& mesh, const std::vector<std::string>& more = {}) {
      Layout layout = staged_layout(model, mesh, more);
      layout.batch = micro;
      return layout;
    };
    const Curve truth = curve_of(with(kAlone), steps, steps);
    for (const auto& [name, runs] :
         {std::pair("GPipe", true), std::pair("1F1B", true), std::pair("Interleaved1F1B", true),
          std::pair("InterleavedZeroBubble", true), std::pair("ZBVZeroBubble", true),
          std::pair("DualPipeV", micro >= 7)}) {
      if (!sampled(turn++, 2) || !runs) continue;
      const Layout layout = with({4, {kPp4}}, {schedule(name)});
      INFO(layout.text() << ", micro-batches " << micro);
      CHECK(unlike(curve_of(layout, steps, steps), truth) == "");
    }
    if (!sampled(turn, 2)) continue;
    const Layout breadth = with({4, {kPp4}}, {schedule("LoopedBFS")});
    INFO(breadth.text() << ", micro-batches " << micro);
    CHECK(strays(curve_of(breadth, steps, steps), truth) == "");
  }
}

// A pause is an empty cell; a forward beside a backward is a pair.
std::string write_rows(const std::filesystem::path& file, PipelineLists lists, bool pairs) {
  std::ofstream out(file);
  for (PipelineList& list : lists) {
    for (size_t i = 0; pairs && i + 1 < list.size(); ++i)
      list[i].paired = list[i].kind == PipelineAction::Kind::forward &&
                       list[i + 1].kind == PipelineAction::Kind::backward;
    const std::string row = actions_row(list);
    const size_t pause = row.find(',');
    out << row.substr(0, pause) << (pairs ? ",," : ",") << row.substr(pause + 1) << "\n";
  }
  return "distributed.pipeline.pp_schedule_csv=\"" + file.string() + "\"";
}

TEST_CASE("pipelines: a file of actions trains as the schedule whose lists it has") {
  TestFolder folder("pipelines_of_files");
  const std::string model = write_model(folder.path, kStaged);
  const int steps = steps_of(5, 20);
  for (const auto& [schedule_of, name, local, pairs] :
       {std::tuple(PipelineSchedule::one_f_one_b, "1F1B", 1, false),
        std::tuple(PipelineSchedule::interleaved_1f1b, "Interleaved1F1B", 2, true)}) {
    const std::filesystem::path path = folder.path / (std::string(name) + ".csv");
    const std::string csv = write_rows(path, make_actions(schedule_of, 2, local, kBatch), pairs);
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    CHECK((text.find("OVERLAP_F_B") != std::string::npos) == pairs);
    CHECK((text.find(",,") != std::string::npos) == pairs);
    const Layout of_file = staged_layout(model, {2, {kPp2}}, {csv}),
                 named = staged_layout(model, {2, {kPp2}}, {schedule(name)});
    CHECK(unlike(curve_of(of_file, steps, steps), curve_of(named, steps, steps)) == "");
    // What the plan says of the two is alike.
    auto planned = [](const Layout& layout, int64_t rank) {
      Job job = Rank::make(layout);
      const plan::JobPlan plan = plan::make_plan(job.impl(), {.world_size = 2, .rank = rank});
      const boost::json::object block = plan::to_json(plan).at("pipeline").as_object();
      std::string out = std::to_string(plan.footprint->bytes.activations);
      for (const char* key : {"micro_batches", "runs", "bubble", "in_flight"})
        out += " " + boost::json::serialize(block.at(key));
      return out;
    };
    for (int64_t rank : {0, 1}) CHECK(planned(of_file, rank) == planned(named, rank));
  }
}

TEST_CASE("pipelines: a broken file of actions is refused before launch, by row and column") {
  TestFolder folder("pipelines_broken_files");
  const std::string model = write_model(folder.path, kStaged);
  const std::filesystem::path path = folder.path / "broken.csv";
  for (const auto& [rows, said] : std::vector<std::pair<const char*, const char*>>{
           {"0F0,0X0\n1F0,1B0\n", "row 1, column 2"},
           {"0F0,0B0\n1F0,1F0,1B0\n", "row 2, column 2"},
           {"0F0,0B0\n0F0,1B0\n", "row 2, column 1"},
           {"0F0,0B0\n1F0,,1B12\n", "row 2, column 3"}}) {
    std::ofstream(path) << rows;
    const Layout layout = staged_layout(
        model, {2, {kPp2}}, {"distributed.pipeline.pp_schedule_csv=\"" + path.string() + "\""});
    std::string text;
    try {
      Job job = Rank::make(layout);
      plan::make_plan(job.impl(), {.world_size = 2, .rank = 0});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_pipeline);
      text = error.what();
    }
    INFO(std::string(rows) << text);
    CHECK(text.find(said) != std::string::npos);
  }
}

// That of the same ranks without stages, to which a schedule is nothing; trained once.
const Curve& whole_curve(std::map<std::string, Curve>& known, const Layout& layout, int steps,
                         int parameters_after) {
  Layout whole = without_stages(layout);
  std::erase_if(whole.sets, [](const std::string& set) {
    return set.starts_with("distributed.pipeline.pp_schedule=");
  });
  const std::string text = whole.text();
  auto found = known.find(text);
  if (found == known.end())
    found = known.emplace(text, curve_of(whole, steps, parameters_after)).first;
  return found->second;
}

// Beside other axes, ways of holding, recomputation and half precision, and of every model:
// layouts_test.cpp.
TEST_CASE("pipelines: stages of every size, and several runs a step") {
  TestFolder folder("pipelines_beside");
  const std::string model = write_model(folder.path, kStaged);
  const int steps = steps_of(5, 20);
  const Curve truth = curve_of(staged_layout(model, kAlone, {}, 3), steps, steps);
  std::map<std::string, Curve> unstaged;  // by layout: several have the same ranks and options
  const std::string v = schedule("ZBVZeroBubble");
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{2, {kPp2}}, {"distributed.pipeline.first_stage_less_layers=1"}},
           {{2, {kPp2}}, {"distributed.pipeline.last_stage_less_layers=1"}},
           {{2, {kPp2}}, {"distributed.pipeline.pp_batch_size=6"}},  // two runs a step
           {{4, {kPp2}}, {v, "distributed.pipeline.pp_batch_size=3"}},
           {{2, {kPp2}},
            {"distributed.pipeline.module_fqns_per_model_part=[[\"model.embed_tokens\", "
             "\"model.layers.0\"], [\"model.layers.1\", \"model.layers.2\", \"model.layers.3\", "
             "\"model.norm\", \"lm_head\"]]"}}}) {
    const Layout layout = staged_layout(model, mesh, more, 3);
    INFO(layout.text());
    const Curve curve = curve_of(layout, steps, steps);
    CHECK(unlike(curve, whole_curve(unstaged, layout, steps, steps)) == "");
    CHECK(strays(curve, truth, 5) == "");
  }
}

// At a v's turn both ends are on one rank; else the head has a copy of the embedding's weight.
TEST_CASE("pipelines: a head that shares the embedding's weight") {
  TestFolder folder("pipelines_tied");
  SmallModel tied = kStaged;
  tied.more = R"(, "num_hidden_layers": 4, "tie_word_embeddings": true)";
  const std::string model = write_model(folder.path, tied);
  const int steps = steps_of(5, 20);
  const Curve truth = curve_of(staged_layout(model, kAlone, {}, 3), steps, steps);
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{2, {kPp2}}, {}},
           {{2, {kPp2}}, {schedule("ZBVZeroBubble")}},
           {{4, {kPp4}}, {}},
           {{8, {kPp2, kReplicate2}}, {}},
           {{4, {kPp2, kTp2}}, {schedule("DualPipeV"), kSequence}},
           {{4, {kPp2, kCp2}}, {kRing}}}) {
    const Layout layout = staged_layout(model, mesh, more, 3);
    INFO(layout.text());
    Curve curve = curve_of(layout, steps, steps);
    if (curve.parameters.contains("lm_head.weight")) {
      CHECK(curve.parameters.at("lm_head.weight")
                .equal(curve.parameters.at("model.embed_tokens.weight")));
      curve.parameters.erase("lm_head.weight");
    }
    CHECK(strays(curve, truth, 5) == "");
  }
}

}  // namespace pipeline_test
