// Nothing that the file says is dropped in silence: every key of the reference, set to another
// value than its default, under every strategy that reads it, has an effect that is seen, or is
// refused, or is told. A key without a row fails the test.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "engine/config/source.h"
#include "engine/job/plan.h"
#include "tests/contents.h"
#include "tests/fixtures/folder.h"
#include "tests/keys/key_rows.h"

namespace fs = std::filesystem;
namespace json = boost::json;
using namespace meshwright;
using keys::Row;
using keys::Shows;

namespace {

using Names = std::vector<std::string>;

// A job of four ranks that trains, under each strategy.
const char* const kJob = "schema = 1\n[model]\nconfig = \"" MESHWRIGHT_SOURCE_DIR
                         "/configs/models/llama-tiny.json\"\n[dataset]\nkind = \"mock\"\nseq_len = "
                         "8\n[step_scheduler]\nglobal_batch_size = 16\n"
                         "local_batch_size = 2\nmax_steps = 100\n";

struct Seen {
  Names errors;                // codes and messages
  std::set<std::string> told;  // notices and warnings
  std::string plan;
};

// What plan, validate and the start of train find out about a job.
Seen look(const std::string& strategy, const Names& sets) {
  Seen out;
  config::LoadOptions options;
  options.sets = {"distributed.strategy=" + strategy};
  options.sets.insert(options.sets.end(), sets.begin(), sets.end());
  Diagnostics found;
  std::optional<plan::Job> job = plan::load_job(config::Source::parse(kJob, options, found), found);
  for (const Error& error : found.errors()) out.errors.emplace_back(error.what());
  out.told.insert(found.notices().begin(), found.notices().end());
  out.told.insert(found.warnings().begin(), found.warnings().end());
  if (!job || !found.ok()) return out;
  try {
    plan::JobPlan made = plan::make_plan(*job, {.world_size = 4, .rank = 1});
    out.told.insert(made.notices.begin(), made.notices.end());
    out.told.insert(made.warnings.begin(), made.warnings.end());
    json::object text = plan::to_json(made);
    for (const char* other : {"notices", "warnings", "requested_strategy", "plugin"})
      text.erase(other);
    out.plan = json::serialize(text);
  } catch (const Error& error) {
    out.errors.emplace_back(error.what());
  }
  return out;
}

std::string table_of(const std::string& key) {
  return key.find('.') == std::string::npos ? "" : key.substr(0, key.rfind('.'));
}
std::string name_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// Words that a notice about this key has: its name, or its table in brackets.
bool speaks_of(const std::string& text, const std::string& key) {
  return text.find(name_of(key)) != std::string::npos ||
         text.find("[" + table_of(key) + "]") != std::string::npos;
}

using Folder = TemporaryFolder;

// What four steps of the program leave: exit status, files, and the numbers that no clock has
// written.
std::string trained(const std::string& strategy, const Names& sets) {
  Folder folder;
  std::string job = (folder.path / "job.toml").string();
  std::ofstream(job) << kJob;
  std::string command =
      "cd '" MESHWRIGHT_SOURCE_DIR
      "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 OMP_NUM_THREADS=1 '" MESHWRIGHT_BUILD_DIR
      "/bin/meshwright' train '" +
      job + "'";
  Names all = {"distributed.strategy=" + strategy,
               "distributed.mp_policy.param_dtype=float32",
               "distributed.mp_policy.output_dtype=float32",
               "dist_env.device=cpu",
               "step_scheduler.max_steps=4",
               "step_scheduler.global_batch_size=2",
               "lr_scheduler.lr_warmup_steps=1",
               "optimizer.lr=1e-3",
               "run.dir=" + (folder.path / "runs").string()};
  for (const std::string& set : sets)
    all.push_back(set.starts_with("run.dir=") ? "run.dir=" + (folder.path / set.substr(8)).string()
                                              : set);
  for (const std::string& set : all) command += " --set '" + set + "'";
  command += " >/dev/null 2>&1 </dev/null";
  int raw = std::system(command.c_str());
  std::string out =
      "status " + std::to_string(WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw)) + "\n";
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path))
    files.insert(fs::relative(entry.path(), folder.path).string());
  for (const std::string& file : files) {
    out += file + "\n";
    if (file.ends_with("env.json"))
      out += "threads " +
             std::to_string(
                 json::parse(contents(folder.path / file)).at("threads").to_number<int64_t>()) +
             "\n";
    if (!file.ends_with("metrics.jsonl")) continue;
    std::ifstream rows(folder.path / file);
    for (std::string line; std::getline(rows, line);) {
      json::object row = json::parse(line).as_object();
      for (const char* measured :
           {"step_ms", "tokens_per_second", "tokens_per_second_per_rank", "memory_bytes", "data_ms",
            "mfu", "exposed_comm_ms", "slowest_rank", "slowest_ms", "rank_work_ms",
            "rank_work_ms_least", "rank_work_ms_most"})
        row.erase(measured);
      out += json::serialize(row) + "\n";
    }
  }
  return out;
}

