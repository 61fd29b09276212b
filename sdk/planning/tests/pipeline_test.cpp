// Stages and schedules on paper. Long because of the published schedules it holds them to.
#include "sdk/base/pipeline.h"

#include <algorithm>
#include <set>

#include "llama_outline.h"
#include "pipeline_cases.h"
#include "sdk/base/shared_schemas.h"

namespace pipeline_test {

using namespace meshwright;
using namespace meshwright::testing;
using Round = PipelineOptions::Round;

namespace {

PipelineOptions options(std::string schedule,
                        std::optional<int64_t> layers_per_stage = std::nullopt,
                        Round round = Round::none) {
  PipelineOptions o;
  o.schedule = std::move(schedule);
  o.layers_per_stage = layers_per_stage;
  o.round = round;
  o.batch_size = 24;  // every schedule runs so many over any number of ranks here
  return o;
}

std::vector<int64_t> layer_counts(const PipelinePlan& plan) {
  std::vector<int64_t> out;
  for (const PipelineStage& stage : plan.stages) out.push_back(stage.layer_count);
  return out;
}

// Applies a "set key = value" help to the options; pp_size changes `pp`.
void apply(const std::string& help, PipelineOptions& o, int64_t& pp) {
  REQUIRE(help.starts_with("set distributed."));
  size_t equals = help.find(" = ");
  std::string key = help.substr(16, equals - 16), value = help.substr(equals + 3);
  std::string word = value.substr(0, value.find(':'));
  if (word.front() == '"') word = word.substr(1, word.rfind('"') - 1);
  if (key == "pp_size")
    pp = std::stoll(word);
  else if (key == "pipeline.layers_per_stage")
    o.layers_per_stage = std::stoll(word);
  else if (key == "pipeline.pp_schedule")
    o.schedule = word;
  else if (key == "pipeline.round_virtual_stages_to_pp_multiple")
    o.round = word == "up" ? Round::up : Round::down;
  else if (key == "pipeline.pp_batch_size")
    o.batch_size = std::stoll(word);
  else if (key == "pipeline.pp_microbatch_size")
    o.microbatch_size = std::stoll(word);
  else
    FAIL("unknown key " << key);
}

}  // namespace

TEST_CASE("layers become stages as the reference table says") {
  struct Row {
    int64_t layers, pp;
    std::optional<int64_t> lps;
    Round round;
    const char* schedule;
    std::vector<int64_t> counts;  // empty: refused
    int64_t rank;
    std::vector<int64_t> stages;  // of that rank
  };
  std::vector<int64_t> down(12, 2), up(16, 2);
  std::fill_n(down.begin(), 3, 3);
  std::fill(up.begin() + 11, up.end(), 1);
  const Row rows[] = {
      {32, 4, {}, Round::none, "1F1B", {8, 8, 8, 8}, 2, {2}},
      {30, 4, {}, Round::none, "1F1B", {8, 8, 7, 7}, 3, {3}},
      {32, 4, {}, Round::none, "Interleaved1F1B", std::vector<int64_t>(8, 4), 0, {0, 4}},
      {32, 4, 2, Round::none, "Interleaved1F1B", std::vector<int64_t>(16, 2), 1, {1, 5, 9, 13}},
      {27, 4, 2, Round::none, "Interleaved1F1B", {}, 0, {}},
      {27, 4, 2, Round::down, "Interleaved1F1B", down, 0, {0, 4, 8}},
      {27, 4, 2, Round::up, "Interleaved1F1B", up, 3, {3, 7, 11, 15}},
      {8, 4, 1, Round::none, "1F1B", {}, 0, {}},
      {8, 4, 2, Round::none, "Interleaved1F1B", {}, 0, {}},
      {8, 4, 2, Round::none, "1F1B", {2, 2, 2, 2}, 0, {0}},
      {16, 4, 2, Round::none, "ZBVZeroBubble", std::vector<int64_t>(8, 2), 0, {0, 7}},
      {16, 4, 2, Round::none, "ZBVZeroBubble", std::vector<int64_t>(8, 2), 3, {3, 4}},
      {16, 4, {}, Round::none, "DualPipeV", std::vector<int64_t>(8, 2), 1, {1, 6}},
      {16, 4, 1, Round::none, "ZBVZeroBubble", {}, 0, {}},
      {32, 4, {}, Round::none, "LoopedBFS", std::vector<int64_t>(8, 4), 2, {2, 6}},
      {32, 4, {}, Round::none, "InterleavedZeroBubble", std::vector<int64_t>(8, 4), 2, {2, 6}},
      {32, 4, {}, Round::none, "GPipe", {8, 8, 8, 8}, 1, {1}},
      {3, 4, {}, Round::none, "1F1B", {}, 0, {}},
      {7, 4, {}, Round::none, "Interleaved1F1B", {}, 0, {}},
      {3, 4, 2, Round::down, "1F1B", {}, 0, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.layers);
    CAPTURE(row.schedule);
    PipelineOptions o = options(row.schedule, row.lps, row.round);
    std::optional<Error> error = refusal([&] {
      PipelinePlan plan = plan_stages(row.layers, row.pp, o);
      CHECK(layer_counts(plan) == row.counts);
      CHECK(plan.stages_of_rank.at(static_cast<size_t>(row.rank)) == row.stages);
    });
    CHECK(error.has_value() == row.counts.empty());
  }
}

TEST_CASE("every refusal of a stage count names its numbers, and each of its settings works") {
  int refused = 0;
  for (int64_t layers : {1, 2, 3, 8, 12, 27, 30, 64})
    for (int64_t pp : {2, 3, 4, 6, 8, 12})
      for (const char* schedule :
           {"1f1b", "gpipe", "interleaved1f1b", "zbvzerobubble", "dualpipev"})
        for (int64_t lps : {0, 1, 2, 5, 100})
          for (Round round : {Round::none, Round::up, Round::down}) {
            PipelineOptions o =
                options(schedule, lps == 0 ? std::nullopt : std::optional(lps), round);
            std::optional<Error> error = refusal([&] { plan_stages(layers, pp, o); });
            if (!error) continue;
            ++refused;
            CHECK(error->code() == ErrorCode::bad_pipeline);
            CHECK(error->kind() == ErrorKind::value);
            CHECK(error->message().find(std::to_string(layers) + " layer") != std::string::npos);
            CHECK(error->message().find(std::to_string(pp)) != std::string::npos);
            CHECK(error->key().starts_with("distributed."));
            CHECK(!error->helps().empty());
            CHECK(error->helps().size() <= 3);
            for (const std::string& help : error->helps()) {
              CAPTURE(help);
              CAPTURE(error->message());
              PipelineOptions fixed = o;
              int64_t size = pp;
              apply(help, fixed, size);
              CHECK(pp % size == 0);
              // pp_size 1 is no pipeline: the table is inert there.
              if (size > 1) CHECK_NOTHROW(plan_stages(layers, size, fixed));
            }
          }
  CHECK(refused > 500);
}

TEST_CASE("stages cover all layers in order and every stage has one rank") {
  for (int64_t layers = 1; layers <= 40; ++layers)
    for (int64_t pp = 1; pp <= 8; ++pp)
      for (const char* schedule : {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
                                   "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})
        for (Round round : {Round::up, Round::down})
          for (int64_t lps = 0; lps <= 4; ++lps) {
            PipelineOptions o =
                options(schedule, lps == 0 ? std::nullopt : std::optional(lps), round);
            PipelinePlan plan;
            if (refusal([&] { plan = plan_stages(layers, pp, o); })) continue;
            int64_t next = 0;
            for (const PipelineStage& stage : plan.stages) {
              REQUIRE(stage.first_layer == next);
              REQUIRE(stage.layer_count >= 1);
              REQUIRE(stage.layer_count <= plan.stages.front().layer_count);
              next += stage.layer_count;
            }
            REQUIRE(next == layers);
            std::set<int64_t> seen;
            for (size_t rank = 0; rank < plan.stages_of_rank.size(); ++rank)
              for (int64_t s : plan.stages_of_rank[rank]) {
                REQUIRE(seen.insert(s).second);
                REQUIRE(plan.stages[static_cast<size_t>(s)].rank == static_cast<int64_t>(rank));
              }
            REQUIRE(seen.size() == plan.stages.size());
          }
}

TEST_CASE("schedules are named in any case, and the names nobody runs are refused") {
  using S = PipelineSchedule;
  const std::pair<const char*, S> good[] = {
      {"1f1b", S::one_f_one_b},
      {"1F1B", S::one_f_one_b},
      {"gpipe", S::gpipe},
      {"GPIPE", S::gpipe},
      {"interleaved1f1b", S::interleaved_1f1b},
      {"Interleaved_1F1B", S::interleaved_1f1b},
      {"interleaved-1f1b", S::interleaved_1f1b},
      {"LoopedBFS", S::looped_bfs},
      {"looped_bfs", S::looped_bfs},
      {"interleavedzerobubble", S::interleaved_zero_bubble},
      {"zbvzerobubble", S::zbv_zero_bubble},
      {"DUALPIPEV", S::dual_pipe_v},
  };
  for (auto [name, schedule] : good) CHECK(parse_schedule(name) == schedule);
  for (const char* name : {"dfs", "v_schedule", "zero_bubble", "", "1f1", "interleaved"}) {
    CAPTURE(name);
    const Error error =
        refused(ErrorCode::bad_choice, "InterleavedZeroBubble", [&] { parse_schedule(name); });
    CHECK(error.helps().size() >= 2);
    for (const std::string& help : error.helps()) {
      PipelineOptions o;
      int64_t pp = 2;
      apply(help, o, pp);
      CHECK_NOTHROW(parse_schedule(o.schedule));
    }
  }
  CHECK(!is_multi_stage(S::gpipe));
  CHECK(!is_multi_stage(S::one_f_one_b));
  CHECK(is_multi_stage(S::dual_pipe_v));
  CHECK(schedule_name(S::zbv_zero_bubble) == "ZBVZeroBubble");
}

TEST_CASE("options are checked without a model") {
  auto errors = [](const PipelineOptions& o, int64_t pp = 4) {
    SharedOptions shared;
    shared.sizes.pp = pp;
    shared.pipeline = o;
    Diagnostics diagnostics;
    check_pipeline_options(shared, diagnostics);
    return diagnostics.errors();
  };
  CHECK(errors(options("1f1b")).empty());
  SUBCASE("neither a schedule nor a file of actions") {
    auto found = errors(options(""));
    REQUIRE(found.size() == 1);
    CHECK(found[0].code() == ErrorCode::missing_key);
    CHECK(found[0].key() == "distributed.pipeline.pp_schedule");
  }
  SUBCASE("batch and micro-batch") {
    PipelineOptions o = options("1f1b");
    for (auto [batch, micro] :
         {std::pair(8, 3), std::pair(1, 2), std::pair(10, 4), std::pair(0, 1), std::pair(4, 0)}) {
      o.batch_size = batch;
      o.microbatch_size = micro;
      auto found = errors(o);
      REQUIRE(found.size() == 1);
      CHECK(found[0].code() == ErrorCode::conflict);
      CHECK(found[0].message().find("pp_batch_size " + std::to_string(batch)) != std::string::npos);
      if (batch == 0 || micro == 0) continue;
      for (const std::string& help : found[0].helps()) {
        PipelineOptions fixed = o;
        int64_t pp = 4;
        apply(help, fixed, pp);
        CHECK(errors(fixed).empty());
      }
    }
  }
  SUBCASE("all mistakes at once") {
    PipelineOptions o = options("dfs");
    o.schedule_csv = "/nowhere/actions.csv";
    o.microbatch_size = 5;
    auto found = errors(o);
    REQUIRE(found.size() == 3);
    CHECK(found[0].code() == ErrorCode::bad_choice);
    CHECK(found[1].code() == ErrorCode::file_unreadable);
    CHECK(found[1].kind() == ErrorKind::file);
    CHECK(found[2].code() == ErrorCode::conflict);
  }
  SUBCASE("without a pipeline the table is inert") { CHECK(errors(options("dfs"), 1).empty()); }
}

TEST_CASE("a file of actions places the stages") {
  PipelineOptions o = options("");
  o.batch_size = 1;
  SUBCASE("rows are ranks") {
    const ActionFile file(
        "0F0,0F1,3F0,,3B0,3F1,3B1,0B0,0B1\n1F0,2F0,1F1,(2F1;2B0)OVERLAP_F_B,2B1,1B0,1B1\n");
    o.schedule_csv = file.path;
    o.batch_size = 2;
    PipelinePlan plan = plan_stages(10, 2, o);
    CHECK(plan.from_csv);
    CHECK(plan.stages_of_rank == std::vector<std::vector<int64_t>>{{0, 3}, {1, 2}});
    CHECK(layer_counts(plan) == std::vector<int64_t>{3, 3, 2, 2});
    CHECK(plan.stages[3].rank == 0);
    const PipelineLists lists = plan_actions(plan, o, 2);
    CHECK(actions_row(lists.at(1)) == "1F0,2F0,1F1,(2F1;2B0)OVERLAP_F_B,2B1,1B0,1B1");
    // The number of micro-batches is the configuration's, not the file's.
    o.batch_size = 3;
    refused(ErrorCode::bad_pipeline, "stage 0 has no 0F2", [&] { plan_stages(10, 2, o); });
    o.batch_size = 1;
    refused(ErrorCode::bad_pipeline, "0F1, but a run has 1 micro-batch",
            [&] { plan_stages(10, 2, o); });
  }
  SUBCASE("more stages than layers, or another count than asked for") {
    const ActionFile file("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n");
    o.schedule_csv = file.path;
    CHECK(refusal([&] { plan_stages(3, 2, o); })->code() == ErrorCode::bad_pipeline);
    o.layers_per_stage = 5;
    CHECK(refusal([&] { plan_stages(8, 2, o); })->key() == "distributed.pipeline.layers_per_stage");
    o.layers_per_stage = 2;
    CHECK(layer_counts(plan_stages(8, 2, o)) == std::vector<int64_t>{2, 2, 2, 2});
  }
}

TEST_CASE("a plan whose schedule cannot run its micro-batches is refused with numbers that work") {
  struct Row {
    const char* schedule;
    int64_t pp, batch, samples;
  };
  for (const Row& row : {Row{"Interleaved1F1B", 4, 9, 1}, Row{"InterleavedZeroBubble", 4, 22, 2},
                         Row{"DualPipeV", 4, 6, 1}, Row{"DualPipeV", 3, 16, 4},
                         Row{"1F1B", 4, int64_t{1} << 40, 1}}) {
    CAPTURE(row.schedule);
    PipelineOptions o = options(row.schedule);
    o.batch_size = row.batch;
    o.microbatch_size = row.samples;
    const Error error = refused(ErrorCode::bad_pipeline, "", [&] { plan_stages(32, row.pp, o); });
    CHECK(error.key() == "distributed.pipeline.pp_batch_size");
    CHECK(!error.helps().empty());
    for (const std::string& help : error.helps()) {
      CAPTURE(help);
      PipelineOptions fixed = o;
      int64_t pp = row.pp;
      apply(help, fixed, pp);
      CHECK_NOTHROW(plan_stages(32, pp, fixed));
    }
  }
}

TEST_CASE("fewer micro-batches than stages of a rank give a warning") {
  PipelineOptions o = options("Interleaved1F1B");
  o.batch_size = 1;
  CHECK(plan_stages(32, 4, o).warnings.size() == 1);
  o.batch_size = 2;
  CHECK(plan_stages(32, 4, o).warnings.empty());
}

TEST_CASE(
    "the first stage takes the embedding, the last the norm and the head, every one the rotary "
    "tables") {
  ModelOutline outline = llama_outline({.layers = 5});
  PipelinePlan plan = plan_pipeline(outline, 2, options("1F1B"));
  CHECK(plan.stages[0].modules == Names{"model.embed_tokens", "model.layers.0", "model.layers.1",
                                        "model.layers.2", "model.rotary_emb"});
  CHECK(plan.stages[1].modules ==
        Names{"model.layers.3", "model.layers.4", "model.norm", "lm_head", "model.rotary_emb"});

  SUBCASE("outlines of the stages keep global names and share out every parameter once") {
    for (const char* schedule : {"1F1B", "GPipe"})
      for (int64_t pp : {1, 2, 3, 5}) {
        PipelinePlan p = plan_pipeline(outline, pp, options(schedule));
        std::multiset<std::string> seen, all;
        for (int64_t rank = 0; rank < pp; ++rank) {
          ModelOutline part = stage_outline(outline, p, rank);
          CHECK(part.find_module("model.rotary_emb") != nullptr);
          CHECK(part.find_module("model.layers") != nullptr);
          CHECK(part.find_module("") != nullptr);
          CHECK(part.layers == 5);
          for (const ParameterOutline& parameter : part.parameters) seen.insert(parameter.name);
        }
        for (const ParameterOutline& parameter : outline.parameters) all.insert(parameter.name);
        CHECK(seen == all);
      }
    ModelOutline last = stage_outline(outline, plan, 1);
    CHECK(last.find_module("model.layers.3.self_attn.q_proj") != nullptr);
    CHECK(last.find_module("model.layers.2") == nullptr);
    CHECK(last.find_module("model.embed_tokens") == nullptr);
    CHECK(last.parameters.front().name == "model.layers.3.self_attn.q_proj.weight");
    CHECK(last.parameters.back().name == "lm_head.weight");
  }
  SUBCASE("with v placement one rank has both ends") {
    PipelinePlan v = plan_pipeline(outline, 2, options("ZBVZeroBubble"));
    ModelOutline ends = stage_outline(outline, v, 0);
    CHECK(ends.find_parameter("model.embed_tokens.weight") != nullptr);
    CHECK(ends.find_parameter("lm_head.weight") != nullptr);
    CHECK(ends.find_module("model.layers.2") == nullptr);
    CHECK(ends.find_module("model.layers.4") != nullptr);
  }
}

TEST_CASE("a tied head away from its embedding has a copy of the weight") {
  const ModelOutline outline = llama_outline({.layers = 4, .tied = true});
  const std::string weight = outline.parameters.front().name;
  PipelinePlan loop = plan_pipeline(outline, 2, options("1F1B"));
  const ModelOutline first = stage_outline(outline, loop, 0),
                     last = stage_outline(outline, loop, 1);
  CHECK(first.find_parameter(weight) != nullptr);
  CHECK(first.find_parameter("lm_head.weight") == nullptr);
  CHECK(last.find_parameter(weight) == nullptr);
  REQUIRE(last.find_parameter("lm_head.weight") != nullptr);
  CHECK(last.find_parameter("lm_head.weight")->copy_of == weight);
  CHECK(!first.tied_embeddings);
  CHECK(!last.tied_embeddings);
  PipelinePlan v = plan_pipeline(outline, 2, options("ZBVZeroBubble"));
  const ModelOutline both = stage_outline(outline, v, 0), turn = stage_outline(outline, v, 1);
  CHECK(both.tied_embeddings);
  CHECK(both.find_parameter(weight) != nullptr);
  CHECK(both.find_parameter("lm_head.weight") == nullptr);
  CHECK(turn.find_parameter(weight) == nullptr);
}

TEST_CASE("a model without layers is refused") {
  ModelOutline bare;
  bare.architecture = "Bare";
  bare.modules = {{"", ModuleKind::other, "Bare"}, {"lin", ModuleKind::linear, "Linear"}};
  refused(ErrorCode::bad_pipeline, "no list of layers",
          [&] { plan_pipeline(bare, 2, options("1F1B")); });
}

TEST_CASE("explicit parts are taken as they are, once they are complete") {
  ModelOutline outline = llama_outline({.layers = 3});
  PipelineOptions o = options("1F1B");
  using Table = StringTable;
  o.module_fqns_per_model_part =
      Table{{"model.embed_tokens", "model.layers.0"},
            {"model.layers.1", "model.layers.2", "model.norm", "lm_head"}};
  PipelinePlan plan = plan_pipeline(outline, 2, o);
  CHECK(layer_counts(plan) == std::vector<int64_t>{1, 2});
  CHECK(plan.stages[1].first_layer == 1);
  CHECK(plan.stages[0].modules.back() == "model.rotary_emb");
  CHECK(stage_outline(outline, plan, 0).parameters.size() == 10);

  const std::pair<Table, const char*> bad[] = {
      {{{"model.embed_tokens", "model.layer.0"}, {"model.layers.1"}},
       "which the model does not have"},
      {{{"model.embed_tokens", "model.layers.0.mlp"}, {"model.layers.1"}}, "not a whole layer"},
      {{{"model.embed_tokens", "model.layers.0"},
        {"model.layers.0", "model.layers.1", "model.layers.2", "model.norm", "lm_head"}},
       "stands in parts 0 and 1"},
      {{{"model.embed_tokens", "model.layers.0"},
        {"model.layers.1", "model.layers.2", "model.norm"}},
       "\"lm_head\" is in no part"},
      {{{"model.embed_tokens", "model.layers.0"}, {"model.layers.2", "model.norm", "lm_head"}},
       "\"model.layers.1\" is in no part"},
      {{{"model.embed_tokens", "model.layers.1"},
        {"model.layers.0", "model.layers.2", "model.norm", "lm_head"}},
       "comes next"},
      {{{"model.embed_tokens", "model.layers.0"},
        {"model.layers.1"},
        {"model.layers.2", "model.norm", "lm_head"}},
       "3 parts for pp_size 2"},
      {{{"model.layers.0"},
        {"model.embed_tokens", "model.layers.1", "model.layers.2", "model.norm", "lm_head"}},
       "\"model.embed_tokens\" stands in part 1, but the first stage runs it"},
      {{{"model.embed_tokens", "model.layers.0", "model.norm"},
        {"model.layers.1", "model.layers.2", "lm_head"}},
       "\"model.norm\" stands in part 0, but the last stage runs it"},
  };
  for (const auto& [parts, message] : bad) {
    o.module_fqns_per_model_part = parts;
    const Error error =
        refused(ErrorCode::bad_pipeline, message, [&] { plan_pipeline(outline, 2, o); });
    CHECK(error.key() == "distributed.pipeline.module_fqns_per_model_part");
    CHECK(!error.helps().empty());
  }
  SUBCASE("several parts a rank need a schedule that runs them") {
    Table four = {{"model.embed_tokens", "model.layers.0"},
                  {"model.layers.1"},
                  {"model.layers.2"},
                  {"model.norm", "lm_head"}};
    o.module_fqns_per_model_part = four;
    const Error error = refused(ErrorCode::bad_pipeline, "", [&] { plan_pipeline(outline, 2, o); });
    int64_t pp = 2;
    apply(error.helps().front(), o, pp);
    plan = plan_pipeline(outline, 2, o);
    CHECK(layer_counts(plan) == std::vector<int64_t>{1, 1, 1, 0});
    CHECK(plan.stages_of_rank[0] == std::vector<int64_t>{0, 2});
  }
}

}  // namespace pipeline_test
