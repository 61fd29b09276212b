// generate: checks folder, prompt and plan without starting a rank, then starts the ranks, or runs
// as one of them.
#include "apps/cli/inference.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "apps/cli/common.h"
#include "apps/inference/adapter.h"
#include "apps/inference/evaluation.h"
#include "apps/inference/prompts.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/train/preflight/source.h"
#include "sdk/base/shell_word.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

namespace {

// `fits` says whether a number is one of those that the flag takes, `wanted` which those are.
template <class Fits>
double real(const Call& call, const std::string& flag, double otherwise, const Fits& fits,
            const std::string& wanted, const std::string& example) {
  if (!call.has(flag)) return otherwise;
  std::optional<double> value = call.finite(flag);
  if (!value || !fits(*value))
    throw Error(ErrorCode::usage,
                "--" + flag + " wants " + wanted + ", found \"" + call.value(flag) + "\"")
        .help("--" + flag + " " + example);
  return *value;
}

}  // namespace

generate::Ask read_sampling(const Call& call) {
  generate::Ask ask;
  ask.folder = call.positional(0);
  ask.sets = call.values("set");
  if (call.has("adapter")) ask.adapter = call.value("adapter");
  ask.merge = call.has("merge");
  if (call.has("system")) ask.system = call.value("system");
  if (call.has("chat-template")) ask.chat_template = call.value("chat-template");
  if (call.has("stop")) ask.stop = call.value("stop");
  ask.stop_texts = call.values("stop-text");
  ask.temperature = real(
      call, "temperature", ask.temperature, [](double t) { return t >= 0; },
      "a number of at least 0", "0.8, or 0 for the most likely tokens");
  ask.top_k = call.number("top-k", 0).value_or(0);
  ask.top_p = real(
      call, "top-p", 1, [](double p) { return p > 0 && p <= 1; }, "a number above 0 and at most 1",
      "0.95");
  ask.min_p = real(
      call, "min-p", 0, [](double p) { return p >= 0 && p <= 1; },
      "a number of at least 0 and at most 1", "0.05");
  ask.repetition_penalty = real(
      call, "repetition-penalty", 1, [](double p) { return p > 0; }, "a number above 0",
      "1.1, or 1 for none");
  ask.seed = static_cast<uint64_t>(call.number("seed", 0).value_or(static_cast<int64_t>(ask.seed)));
  for (const char* flag : {"temperature", "top-k", "top-p", "min-p", "repetition-penalty"})
    if (call.has(flag)) ask.given.insert(flag);
  return ask;
}

int check_folder(Call& call, const generate::Source& source, const generate::Ask& ask,
                 const Ranks& ranks, int64_t wanted) {
  generate::check_stop_texts(source, ask);
  const std::optional<generate::Adapter> adapter = generate::adapter_of(source, ask);
  const before::ReloadFor load = [&](int64_t world, const std::vector<std::string>& more,
                                     Diagnostics& problems) {
    std::vector<std::string> sets = ask.sets;
    sets.insert(sets.end(), more.begin(), more.end());
    return load_job(generate::settings(source, sets, world,
                                       adapter ? adapter->settings() : std::vector<std::string>()),
                    problems);
  };
  Diagnostics diagnostics;
  std::optional<plan::Job> job = load(ranks ? ranks->world_size : wanted, {}, diagnostics);
  if (job) plan::check_trainable(*job, diagnostics);
  if (adapter && !adapter->notice().empty()) diagnostics.notice(adapter->notice());
  call.say(diagnostics);
  if (!diagnostics.ok()) return call.fail(diagnostics.errors());
  plan::check_runs(before::plan_to_start(load, *job, ranks, wanted), *job);
  return 0;
}

