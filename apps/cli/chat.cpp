// chat: checks the folder and its chat template, then answers the lines of a terminal, or of
// standard input, in this process.
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "apps/cli/inference.h"
#include "apps/cli/line_editor.h"
#include "apps/inference/chat_format.h"
#include "sdk/base/shell_word.h"

namespace meshwright::cli {

namespace {

// A person at a terminal. Ctrl-C stops an answer; at the prompt twice, or Ctrl-D, ends.
class Typed {
 public:
  explicit Typed(const generate::ChatHere& here) : here_(here), editor_("> ", interrupts_) {}

  Interrupts& interrupts() { return interrupts_; }
  std::optional<std::string> line() {
    for (bool once = false;; once = true) {
      LineEditor::Read read = editor_.next();
      if (read.kind == LineEditor::Kind::line) return read.line;
      if (read.kind == LineEditor::Kind::interrupted && !once) {
        here_.show("\n");
        here_.tell("Ctrl-C again, or Ctrl-D, ends the conversation");
        continue;
      }
      here_.show("\n");
      return std::nullopt;
    }
  }

 private:
  const generate::ChatHere& here_;
  Interrupts interrupts_;
  LineEditor editor_;
};

int start_chat(Call& call, const Ranks& ranks) {
  if (call.has("nproc") || (ranks && ranks->world_size > 1))
    throw Error(ErrorCode::not_in_release,
                "chat runs in one process: ranks that wait for a person "
                "would run into the time limit of a collective")
        .help("leave out --nproc, and start no ranks")
        .help("one answer on several ranks: meshwright generate " +
              text::shell_word(call.positional(0)) + " --chat TEXT --nproc 2");
  generate::ChatHere here;
  here.ask = read_sampling(call);
  generate::Ask& ask = here.ask;
  constexpr int64_t kMostNew = 2048;
  ask.max_new = call.number("max-new", 1).value_or(kMostNew);
  const generate::Source source(ask.folder, ask.sets);
  const generate::ChatFormat format(source, ask.chat_template, ask.adapter);
  (void)format.stops(source, ask);
  const std::string told = generate::take_generation_config(source, ask, true);
  if (int status = check_folder(call, source, ask, ranks, 1); status != 0) return status;
  if (!told.empty()) call.notice(told);

  const bool screen = ::isatty(STDOUT_FILENO) == 1;
  here.show = [&](const std::string& text) {
    screen ? call.out.write(text) : call.out.write_data(text);
    call.out.flush();
  };
  here.tell = [&](const std::string& text) {
    call.out.flush();
    call.err.write(report::paint(call.err_style, report::Tone::dim, report::printable(text)) +
                   "\n");
    call.err.flush();
  };
  std::optional<Typed> typed;
  if (::isatty(STDIN_FILENO) == 1 && screen) {
    typed.emplace(here);
    here.line = [&] { return typed->line(); };
    here.interrupted = [&] { return typed->interrupts().heard(); };
    here.ready = [&] {
      here.tell("/help lists the commands; Ctrl-D ends");
      typed->interrupts().only_heard();
    };
  } else {
    here.line = plain_line;
    here.interrupted = [] { return false; };
    here.ready = [] {};
  }
  return run_rank(call, ranks, "meshwright_chat_rank", &here);
}

int run_chat(Call& call) { return refuse_together(call, start_chat); }

}  // namespace

Verb chat_verb() {
  return declare(run_chat, R"(
chat FOLDER
Talk to a model, from a Hugging Face folder, a checkpoint or a run

FOLDER is a Hugging Face folder (config.json, model*.safetensors), a checkpoint, or a run, whose
newest checkpoint is taken. It has a chat template, or --chat-template names one.
On a terminal lines can be edited and have a history; /help lists the commands (/reset, /system,
/save, /exit). Ctrl-C stops an answer, Ctrl-D ends. Without a terminal each line of standard input
is a turn, and standard output has the answers alone.
Where the context is full the oldest turns are forgotten, which is told.
Options of sampling that are not given are those of the folder's generation_config.json, if it has
any.

  meshwright chat models/Qwen3-0.6B
  meshwright chat runs/tutorial/base --adapter runs/tutorial/adapter --temperature 0
  printf '%s\n' 'What is the capital of Peru?' 'And of Chile?' | meshwright chat runs/tutorial/lora

--system TEXT    What the system says before all else.
--chat-template NAME
                 A file, one of the folder's templates, or chatml. Default: the folder's.
--max-new N      At most so many tokens an answer. Default: 2048.
--temperature T  How freely tokens are drawn; 0: the most likely ones. Default: 0.7.
--top-k K        Draw from the K most likely tokens only. Default: 0, all of them.
--top-p P        Draw from the most likely tokens that together hold P of the probability.
                 Default: 1.
--min-p P        Draw only from tokens with at least P of the likeliest one's probability.
                 Default: 0.
--repetition-penalty R
                 Above 1, tokens that the conversation has become less likely. Default: 1.
--seed N         The same seed and the same lines give the same answers. Default: 42.
--stop IDS       Token ids that end an answer. Default: eos_token_id of the folder, and the end of a
                 turn of the chat template.
--stop-text TEXT...
                 A text that ends an answer, and is not written. Repeatable.
--adapter DIR    A folder of low-rank adapters, which run beside the model.
--merge          With --adapter: they are added to the weights first, which are rounded once.
--nproc N        Refused: a conversation runs in this process.
--set
)");
}

}  // namespace meshwright::cli
