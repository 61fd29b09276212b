// The program as a user runs it: verbs, exit statuses, the machine form of errors.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "ran.h"

TEST_CASE("errors have the documented JSON form on stdout") {
  Ran ran = run("plan configs/hsdp_tp.toml --world-size 8 --json --set distributed.tp_size=3");
  CHECK(ran.status == 3);
  json::object error = json::parse(ran.out).as_object().at("error").as_object();
  CHECK(text(error.at("code")) == "\"E0301\"");
  CHECK(text(error.at("key")) == "\"distributed.tp_size\"");
  CHECK(error.at("file").is_null());
  CHECK(error.at("line").is_null());
  CHECK(error.at("help").as_array().size() >= 2);
  fs::path file = fs::path(MESHWRIGHT_BUILD_DIR) / "cli_test.toml";
  std::ofstream(file) << "[distributed]\ntp_size = \"2\"\n[optimizer]\nlr = -1\nlrr = 2\n";
  Ran three = run("validate '" + file.string() + "' --json");
  CHECK(three.status == 2);
  json::object all = json::parse(three.out).as_object();
  REQUIRE(all.at("errors").as_array().size() == 3);
  const json::object& first = all.at("errors").as_array()[0].as_object();
  CHECK(text(first.at("line")) == "2");
  CHECK(text(first.at("column")) == "11");
  CHECK(std::string(first.at("file").as_string()) == file.string());
  CHECK(text(all.at("error")) == text(first));
}

TEST_CASE("sizes that do not fit the model are refused at the line that asks for them") {
  struct Row {
    const char *toml, *code, *key;
    int line, column;
  };
  const std::string head = "[model]\nconfig = \"configs/models/";
  const std::string dense = head + "llama-3-8b.json\"\n[distributed]\n",
                    experts = head + "qwen3-30b-a3b.json\"\n[distributed]\n";
  const fs::path file = fs::path(MESHWRIGHT_BUILD_DIR) / "cli_fit_test.toml";
  for (const auto& [model, row] :
       {std::pair(dense, Row{"tp_size = 16\n", "\"E0308\"", "\"distributed.tp_size\"", 4, 11}),
        std::pair(dense, Row{"dp_size = 1\npp_size = 64\n", "\"E0309\"", "\"distributed.pp_size\"",
                             5, 11}),
        std::pair(dense, Row{"pp_size = 4\n[distributed.pipeline]\nlayers_per_stage = 3\n",
                             "\"E0309\"", "\"distributed.pipeline.layers_per_stage\"", 6, 20}),
        std::pair(dense, Row{"tp_size = 2\ntp_plan = \"nobodys\"\n", "\"E0215\"",
                             "\"distributed.tp_plan\"", 5, 11}),
        std::pair(dense, Row{"tp_size = 2\n[distributed.tp_plan]\n\"model.norm\" = \"colwise\"\n",
                             "\"E0311\"", "\"distributed.tp_plan\"", 5, 1}),
        std::pair(dense, Row{"ep_size = 4\n", "\"E0316\"", "\"distributed.ep_size\"", 4, 11}),
        std::pair(experts, Row{"tp_size = 2\nsequence_parallel = true\n", "\"E0212\"",
                               "\"distributed.sequence_parallel\"", 5, 21}),
        std::pair(
            dense,
            Row{"strategy = \"mfsdp\"\n[distributed.megatron_fsdp]\nmegatron_fsdp_unit_modules = "
                "[\"Foo\"]\n",
                "\"E0315\"", "\"distributed.megatron_fsdp.megatron_fsdp_unit_modules\"", 6, 30})}) {
    std::ofstream(file) << model << row.toml;
    for (const char* verb : {"plan", "validate"}) {
      Ran ran = run(verb + (" '" + file.string() + "' --world-size 64 --json"));
      INFO(model, row.toml, verb, "\n", ran.out);
      json::object error = json::parse(ran.out).as_object().at("error").as_object();
      CHECK(text(error.at("code")) == row.code);
      CHECK(text(error.at("key")) == row.key);
      CHECK(text(error.at("line")) == std::to_string(row.line));
      CHECK(text(error.at("column")) == std::to_string(row.column));
      CHECK(error.at("file").as_string() == file.string());
    }
  }
}