namespace {

generate::Ask read_ask(const Call& call) {
  generate::Ask ask = read_sampling(call);
  if (call.has("prompt")) ask.prompt = call.value("prompt");
  if (call.has("tokens")) ask.tokens = call.value("tokens");
  if (call.has("chat")) ask.chat = call.value("chat");
  if (call.has("messages")) ask.messages = call.value("messages");
  ask.max_new = call.number("max-new", 1).value_or(ask.max_new);
  ask.json = call.json;
  if (call.has("prompts")) ask.prompts = call.value("prompts");
  if (call.has("out")) ask.out = call.value("out");
  ask.batch = call.number("batch", 1).value_or(ask.batch);
  return ask;
}

// --prompts, and what goes with it alone.
void check_files(const Call& call, const generate::Ask& ask) {
  auto wrong = [](const std::string& what) { return Error(ErrorCode::usage, what); };
  if (!ask.prompts) {
    for (const char* flag : {"out", "batch"})
      if (call.has(flag))
        throw wrong(std::string("--") + flag + " is of --prompts FILE")
            .help("--prompts prompts.jsonl --out answers.jsonl");
    return;
  }
  if (!ask.out)
    throw wrong("--prompts writes a file: --out says which").help("--out answers.jsonl");
  if (ask.json)
    throw wrong("--json, and the rows of --out are JSON already").help("leave out --json");
  std::error_code failed;
  if (std::filesystem::exists(std::filesystem::symlink_status(*ask.out, failed)))
    throw wrong("--out " + *ask.out + " is already there").help("--out another.jsonl");
  const std::filesystem::path folder = std::filesystem::path(*ask.out).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, failed))
    throw wrong("--out " + *ask.out + ": there is no folder " + folder.string())
        .help("mkdir -p " + text::shell_word(folder.string()));
  if (const std::string part = *ask.out + ".part";
      std::filesystem::exists(std::filesystem::symlink_status(part, failed)))
    throw wrong(part + " has the rows of a run that writes it, or did not come to its end")
        .help("--out another.jsonl, or rm " + text::shell_word(part));
}

int start_generate(Call& call, const Ranks& ranks) {
  const int64_t wanted = count_of_ranks(call, ranks);
  generate::Ask ask = read_ask(call);
  Screen screen = screen_of(call, started_by_us(ranks));
  ask.live = screen.live;
  ask.width = screen.width;
  ask.colour = screen.colour;
  ask.unicode = screen.unicode;
  // The parent has checked everything; when it dies, so do its ranks.
  if (started_by_us(ranks) && !launch::end_with_parent()) return 1;
  if (!started_by_us(ranks)) check_files(call, ask);
  if (!started_by_us(ranks) || ask.of_messages() || ask.prompts) {
    const generate::Source source(ask.folder, ask.sets);
    if (ask.prompts) ask.conversations = generate::read_prompts(source, ask).conversations;
    // Rows of a file that are texts go on as ever; the ranks take it for the others.
    generate::Ask of_rows = ask;
    const std::string told =
        generate::take_generation_config(source, ask.prompts ? of_rows : ask, ask.of_messages());
    if (!started_by_us(ranks)) {
      // Every rank asks, so that all of them refuse alike and at once.
      if (!ask.prompts) (void)generate::asked_of(source, ask);
      if (int status = check_folder(call, source, ask, ranks, wanted); status != 0) return status;
      if (!told.empty()) call.notice(told);
    }
  }
  if (ranks || wanted == 1) return run_rank(call, ranks, "meshwright_generate_rank", &ask);
  launch::LocalJob local =
      local_ranks(call, "generate", {"prompt",  "tokens",        "chat",    "messages",
                                     "system",  "chat-template", "stop",    "stop-text",
                                     "adapter", "merge",         "max-new", "temperature",
                                     "top-k",   "top-p",         "min-p",   "repetition-penalty",
                                     "seed",    "json",          "prompts", "out",
                                     "batch"},
                  wanted, screen);
  call.out.flush();
  return launch::run_local_ranks(local);
}

int run_generate(Call& call) { return refuse_together(call, start_generate); }

}  // namespace

