// Reading configurations: what is accepted, what is refused, and that the help of a refusal works.
#include <filesystem>
#include <fstream>

#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"
#include "plugins/fully_sharded/options.h"
#include "sdk/base/text.h"
#include "sdk/base/words.h"

namespace config_test {

using namespace meshwright;
using namespace meshwright::config;
using config::testing::Loaded, config::testing::only_error, config::testing::says;

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

Loaded load(const std::string& text, std::vector<std::string> sets = {},
            const std::map<std::string, std::string>& environment = {},
            const std::string& active = "fsdp2") {
  return config::testing::load(text, std::move(sets), {strategies(), active, environment});
}

}  // namespace

TEST_CASE("an empty file has every default of the schemas") {
  const Loaded l = load("");
  REQUIRE(l.diagnostics.ok());
  for (const auto& [name, table] : l.config.tables)
    for (const meshwright_option* option : table.schema().options) {
      INFO(name, ".", option->name);
      CHECK(to_toml(table.value(option->name)) == to_toml(default_of(*option)));
      CHECK(!table.is_given(option->name));
    }
}

TEST_CASE("each mistake has its code, its place and a fix") {
  struct Row {
    const char* text;
    ErrorCode code;
    int line, column;
    const char *key, *message, *help;
  };
  for (const Row& row : std::vector<Row>{
           {"[distributed]\ntp_sise = 2\n", ErrorCode::unknown_key, 2, 1, "distributed.tp_sise",
            "unknown key", "distributed.tp_size"},
           {"[distributed]\ntp_size = \"2\"\n", ErrorCode::wrong_type, 2, 11, "distributed.tp_size",
            "an integer", "set distributed.tp_size = 1"},
           {"[optimizer]\nlr = -1\n", ErrorCode::out_of_range, 2, 6, "optimizer.lr", "at least 0",
            "set optimizer.lr = 3e-4"},
           {"[optimizer]\nname = \"adam\"\n", ErrorCode::bad_choice, 2, 8, "optimizer.name",
            "adamw", "adamw"},
           {"[optimiser]\nlr = 1.0\n", ErrorCode::unknown_key, 1, 2, "optimiser", "unknown table",
            "optimizer"},
           {"[run]\nlr = 1.0\n", ErrorCode::unknown_key, 2, 1, "run.lr", "unknown key",
            "belongs to [optimizer]"},
           {"[distributed.mp_policy]\nparam_dtype = \"float23\"\n", ErrorCode::bad_dtype, 2, 15,
            "distributed.mp_policy.param_dtype", "not a dtype", "float32"},
           {"[distributed.fsdp2]\nfsdp2_backward_prefetch_depth = -1\n", ErrorCode::out_of_range, 2,
            33, "distributed.fsdp2.fsdp2_backward_prefetch_depth", "at least 0", "= 2"},
           {"schema = 2\n", ErrorCode::out_of_range, 1, 10, "schema", "1", "set schema = 1"},
           {"[optimizer]\nbetas = [0.9]\n", ErrorCode::out_of_range, 2, 9, "optimizer.betas",
            "two numbers", "[0.9, 0.95]"},
           {"[optimizer]\nlr = 1979-05-27\n", ErrorCode::wrong_type, 2, 6, "optimizer.lr", "a date",
            "3e-4"},
           {"[distributed.tp_size]\na = 1\n", ErrorCode::wrong_type, 1, 1, "distributed.tp_size",
            "an integer, or \"none\", found a table", "set distributed.tp_size = 1"},
           {"[distributed]\ntp_size = {a = \"b\"}\n", ErrorCode::wrong_type, 2, 11,
            "distributed.tp_size", "found a table", "= 2"},
           {"[distributed]\nsequence_parallel = {}\n", ErrorCode::wrong_type, 2, 21,
            "distributed.sequence_parallel", "found a table", "= true"},
           {"[distributed.fsdp2.offload_policy]\npin_memory = true\n", ErrorCode::wrong_type, 1, 1,
            "distributed.fsdp2.offload_policy", "found a table", "= \"cpu\""},
           {"[distributed.fsdp2.multimodal.vision]\nframe_sharding = 1\n", ErrorCode::unknown_key,
            1, 31, "distributed.fsdp2.multimodal.vision", "unknown table", "lists the keys"},
           {"[distributed.tp_plan]\n\"a.*\" = \"colwise\"\nb.c = \"colwize\"\n",
            ErrorCode::bad_tp_plan, 3, 7, "distributed.tp_plan.\"b.c\"", "\"colwize\" is not",
            "did you mean \"colwise\"?"},
           {"[optimizer]\nbetas = [0.9, 1.5]\n", ErrorCode::out_of_range, 2, 9, "optimizer.betas",
            "item 2 of optimizer.betas = 1.5", "[0.9, 0.95]"},
           {"[run]\nseed = 1.5\n", ErrorCode::wrong_type, 2, 8, "run.seed", "an integer", "42"},
           {"run = 3\n", ErrorCode::wrong_type, 1, 7, "run", "a table", "[run]"},
           {"[model]\nconfig = \"a\"\npretrained = \"b\"\n", ErrorCode::conflict, 3, 14,
            "model.pretrained", "both set", "none"},
           {"[lr_scheduler]\nmin_lr = 1.0\n", ErrorCode::conflict, 2, 10, "lr_scheduler.min_lr",
            "above optimizer.lr", "3e-04"},
           {"[run]\nname = \"${MISSING}\"\n", ErrorCode::bad_interpolation, 2, 8, "run.name",
            "MISSING", "MISSING"},
           {"[distributed]\nactivation_checkpointing_scope = \"all+vision\"\n",
            ErrorCode::bad_choice, 2, 34, "distributed.activation_checkpointing_scope", "all",
            "all"},
           {"[run\nname = 1\n", ErrorCode::toml_syntax, 1, 0, "", "", ""},
           {"[run]\nname = first\n", ErrorCode::toml_syntax, 2, 0, "", "", "\"first\""},
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
    const char *set, *key, *help;
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
  // Whoever has an optimizer of his own is told how to bring it.
  for (const char* name : {"optimizer.name=muon", "optimizer.name=adafactor"})
    CHECK(only_error(load("", {name})).helps().back().find("Trainer::set_optimizer()") !=
          std::string::npos);
  CHECK(only_error(load("", {"optimizer.no_decay=all"})).helps().back().find("set_optimizer") ==
        std::string::npos);
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
  const boost::json::value schema = json_schema(strategies());
  for (const OptionSchema& table : engine_schemas()) {
    std::string at = "/properties";
    for (const std::string& part : text::split_names(table.table.c_str(), '.'))
      at += "/" + part + "/properties";
    for (const meshwright_option* option : table.options)
      CHECK_MESSAGE(schema.at_pointer(at).as_object().contains(option->name),
                    table.table << "." << option->name);
  }
  const boost::json::value& optimizer = schema.at_pointer("/properties/optimizer");
  CHECK(optimizer.at_pointer("/properties/lr/type") == "number");
  CHECK(optimizer.at_pointer("/properties/lr/minimum").to_number<double>() == 0);
  CHECK(optimizer.at("additionalProperties") == false);
}

TEST_CASE("keys, tables and codes are explained, and a misspelt one is met half-way") {
  CHECK(explain("optimizer.lr", strategies()).find("default:  3e-4") != std::string::npos);
  CHECK(explain("optimizer", strategies()).find("weight_decay") != std::string::npos);
  CHECK(explain("E0301", strategies()).find("does not divide") != std::string::npos);
  CHECK(explain("lr", strategies()).find("optimizer.lr") != std::string::npos);
  CHECK(explain("", strategies()).find("[dataset]") != std::string::npos);
  // A line for each choice, of a key and within its table.
  int choices = 0;
  for (const OptionSchema& schema : all_schemas(strategies()))
    for (const meshwright_option* option : schema.options) {
      if (option->choices == nullptr || schema.table.empty()) continue;
      const std::string key = key_of(schema, *option);
      CAPTURE(key);
      for (const std::string& choice : text::split(option->choices, '|')) {
        const std::string line = "    \"" + choice + '"';  // indented by four, in a table by more
        CHECK(explain(key, strategies()).find('\n' + line) != std::string::npos);
        CHECK(explain(schema.table, strategies()).find("\n    " + line) != std::string::npos);
        ++choices;
      }
    }
  CHECK(choices > 60);
  CHECK(explain("optimizer.name", strategies())
            .find("    \"adamw\"  Adam with decoupled weight decay; betas and eps (the default)\n"
                  "    \"sgd\"    gradient descent") != std::string::npos);
  for (const StrategySchema& one : strategies())
    CHECK(explain("distributed.strategy", strategies()).find("    \"" + one.strategy + '"') !=
          std::string::npos);
  try {
    explain("optimizer.lrr", strategies());
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.helps().front().find("optimizer.lr") != std::string::npos);
  }
}

}  // namespace config_test