TEST_CASE("every library of [plugins] load that cannot be used is told, at its own place") {
  const fs::path file = fs::path(MESHWRIGHT_BUILD_DIR) / "cli_load_test.toml";
  std::ofstream(file) << "[plugins]\nload = [\"nowhere.so\",\n  "
                         "\"cli_load_test.toml\"]\n[distributed]\nstrategy = \"mine\"\n"
                         "[distributed.mine]\nx = 1\n";
  Ran ran = run("validate '" + file.string() + "' --json", "2>&1");
  CHECK(ran.status == 2);
  CHECK_FALSE(ran.says("warning"));
  json::array errors = json::parse(ran.out).as_object().at("errors").as_array();
  REQUIRE(errors.size() == 2);
  CHECK(text(errors[0].at("code")) == "\"E0420\"");
  CHECK(text(errors[1].at("code")) == "\"E0415\"");
  for (const json::value& error : errors) CHECK(text(error.at("key")) == "\"plugins.load\"");
  CHECK(text(errors[0].at("line")) == "2");
  CHECK(text(errors[1].at("line")) == "3");
}

TEST_CASE(
    "rules of the strategy are checked beside mistakes of another kind, unless they rest on one") {
  struct Row {
    const char* toml;
    std::vector<std::string> keys;  // of the errors, in order
  };
  const fs::path file = fs::path(MESHWRIGHT_BUILD_DIR) / "cli_rules_test.toml";
  for (const Row& row :
       {Row{"enable_async_tensor_parallel = true\n[optimizer]\nlr = -1\n",
            {"optimizer.lr", "distributed.enable_async_tensor_parallel"}},
        // Whether the two fit together is not known before sequence_parallel is.
        Row{"enable_async_tensor_parallel = true\nsequence_parallel = 3\n",
            {"distributed.sequence_parallel"}},
        Row{"enable_async_tensor_parallel = true\nsequence_paralel = true\n",
            {"distributed.sequence_paralel"}},
        Row{"strategy = \"ddp\"\nsequence_parallel = true\ntp_plan = \"x\"\ntp_sise = "
            "2\n[run]\nseed = \"a\"\n",
            {"distributed.tp_sise", "run.seed", "distributed.sequence_parallel",
             "distributed.tp_plan"}},
        Row{"strategy = \"megatron_fsdp\"\nsequence_parallel = "
            "true\n[distributed.megatron_fsdp]\nzero_dp_strategy = 9\n"
            "init_fsdp_with_meta_device = true\nkeep_fp8_transpose_cache = true\n",
            {"distributed.megatron_fsdp.zero_dp_strategy", "distributed.sequence_parallel",
             "distributed.megatron_fsdp.keep_fp8_transpose_cache"}}}) {
    std::ofstream(file) << "[distributed]\n" << row.toml;
    Ran ran = run("validate '" + file.string() + "' --json");
    INFO(row.toml, "\n", ran.out);
    CHECK(ran.status == 2);
    std::vector<std::string> keys;
    const json::value answer = json::parse(ran.out);
    for (const json::value& error : answer.as_object().at("errors").as_array())
      keys.emplace_back(error.as_object().at("key").as_string());
    CHECK(keys == row.keys);
  }
}

TEST_CASE("validate names the strategy that takes the job, and the one that was asked for") {
  Ran moe = run("validate configs/moe_ep.toml --world-size 32");
  CHECK(moe.status == 0);
  CHECK(moe.says("strategy moe_ep (asked for: fsdp2) of plugin moe_ep "));
  json::object machine = json::parse(run("validate configs/moe_ep.toml --json").out).as_object();
  CHECK(text(machine.at("strategy")) == "\"moe_ep\"");
  CHECK(text(machine.at("requested_strategy")) == "\"fsdp2\"");
  CHECK(std::string(machine.at("plugin").as_string()).ends_with("libmeshwright_moe_ep.so"));
  CHECK(run("validate configs/first_fsdp2_cpu.toml").says("strategy fsdp2 of plugin fsdp2 "));
}