// Runs with the same settings are made once.
const std::string& trained_once(const std::string& strategy, const Names& sets) {
  static std::map<std::pair<std::string, Names>, std::string> kept;
  auto [it, added] = kept.try_emplace({strategy, sets});
  if (added) it->second = trained(strategy, sets);
  return it->second;
}

// Where a row is not right; empty: it is.
std::string wrong(const Row& row, const std::string& strategy) {
  Names with = row.with, set = row.with;
  // A key of an array of tables is set with its list.
  set.push_back((row.value.starts_with("[{") ? table_of(row.key) : row.key) + "=" + row.value);
  if (row.shows == Shows::test) {
    const std::string& where = row.where;
    size_t colon = where.find(": ");
    if (colon == std::string::npos) return "it names no test";
    std::string text = contents(fs::path(MESHWRIGHT_SOURCE_DIR) / where.substr(0, colon));
    // A long name is several literals, one per line.
    const std::string joined =
        std::regex_replace(text, std::regex("(TEST_CASE\\()\\s+|\"\n\\s*\""), "$1");
    if (joined.find("TEST_CASE(\"" + where.substr(colon + 2) + "\"") == std::string::npos)
      return "there is no such test: " + where;
    return "";
  }
  Seen before = look(strategy, with), after = look(strategy, set);
  // The refusal must be of this key, not of its company.
  if (!before.errors.empty() && row.shows != Shows::refused)
    return "its companions are refused: " + before.errors[0];
  switch (row.shows) {
    case Shows::refused:
      for (const std::string& error : after.errors)
        if (std::find(before.errors.begin(), before.errors.end(), error) == before.errors.end())
          return "";
      return "it was not refused";
    case Shows::told: {
      if (!after.errors.empty()) return "it was refused: " + after.errors[0];
      for (const std::string& text : after.told)
        if (!before.told.contains(text) && speaks_of(text, row.key)) return "";
      return "nobody was told";
    }
    case Shows::plan:
      if (!after.errors.empty()) return "it was refused: " + after.errors[0];
      return after.plan == before.plan ? "the plan is the same" : "";
    case Shows::trained:
      if (!trained_once(strategy, with).starts_with("status 0\n"))
        return "its companions do not train";
      return trained_once(strategy, set) == trained_once(strategy, with) ? "the run left the same"
                                                                         : "";
    case Shows::test:
      break;
  }
  return "";
}

struct Reader {
  std::string strategy;
  OptionSchema own;
};

// The bundled strategies with the table that each reads.
std::vector<Reader> strategies() {
  Diagnostics found;
  std::optional<plan::Job> job = plan::load_job(config::Source::parse(kJob, {}, found), found);
  REQUIRE(job);
  std::vector<Reader> out;
  for (const loader::Listing& listing : job->registry->list())
    if (listing.plugin != nullptr &&
        listing.place.find("MESHWRIGHT_PLUGIN_PATH") == std::string::npos)
      for (const loader::StrategyInfo& info : listing.plugin->strategies)
        out.push_back({info.name, info.schema});
  return out;
}

}  // namespace

TEST_CASE(
    "every key of the reference, under every strategy, is seen to work, or is refused, or is "
    "told") {
  std::vector<Reader> readers = strategies();
  REQUIRE(readers.size() >= 4);
  std::map<std::string, std::set<std::string>> wanted;  // key -> strategies that read it
  for (const Reader& reader : readers) {
    std::vector<OptionSchema> tables = config::engine_schemas();
    for (OptionSchema& list : config::list_schemas()) tables.push_back(std::move(list));
    tables.push_back(reader.own);
    for (const OptionSchema& table : tables)
      for (const meshwright_option* option : table.options)
        wanted[(table.table.empty() ? "" : table.table + ".") + option->name].insert(
            reader.strategy);
  }
  std::map<std::string, std::set<std::string>> spoken;
  for (const Row& row : keys::rows()) {
    CAPTURE(row.key);
    REQUIRE_MESSAGE(wanted.contains(row.key), row.key << ": no table has this key any more");
    std::set<std::string> under(row.under.begin(), row.under.end());
    if (under.empty()) under = wanted[row.key];
    // A run says the same about the engine's own keys whatever the strategy is.
    if (row.shows == Shows::trained) {
      spoken[row.key].insert(under.begin(), under.end());
      under = {*under.begin()};
    }
    for (const std::string& strategy : under) {
      std::string why = wrong(row, strategy);
      CHECK_MESSAGE(why.empty(),
                    row.key << " = " << row.value << " under " << strategy
                            << (row.with.empty() ? std::string() : " beside " + row.with.back())
                            << ": " << why);
      spoken[row.key].insert(strategy);
    }
  }
  for (const auto& [key, under] : wanted)
    for (const std::string& strategy : under)
      CHECK_MESSAGE(spoken[key].contains(strategy),
                    key << " under " << strategy << " has no row in tests/keys/key_rows.cpp");
}

