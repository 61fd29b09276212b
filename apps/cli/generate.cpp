// generate: checks folder, prompt and plan without starting a rank, then starts the ranks, or runs
// as one of them.
#include <optional>
#include <string>

#include "apps/cli/common.h"
#include "apps/cli/ranks.h"
#include "apps/inference/adapter.h"
#include "engine/train/preflight/source.h"

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

generate::Request read_generate_request(const Call& call) {
  generate::Request request;
  request.folder = call.positional(0);
  request.sets = call.values("set");
  if (call.has("prompt")) request.prompt = call.value("prompt");
  if (call.has("tokens")) request.tokens = call.value("tokens");
  if (call.has("stop")) request.stop = call.value("stop");
  if (call.has("adapter")) request.adapter = call.value("adapter");
  request.merge = call.has("merge");
  request.max_new = call.number("max-new", 1).value_or(request.max_new);
  request.temperature = real(
      call, "temperature", request.temperature, [](double t) { return t >= 0; },
      "a number of at least 0", "0.8, or 0 for the most likely tokens");
  request.top_k = call.number("top-k", 0).value_or(0);
  request.top_p = real(
      call, "top-p", 1, [](double p) { return p > 0 && p <= 1; }, "a number above 0 and at most 1",
      "0.95");
  request.seed =
      static_cast<uint64_t>(call.number("seed", 0).value_or(static_cast<int64_t>(request.seed)));
  request.json = call.json;
  return request;
}

// Everything that can be refused before a rank starts.
int check(Call& call, const generate::Request& request, const Ranks& ranks, int64_t wanted) {
  generate::Source source(request.folder, request.sets);
  (void)source.prompt(request);
  (void)source.stops(request);
  const std::optional<generate::Adapter> adapter = generate::adapter_of(source, request);
  const before::ReloadFor load = [&](int64_t world, const std::vector<std::string>& more,
                                     Diagnostics& problems) {
    std::vector<std::string> sets = request.sets;
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

int start_generate(Call& call, const Ranks& ranks) {
  const int64_t wanted = count_of_ranks(call, ranks);
  generate::Request request = read_generate_request(call);
  Screen screen = screen_of(call, started_by_us(ranks));
  request.live = screen.live;
  if (started_by_us(ranks)) {
    // The parent has checked everything; when it dies, so do its ranks.
    if (!launch::end_with_parent()) return 1;
  } else {
    // Every rank asks, so that all of them refuse alike and at once.
    if (int status = check(call, request, ranks, wanted); status != 0) return status;
  }
  if (ranks || wanted == 1) return run_rank(call, ranks, "meshwright_generate_rank", &request);
  launch::LocalJob local = local_ranks(call, "generate",
                                       {"prompt", "tokens", "stop", "adapter", "merge", "max-new",
                                        "temperature", "top-k", "top-p", "seed", "json"},
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
Text needs a tokenizer.json in the folder (byte-level BPE: GPT-2, Llama 3, Qwen2, Qwen3 and their
kin), or a model of bytes (vocab_size = 256). Token ids go in and come out of any model. The prompt
and what follows appear on standard output as it is made; how long it took on standard error. Ids
are the same under every strategy and on any number of ranks.
Adapters of a folder (adapter_config.json, adapter_model.safetensors), which peft or checkpoint
export wrote, run beside the model, or join its weights. A run with adapters has its own.

  meshwright generate models/Qwen3-0.6B --prompt 'The capital of France is' --temperature 0
  meshwright generate runs/first --prompt '#include <' --max-new 400
  meshwright generate models/Qwen3-0.6B --adapter runs/lora_adapter --prompt 'The capital of Peru is'
  meshwright generate models/Llama-3.2-1B --tokens 128000,9906 --nproc 2 --set distributed.strategy=fsdp2 --json

--prompt TEXT    What to go on with.
--tokens IDS     The same as token ids with commas; ids come out too.
--max-new N      At most so many new tokens. Default: 200.
--temperature T  How freely tokens are drawn; 0: the most likely ones. Default: 0.7.
--top-k K        Draw from the K most likely tokens only. Default: 0, all of them.
--top-p P        Draw from the most likely tokens that together hold P of the probability.
                 Default: 1.
--seed N         The same seed gives the same tokens. Default: 42.
--stop IDS       Token ids that end the text, or none. Default: eos_token_id of the folder.
--adapter DIR    A folder of low-rank adapters, which run beside the model.
--merge          With --adapter: they are added to the weights first, which are rounded once.
--nproc N        Start N local ranks. Default: 1, in this process.
--set
--json
)");
}

}  // namespace meshwright::cli