TEST_CASE("a job may be handed on once, not twice") {
  auto planned = [](const std::string& strategy) {
    std::string load;
    for (const char* name : {"delegates", "delegates_again", "good"})
      load += std::string(load.empty() ? "" : ", ") +
              "\"" MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_" + name + ".so\"";
    return run(
        "plan configs/first_fsdp2_cpu.toml --json --world-size 2 --set distributed.strategy=" +
        strategy + " --set 'plugins.load=[" + load + "]'");
  };
  Ran once = planned("fixture_delegates_again");
  INFO(once.out);
  REQUIRE(once.status == 0);
  json::object plan = json::parse(once.out).as_object();
  CHECK(text(plan.at("strategy")) == "\"fixture_good\"");
  CHECK(text(plan.at("requested_strategy")) == "\"fixture_delegates_again\"");
  Ran twice = planned("fixture_delegates");
  INFO(twice.out);
  CHECK(twice.status == 3);
  json::object error = json::parse(twice.out).as_object().at("error").as_object();
  CHECK(text(error.at("code")) == "\"E0314\"");
  CHECK(text(error.at("message")) ==
        "\"fixture_delegates hands this job to fixture_delegates_again, which hands it on to "
        "fixture_good\"");
  CHECK(text(error.at("key")) == "\"distributed.strategy\"");
  CHECK(text(error.at("help")) == R"(["set distributed.strategy = \"fixture_good\""])");
  CHECK(planned("fixture_good").status == 0);
}

TEST_CASE("every verb that starts local ranks refuses more than a host has, before one starts") {
  // Jobs and folders that would be refused later on, so that no rank ever starts.
  for (const std::string verb : {"train configs/ddp_cpu.toml", "doctor configs/ddp_cpu.toml",
                                 "evaluate nowhere", "generate nowhere --prompt x"})
    check_said(verb + " --nproc 1025",
               {{"", 2, "E0101", "--nproc 1025: a host has 1 to 1024 ranks", "help: --nproc 8"}});
}

TEST_CASE("every verb explains itself and has its exit statuses") {
  for (const std::string verb : {"",
                                 "quickstart",
                                 "plan",
                                 "prove",
                                 "validate",
                                 "config show",
                                 "config schema",
                                 "config explain",
                                 "plugins list",
                                 "plugins inspect",
                                 "plugins check",
                                 "plugins new",
                                 "env",
                                 "cmake-dir",
                                 "doctor",
                                 "calibrate",
                                 "tokenizer train",
                                 "tokenizer",
                                 "dataset show",
                                 "dataset stats",
                                 "dataset",
                                 "plugins",
                                 "config"})
    check_said(verb, {{" -h", 0, "meshwright"}});
  check_said(
      "",
      {{"", 2, ""},
       {"plam x", 2, "E0101"},
       {"plan", 2, "E0101"},
       {"plan configs/ddp_cpu.toml --world-sise 4", 2, "--world-size"},
       {"plan configs/ddp_cpu.toml --world-size four", 2, "E0101"},
       {"plan configs/ddp_cpu.toml --world-size 0", 2, "E0101"},
       {"plan configs/missing.toml", 2, "E0209"},
       {"plan configs", 2, "E0209"},
       {"plan configs/ddp_cpu.toml --world-size 4 --rank 4", 3, "E0313"},
       {"plan configs/ddp_cpu.toml --world-size 4 --set distributed.strategy=fsdp3", 2, "fsdp2"},
       {"plan configs/ddp_cpu.toml --world-size 4 --set distributed.tp_size=2", 3, "E0306"},
       {"plan configs/ddp_cpu.toml --world-size 3", 3, "E0310"},
       {"plan configs/first_fsdp2_cpu.toml --world-size 8 --set distributed.tp_size=4", 3, "E0308"},
       {"plan configs/first_fsdp2_cpu.toml --world-size 8 --set "
        "step_scheduler.global_batch_size=960 --set distributed.ep_size=4",
        3, "E0316"},
       {"plan configs/first_fsdp2_cpu.toml --world-size 2 --set model.config=nowhere.json", 2,
        "E0209"},
       {"plan configs/first_fsdp2_cpu.toml --world-size 2 --set "
        "model.config=configs/ddp_cpu.toml",
        2, "line 1, column 1"},
       {"plan configs/hsdp_tp.toml --world-size 64 --set distributed.tp_size=4 --set "
        "distributed.pp_size=3",
        3, "set distributed.pp_size = 2"},
       {"plan configs/ddp_cpu.toml --rank -1", 2, "help: --rank 0"},
       {"plugins new mine --dir /proc/mine", 7, "cannot write /proc/mine"},
       {"plan configs/first_fsdp2_cpu.toml --world-size 2 --set "
        "distributed.enable_async_tensor_parallel=true",
        2, "E0208"},
       {"train configs/ddp_cpu.toml --set dataset.kind=text", 2, "E0206"},
       {"train configs/ddp_cpu.toml --set run.name=../elsewhere", 2, "E0205"},
       {"train configs/ddp_cpu.toml --set run.name=", 2, "E0205"},
       {"train configs/ddp_cpu.toml --set validation_dataset.every_steps=2", 2,
        "validation_dataset.path is not"},
       {"train configs/ddp_cpu.toml --sample 0", 2, "E0101"},
       {"train configs/ddp_cpu.toml --prompt x", 2, "no --sample"},
       {"train configs/ddp_cpu.toml --sample 4 --prompt ''", 2, "E0101"},
       {"train configs/ddp_cpu.toml --sample 4 --temperature -0.5", 2, "E0101"},
       {"train configs/ddp_cpu.toml --sample 4 --temperature 1x", 2, "E0101"},
       {"train configs/ddp_cpu.toml --sample 4 --set "
        "model.config=tests/data/nets/llama_tied_257/config.json",
        2, "257"},
       {"train configs/moe_ep.toml --set dataset.kind=mock", 3, "E0305"},
       {"train configs/ddp_cpu.toml --set dataset.kind=mock --set dist_env.device=cuda", 4,
        "E0504"},
       {"checkpoint ls x", 7, "E0712"},
       {"generate x", 2, "E0209"},
       {"plugins inspect ./nowhere.so", 2, "E0420"},
       {"plugins check nobody", 2, "E0401"},
       {"plan configs/ddp_cpu.toml --set distributed.strategy=nobody", 2,
        "help: a plugin of your own: plugins.load = ["},
       {"config explain nothing.at.all", 2, "E0101"},
       {"validate configs/ddp_cpu.toml", 0, "ok"},
       {"plugins list", 0, "moe_ep"},
       {"env", 0, "torch folder"},
       {"cmake-dir", 0, MESHWRIGHT_BUILD_DIR},
       {"--version", 0, "meshwright 0."}});
}