TEST_CASE("layers are launched as graphs where nothing in them moves; all else is refused") {
  auto refused = [](const std::string& strategy, Names sets, int ranks = 4) -> std::string {
    config::LoadOptions options;
    options.sets = {"distributed.strategy=" + strategy, "dist_env.cuda_graphs=true"};
    options.sets.insert(options.sets.end(), sets.begin(), sets.end());
    Diagnostics found;
    std::optional<plan::Job> job =
        plan::load_job(config::Source::parse(kJob, options, found), found);
    REQUIRE(job);
    found.throw_if_any();
    try {
      plan::check_runs(plan::make_plan(*job, {.world_size = ranks}), *job);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::not_in_release);
      return error.message();
    }
    return "";
  };
  CHECK(refused("ddp", {}).empty());
  const std::string level = "distributed.megatron_fsdp.zero_dp_strategy=",
                    units = "distributed.megatron_fsdp.megatron_fsdp_unit_modules=";
  for (const char* kept : {"0", "1", "2"}) CHECK(refused("megatron_fsdp", {level + kept}).empty());
  CHECK(refused("megatron_fsdp", {level + "1", units + R"(["LlamaDecoderLayer"])"}).empty());
  CHECK(refused("megatron_fsdp", {level + "3"}, 1).empty());
  CHECK(refused("fsdp2", {}, 1).empty());
  CHECK(refused("fsdp2", {"distributed.fsdp2.offload_policy=cpu"}, 1)
            .find("has its parameters in units") != std::string::npos);
  const Folder folder;
  const std::string dropout = (folder.path / "config.json").string();
  std::ofstream(dropout) << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 256, "rms_norm_eps": 1e-06, "num_key_value_heads": 2,
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 2048, "attention_dropout": 0.1})";
  struct Row {
    std::string strategy, set, words;
    Names with = {};
  };
  for (const Row& row : {
           Row{"fsdp2", "dist_env.device=auto", "gathers parameters in units"},
           Row{"megatron_fsdp", level + "3", "gathers parameters in units"},
           Row{"megatron_fsdp", units + R"(["LlamaMLP"])", "a part of a layer", {level + "1"}},
           Row{"fsdp2", "distributed.tp_size=2", "tensor parallelism"},
           Row{"fsdp2", "distributed.cp_size=2", "context parallelism"},
           Row{"fsdp2", "distributed.pp_size=2", "pipeline"},
           Row{"ddp", "distributed.activation_checkpointing=full", "recomputed"},
           Row{"ddp", "distributed.autocast_dtype=bfloat16", "autocast"},
           Row{"ddp", "lora.r=4", "adapters"},
           Row{"ddp", "model.float8_linear=true", "8-bit floats"},
           Row{"ddp",
               "dataset.packing=true",
               "documents",
               {"dataset.kind=text", "dataset.path=" MESHWRIGHT_SOURCE_DIR "/LICENSE",
                "dataset.document_end=32"}},
           Row{"ddp", "model.config=" MESHWRIGHT_SOURCE_DIR "/configs/models/mixtral-tiny.json",
               "experts"},
           Row{"ddp", "model.config=" MESHWRIGHT_SOURCE_DIR "/configs/models/gemma3-tiny.json",
               "windows"},
           Row{"ddp", "model.config=" MESHWRIGHT_SOURCE_DIR "/tests/data/nets/phi/config.json",
               "no layers"},
           Row{"ddp", "model.config=" + dropout, "dropout"},
       }) {
    CAPTURE(row.strategy + " " + row.set);
    Names sets = row.with;
    sets.push_back(row.set);
    CHECK(refused(row.strategy, sets).find(row.words) != std::string::npos);
  }
}

TEST_CASE("segments that grow are refused beside buffers that NCCL registers, on devices alone") {
  auto errors = [](const Names& more) {
    Names sets{"dist_env.expandable_segments=true", "distributed.megatron_fsdp.nccl_ub=true"};
    sets.insert(sets.end(), more.begin(), more.end());
    return look("megatron_fsdp", sets).errors;
  };
  const Names refused = errors({});
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].find("E0208") != std::string::npos);
  CHECK(refused[0].find("dist_env.expandable_segments = true cannot be beside "
                        "distributed.megatron_fsdp.nccl_ub = true") != std::string::npos);
  for (const char* other : {"dist_env.expandable_segments=false",
                            "distributed.megatron_fsdp.nccl_ub=false", "dist_env.device=cpu"})
    CHECK_MESSAGE(errors({other}).empty(), std::string(other));
}
