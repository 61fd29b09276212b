// quickstart: writes a small job on a text into the current folder, and trains it as train does.
#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "apps/cli/common.h"
#include "apps/cli/job_file.h"
#include "apps/observe/report/run_record.h"
#include "engine/launch/spawn.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 200;
constexpr size_t kFewestBytes = 4096, kMostBytes = size_t{4} << 20;

// The job in `folder`, with that many samples a step and steps.
std::string quickstart_job(const std::string& folder, int64_t batch, int64_t steps) {
  const std::vector<JobLine> lines = {
      {"run", "dir", quoted_toml(folder)},
      {"run", "name", "\"run\""},
      {"model", "config", quoted_toml(folder + "/model.json")},
      {"dist_env", "device", "\"auto\"", "an NVIDIA device, where there is one"},
      {"distributed", "strategy", "\"fsdp2\"",
       "or: --set distributed.strategy=ddp --set run.name=ddp"},
      {"distributed.mp_policy", "param_dtype", "\"float32\"",
       "\"bfloat16\" is faster on devices, and slower on CPUs"},
      {"distributed.mp_policy", "output_dtype", "\"float32\""},
      {"step_scheduler", "global_batch_size", std::to_string(batch)},
      {"step_scheduler", "local_batch_size", "8"},
      {"step_scheduler", "max_steps", std::to_string(steps)},
      {"optimizer", "lr", "3e-3"},
      {"lr_scheduler", "lr_warmup_steps", std::to_string(steps / 10)},
      {"lr_scheduler", "min_lr", "3e-4"},
      {"dataset", "kind", "\"text\""},
      {"dataset", "path", quoted_toml(folder + "/text.txt"),
       "or files of your own: a file, a folder or a pattern"},
      {"dataset", "seq_len", "128"},
      {"validation_dataset", "kind", "\"text\""},
      {"validation_dataset", "path", quoted_toml(folder + "/held_out.txt"),
       "the last tenth of the text, which it does not learn from"},
      {"validation_dataset", "seq_len", "128"},
      {"validation_dataset", "every_steps", "50"},
      {"validation_dataset", "num_batches", "4"}};
  return job_text(
      "# A small Llama that learns a text byte by byte. meshwright quickstart wrote it; change "
      "what "
      "you like:\n# `meshwright config explain` says what may stand here.\n",
      lines);
}

// 0.7 million parameters: with them 200 steps teach words within seconds, on two cores.
constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 128,
 "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
 "max_position_embeddings": 1024, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": false}
)";

// What a file, a pattern or a folder holds, less hidden files and those that are no text.
std::string read_text(Call& call, const std::string& place) try {
  std::string out;
  bool binary = false;
  for (const std::string& file : base::list_files(place, "TEXT", "")) {
    if (file.find("/.", place.size() - 1) != std::string::npos) continue;
    const base::MappedFile mapped(file, ErrorCode::bad_dataset);
    const size_t all = mapped.bytes().size(), take = std::min(all, kMostBytes - out.size());
    const std::string_view bytes(reinterpret_cast<const char*>(mapped.bytes().data()), take);
    if (bytes.find('\0') != bytes.npos) {
      binary = true;
      continue;
    }
    out += bytes;
    if (take == all) continue;
    call.notice("of " + place + " the first 4 MiB are taken");
    break;
  }
  if (out.empty() && binary)
    throw Error(ErrorCode::bad_dataset,
                place + " is no text: it holds zero bytes, as pictures and archives do");
  if (out.size() < kFewestBytes)
    throw Error(ErrorCode::bad_dataset,
                place + " has " + text::counted(static_cast<int64_t>(out.size()), "byte") +
                    " of text, and " + text::grouped(kFewestBytes) + " are the least to learn from")
        .help("name a larger file, or a folder of texts");
  return out;
} catch (Error& error) {
  error.help("without TEXT it takes one that ships with the program: meshwright quickstart");
  throw;
}

constexpr const char* kElsewhere =
    "start it in a folder that you may write to, on a disk with room";

// Empty, and nobody else's: another quickstart that starts here at the same time takes the next
// name.
fs::path new_folder() {
  fs::path folder = "quickstart";
  std::error_code failed;
  for (int number = 2; !fs::create_directory(folder, failed); ++number) {
    if (failed && failed != std::errc::file_exists)
      throw Error(ErrorCode::output_unwritable,
                  folder.string() + ": the folder cannot be made: " + failed.message())
          .help(kElsewhere);
    folder = "quickstart_" + std::to_string(number);
  }
  return folder;
}

