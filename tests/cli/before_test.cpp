// What train finds wrong before a rank starts, and validate says beforehand, as a user meets it.
#include <utility>

#include "ran.h"
#include "tests/contents.h"

namespace before_test {

namespace {

const std::string kJob =
    "configs/first_fsdp2_cpu.toml --set step_scheduler.max_steps=1 --set "
    "lr_scheduler.lr_warmup_steps=1 ";

// A safetensors file of that header, with so many bytes of data.
std::string weights_of(const std::string& header, size_t data) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + std::string(data, '\0');
}

}  // namespace

TEST_CASE("a path that starts beside the file, not here, gets the same help from every verb") {
  Folder folder;
  folder.put("models/beside.json",
             contents(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json"));
  const std::string job = folder.put("job.toml",
                                     "schema = 1\n[model]\nconfig = \"models/beside.json\"\n"
                                     "[step_scheduler]\nmax_steps = 1\n"
                                     "[dataset]\nkind = \"mock\"\n");
  for (const char* verb : {"validate ", "train ", "plan ", "doctor "})
    check_said(verb, {{job, 2, "it lies beside the configuration: set model.config = \""}});
}

TEST_CASE("weights, checkpoints and a folder that train would not take are refused by validate") {
  Folder folder;
  const std::string model = (folder.path / "model").string(),
                    run_dir = (folder.path / "r").string();
  fs::create_directories(model);
  fs::copy_file(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json", model + "/config.json");
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    index =
                        R"({"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})";
  struct Row {
    std::vector<std::pair<std::string, std::string>> files;
    std::string sets, part;
    bool doctor = true;
  };
  const std::string of_model = "--set model.config=none --set model.pretrained=" + model;
  for (const Row& row : std::vector<Row>{
           {{}, of_model, "has neither model.safetensors nor"},
           {{{"model.safetensors", weights_of(one, 4)}}, of_model, "model.safetensors: byte 8"},
           {{{"model.safetensors", weights_of(one, 8)}}, of_model, "has no tensor \"model.embed"},
           {{{"model.safetensors",
              weights_of(R"({"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", 8)}},
            of_model,
            "quantized weights are not read"},
           {{{"model.safetensors.index.json", index}, {"model-1.safetensors", weights_of(one, 8)}},
            of_model,
            "names model-2.safetensors, which is not there"},
           {{{"model.safetensors.index.json", index},
             {"model-1.safetensors", weights_of(one, 8)},
             {"model-2.safetensors", weights_of(one, 8)}},
            of_model,
            "says that tensor \"b\" is here, and it is not"},
           {{}, "--set checkpoint.resume=" + model, "error[E0712]"},
           {{}, "--set run.name=" + std::string(300, 'x'), "File name too long", false},
           {{}, "--set run.dir=/proc/none", "cannot make /proc/none/first", false},
           {{}, "--set run.dir=/dev/null/runs", "Not a directory", false},
       }) {
    CAPTURE(row.part);
    for (const auto& [name, bytes] : row.files) folder.put("model/" + name, bytes);
    for (const std::string verb : {"validate ", "train ", "doctor "}) {
      if (verb == "doctor " && !row.doctor) continue;
      check_said(verb + kJob,
                 {{"--set run.dir=" + run_dir + " " + row.sets, 7, row.part, "help: "}});
      CHECK(!fs::exists(run_dir));
    }
    for (const auto& [name, bytes] : row.files) fs::remove(folder.path / "model" / name);
  }
}

TEST_CASE(
    "data that the model cannot learn from is refused by validate and by train, before a rank "
    "starts") {
  Folder folder;
  std::string tokens(4096, '\0'), ids(4096, '\1');
  tokens[3001] = '\1';  // the token at byte 3000 is 256, the first one outside of the vocabulary
  folder.put("pretrained/config.json",
             contents(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json"));
  folder.put("pretrained/tokenizer.json", "{}");
  const std::string of_tokens =
                        "dataset.kind=tokens --set dataset.dtype=uint16 --set dataset.path=",
                    of_model = " --set model.config=none --set model.pretrained=" +
                               (folder.path / "pretrained").string(),
                    of_rows = "dataset.kind=text --set dataset.path=configs/chats/chats.jsonl";
  const std::vector<Said> rows{
      {of_tokens + folder.put("odd.bin", tokens), 7, "E0702",
       "odd.bin: the token at byte 3000 is 256"},
      {of_tokens + folder.put("t.npy", std::string("\x93NUMPY\x01\x00\x03\x00{}\n", 13) + ids), 7,
       "E0701", "this is a .npy file"},
      {"dataset.kind=text --set dataset.path=" + (folder.path / "none*.txt").string(), 7, "E0701",
       "no file with contents"},
      // The tokenizer beside the model is the text's.
      {"dataset.kind=text --set dataset.path=README.md" + of_model, 7, "E0706", "tokenizer.json"},
      {of_rows + " --set dataset.tokenizer=configs/models/chat-tiny", 7, "E0701",
       "chats.jsonl:1: the row has no string \"text\"", "set dataset.plugin = \"jsonl\"",
       "help: "}};
  for (const std::string& verb :
       {std::string("validate "), "train --nproc 2 --set run.dir=" + folder.path.string() + " "})
    check_said(verb + kJob + "--set ", rows);
  CHECK(!fs::exists(folder.path / "first"));  // nothing was started
  CHECK(run("validate " + kJob + "--set " + of_tokens +
            folder.put("good.bin", std::string(4096, '\0')))
            .status == 0);
}

TEST_CASE(
    "a job that this host cannot hold is refused before a rank is killed, and validate says what "
    "one rank needs") {
  Folder folder;
  std::string model = folder.put(
      "huge.json",
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 16384, "num_hidden_layers": 400, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 256,
    "max_position_embeddings": 128})");
  Ran ran = run("train --nproc 2 --set run.dir=" + folder.path.string() + " " + kJob +
                    "--set dist_env.device=cpu --set step_scheduler.local_batch_size=1 --set "
                    "step_scheduler.global_batch_size=1024 "
                    "--set distributed.activation_checkpointing=full "
                    "--set model.config=" +
                    model,
                "2>&1");
  INFO(ran.out);
  CHECK(ran.status == 3);
  CHECK(ran.says("E0319"));
  CHECK(ran.says("the 2 ranks of this host would keep"));
  CHECK(ran.says("times as many hosts like this one"));
  CHECK(!fs::exists(folder.path / "first"));
  Ran checked =
      run("validate " + kJob + "--set dist_env.device=cpu --set model.config=" + model, "2>&1");
  INFO(checked.out);
  CHECK(checked.status == 0);
  CHECK(
      checked.says("warning: one rank alone does not fit into this host: the 1 rank of this "
                   "host would keep"));
}

TEST_CASE(
    "validate says when the schedule cannot do what it says, or samples reach behind the model's "
    "positions") {
  const std::string job = "validate configs/first_fsdp2_cpu.toml --set optimizer.lr=1e-5";
  check_said(job, {{" --set lr_scheduler.min_lr=1e-5 --set lr_scheduler.lr_warmup_steps=30 --set "
                    "dataset.seq_len=100000",
                    0, "never changes", "lr_warmup_steps = 30 is longer than the run",
                    "dataset.seq_len = 100000 is above"},
                   {" --set lr_scheduler.min_lr=3e-5", 2,
                    "lr_scheduler.min_lr = 3e-05 is above optimizer.lr = 1e-05"}});
  CHECK_FALSE(run(job, "2>&1").says("warning"));
}

}  // namespace before_test
