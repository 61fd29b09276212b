// A prompt and what the model of a folder, loaded for it, makes of it.
#include "apps/inference/running/generate_rank.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <optional>
#include <string>

#include "apps/inference/generate_here.h"
#include "apps/inference/running/answer.h"
#include "apps/inference/running/loaded.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/sample.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::generate {

namespace {

// Collective, without the rank's end: joins the ranks and fills the model. Throws Error.
Continued continue_folder(const Source& source, const Ask& ask, rendezvous::Ending& ending,
                          const Listener& listener) {
  const Asked asked = asked_of(source, ask);
  const Loaded loaded(source, ask, asked.prompt, ending, listener.notice);
  Continued out = continue_prompt(loaded.trainer(), loaded.net(), asked.prompt, ask, asked.stops,
                                  loaded.context(), listener);
  loaded.world().everyone()->barrier();
  return out;
}

}  // namespace

void generate_here(const GenerateHere& here) {
  rendezvous::Ending ending;
  std::optional<Error> failed;
  try {
    Ask ask;
    static_cast<Request&>(ask) = here.request;
    const Source source(ask.folder, ask.sets);
    TextPieces pieces(source, here.tell, here.token);
    continue_folder(source, ask, ending, pieces.listener());
    pieces.finish();
    ending.finish();
  } catch (...) {
    failed = train::error_being_handled();
  }
  if (!failed) return;
  ending.tell(*failed);
  throw *failed;
}

namespace {

void write_json(const Continued& made, const Answer& answer) {
  boost::json::object out{
      {"prompt_ids", boost::json::array(made.prompt.begin(), made.prompt.end())},
      {"new_ids", boost::json::array(made.tokens.begin(), made.tokens.end())},
      {"log_probabilities",
       boost::json::array(made.log_probabilities.begin(), made.log_probabilities.end())},
      {"text", nullptr}};
  if (answer.has_text()) out["text"] = answer.text();
  out["stopped"] = made.ended ? "stop" : answer.stops().met() ? "stop_text" : "length";
  if (answer.stops().met()) out["stop_text"] = answer.stops().which();
  out["seconds"] = made.seconds;
  out["tokens_per_second"] = made.rate();
  report::Output(stdout, "standard output").write(report::pretty_json(out));
}

// On standard error, behind what was written.
void tell_end(const Continued& made, const Answer& answer, int64_t max_new) {
  const auto count = static_cast<int64_t>(made.tokens.size());
  const bool all = !made.ended && !answer.stops().met() && count == max_new;
  std::fflush(stdout);
  std::fputs(text::format("%s in %.2f s, %.1f tokens/s%s\n",
                          report::counted(count, "token", "tokens").c_str(), made.seconds,
                          made.rate(), all ? " (--max-new reached)" : "")
                 .c_str(),
             stderr);
  if (made.forgotten() > 0)
    std::fputs(
        text::format("notice: the context of %lld tokens was full: of the text the model "
                     "did not see the first %lld any more\n",
                     static_cast<long long>(made.context), static_cast<long long>(made.forgotten()))
            .c_str(),
        stderr);
}

}  // namespace

int generate_rank(const Ask& ask, rendezvous::Ending& ending) {
  const Source source(ask.folder, ask.sets);
  std::optional<report::Output> out;
  Answer answer(source, ask.tokens && !ask.json, ask.stop_texts, [&](const std::string& text) {
    if (!out || ask.json || text.empty()) return;
    // On a terminal nothing that could steer it; elsewhere the text as it is.
    ask.live ? out->write(text) : out->write_data(text);
    out->flush();
  });
  Listener listener;
  listener.notice = [](const std::string& text) {
    std::fprintf(stderr, "notice: %s\n", report::printable(text).c_str());
  };
  listener.begin = [&](int64_t rank, const std::vector<int64_t>& prompt) {
    if (rank == 0) out.emplace(stdout, "standard output");
    if (!ask.of_messages()) answer.goes_on(prompt);
  };
  listener.token = [&](int64_t id, bool ends) {
    if (!ends) answer.add(id);
  };
  listener.enough = [&] { return answer.stops().met(); };
  const Continued made = continue_folder(source, ask, ending, listener);
  if (!out) return 0;
  answer.finish();
  if (ask.json)
    write_json(made, answer);
  else
    out->write_data("\n");
  out->flush();
  tell_end(made, answer, ask.max_new);
  return 0;
}

}  // namespace meshwright::generate
