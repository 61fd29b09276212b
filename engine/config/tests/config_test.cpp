// Reading configurations: what is accepted, what is refused, and that the help of a refusal works.
// Long because the rows of mistakes share the text they are made in.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/config/config.h"
#include "engine/config/describe.h"
#include "plugins/fully_sharded/options.h"

using namespace meshwright;
using namespace meshwright::config;

namespace {

constexpr meshwright_option level() {
  meshwright_option o = int_option("zero_dp_strategy", "3", 0, "A level.");
  return with_aliases(o, "data_parallel_sharding_strategy{optim=1,optim_grads=2}");
}
constexpr meshwright_option kOther[] = {
    bool_option("average_in_collective", false, "A switch."), level(),
    with_aliases(with_flags(option("unit_modules", MESHWRIGHT_STRING_LIST, nullptr, "Names."),
                            MESHWRIGHT_OPTIONAL),
                 "nv_unit_modules")};

// Two strategies as plugins would declare them.
std::vector<StrategySchema> strategies() {
  return {{"fsdp2", {}, make_schema("distributed.fsdp2", "fsdp2", kFullyShardedOptions.declared)},
          {"other", {"the-other"}, make_schema("distributed.other", "other", kOther)}};
}

struct Loaded {
  Config config;
  Diagnostics diagnostics;
};

Loaded load(const std::string& text, std::vector<std::string> sets = {},
            const std::map<std::string, std::string>& environment = {},
            const std::string& active = "fsdp2") {
  Loaded out;
  LoadOptions options;
  options.file = "job.toml";
  options.sets = std::move(sets);
  options.environment = [environment](const std::string& name) {
    auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional(it->second);
  };
  Source source = Source::parse(text, options, out.diagnostics);
  bool syntax = std::any_of(out.diagnostics.errors().begin(), out.diagnostics.errors().end(),
                            [](const Error& e) { return e.code() == ErrorCode::toml_syntax; });
  if (!syntax) out.config = resolve(source, strategies(), active, out.diagnostics);
  return out;
}

bool says(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

Error only_error(const Loaded& loaded) {
  REQUIRE(loaded.diagnostics.errors().size() == 1);
  return loaded.diagnostics.errors().front();
}

}  // namespace

TEST_CASE("an empty file has every default of the documentation") {
  Loaded l = load("");
  REQUIRE(l.diagnostics.ok());
  struct Row {
    const char *table, *key, *value;
  };
  for (const Row& row : {Row{"run", "name", "\"first\""},
                         {"run", "dir", "\"runs\""},
                         {"run", "seed", "42"},
                         {"run", "threads", "\"none\""},
                         {"run", "deterministic", "false"},
                         {"run", "float32_matmul_precision", "\"highest\""},
                         {"run", "stop_on_nonfinite", "true"},
                         {"model", "torch_dtype", "\"float32\""},
                         {"dist_env", "device", "\"auto\""},
                         {"dist_env", "backend", "\"auto\""},
                         {"dist_env", "timeout_minutes", "10"},
                         {"dist_env", "expandable_segments", "false"},
                         {"dist_env", "connections_per_peer", "1"},
                         {"distributed", "strategy", "\"fsdp2\""},
                         {"distributed", "dp_size", "\"none\""},
                         {"distributed", "dp_replicate_size", "1"},
                         {"distributed", "tp_size", "1"},
                         {"distributed", "cp_size", "1"},
                         {"distributed", "pp_size", "1"},
                         {"distributed", "ep_size", "1"},
                         {"distributed", "sequence_parallel", "false"},
                         {"distributed", "activation_checkpointing", "\"none\""},
                         {"distributed.mp_policy", "param_dtype", "\"bfloat16\""},
                         {"distributed.mp_policy", "reduce_dtype", "\"float32\""},
                         {"distributed.mp_policy", "output_dtype", "\"none\""},
                         {"distributed.mp_policy", "cast_forward_inputs", "true"},
                         {"distributed.fsdp2", "reshard_after_forward", "\"none\""},
                         {"distributed.fsdp2", "offload_policy", "\"none\""},
                         {"distributed.fsdp2", "enable_fsdp2_prefetch", "false"},
                         {"distributed.fsdp2", "fsdp2_backward_prefetch_depth", "2"},
                         {"distributed.fsdp2", "fsdp2_forward_prefetch_depth", "1"},
                         {"distributed.fsdp2", "defer_fsdp_grad_sync", "true"},
                         {"distributed.moe", "ignore_router_for_ac", "true"},
                         {"distributed.moe", "reshard_after_forward", "false"},
                         {"distributed.moe", "wrap_outer_model", "true"},
                         {"distributed.pipeline", "pp_schedule", "\"1f1b\""},
                         {"distributed.pipeline", "pp_microbatch_size", "1"},
                         {"distributed.pipeline", "pp_batch_size", "\"none\""},
                         {"step_scheduler", "global_batch_size", "64"},
                         {"step_scheduler", "local_batch_size", "4"},
                         {"step_scheduler", "max_steps", "200"},
                         {"optimizer", "name", "\"adamw\""},
                         {"optimizer", "lr", "3e-04"},
                         {"optimizer", "betas", "[0.9, 0.95]"},
                         {"optimizer", "eps", "1e-08"},
                         {"optimizer", "weight_decay", "0.1"},
                         {"optimizer", "max_grad_norm", "1"},
                         {"lr_scheduler", "lr_decay_style", "\"cosine\""},
                         {"lr_scheduler", "lr_warmup_steps", "20"},
                         {"lr_scheduler", "min_lr", "0"},
                         {"dataset", "kind", "\"text\""},
                         {"dataset", "dtype", "\"auto\""},
                         {"dataset", "seq_len", "512"},
                         {"dataset", "shuffle", "true"},
                         {"checkpoint", "every_steps", "50"},
                         {"checkpoint", "keep", "2"},
                         {"checkpoint", "async", "false"},
                         {"checkpoint", "on_failure", "\"stop\""},
                         {"checkpoint", "export", "\"none\""},
                         {"checkpoint", "resume", "\"auto\""}}) {
    CAPTURE(row.table);
    CAPTURE(row.key);
    CHECK(to_toml(l.config.table(row.table).value(row.key)) == row.value);
    CHECK(!l.config.table(row.table).is_given(row.key));
  }
}

TEST_CASE("each mistake has its code, its place and a fix") {
  struct Row {
    const char* text;
    ErrorCode code;
    int line, column;
    const char *key, *message, *help;
  };
  for (const Row& row : {
           Row{"[distributed]\ntp_sise = 2\n", ErrorCode::unknown_key, 2, 1, "distributed.tp_sise",
               "unknown key", "distributed.tp_size"},
           Row{"[distributed]\ntp_size = \"2\"\n", ErrorCode::wrong_type, 2, 11,
               "distributed.tp_size", "an integer", "set distributed.tp_size = 1"},
           Row{"[optimizer]\nlr = -1\n", ErrorCode::out_of_range, 2, 6, "optimizer.lr",
               "at least 0", "set optimizer.lr = 3e-4"},
           Row{"[optimizer]\nname = \"adam\"\n", ErrorCode::bad_choice, 2, 8, "optimizer.name",
               "adamw", "adamw"},
           Row{"[optimiser]\nlr = 1.0\n", ErrorCode::unknown_key, 1, 2, "optimiser",
               "unknown table", "optimizer"},
           Row{"[run]\nlr = 1.0\n", ErrorCode::unknown_key, 2, 1, "run.lr", "unknown key",
               "belongs to [optimizer]"},
           Row{"[distributed.mp_policy]\nparam_dtype = \"float23\"\n", ErrorCode::bad_dtype, 2, 15,
               "distributed.mp_policy.param_dtype", "not a dtype", "float32"},
           Row{"[distributed.fsdp2]\nfsdp2_backward_prefetch_depth = -1\n", ErrorCode::out_of_range,
               2, 33, "distributed.fsdp2.fsdp2_backward_prefetch_depth", "at least 0", "= 2"},
           Row{"schema = 2\n", ErrorCode::out_of_range, 1, 10, "schema", "1", "set schema = 1"},
           Row{"[optimizer]\nbetas = [0.9]\n", ErrorCode::out_of_range, 2, 9, "optimizer.betas",
               "two numbers", "[0.9, 0.95]"},
           Row{"[optimizer]\nlr = 1979-05-27\n", ErrorCode::wrong_type, 2, 6, "optimizer.lr",
               "a date", "3e-4"},
           Row{"[distributed.tp_size]\na = 1\n", ErrorCode::wrong_type, 1, 1, "distributed.tp_size",
               "an integer, or \"none\", found a table", "set distributed.tp_size = 1"},
           Row{"[distributed]\ntp_size = {a = \"b\"}\n", ErrorCode::wrong_type, 2, 11,
               "distributed.tp_size", "found a table", "= 2"},
           Row{"[distributed]\nsequence_parallel = {}\n", ErrorCode::wrong_type, 2, 21,
               "distributed.sequence_parallel", "found a table", "= true"},
           Row{"[distributed.fsdp2.offload_policy]\npin_memory = true\n", ErrorCode::wrong_type, 1,
               1, "distributed.fsdp2.offload_policy", "found a table", "= \"cpu\""},
           Row{"[distributed.fsdp2.multimodal.vision]\nframe_sharding = 1\n",
               ErrorCode::unknown_key, 1, 31, "distributed.fsdp2.multimodal.vision",
               "unknown table", "lists the keys"},
           Row{"[distributed.tp_plan]\n\"a.*\" = \"colwise\"\nb.c = \"colwize\"\n",
               ErrorCode::bad_tp_plan, 3, 7, "distributed.tp_plan.\"b.c\"", "\"colwize\" is not",
               "did you mean \"colwise\"?"},
           Row{"[optimizer]\nbetas = [0.9, 1.5]\n", ErrorCode::out_of_range, 2, 9,
               "optimizer.betas", "item 2 of optimizer.betas = 1.5", "[0.9, 0.95]"},
           Row{"[run]\nseed = 1.5\n", ErrorCode::wrong_type, 2, 8, "run.seed", "an integer", "42"},
           Row{"run = 3\n", ErrorCode::wrong_type, 1, 7, "run", "a table", "[run]"},
           Row{"[model]\nconfig = \"a\"\npretrained = \"b\"\n", ErrorCode::conflict, 3, 14,
               "model.pretrained", "both set", "none"},
           Row{"[lr_scheduler]\nmin_lr = 1.0\n", ErrorCode::conflict, 2, 10, "lr_scheduler.min_lr",
               "above optimizer.lr", "3e-04"},
           Row{"[run]\nname = \"${MISSING}\"\n", ErrorCode::bad_interpolation, 2, 8, "run.name",
               "MISSING", "MISSING"},
           Row{"[distributed]\nactivation_checkpointing_scope = \"all+vision\"\n",
               ErrorCode::bad_choice, 2, 34, "distributed.activation_checkpointing_scope", "all",
               "all"},
           Row{"[run\nname = 1\n", ErrorCode::toml_syntax, 1, 0, "", "", ""},
           Row{"[run]\nname = first\n", ErrorCode::toml_syntax, 2, 0, "", "", "\"first\""},
       }) {
    INFO(std::string(row.text));
    Loaded l = load(row.text);
    Error error = only_error(l);
    INFO(error.what());
    CHECK(code_string(error.code()) == code_string(row.code));
    CHECK(exit_status(error.code()) == 2);
    CHECK(error.origin().line == row.line);
    if (row.column > 0) CHECK(error.origin().column == row.column);
    CHECK(error.origin().file == "job.toml");
    CHECK(error.key() == row.key);
    CHECK(error.message().find(row.message) != std::string::npos);
    for (const std::string& help : error.helps()) INFO(help);
    CHECK_MESSAGE(says(error.helps(), row.help), std::string(row.text));
  }
}

TEST_CASE("three mistakes are reported together, and the fix of each works when applied") {
  const std::string text =
      "[distributed]\nstrategy = \"fsdp2\"\ntp_size = \"2\"\n\n[optimizer]\nlr = "
      "-0.5\n\n[dataset]\nkind = \"tokenz\"\n";
  Loaded l = load(text);
  REQUIRE(l.diagnostics.errors().size() == 3);
  std::vector<std::string> sets;
  int lines[] = {3, 6, 9};
  for (size_t i = 0; i < 3; ++i) {
    const Error& error = l.diagnostics.errors()[i];
    CHECK(error.origin().line == lines[i]);
    CHECK(error.origin().column > 0);
    REQUIRE(!error.helps().empty());
    for (const std::string& help : error.helps())
      if (help.starts_with("set ")) {
        std::string set = help.substr(4);
        set.replace(set.find(" = "), 3, "=");
        sets.push_back(set);
        break;
      }
  }
  REQUIRE(sets.size() == 3);
  CHECK(load(text, sets).diagnostics.ok());
}

TEST_CASE("--set reads TOML or a bare string and leaves no file and line behind") {
  Loaded l = load("[distributed]\ntp_size = 4\n",
                  {"distributed.tp_size=2", "distributed.strategy=fsdp2", "run.name=second",
                   "optimizer.betas=[0.8, 0.9]",
                   "distributed.tp_plan={\"model.layers.*.mlp.up_proj\" = \"colwise\"}"});
  REQUIRE(l.diagnostics.ok());
  CHECK(l.config.table("distributed").get_int("tp_size") == 2);
  CHECK(l.config.table("run").get_string("name") == "second");
  CHECK(l.config.shared.tp_plan.patterns == StringMap{{"model.layers.*.mlp.up_proj", "colwise"}});
  Error error = only_error(load("", {"optimizer.lr=-1"}));
  CHECK(error.origin().file.empty());
  CHECK(error.origin().line == 0);
  CHECK(error.origin().source == Origin::Source::command_line);
  for (const char* bad : {"tp_size", "=3", "a..b=1", ""}) {
    CAPTURE(bad);
    Loaded wrong = load("", {bad});
    REQUIRE(!wrong.diagnostics.ok());
    CHECK(wrong.diagnostics.errors()[0].code() == ErrorCode::bad_set);
  }
  CHECK(only_error(load("", {"zzz=1"})).helps().front().starts_with("remove --set zzz"));
  CHECK(only_error(load("[distributed]\ntp_size = 2\n", {"distributed.tp_size.x=1"})).code() ==
        ErrorCode::wrong_type);
}

TEST_CASE(
    "a bare string of --set is a string where the option wants one, also when TOML reads a date, a "
    "number or a boolean") {
  for (const char* name : {"2026-11-22", "007", "1.5", "1_000", "1e5", "true", "inf", "-3",
                           "07:32:00", "2026-11-22T07:32:00Z"}) {
    CAPTURE(name);
    Loaded l = load("[run]\nname = \"first\"\n", {std::string("run.name=") + name});
    REQUIRE(l.diagnostics.ok());
    CHECK(l.config.table("run").get_string("name") == name);
    CHECK(l.config.table("run").origin("name").source == Origin::Source::command_line);
    CHECK(load("", {std::string("run.name = \"") + name + "\""})
              .config.table("run")
              .get_string("name") == name);
  }
  CHECK(load("", {"run.name= 2026-11-22 "}).config.table("run").get_string("name") == "2026-11-22");
  // Numbers, booleans and what may be either stay what they are, and mistakes keep their message.
  CHECK(load("", {"distributed.tp_size=2"}).config.table("distributed").get_int("tp_size") == 2);
  CHECK(load("", {"run.deterministic=true"}).config.table("run").get_bool("deterministic"));
  CHECK(only_error(load("", {"distributed.tp_size=2026-11-22"}))
            .message()
            .find("found a date 2026-11-22") != std::string::npos);
  CHECK(only_error(load("", {"dataset.kind=7"})).message().find("found an integer 7") !=
        std::string::npos);
  CHECK(only_error(load("", {"run.name=[1, 2]"})).code() == ErrorCode::wrong_type);
  const auto several = load("", {"dataset.path=[\"a.txt\", \"b.txt\"]"});
  REQUIRE_FALSE(several.diagnostics.errors().empty());
  CHECK(several.diagnostics.errors()[0].code() == ErrorCode::wrong_type);
  CHECK(several.diagnostics.errors()[0].helps() ==
        std::vector<std::string>{
            "several files are a folder or a pattern: set dataset.path = \"data/*.jsonl\""});
  // A file is strict: there a string has quotes.
  CHECK(only_error(load("[run]\nname = 2026-11-22\n")).message().find("found a date 2026-11-22") !=
        std::string::npos);
}

TEST_CASE("environment references are filled in inside strings only") {
  Loaded l =
      load("[run]\nname = \"${WHO}-${N:-7}\"\ndir = \"$${literal}\"\n", {}, {{"WHO", "ann"}});
  REQUIRE(l.diagnostics.ok());
  CHECK(l.config.table("run").get_string("name") == "ann-7");
  CHECK(l.config.table("run").get_string("dir") == "${literal}");
  CHECK(!load("[run]\nname = \"${WHO\"\n", {}, {{"WHO", "ann"}}).diagnostics.ok());
}

TEST_CASE("the flat form and older names are accepted with a notice") {
  Loaded l = load(
      "[distributed]\nfsdp2_backward_prefetch_depth = 3\naverage_in_collective = "
      "true\nuse_hf_tp_plan = true\n_target_ = \"x\"\n");
  REQUIRE(l.diagnostics.ok());
  CHECK(l.config.table("distributed.fsdp2").get_int("fsdp2_backward_prefetch_depth") == 3);
  CHECK(l.config.table("distributed.other").get_bool("average_in_collective"));
  CHECK(l.config.shared.tp_plan.name == "own");
  CHECK(says(l.diagnostics.notices(), "belongs to [distributed.fsdp2]"));
  CHECK(says(l.diagnostics.notices(), "another name of distributed.tp_plan"));
  CHECK(says(l.diagnostics.notices(), "_target_"));
  Loaded old = load(
      "[distributed.other]\ndata_parallel_sharding_strategy = \"optim_grads\"\nnv_unit_modules = "
      "[\"Block\"]\n");
  REQUIRE(old.diagnostics.ok());
  CHECK(old.config.table("distributed.other").get_int("zero_dp_strategy") == 2);
  CHECK(only_error(load("[distributed]\nfsdp2_forward_prefetch_depth = "
                        "1\n[distributed.fsdp2]\nfsdp2_forward_prefetch_depth = 2\n"))
            .code() == ErrorCode::conflict);
  CHECK(says(load("[distributed.fsdp2]\npatch_is_packed_sequence = true\n").diagnostics.notices(),
             "no effect"));
  // What the original nests, in its own table or in the flat form.
  for (const char* table : {"[distributed.fsdp2.multimodal]", "[distributed.multimodal]"}) {
    Loaded nested = load(std::string(table) + "\nfrozen_sharding = \"per-layer\"\n");
    REQUIRE(nested.diagnostics.ok());
    CHECK(nested.diagnostics.warnings().empty());
    CHECK(nested.config.table("distributed.fsdp2").get_string("frozen_sharding") == "per_layer");
    CHECK(says(nested.diagnostics.notices(),
               "distributed.fsdp2.multimodal.frozen_sharding is another name"));
  }
}

TEST_CASE("adapters with magnitudes are refused, with a setting that works") {
  const Error error = only_error(load("[lora]\nr = 4\ndora = true\n"));
  CHECK(code_string(error.code()) == "E0390");
  CHECK(error.key() == "lora.dora");
  CHECK(error.origin().line == 3);
  REQUIRE(error.helps().size() == 1);
  CHECK(error.helps()[0].starts_with("set lora.dora = false"));
  CHECK(load("[lora]\nr = 4\ndora = true\n", {"lora.dora=false"}).diagnostics.ok());
}

TEST_CASE("what a later version may know is told apart from what is wrong") {
  struct Later {
    const char* set;
    const char* key;
    const char* help;
  };
  for (const auto& [set, key, help] :
       {Later{"optimizer.name=muon", "optimizer.name", "set optimizer.name = \"adamw\""},
        Later{"optimizer.name=lion", "optimizer.name", "set optimizer.name = \"adamw\""},
        Later{"lora.base_dtype=nf4", "lora.base_dtype", "set lora.base_dtype = \"bfloat16\""},
        Later{"lora.base_dtype=int8", "lora.base_dtype", "set lora.base_dtype = \"bfloat16\""}}) {
    CAPTURE(std::string(set));
    const Error error = only_error(load("[lora]\nr = 4\n", {set}));
    CHECK(code_string(error.code()) == "E0390");
    CHECK(error.key() == key);
    CHECK(error.message().ends_with(" is not in this version"));
    REQUIRE(!error.helps().empty());
    CHECK(error.helps()[0] == help);
  }
  CHECK(code_string(only_error(load("", {"optimizer.name=adafactor"})).code()) == "E0205");
}

TEST_CASE("a key that a later version may have is told apart from one that is wrong") {
  for (const std::string name : {"layer_decay = 0.9", "state_dtype = \"bfloat16\""}) {
    CAPTURE(name);
    const std::string key = "optimizer." + name.substr(0, name.find(' '));
    const Error error = only_error(load("[optimizer]\nlr = 1e-3\n" + name + "\n"));
    CHECK(code_string(error.code()) == "E0390");
    CHECK(error.key() == key);
    CHECK(error.origin().line == 3);
    CHECK(error.message().starts_with(key + ": "));
    CHECK(error.message().ends_with(" is not in this version"));
    CHECK(error.helps() == std::vector<std::string>{"remove the line"});
  }
  const Error set = only_error(load("", {"optimizer.layer_decay=0.9"}));
  CHECK(code_string(set.code()) == "E0390");
  CHECK(set.helps() == std::vector<std::string>{"remove --set optimizer.layer_decay"});
  // Its own name in another table is nothing, nor is one like it.
  CHECK(code_string(only_error(load("[run]\nlayer_decay = 0.9\n")).code()) != "E0390");
  CHECK(code_string(only_error(load("", {"optimizer.layer_decays=0.9"})).code()) != "E0390");
}

TEST_CASE("adapters are asked for by other names too") {
  Loaded all = load("[lora]\ndim = 4\nmatch_all_linear = true\n");
  REQUIRE(all.diagnostics.ok());
  CHECK(all.config.table("lora").get_int("r") == 4);
  CHECK(to_toml(all.config.table("lora").value("target_modules")) == "\"all-linear\"");
  CHECK(says(all.diagnostics.notices(), "lora.dim is another name of lora.r"));
  CHECK(says(all.diagnostics.notices(),
             "lora.match_all_linear is another name of lora.target_modules"));
  Loaded some = load("[lora]\nr = 4\nmatch_all_linear = false\ntarget_modules = [\"q_proj\"]\n");
  REQUIRE(some.diagnostics.ok());
  CHECK(to_toml(some.config.table("lora").value("target_modules")) == "[\"q_proj\"]");
  CHECK(says(some.diagnostics.notices(), "which false leaves as it is"));
  for (const char* twice :
       {"r = 4\ndim = 4", "target_modules = \"q_proj\"\nmatch_all_linear = true"})
    CHECK(only_error(load(std::string("[lora]\n") + twice + "\n")).code() == ErrorCode::conflict);
}

TEST_CASE(
    "tables of inactive strategies are checked and inert, those of unknown ones give a warning") {
  CHECK(load("[distributed.other]\naverage_in_collective = true\n").diagnostics.ok());
  CHECK(only_error(load("[distributed.other]\naverage_in_collective = 3\n")).code() ==
        ErrorCode::wrong_type);
  Loaded l = load("[distributed.fsdp3]\nanything = 3\n");
  CHECK(l.diagnostics.ok());
  CHECK(says(l.diagnostics.warnings(), "distributed.fsdp2"));
  // The strategy asked for was not found: that is told elsewhere, and its table is not a second
  // mistake.
  CHECK(load("[distributed]\nstrategy = \"acme\"\n[distributed.acme]\nx = 3\n", {}, {}, "")
            .diagnostics.warnings()
            .empty());
  CHECK(says(load("[distributed.pipeline]\npp_schedule = \"gpipe\"\n").diagnostics.warnings(),
             "no effect"));
  CHECK(load("[distributed]\npp_size = 2\n[distributed.pipeline]\npp_schedule = \"gpipe\"\n")
            .diagnostics.warnings()
            .empty());
}

TEST_CASE("files that are no configuration are refused cleanly") {
  namespace fs = std::filesystem;
  fs::path folder = fs::temp_directory_path() / "meshwright_config_test";
  fs::create_directories(folder);
  auto write = [&](const std::string& text) {
    std::ofstream(folder / "x.toml", std::ios::binary) << text;
    return folder / "x.toml";
  };
  auto code_of = [&](const fs::path& file) {
    Diagnostics diagnostics;
    LoadOptions options;
    options.file = file;
    Source source = Source::load(options, diagnostics);
    if (diagnostics.ok()) resolve(source, strategies(), "fsdp2", diagnostics);
    return diagnostics.ok() ? std::string("ok") : code_string(diagnostics.errors()[0].code());
  };
  CHECK(code_of(folder / "missing.toml") == "E0209");
  CHECK(code_of(folder) == "E0209");
  CHECK(code_of("/dev/zero") == "E0209");
  CHECK(code_of(write("")) == "ok");
  CHECK(code_of(write("\xEF\xBB\xBF[run]\r\nname = \"x\"\r\n")) == "ok");
  CHECK(code_of(write(std::string("[run]\nname = \"a\0b\"\n", 19))) == "E0201");
  CHECK(code_of(write("[run]\nname = \"\xff\xfe\"\n")) == "E0201");
  CHECK(code_of(write(std::string(2 << 20, '#'))) != "ok");
  CHECK(code_of(write("a = " + std::string(10000, '['))) == "E0201");
  CHECK(code_of(write("[run]\nseed = 99999999999999999999\n")) == "E0201");
  CHECK(code_of(write("[optimizer]\nlr = nan\n")) == "E0203");
  CHECK(code_of(write("[run]\nname = \"x\"\nname = \"y\"\n")) == "E0201");
  fs::remove_all(folder);
}

TEST_CASE("a shown configuration reads back to the same values") {
  Loaded l = load(
      "[run]\nname = \"a \\\"quoted\\\" $${x} ü\"\n[optimizer]\nlr = 1e-3\nmax_grad_norm = "
      "\"none\"\n[distributed]\ntp_plan = {\"a.*\" = "
      "\"colwise\"}\n[distributed.fsdp2]\nreshard_after_forward = true\n");
  REQUIRE(l.diagnostics.ok());
  std::string text = show_toml(l.config);
  Loaded again = load(text);
  for (const Error& error : again.diagnostics.errors()) MESSAGE(error.what());
  REQUIRE(again.diagnostics.ok());
  for (const auto& [name, table] : l.config.tables)
    for (const meshwright_option* option : table.schema().options) {
      INFO(name, ".", option->name);
      CHECK(to_toml(again.config.table(name).value(option->name)) ==
            to_toml(table.value(option->name)));
    }
  CHECK(text.find("# job.toml:2") != std::string::npos);
  CHECK(text.find("# default") != std::string::npos);
}

TEST_CASE("a shown configuration reads back without a word about the defaults it spells out") {
  Loaded l = load("[optimizer]\nlr = 1e-5\n");
  std::string text =
      show_toml(l.config, true, {"checkpoint", "distributed.pipeline", "distributed.context"});
  CHECK(text.find("[checkpoint]") == std::string::npos);
  CHECK(text.find("enable_compile = false") != std::string::npos);
  Loaded again = load(text);
  for (const Error& error : again.diagnostics.errors()) MESSAGE(error.what());
  CHECK(again.diagnostics.ok());
  CHECK(again.diagnostics.notices().empty());
  CHECK(again.diagnostics.warnings().empty());
}

TEST_CASE("the JSON Schema knows every key, its type and its default") {
  boost::json::object schema = json_schema(strategies());
  auto& properties = schema.at("properties").as_object();
  for (const OptionSchema& table : engine_schemas()) {
    const boost::json::object* at = &properties;
    std::string rest = table.table;
    while (!rest.empty()) {
      size_t dot = rest.find('.');
      at = &at->at(rest.substr(0, dot)).as_object().at("properties").as_object();
      rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
    }
    for (const meshwright_option* option : table.options)
      CHECK_MESSAGE(at->contains(option->name), table.table << "." << option->name);
  }
  auto& lr =
      properties.at("optimizer").as_object().at("properties").as_object().at("lr").as_object();
  CHECK(lr.at("type") == "number");
  CHECK(lr.at("minimum").to_number<double>() == 0);
  CHECK(properties.at("optimizer").as_object().at("additionalProperties") == false);
}

TEST_CASE("keys, tables and codes are explained, and a misspelt one is met half-way") {
  CHECK(explain("optimizer.lr", strategies()).find("default:  3e-4") != std::string::npos);
  CHECK(explain("optimizer", strategies()).find("weight_decay") != std::string::npos);
  CHECK(explain("E0301", strategies()).find("does not divide") != std::string::npos);
  CHECK(explain("lr", strategies()).find("optimizer.lr") != std::string::npos);
  CHECK(explain("", strategies()).find("[dataset]") != std::string::npos);
  try {
    explain("optimizer.lrr", strategies());
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.helps().front().find("optimizer.lr") != std::string::npos);
  }
}
