// A conversation with a model of this process.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "apps/inference/chat_format.h"
#include "apps/inference/dialogue.h"
#include "apps/inference/running/answer.h"
#include "apps/inference/running/generate_rank.h"
#include "apps/inference/running/loaded.h"
#include "engine/train/step/last_logits.h"
#include "engine/train/step/sample.h"
#include "meshwright/error.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::generate {

namespace {

class Talk {
 public:
  Talk(const ChatHere& here, const Source& source, const ChatFormat& format, const Loaded& loaded)
      : here_(here),
        source_(source),
        format_(format),
        loaded_(loaded),
        stops_(format.stops(source, here.ask)),
        context_(std::min(loaded.context(), loaded.net().max_positions())),
        kept_(loaded.trainer(), loaded.net()),
        dialogue_(here.ask.system, here.tell) {}

  void run() {
    while (const std::optional<std::string> line = here_.line()) {
      const Dialogue::Wants wants = dialogue_.take(*line);
      if (wants == Dialogue::Wants::end) return;
      if (wants == Dialogue::Wants::answer) answer();
    }
  }

 private:
  // Of the conversation as far back as the context has room for it, and for a part of the answer.
  // Nothing: not even the last message fits.
  std::optional<std::vector<int64_t>> prompt() {
    const int64_t most = context_ - std::min(here_.ask.max_new, context_ / 4);
    std::vector<int64_t> out = format_.prompt(dialogue_.conversation());
    if (std::ssize(out) <= most) return out;
    const auto alone = std::ssize(format_.prompt(dialogue_.last_alone()));
    if (alone > context_) {
      here_.tell("the message is longer than the context of " + std::to_string(context_) +
                 " tokens: " + std::to_string(alone) + "; it is left out");
      return std::nullopt;
    }
    int64_t forgotten = 0;
    while (std::ssize(out) > most && dialogue_.forget_first()) {
      ++forgotten;
      out = format_.prompt(dialogue_.conversation());
    }
    if (forgotten > 0)
      here_.tell("the context of " + std::to_string(context_) + " tokens is full: the oldest " +
                 report::counted(forgotten, "turn is", "turns are") + " forgotten");
    return out;
  }

  void answer() {
    std::optional<std::vector<int64_t>> ids;
    try {
      ids = prompt();
    } catch (const Error& error) {
      here_.tell(error.message() + "; the message is left out");
      for (const std::string& help : error.helps()) here_.tell("help: " + help);
    }
    if (!ids) return dialogue_.take_back();
    Ask ask = here_.ask;
    // The last token that is made need not be read.
    const int64_t room = context_ - static_cast<int64_t>(ids->size()) + 1;
    ask.max_new = std::min(ask.max_new, room);
    ask.seed += answers_++;
    Answer answer(source_, false, ask.stop_texts, [&](const std::string& text) {
      if (!text.empty()) here_.show(text);
    });
    bool stopped = false;
    Listener listener;
    listener.notice = here_.tell;
    listener.begin = [](int64_t, const std::vector<int64_t>&) {};
    listener.token = [&](int64_t id, bool ends) {
      if (!ends) answer.add(id);
    };
    listener.enough = [&] {
      stopped = here_.interrupted();
      return stopped || answer.stops().met();
    };
    const Continued made = continue_prompt(loaded_.trainer(), loaded_.net(), *ids, ask, stops_,
                                           context_, listener, &kept_);
    answer.finish();
    here_.show("\n");
    if (!made.ended && !stopped && !answer.stops().met())
      here_.tell(ask.max_new == room
                     ? "the context of " + std::to_string(context_) +
                           " tokens is full, and the answer ends here"
                     : "the answer has " + report::counted(ask.max_new, "token", "tokens") +
                           " and ends here: --max-new allows more");
    if (answer.text().empty()) {
      here_.tell("no answer; the message is left out");
      return dialogue_.take_back();
    }
    dialogue_.answered(answer.text());
  }

  const ChatHere& here_;
  const Source& source_;
  const ChatFormat& format_;
  const Loaded& loaded_;
  std::vector<int64_t> stops_;
  int64_t context_;  // rotary positions go on where a model has learnt none: not in a conversation
  LastLogits kept_;
  Dialogue dialogue_;
  uint64_t answers_ = 0;
};

}  // namespace

int chat_rank(const ChatHere& here, rendezvous::Ending& ending) {
  const Source source(here.ask.folder, here.ask.sets);
  const ChatFormat format(source, here.ask.chat_template, here.ask.adapter);
  const Loaded loaded(source, here.ask, {}, ending, here.tell);
  here.ready();
  Talk(here, source, format, loaded).run();
  loaded.world().everyone()->barrier();
  return 0;
}

}  // namespace meshwright::generate
