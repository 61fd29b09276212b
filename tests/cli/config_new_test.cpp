// config new: for each purpose a file that validates and trains as it is, and one that says what is
// still to be filled in where something is missing.
#include <algorithm>

#include "ran.h"

namespace config_new_test {

const std::string kSource = MESHWRIGHT_SOURCE_DIR "/";

Ran start(const fs::path& folder, const std::string& arguments) {
  return shell("cd " + quoted(folder) +
               " && env -u WORLD_SIZE -u RANK NO_COLOR=1 COLUMNS=400 OMP_NUM_THREADS=1 "
               "'" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " +
               arguments + " 2>&1 </dev/null");
}

std::string read(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Writes, validates and trains; the output of the last command. `shorter`: of the run's length
// alone.
std::string made_and_trained(const fs::path& folder, const std::string& purpose,
                             const std::string& places, const std::string& shorter) {
  const std::string file = purpose + ".toml";
  const Ran made = start(folder, "config new --" + purpose + " " + places + " --out " + file);
  INFO(made.out);
  REQUIRE(made.status == 0);
  CHECK(made.says("wrote " + file));
  CHECK(made.says("validate " + file));
  CHECK(!made.says("Fill in first"));
  CHECK(read(folder / file).find("\"<") == std::string::npos);
  const Ran validated = start(folder, "validate " + file);
  INFO(validated.out);
  CHECK(validated.status == 0);
  CHECK(!validated.says("warning"));
  // The command that it told, so that sizes fit the ranks.
  const size_t at = made.out.find(" train " + file);
  REQUIRE(at != std::string::npos);
  const std::string command = made.out.substr(at + 1, made.out.find('\n', at) - at - 1);
  const Ran trained =
      start(folder, command + " --set step_scheduler." + shorter + " --set dist_env.device=cpu");
  INFO(trained.out);
  CHECK(trained.status == 0);
  return trained.out;
}

TEST_CASE("a vocabulary that is smaller than the tokenizer's is told") {
  const Folder folder;
  folder.put("texts/a.txt", "a text");
  const std::string tiny = kSource + "configs/models/chat-tiny";
  const Ran fits = start(folder.path, "config new --pretrain " + tiny + " texts --out fits.toml");
  INFO(fits.out);
  CHECK(fits.status == 0);
  CHECK(!fits.says("notice"));
  folder.put("small/config.json",
             R"({"model_type": "llama", "hidden_size": 16, "vocab_size": 100})");
  const Ran bytes = start(folder.path, "config new --pretrain small texts --out bytes.toml");
  INFO(bytes.out);
  CHECK(
      bytes.says("notice: texts without a tokenizer are bytes, with ids up to 255, but the "
                 "vocab_size of small/config.json is 100: set that to 256"));
  fs::copy_file(tiny + "/tokenizer.json", folder.path / "small/tokenizer.json");
  const Ran small = start(folder.path, "config new --pretrain small texts --out small.toml");
  INFO(small.out);
  CHECK(small.status == 0);
  CHECK(
      small.says("notice: small/tokenizer.json has ids up to 258, but the vocab_size of "
                 "small/config.json is 100: set that to 259"));
}

TEST_CASE("each purpose gets a file that validates and trains as it is") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i * i % 997) + " of a text\n";
  folder.put("texts/a.txt", text);
  made_and_trained(folder.path, "pretrain", kSource + "configs/models/chat-tiny texts",
                   "max_steps=2");
  // What it exported is a model with weights, which the others begin with.
  fs::path model;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path / "runs"))
    if (entry.path().filename() == "config.json" &&
        fs::exists(entry.path().parent_path() / "model.safetensors"))
      model = entry.path().parent_path();
  REQUIRE(!model.empty());
  // A model of bytes has no tokenizer: that is told.
  if (!fs::exists(model / "tokenizer.json")) {
    const Ran made = start(folder.path, "config new --sft " + model.string() + " --out gap.toml");
    CHECK(made.says("tokenizer = \"<folder with tokenizer.json>\""));
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    fs::copy_file(kSource + "configs/models/chat-tiny/" + name, model / name,
                  fs::copy_options::skip_existing);
  const std::string places = model.string() + " " + kSource + "configs/chats/chats.jsonl";
  made_and_trained(folder.path, "sft", places, "epochs=1");
  made_and_trained(folder.path, "lora", places, "epochs=1");
  CHECK(std::ranges::any_of(
      fs::recursive_directory_iterator(folder.path / "runs"),
      [](const auto& entry) { return entry.path().filename() == "adapter_model.safetensors"; }));
  made_and_trained(folder.path, "moe", kSource + "examples/recipes/experts/model.json texts",
                   "max_steps=2");
  // Each setting is told why, and what is no key is no line.
  for (const char* purpose : {"pretrain", "sft", "lora", "moe"}) {
    const std::string job = read(folder.path / (std::string(purpose) + ".toml"));
    for (const char* key : {"\nlr = ", "\nglobal_batch_size = ", "\nlr_warmup_steps = ",
                            "\nmax_grad_norm = ", "\nbetas = ", "\nweight_decay = "}) {
      const size_t at = job.find(key);
      REQUIRE_MESSAGE(at != std::string::npos, purpose, key);
      const std::string line = job.substr(at + 1, job.find('\n', at + 1) - at - 1);
      CHECK_MESSAGE(line.find("  # ") != std::string::npos, line);
    }
  }
}

TEST_CASE("what is not known is marked, told with its line, and told again by validate") {
  for (const std::string purpose : {"pretrain", "sft", "lora", "moe"}) {
    const Folder folder;
    const Ran made = start(folder.path, "config new --" + purpose);
    INFO(made.out);
    REQUIRE(made.status == 0);
    CHECK(made.says("Fill in first"));
    const std::string job = read(folder.path / "job.toml");
    int line = 1, gaps = 0;
    for (size_t at = 0; at < job.size(); ++at) {
      if (job.compare(at, 5, " = \"<") == 0) {
        ++gaps;
        CHECK(made.says("job.toml:" + std::to_string(line) + "  "));
      }
      line += job[at] == '\n';
    }
    CHECK(gaps == 2);
    const Ran refused = start(folder.path, "validate job.toml");
    INFO(refused.out);
    CHECK(refused.status != 0);
    CHECK(refused.says("<folder of a Hugging Face model>"));
    CHECK(refused.says("job.toml:"));
  }
}

TEST_CASE("what config new cannot write is refused, and nothing is left or overwritten") {
  const Folder folder;
  folder.put("there.toml", "mine");
  folder.put("a.txt", "some text");
  const std::string tiny = kSource + "configs/models/chat-tiny";
  struct Row {
    std::string arguments;
    int status;
    const char* part;
  };
  for (const Row& row : {Row{"", 2, "wants what the job is for"},
                         {"--sft --lora", 2, "one purpose"},
                         {"--pretrain --out there.toml", 2, "there.toml is already there"},
                         {"--pretrain --out ''", 2, "--out wants"},
                         {"--pretrain nowhere", 2, "nowhere"},
                         {"--pretrain a.txt a.txt", 2, "there are data already"},
                         {"--sft " + tiny, 2, "no weights to begin with"},
                         {"--lora a.txt", 2, "holds no rows"},
                         {"--moe " + tiny, 2, "a model without experts"}}) {
    const Ran ran = start(folder.path, "config new " + row.arguments);
    INFO(row.arguments, "\n", ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.says(row.part));
    CHECK(ran.says("help: "));
    CHECK(!fs::exists(folder.path / "job.toml"));
  }
  CHECK(read(folder.path / "there.toml") == "mine");
}

}  // namespace config_new_test