TEST_CASE(
    "paths that are relative to a configuration in another folder: the error names what was tried "
    "and a setting that works") {
  fs::path jobs =
      fs::canonical(fs::temp_directory_path()) / ("meshwright_jobs_" + std::to_string(::getpid()));
  fs::create_directories(jobs);
  fs::copy_file(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json", jobs / "model.json",
                fs::copy_options::overwrite_existing);
  std::ofstream(jobs / "some.words") << std::string(5000, 'x');
  std::string file = (jobs / "a.toml").string();
  std::ofstream(file)
      << "[model]\nconfig = \"model.json\"\n[dataset]\npath = \"*.words\"\nseq_len = 32\n"
         "[step_scheduler]\nmax_steps = 1\nglobal_batch_size = 4\nlocal_batch_size = 2\n";
  auto setting = [](const std::string& out,
                    const std::string& key) {  // the one that the help tells
    size_t at = out.find("it lies beside the configuration: set " + key + " = ");
    REQUIRE(at != std::string::npos);
    at = out.find(key, at);
    std::string line = out.substr(at, out.find('\n', at) - at);
    return " --set '" + line + "'";
  };
  Ran ran = run("plan '" + file + "' --world-size 2", "2>&1");
  INFO(ran.out);
  CHECK(ran.status == 2);
  CHECK(ran.says("E0209"));
  CHECK(ran.says("tried " MESHWRIGHT_SOURCE_DIR
                 "/model.json: relative paths start at the current folder"));
  std::string model = setting(ran.out, "model.config");
  CHECK(run("plan '" + file + "' --world-size 2" + model).status == 0);
  std::string train =
      "train '" + file + "'" + model + " --set run.dir='" + (jobs / "runs").string() + "'";
  ran = run(train, "2>&1");
  CHECK(ran.status == 7);
  CHECK(ran.says("E0701"));
  CHECK(run(train + setting(ran.out, "dataset.path")).status == 0);
  fs::remove_all(jobs);
}