// Writes the job and its data, all or nothing; the folder.
fs::path write_job(const std::string& text, int64_t nproc, int64_t steps) {
  const fs::path folder = new_folder();
  // Not within a line, where there are lines.
  const size_t tenth = text.size() - text.size() / 10, line = text.rfind('\n', tenth),
               cut = line != text.npos && line > text.size() / 2 ? line + 1 : tenth;
  const fs::path beside = "." + folder.string() + ".tmp";
  base::remove_tree(beside);
  try {
    base::make_folder(beside);
    base::write_durably(beside / "job.toml",
                        quickstart_job(folder.string(), 8 * std::max<int64_t>(2, nproc), steps));
    base::write_durably(beside / "model.json", kModel);
    base::write_durably(beside / "text.txt", text.substr(0, cut));
    base::write_durably(beside / "held_out.txt", text.substr(cut));
    base::rename_durably(beside, folder);
  } catch (Error& error) {
    base::remove_tree(beside);
    base::remove_tree(folder);
    if (error.code() == ErrorCode::output_unwritable) error.help(kElsewhere);
    throw;
  }
  return folder;
}

// Takes the folder away again where nothing was trained.
struct Unused {
  fs::path folder;
  ~Unused() {
    std::error_code failed;
    if (!fs::exists(folder / "run/metrics.jsonl", failed)) base::remove_tree(folder);
  }
};

// What the losses did, and commands that work from here.
void say_what_next(Call& call, const std::string& program, const fs::path& folder,
                   const std::string& train, const std::string& prompt, int64_t steps) {
  std::vector<std::string> problems;
  const runs::Metrics metrics = runs::read_metrics(folder / "run/metrics.jsonl", problems);
  const std::vector<double>& loss = metrics.of(runs::Quantity::loss).values;
  const std::vector<double>& held_out = metrics.of(runs::Quantity::validation_loss).values;
  if (!loss.empty() && !held_out.empty())
    call.out.write(
        text::format("loss: %.2f at the first step, %.2f at the last, %.2f on the tenth "
                     "of the text that it has not seen\n",
                     loss.front(), loss.back(), held_out.back()));
  const std::string at = folder.string();
  call.out.write("\nTry next, from this folder:\n");
  for (const auto& [what, command] : std::vector<std::pair<std::string, std::string>>{
           {"more of its text", " generate " + at + "/run --prompt '" + prompt + "' --max-new 400"},
           {"train on from here",
            train + " --set step_scheduler.max_steps=" + std::to_string(2 * steps)},
           {"the same losses under another strategy",
            train + " --set distributed.strategy=ddp --set run.name=ddp"},
           {"its curves as a page", " report " + at + "/run --output " + at + "/report.html"},
           {"the same job laid out on 64 GPUs",
            " plan " + at +
                "/job.toml --world-size 64 --machine h100x8 --set "
                "step_scheduler.global_batch_size=512"}})
    call.out.write("  # " + what + "\n  " + program + command + "\n");
  call.out.write("The job is " + at + "/job.toml: change it.");
  try {
    call.out.write(" The guide is " +
                   shipped("doc/meshwright/docs/guide.md", "docs/guide.md").string());
  } catch (const Error&) {  // images of Debian leave documents out
  }
  call.out.write("\n");
}

int run_quickstart(Call& call) {
  if (launch::detect_ranks(launch::process_environment()))
    throw Error(ErrorCode::usage, "quickstart starts its ranks itself, but a launcher started it")
        .help("start it once, without torchrun, srun or mpirun")
        .help("unset RANK, WORLD_SIZE and the launcher's other variables");
  const int64_t steps = call.number("steps", 10).value_or(kSteps);
  const bool ours = call.positionals.empty();
  const std::string prompt = ours ? "Alice " : "The ";
  const std::string text = read_text(
      call, ours ? shipped("meshwright/configs/texts/alice.txt", "configs/texts/alice.txt")
                 : fs::path(call.positional(0)));
  const bool alone = launch::driver_lists_devices() || std::thread::hardware_concurrency() < 2;
  const int64_t ranks = call.number("nproc", 1).value_or(alone ? 1 : 2);
  const std::string nproc = std::to_string(ranks);

  const std::string program = called_as();
  const fs::path folder = write_job(text, ranks, steps);
  const Unused unused{folder};
  const std::string job = (folder / "job.toml").string(),
                    train = " train " + job + " --nproc " + nproc;
  call.notice("wrote " + job + "; now " + program + train);
  Call training{.flags = {{"nproc", {nproc}}, {"sample", {"300"}}, {"prompt", {prompt}}},
                .positionals = {job},
                .command = program + train,
                .out = call.out,
                .err = call.err,
                .out_style = call.out_style,
                .err_style = call.err_style};
  const int status = train_verb().run(training);
  if (status == 0) say_what_next(call, program, folder, train, prompt, steps);
  return status;
}

}  // namespace

Verb quickstart_verb() {
  return declare(run_quickstart, R"(
quickstart [TEXT]
Train a first small model in seconds, on a text that comes with the program or on yours

Writes a job with its model and data to the folder quickstart (quickstart_2 where that is there
already), trains it on this machine, lets the model write some lines, and says what to try next.
TEXT is a file, a folder or a pattern; its first 4 MiB are taken. Without it the text is the first
chapters of Alice's Adventures in Wonderland.

  meshwright quickstart
  meshwright quickstart notes/

--nproc N  Start N local ranks. Default: 1 where there is an NVIDIA device or one core, else 2.
--steps N  Train N steps. Default: 200.
)");
}

}  // namespace meshwright::cli
