#include "apps/inference/running/generate_rank.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <optional>

#include "apps/inference/running/continue_folder.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::generate {

namespace {

boost::json::array json_ids(const std::vector<int64_t>& ids) {
  boost::json::array out;
  for (int64_t id : ids) out.emplace_back(id);
  return out;
}

// What rank 0 shows: the prompt and what follows, as text or as ids.
class Writer {
 public:
  Writer(const Source& source, const Request& request)
      : request_(request), text_(source, request.tokens ? Text::Form::ids : Text::Form::text) {}
  void add(int64_t id) {
    if (!request_.json) put(text_.add(id));
  }
  void finish() {
    if (!request_.json) put(text_.finish() + "\n");
  }

 private:
  // On a terminal nothing that could steer it; elsewhere the text as it is.
  void put(const std::string& text) {
    if (text.empty()) return;
    request_.live ? out_.write(text) : out_.write_data(text);
    out_.flush();
  }
  const Request& request_;
  Text text_;
  report::Output out_{stdout, "standard output"};
};

void write_json(const Source& source, const Continued& made) {
  boost::json::object out{
      {"prompt_ids", json_ids(made.prompt)}, {"new_ids", json_ids(made.tokens)}, {"text", nullptr}};
  if (source.tokenizer() || source.bytes()) {
    Text text(source, Text::Form::text);
    std::string all;
    for (int64_t id : made.prompt) all += text.add(id);
    for (size_t i = 0; i + (made.ended ? 1 : 0) < made.tokens.size(); ++i)
      all += text.add(made.tokens[i]);
    out["text"] = all + text.finish();
  }
  out["stopped"] = made.ended ? "stop" : "length";
  out["seconds"] = made.seconds;
  out["tokens_per_second"] = made.rate();
  report::Output(stdout, "standard output").write(report::pretty_json(out));
}

// On standard error, behind what was written.
void tell_speed(const Continued& made, int64_t max_new) {
  auto count = static_cast<int64_t>(made.tokens.size());
  std::fflush(stdout);
  std::fputs(
      text::format("%s in %.2f s, %.1f tokens/s%s\n",
                   report::counted(count, "token", "tokens").c_str(), made.seconds, made.rate(),
                   !made.ended && count == max_new ? " (--max-new reached)" : "")
          .c_str(),
      stderr);
}

}  // namespace

int generate_rank(const Request& request, rendezvous::Ending& ending) {
  Source source(request.folder, request.sets);
  std::optional<Writer> writer;
  Listener listener;
  listener.notice = [](const std::string& text) {
    std::fprintf(stderr, "notice: %s\n", report::printable(text).c_str());
  };
  listener.begin = [&](int64_t rank, const std::vector<int64_t>& prompt) {
    if (rank != 0) return;
    writer.emplace(source, request);
    for (int64_t id : prompt) writer->add(id);
  };
  listener.token = [&](int64_t id, bool ends) {
    if (writer && !ends) writer->add(id);
  };
  const Continued made = continue_folder(source, request, ending, listener);
  if (!writer) return 0;
  writer->finish();
  if (request.json) write_json(source, made);
  tell_speed(made, request.max_new);
  return 0;
}

}  // namespace meshwright::generate
