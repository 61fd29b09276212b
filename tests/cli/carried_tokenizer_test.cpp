// A tokenizer that lies beside model.config: every checkpoint that is kept has it, and so has the
// exported folder.
#include "ran.h"
#include "tests/contents.h"

namespace carried_tokenizer_test {

namespace {

struct Job : Folder {
  Job() {
    std::string config = contents(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json");
    size_t at = config.find("\"vocab_size\":");
    REQUIRE(at != std::string::npos);
    config.replace(at, config.find_first_of(",\n", at) - at, "\"vocab_size\": 1300");
    put("model/config.json", config);
    put("model/tokenizer.json",
        contents(MESHWRIGHT_SOURCE_DIR "/tests/data/tokenizers/qwen2.json"));
    put("model/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
    put("model/generation_config.json", R"({"eos_token_id": 1202})");
    put("model/notes.txt", "nobody's business");
    put("model/runs/old/big.txt", "of another run");
  }

  std::string train(const std::string& name, int steps, const std::string& more) const {
    Ran ran = run("train configs/first_fsdp2_cpu.toml --nproc 1 --set run.name=" + name +
                      " --set 'run.dir=" + (path / "runs").string() +
                      "' --set 'model.config=" + (path / "model/config.json").string() +
                      "' --set dataset.seq_len=16 --set step_scheduler.local_batch_size=2 --set "
                      "step_scheduler.global_batch_size=2"
                      " --set lr_scheduler.lr_warmup_steps=1 --set checkpoint.every_steps=1 --set "
                      "checkpoint.keep=1 --set checkpoint.export=final"
                      " --set step_scheduler.max_steps=" +
                      std::to_string(steps) + " " + more,
                  "2>&1");
    INFO(ran.out);
    REQUIRE(ran.status == 0);
    return ran.out;
  }
};

}  // namespace

TEST_CASE(
    "a tokenizer beside model.config is in every checkpoint that is kept, also after a resume "
    "without the original, and generate uses it") {
  const Job folder;
  folder.train("words", 3, "--set dataset.kind=mock");
  fs::path run_folder = folder.path / "runs/words", kept = run_folder / "checkpoints/step_00000003";
  CHECK_FALSE(fs::exists(run_folder / "checkpoints/step_00000002"));  // pruned
  const std::string tokenizer = contents(folder.path / "model/tokenizer.json");
  REQUIRE(!tokenizer.empty());
  CHECK(contents(kept / "source/tokenizer.json") == tokenizer);
  CHECK(contents(kept / "source/generation_config.json") == "{\"eos_token_id\": 1202}");
  CHECK(contents(run_folder / "hf/tokenizer.json") == tokenizer);
  CHECK(fs::exists(run_folder / "hf/tokenizer_config.json"));
  CHECK_FALSE(fs::exists(kept / "source/notes.txt"));
  CHECK_FALSE(fs::exists(kept / "source/runs"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    fs::remove(folder.path / "model" / name);
  folder.train("words", 5, "--set dataset.kind=mock");
  kept = run_folder / "checkpoints/step_00000005";
  CHECK(contents(kept / "source/tokenizer.json") == tokenizer);
  CHECK(contents(run_folder / "hf/tokenizer.json") == tokenizer);
  for (const fs::path& from : {run_folder, kept, run_folder / "hf"}) {
    Ran said =
        run("generate '" + from.string() + "' --prompt 'The quick brown fox' --max-new 3", "2>&1");
    INFO(said.out);
    CHECK(said.status == 0);
  }
}

TEST_CASE("a run on texts reads them with the tokenizer beside its config, and keeps it") {
  const Job folder;
  folder.train("text", 1, "--set dataset.kind=text --set dataset.path=README.md");
  CHECK(contents(folder.path / "runs/text/checkpoints/step_00000001/source/tokenizer.json") ==
        contents(folder.path / "model/tokenizer.json"));
  check_said("generate " + folder.quoted("runs/text"),
             {{" --prompt 'The quick' --max-new 1", 0, ""}});
}

TEST_CASE("a run on the bytes of texts has no use for a tokenizer beside its config, and says so") {
  const Job folder;
  const std::string bytes =
      "--set dataset.kind=text --set dataset.path=README.md --set dataset.tokenizer=bytes";
  const std::string said = folder.train("bytes", 1, bytes);
  CHECK(said.find(
            "model/config.json is not carried along: dataset.kind = \"text\" trains on bytes") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(folder.path / "runs/bytes/checkpoints/step_00000001/source"));
  check_said("validate configs/first_fsdp2_cpu.toml " + bytes,
             {{" --set model.config=" + folder.quoted("model/config.json"), 0,
               "model/config.json is not carried along: dataset.kind = \"text\" trains on bytes"}});
  check_said("generate " + folder.quoted("runs/bytes"),
             {{" --prompt 'The quick'", 2, "--tokens 84,104,101,32,113,117,105,99,107\n"}});
}

}  // namespace carried_tokenizer_test