Verb generate_verb() {
  return declare(run_generate, R"(
generate FOLDER
Let a model go on with a text, from a Hugging Face folder or a checkpoint

FOLDER is a Hugging Face folder (config.json, model*.safetensors), a checkpoint, or a run, whose
newest checkpoint is taken.
With --chat or --messages the folder's chat template makes the prompt, the answer alone is written,
and it ends where the template ends a turn.
Text needs a tokenizer.json in the folder, or a model of bytes (vocab_size = 256). Token ids go in
and come out of any model. The prompt and what follows appear on standard output as it is made; how long it took on standard error. Ids
are the same under every strategy and on any number of ranks.
Adapters of a folder (adapter_config.json, adapter_model.safetensors), which peft or checkpoint
export wrote, run beside the model, or join its weights. A run with adapters has its own.

  meshwright generate models/Qwen3-0.6B --prompt 'The capital of France is' --temperature 0
  meshwright generate runs/first --prompt '#include <' --max-new 400
  meshwright generate models/Qwen3-0.6B --chat 'What is the capital of Peru?'
  meshwright generate models/Qwen3-0.6B --prompts questions.jsonl --out answers.jsonl
  meshwright generate models/Qwen3-0.6B --adapter runs/lora_adapter --prompt 'The capital of Peru is'
  meshwright generate models/Llama-3.2-1B --tokens 128000,9906 --nproc 2 --set distributed.strategy=fsdp2 --json

--prompt TEXT    What to go on with.
--tokens IDS     The same as token ids with commas; ids come out too.
--chat TEXT      What to answer: a message of the user, in the form of the folder's chat template.
--messages FILE  The same for a whole conversation: a JSON list of {"role": ..., "content": ...}.
--prompts FILE   Rows of JSON Lines, each with a prompt (a text), tokens (ids) or messages.
--out FILE       With --prompts: the same rows, with the text, its ids, their logarithms of
                 probability, and why it ended.
--batch N        With --prompts: of how many rows at most a token is made at once. Default: 8.
--system TEXT    What the system says before it.
--chat-template NAME
                 A file, one of the folder's templates, or chatml. Default: the folder's.
--max-new N      At most so many new tokens. Default: 200.
--temperature T  How freely tokens are drawn; 0: the most likely ones. Default: 0.7.
--top-k K        Draw from the K most likely tokens only. Default: 0, all of them.
--top-p P        Draw from the most likely tokens that together hold P of the probability.
                 Default: 1.
--min-p P        Draw only from tokens with at least P of the likeliest one's probability.
                 Default: 0.
--repetition-penalty R
                 Above 1, tokens that the text has become less likely. Default: 1.
--seed N         The same seed gives the same tokens. Default: 42.
--stop IDS       Token ids that end the text, or none. Default: eos_token_id of the folder, and the
                 end of a turn of the chat template.
--stop-text TEXT...
                 A text that ends the answer, and is not written. Repeatable.
--adapter DIR    A folder of low-rank adapters, which run beside the model.
--merge          With --adapter: they are added to the weights first, which are rounded once.
--nproc N        Start N local ranks. Default: 1, in this process.
--set
--json
)");
}

// evaluate: checks folder, data and plan without starting a rank, then starts the ranks, or runs as
// one of them.

