// checkpoint ls, verify, export and diff on checkpoints of real runs, and on what is none.
#include "ran.h"
#include "tests/contents.h"

namespace checkpoint_test {

namespace {

// Two runs of a model that starts from a Hugging Face folder with a tokenizer: nothing learned, and
// three steps on another layout.
struct Runs : Folder {
  fs::path model = path / "model";
  Runs() {
    for (const char* name : {"config.json", "model.safetensors"})
      put(model / name, contents(fs::path(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/llama") / name));
    put(model / "tokenizer.json", "{\"not\": \"read here\"}");
    put(model / "LICENSE", "free");
    put(model / "pytorch_model.bin", "pickle");
    train("unchanged", "fsdp2", 2, 0);
    train("moved", "ddp", 1, 3);
  }
  fs::path at(const char* run, const char* step) const {
    return path / "runs" / run / "checkpoints" / step;
  }
  void train(const std::string& name, const std::string& strategy, int ranks, int steps,
             const std::string& more = "") const {
    Ran ran = run("train configs/" +
                      std::string(strategy == "ddp" ? "ddp_cpu.toml" : "first_fsdp2_cpu.toml") +
                      " --nproc " + std::to_string(ranks) + " --set run.name=" + name +
                      " --set 'run.dir=" + (path / "runs").string() +
                      "' --set 'model.pretrained=" + model.string() +
                      "' --set model.config=none --set dataset.kind=mock --set dataset.seq_len=16 "
                      "--set step_scheduler.local_batch_size=2"
                      " --set step_scheduler.global_batch_size=4 --set "
                      "lr_scheduler.lr_warmup_steps=1 --set checkpoint.every_steps=2"
                      " --set step_scheduler.max_steps=" +
                      std::to_string(steps) + more,
                  "2>&1");
    INFO(ran.out);
    REQUIRE(ran.status == 0);
  }
};

const Runs& runs() {
  static const Runs made;
  return made;
}

}  // namespace

TEST_CASE("checkpoint ls shows what each run has") {
  fs::path all = runs().path / "runs";
  json::array rows = answer("checkpoint ls " + quoted(all)).at("checkpoints").as_array();
  REQUIRE(rows.size() == 3);
  auto row = [&](size_t i) { return rows[i].as_object(); };
  CHECK(row(0).at("path").as_string() == runs().at("moved", "step_00000002").string());
  CHECK(row(0).at("step").as_int64() == 2);
  CHECK_FALSE(row(0).at("latest").as_bool());
  CHECK(row(1).at("step").as_int64() == 3);
  CHECK(row(1).at("latest").as_bool());
  CHECK(row(1).at("strategy").as_string() == "ddp");
  CHECK(row(2).at("step").as_int64() == 0);
  CHECK(row(2).at("world_size").as_int64() == 2);
  CHECK(row(2).at("complete").as_bool());
  CHECK(row(2).at("problem").is_null());
  CHECK(row(2).at("architecture").as_string() == "LlamaForCausalLM");
  CHECK(row(2).at("parameters").as_int64() == row(1).at("parameters").as_int64());
  Ran table = run("checkpoint ls " + quoted(all));
  CHECK(table.status == 0);
  for (const char* part : {"step", "dp_shard 2", "complete, latest", "fsdp2", "KiB"})
    CHECK_MESSAGE(table.says(part), table.out);
  Ran one = run("checkpoint ls " + quoted(all / "moved"));
  CHECK(one.status == 0);
  CHECK_FALSE(one.says("fsdp2"));
}

TEST_CASE("checkpoint verify reads every byte, and names file and bytes of damage") {
  json::array good =
      answer("checkpoint verify " + quoted(runs().path / "runs")).at("verified").as_array();
  CHECK(good.size() == 3);
  fs::path copy = runs().path / "copy";
  fs::copy(runs().at("moved", "step_00000003"), copy, fs::copy_options::recursive);
  CHECK(run("checkpoint verify " + quoted(copy)).says("every byte matches its checksum"));
  fs::path file;
  for (const auto& entry : fs::directory_iterator(copy))
    if (entry.path().filename().string().rfind("optimizer", 0) == 0) file = entry.path();
  REQUIRE(!file.empty());
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x7e');
  Ran bad = run("checkpoint verify " + quoted(copy), "2>&1");
  CHECK(bad.status == 7);
  CHECK_MESSAGE(bad.says("E0711"), bad.out);
  std::string said = answer("checkpoint verify " + quoted(copy), 7)
                         .at("error")
                         .as_object()
                         .at("message")
                         .as_string()
                         .c_str();
  CHECK(said.find(file.string() + ": bytes 0 to ") == 0);
  CHECK(said.find(" do not match their checksum") != std::string::npos);
  Ran listed = run("checkpoint ls " + quoted(copy));
  CHECK(listed.says("complete"));  // sizes are right
  fs::resize_file(file, 4000);
  listed = run("checkpoint ls " + quoted(copy));
  CHECK(listed.status == 0);
  CHECK(listed.says("damaged"));
  CHECK(listed.says("the file has 4000 bytes"));
  CHECK(run("checkpoint verify " + quoted(runs().model)).says("headers and index hold together"));
  fs::remove_all(copy);
}

TEST_CASE("an export of a run that learned nothing is the folder it started from") {
  fs::path out = runs().path / "out";
  json::object done = answer("checkpoint export " + quoted(runs().path / "runs/unchanged") +
                             " --out " + quoted(out));
  CHECK(done.at("source").as_string() == runs().at("unchanged", "step_00000000").string());
  CHECK(contents(out / "config.json") == contents(runs().model / "config.json"));
  CHECK(contents(out / "LICENSE") == "free");
  CHECK(contents(out / "tokenizer.json") == contents(runs().model / "tokenizer.json"));
  CHECK_FALSE(fs::exists(out / "pytorch_model.bin"));
  json::object same = answer("checkpoint diff " + quoted(out) + " " + quoted(runs().model));
  CHECK(same.at("equal").as_bool());
  CHECK(same.at("compared").as_int64() > 10);
  // Cut over two axes, it makes the same file.
  fs::path from_tp = runs().path / "out_tp";
  runs().train(
      "tp", "fsdp2", 4, 0,
      " --set distributed.tp_size=2 --set distributed.sequence_parallel=true --set 'run.dir=" +
          runs().path.string() + "'");
  answer("checkpoint export " + quoted(runs().path / "tp") + " --out " + quoted(from_tp));
  CHECK(contents(from_tp / "model.safetensors") == contents(out / "model.safetensors"));
  CHECK(contents(from_tp / "config.json") == contents(out / "config.json"));
  Ran copied =
      run("checkpoint export " + quoted(runs().model) + " --out " + quoted(runs().path / "copied"),
          "2>&1");
  CHECK(copied.status == 0);
  CHECK(copied.says("formats that may hold programs are not carried along: pytorch_model.bin"));
  CHECK(contents(runs().path / "copied" / "LICENSE") == "free");
  // Again, smaller, in shards.
  Ran half = run("checkpoint export " + quoted(runs().path / "runs/unchanged") + " --out " +
                 quoted(out) + " --dtype float16 --shard-size 10KB");
  CHECK(half.status == 0);
  CHECK(half.out.find("wrote " + out.string() + ": ") == 0);
  CHECK(fs::exists(out / "model.safetensors.index.json"));
  CHECK_FALSE(fs::exists(out / "model.safetensors"));
  CHECK(answer("checkpoint verify " + quoted(out)).at("verified").as_array().size() == 1);
  std::ofstream(out / "mine.txt") << "x";
  Ran refused =
      run("checkpoint export " + quoted(runs().path / "runs/unchanged") + " --out " + quoted(out),
          "2>&1");
  CHECK(refused.status == 7);
  CHECK(refused.says("mine.txt, which the earlier export did not write"));
  CHECK(fs::exists(out / "mine.txt"));
}

TEST_CASE("checkpoint diff counts what differs") {
  fs::path a = runs().at("unchanged", "step_00000000"), b = runs().at("moved", "step_00000003");
  CHECK(answer("checkpoint diff " + quoted(b) + " " + quoted(runs().path / "runs/moved"))
            .at("equal")
            .as_bool());
  json::object difference = answer("checkpoint diff " + quoted(a) + " " + quoted(b), 7);
  CHECK_FALSE(difference.at("equal").as_bool());
  CHECK(difference.at("only_a").as_array().empty());
  const json::array& rows = difference.at("different").as_array();
  REQUIRE(rows.size() > 5);
  double last = 1e300;
  for (const json::value& value : rows) {
    const json::object& row = value.as_object();
    CHECK(row.at("differing").as_int64() > 0);
    CHECK(row.at("max_abs").as_double() > 0);
    CHECK(row.at("relative").as_double() <= last);
    last = row.at("relative").as_double();
  }
  Ran text = run("checkpoint diff " + quoted(a) + " " + quoted(b));
  CHECK(text.status == 7);
  for (const char* part : {"relative", "model.", " tensors in both"})
    CHECK_MESSAGE(text.says(part), text.out);
}

TEST_CASE("the checkpoint verbs explain themselves and refuse what makes no sense") {
  for (const std::string verb : {"", " ls", " verify", " export", " diff"})
    check_said("checkpoint" + verb, {{" -h", 0, "meshwright checkpoint"}});
  const std::string run_folder = quoted(runs().path / "runs/moved"), model = quoted(runs().model);
  const std::string to_x = run_folder + " --out x ";
  check_said("checkpoint ",
             {{"", 2, "checkpoint ls"},
              {"list", 2, "did you mean meshwright checkpoint"},
              {"ls a b", 2, "has no use for \"b\""},
              {"ls nowhere", 7, "nowhere does not exist"},
              {"ls configs", 7, "configs holds no checkpoint"},
              {"ls README.md", 7, "README.md is not a folder"},
              {"verify", 2, "wants FOLDER"},
              {"verify nowhere", 7, "E0712"},
              {"verify ''", 7, "E0712"},
              {"export " + run_folder, 2, "wants --out"},
              {"export " + run_folder + " --out ''", 2, "wants --out"},
              {"export " + run_folder + " --out /", 7, "cannot be a folder to write to"},
              {"export " + run_folder + " --out /proc/x", 7, "E0705"},
              {"export " + run_folder + " --out configs", 7, "holds files that no export made"},
              {"export " + run_folder + " --out README.md", 7, "is not a folder"},
              {"export " + to_x + "--dtype int8", 2, "wants a floating dtype"},
              {"export " + to_x + "--dtype fp7", 2, "E0214"},
              {"export " + to_x + "--shard-size 5XB", 2, "wants a size"},
              {"export " + to_x + "--shard-size 0", 2, "wants a size"},
              {"export " + to_x + "--shard-size -1GB", 2, "wants a size"},
              {"export " + to_x + "--shard-size 1e5", 2, "wants a size"},
              {"export nowhere --out x", 7, "nowhere does not exist"},
              {"export configs --out x", 7, "holds no checkpoint"},
              {"diff " + model, 2, "wants B"},
              {"diff " + model + " nowhere", 7, "nowhere does not exist"},
              {"diff " + model + " " + run_folder, 7, "differ"}});
  CHECK_FALSE(fs::exists("x"));
}

}  // namespace checkpoint_test
