// Many prompts at once: texts begin and end while others go on, and a step makes a token of each.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/prompts.h"
#include "apps/inference/running/answer.h"
#include "apps/inference/running/generate_rank.h"
#include "apps/inference/running/loaded.h"
#include "engine/train/step/last_logits.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/sample.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::generate {

namespace {

namespace json = boost::json;

// Rows in the order of the prompts, each as soon as those before it are there. Beside the file that
// was asked for until all are.
class Rows {
 public:
  explicit Rows(const std::string& path)
      : path_(path), part_(path + ".part", base::AppendFile::Old::refused) {}

  void add(size_t row, const json::object& columns) {
    waiting_.emplace(row, json::serialize(columns) + "\n");
    for (auto at = waiting_.begin(); at != waiting_.end() && at->first == next_;
         at = waiting_.erase(at), ++next_)
      if (const int reason = part_.append(at->second); reason != 0)
        throw base::unwritable(part_.path(), reason);
  }
  void finish() {
    if (const int reason = part_.sync(); reason != 0)
      throw base::unwritable(part_.path(), reason, "sync");
    base::rename_durably(part_.path(), path_);
  }

 private:
  std::filesystem::path path_;
  base::AppendFile part_;
  std::map<size_t, std::string> waiting_;
  size_t next_ = 0;
};

class Batch {
 public:
  Batch(const Loaded& loaded, const Source& source, const Ask& ask, const Prompts& prompts,
        std::function<void(size_t, const json::object&)> ended)
      : source_(source),
        ask_(ask),
        prompts_(prompts),
        ended_(std::move(ended)),
        sampling_(ask.sampling()),
        context_(loaded.context()),
        last_(loaded.trainer(), loaded.net()) {
    Ask talk = ask;
    if (prompts.conversations) take_generation_config(source, talk, true);
    talk_sampling_ = talk.sampling();
  }

  // Collective.
  void run() {
    while (true) {
      while (std::ssize(going_) < ask_.batch && next_ < prompts_.rows.size()) begin(next_++);
      if (going_.empty()) return;
      step();
    }
  }
  int64_t tokens() const { return tokens_; }
  // Rows of which the model did not see the beginning any more.
  int64_t beyond_context() const { return beyond_context_; }

 private:
  struct Going {
    size_t row;
    std::vector<int64_t> ids;
    Answer answer;
    std::vector<double> log_probabilities;
    const char* stopped = nullptr;  // why; nullptr: it goes on
    bool beyond_context = false;
  };

  void begin(size_t row) {
    going_.push_back(std::make_unique<Going>(
        Going{row,
              prompts_.rows[row].prompt,
              Answer(source_, false, ask_.stop_texts, [](const std::string&) {}),
              {}}));
    if (!prompts_.rows[row].conversation) going_.back()->answer.follows(prompts_.rows[row].prompt);
  }

  void step() {
    std::vector<LastLogits::Text> texts;
    for (const auto& one : going_) {
      std::span<const int64_t> ids = one->ids;
      if (std::ssize(ids) > context_) {
        ids = ids.last(static_cast<size_t>(context_));
        if (!std::exchange(one->beyond_context, true)) ++beyond_context_;
      }
      texts.push_back({static_cast<int64_t>(one->row), ids});
    }
    const at::Tensor logits = last_.of(texts).contiguous();
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    for (size_t i = 0; i < going_.size(); ++i)
      add(*going_[i], {logits.mutable_data_ptr<float>() + i * vocabulary, vocabulary});
    std::erase_if(going_, [](const auto& one) { return one->stopped != nullptr; });
  }