TEST_CASE("every read-only verb prints JSON that parses") {
  for (const char* arguments :
       {"plan configs/ddp_cpu.toml --world-size 4 --json", "validate configs/ddp_cpu.toml --json",
        "config show configs/ddp_cpu.toml --json", "config schema",
        "config explain optimizer --json", "config explain E0301 --json", "plugins list --json",
        "plugins inspect fsdp2 --json", "env --json"}) {
    std::string name = arguments;
    CAPTURE(name);
    Ran ran = run(arguments);
    CHECK(ran.status == 0);
    CHECK_NOTHROW(json::parse(ran.out));
  }
}

TEST_CASE("every shipped configuration plans on 32 ranks, and is valid") {
  int count = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    std::string name = "configs/" + entry.path().filename().string();
    CAPTURE(name);
    Ran ran = run("plan " + name + " --world-size 32 --set step_scheduler.global_batch_size=3840",
                  "2>&1");
    INFO(ran.out);
    CHECK(ran.status == 0);
    CHECK(ran.says("Memory"));
    CHECK_FALSE(ran.says("this plan cannot be trained"));
    CHECK(run("validate " + name).status == 0);
  }
  CHECK(count >= 7);
}

TEST_CASE("the conformance kit catches what is wrong, a crash and a hang included") {
  const std::string fixtures = MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_";
  struct Row {
    const char *fixture, *about, *says;
  };
  // That what is right passes every case: the tests conformance_ddp, conformance_fsdp2, ...
  for (const Row& row : {Row{"throws_foreign", "mesh", "left plan_mesh"},
                         Row{"aborts_in_validate", "validate", "ended by signal 6"},
                         Row{"hangs", "mesh", "was killed"}, Row{"wrong_mesh", "mesh", "FAIL"},
                         Row{"create_fails", "lifecycle", "no licence on this machine"}}) {
    std::string name = row.fixture;
    CAPTURE(name);
    Ran ran = run("plugins check " + fixtures + name + ".so --timeout 2 --case " + row.about);
    INFO(ran.out);
    CHECK(ran.status == 2);
    CHECK(ran.says(row.says));
    CHECK_FALSE(ran.says(" 0 failed"));
  }
}

TEST_CASE("plugins check tries what --set says of a strategy's own table, and refuses the rest") {
  const std::string check = "plugins check ddp --case parallelize --set ";
  const Ran set = run(check + "distributed.ddp.backend=gloo");
  INFO(set.out);
  CHECK(set.status == 0);
  // Of all that it says this alone differs: one choice less is left to be tried.
  CHECK(set.out != run("plugins check ddp --case parallelize").out);
  const Ran other = run(check + "optimizer.lr=1", "2>&1"),
            unknown = run(check + "distributed.ddp.reshard=1", "2>&1");
  CHECK(other.status == 2);
  CHECK(other.says("--set optimizer.lr=1 changes nothing that is checked here"));
  CHECK(unknown.status == 2);
  CHECK(unknown.says("error[E0202]"));
}

TEST_CASE(
    "output that cannot be written is noticed, a reader that goes away is not an error message") {
  CHECK(run("plugins list", ">/dev/full 2>&1").status == 1);
  Ran piped = run("plan configs/hsdp_tp.toml --world-size 8", "2>&1 | head -1");
  CHECK_FALSE(piped.says("error"));
  // The exit status of a reader that went away is that of its signal, as of other programs.
  int no_reader[2];
  REQUIRE(::pipe(no_reader) == 0);
  ::close(no_reader[0]);
  CHECK(run("plan configs/hsdp_tp.toml --world-size 8",
            "2>/dev/null >&" + std::to_string(no_reader[1]))
            .status == 128 + SIGPIPE);
  ::close(no_reader[1]);
  // What is only said beside the result may get lost.
  Ran unheard = run("plan configs/moe_ep.toml --world-size 32 --json", "2>/dev/full");
  CHECK(unheard.status == 0);
  CHECK_NOTHROW(json::parse(unheard.out));
  CHECK(run("plan configs/ddp_cpu.toml --set a.b=1", "2>&-").status == 2);
  CHECK(run("plan configs/ddp_cpu.toml", "2>&1", "WORLD_SIZE=abc").says("WORLD_SIZE"));
  CHECK(run("plan configs/ddp_cpu.toml", "2>&1", "WORLD_SIZE=4").status == 0);
}