namespace {

std::string kind_of(std::string given) {
  const std::vector<std::string> kinds = {"text", "tokens", "megatron", "mock"};
  if (std::find(kinds.begin(), kinds.end(), given) != kinds.end()) return given;
  Error error(ErrorCode::usage, "--kind " + given + " is not known");
  if (std::string near = nearest_name(given, kinds); !near.empty())
    error.help("did you mean --kind " + near + "?");
  throw error.help("there are --kind " + text::join(kinds, ", "))
      .help("what a plugin reads: --set validation_dataset.plugin=NAME");
}

evaluate::Request read_evaluate_request(const Call& call, const Screen& screen) {
  evaluate::Request request;
  request.path = call.positional(0);
  request.all = call.has("all");
  request.sets = call.values("set");
  if (call.has("data")) request.data = call.value("data");
  if (call.has("kind")) request.kind = kind_of(call.value("kind"));
  request.seq_len = call.number("seq-len", 1);
  request.samples = call.number("samples", 1).value_or(0);
  request.batch = call.number("batch", 1).value_or(request.batch);
  request.trust_plugins = call.has("trust-plugins");
  request.json = call.json;
  request.csv = call.has("csv");
  if (request.json && request.csv)
    throw Error(ErrorCode::usage, "--json and --csv both say what is written: one of them")
        .help("leave out --csv");
  request.live = screen.live;
  request.width = screen.width;
  request.colour = screen.colour;
  request.unicode = screen.unicode;
  return request;
}

// Everything that can be refused before a rank starts.
int check(Call& call, const evaluate::Request& request, const Ranks& ranks, int64_t wanted) {
  const evaluate::Subject subject =
      evaluate::subject_of(request, [&](const std::string& text) { call.notice(text); });
  const before::ReloadFor load = [&](int64_t world, const std::vector<std::string>& sets,
                                     Diagnostics& problems) {
    evaluate::Request with = request;
    with.sets.insert(with.sets.end(), sets.begin(), sets.end());
    return load_job(evaluate::settings(subject, with, world), problems);
  };
  Diagnostics diagnostics;
  std::optional<plan::Job> job = load(ranks ? ranks->world_size : wanted, {}, diagnostics);
  if (job) plan::check_trainable(*job, diagnostics);
  call.say(diagnostics);
  if (!diagnostics.ok()) return call.fail(diagnostics.errors());
  const plan::JobPlan plan = before::plan_to_start(load, *job, ranks, wanted);
  plan::check_runs(plan, *job);
  if (!subject.source.is_checkpoint() && plan.outline) {
    const std::string folder = subject.source.folder().string();
    const weights::WeightFolder files = weights::open_model_tensors(folder, *plan.outline);
    weights::check_tied_head(files, folder, *plan.outline);
    if (const std::string unused = weights::unused_tensors(files, folder, *plan.outline);
        !unused.empty())
      call.notice(unused);
  }
  const data::DatasetConfig data = evaluate::data_of(*job, subject, request);
  try {
    data::look_at_data(data);
  } catch (const Error& error) {
    Error told = evaluate::as_error_of_evaluate(error);
    if (error.key().starts_with("validation_dataset."))
      told.help("evaluate has flags for these keys: --data, --kind and --seq-len");
    throw told;
  }
  return 0;
}

int start_evaluate(Call& call, const Ranks& ranks) {
  const int64_t wanted = count_of_ranks(call, ranks);
  Screen screen = screen_of(call, started_by_us(ranks));
  if (!started_by_us(ranks)) screen.live = ::isatty(2) == 1;
  const evaluate::Request request = read_evaluate_request(call, screen);
  if (started_by_us(ranks)) {
    // The parent has checked everything; when it dies, so do its ranks.
    if (!launch::end_with_parent()) return 1;
  } else {
    // Every rank asks, so that all of them refuse alike and at once.
    if (int status = check(call, request, ranks, wanted); status != 0) return status;
  }
  if (ranks || wanted == 1) return run_rank(call, ranks, "meshwright_evaluate_rank", &request);
  launch::LocalJob local = local_ranks(
      call, "evaluate",
      {"all", "data", "kind", "seq-len", "samples", "batch", "csv", "trust-plugins", "json"},
      wanted, screen);
  call.out.flush();
  return launch::run_local_ranks(local);
}

int run_evaluate(Call& call) { return refuse_together(call, start_evaluate); }

}  // namespace

Verb evaluate_verb() {
  return declare(run_evaluate, R"(
evaluate FOLDER
Measure the loss of a run, a checkpoint or a Hugging Face folder on held-out data

FOLDER is a run, whose newest checkpoint is taken, a checkpoint, or a Hugging Face folder
(config.json, model*.safetensors).
Data are those that --data names, else those that the run was validated with: all samples, each
once. The mean loss over their targets is the same on any number of ranks and under every strategy.
Weights are computed with in float32 unless --set distributed.mp_policy.param_dtype says otherwise.

  meshwright evaluate runs/first
  meshwright evaluate runs/first --all --csv
  meshwright evaluate runs/first/checkpoints/step_00000050 --data 'held_out/*.txt' --nproc 2
  meshwright evaluate models/Qwen3-0.6B --data wiki.bin --seq-len 2048 --json

--data PATH    Files to read, or a pattern like 'held_out/*.txt'.
--kind KIND=text|tokens|megatron|mock
               text: bytes; tokens: .bin; megatron: .bin with .idx; mock: synthetic. Default: as the
               run read its own, with the plugin and its options where one did, else by the files'
               name. What a plugin reads of other folders: --set validation_dataset.plugin=jsonl.
--seq-len N    Tokens a sample. Default: as the run was trained, else 512.
--samples N    The first N samples only. A run's own validation reads the first num_batches *
               global_batch_size, or all where there are fewer.
--batch N      Samples of a rank at a time. Default: 4.
--all          Every checkpoint of the run, one line each.
--csv          One line of comma-separated values for each checkpoint.
--trust-plugins
               Load the plugins that come with the run's folder. Those that its configuration names
               elsewhere, by absolute paths, are loaded in any case, and told.
--nproc N      Start N local ranks. Default: 1, in this process.
--set
--json
)");
}

}  // namespace meshwright::cli