  void add(Going& text, std::span<float> logits) {
    const auto made = static_cast<int64_t>(text.log_probabilities.size());
    // What a row draws depends on its place in the file, and on nothing beside it.
    const bool talks = prompts_.rows[text.row].conversation;
    const NextToken next = next_token(logits, text.ids, talks ? talk_sampling_ : sampling_,
                                      ask_.seed + text.row, made, /*log_probability=*/true);
    text.ids.push_back(next.id);
    text.log_probabilities.push_back(next.log_probability);
    ++tokens_;
    const std::vector<int64_t>& stops = talks ? prompts_.turn_stops : prompts_.stops;
    const bool ends = std::ranges::find(stops, next.id) != stops.end();
    if (!ends) text.answer.add(next.id);
    if (!ends && !text.answer.stops().met() && made + 1 < ask_.max_new) return;
    // What was held back may have a stop text.
    text.answer.finish();
    text.stopped = ends ? "stop" : text.answer.stops().met() ? "stop_text" : "length";
    last_.drop(static_cast<int64_t>(text.row));
    ended_(text.row, found(text));
  }

  json::object found(const Going& text) const {
    const Prompts::Row& row = prompts_.rows[text.row];
    json::object out = row.columns;
    out["text"] = nullptr;
    if (text.answer.has_text()) out["text"] = text.answer.text();
    out["new_ids"] = json::array(text.ids.begin() + std::ssize(row.prompt), text.ids.end());
    out["log_probabilities"] =
        json::array(text.log_probabilities.begin(), text.log_probabilities.end());
    out["stopped"] = text.stopped;
    return out;
  }

  const Source& source_;
  const Ask& ask_;
  const Prompts& prompts_;
  std::function<void(size_t, const json::object&)> ended_;
  Sampling sampling_, talk_sampling_;  // of texts, and of conversations
  int64_t context_;
  LastLogits last_;
  std::vector<std::unique_ptr<Going>> going_;
  size_t next_ = 0;
  int64_t tokens_ = 0, beyond_context_ = 0;
};

}  // namespace

int prompts_rank(const Ask& ask, rendezvous::Ending& ending) {
  const Source source(ask.folder, ask.sets);
  const Prompts prompts = read_prompts(source, ask);
  std::vector<int64_t> all;  // what all ranks read alike
  auto add = [&](const std::vector<int64_t>& ids) {
    all.push_back(std::ssize(ids));
    all.insert(all.end(), ids.begin(), ids.end());
  };
  for (const Prompts::Row& row : prompts.rows) add(row.prompt);
  add(prompts.stops);
  add(prompts.turn_stops);
  auto tell = [](const std::string& text) {
    std::fprintf(stderr, "notice: %s\n", report::printable(text).c_str());
  };
  const Loaded loaded(source, ask, all, ending, tell);
  const bool leads = loaded.world().rank() == 0;
  if (leads)
    if (const std::string notice = train::whole_text_notice(loaded.trainer()); !notice.empty())
      tell(notice);
  std::optional<Rows> rows;
  if (leads) rows.emplace(*ask.out);
  report::CountProgress progress({ask.colour, ask.unicode, ask.width}, ask.live, leads,
                                 std::ssize(prompts.rows));
  progress.begin("prompts");
  const auto begin = std::chrono::steady_clock::now();
  Batch batch(loaded, source, ask, prompts, [&](size_t row, const json::object& columns) {
    if (rows) rows->add(row, columns);
    progress.step();
  });
  loaded.net().module()->eval();
  const c10::NoGradGuard no_grad;
  loaded.trainer().model().summon_full_parameters([&] { batch.run(); });
  loaded.world().everyone()->barrier();
  if (!rows) return 0;
  rows->finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::fputs(text::format("%s, %s in %.2f s, %.1f tokens/s: %s\n",
                          report::counted(std::ssize(prompts.rows), "prompt", "prompts").c_str(),
                          report::counted(batch.tokens(), "token", "tokens").c_str(), seconds,
                          static_cast<double>(batch.tokens()) / seconds,
                          report::printable(*ask.out).c_str())
                 .c_str(),
             stderr);
  if (batch.beyond_context() > 0)
    tell("the context of " + std::to_string(loaded.context()) + " tokens was full: of " +
         report::counted(batch.beyond_context(), "row", "rows") +
         " the model did not see the beginning any more");
  return 0;
}

}  // namespace meshwright::generate
