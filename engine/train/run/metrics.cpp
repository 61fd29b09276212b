#include "engine/train/run/metrics.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/text.h"
#include "sdk/base/words.h"

namespace meshwright::train {

namespace {

// A figure as JSON: a number, or null for what is not finite. `format`: of printf.
std::string number_text(double value, const char* format) {
  return std::isfinite(value) ? text::format(format, value) : "null";
}

// Of a step's row, in its order, without "step" and "completed_steps".
std::string figures(const StepResult& r, const StepCost& c) {
  const double tokens = static_cast<double>(r.tokens),
               per_second = c.step_ms > 0 ? tokens * 1000 / c.step_ms : 0;
  const struct {
    const char* name;
    double value;
    const char* format;
  } all[] = {
      {"loss", r.loss, "%.9g"},
      {"grad_norm", r.grad_norm, "%.9g"},
      {"lr", r.lr, "%.9g"},
      {"tokens", tokens, "%.0f"},
      {"step_ms", c.step_ms, "%.3f"},
      {"tokens_per_second", per_second, "%.1f"},
      {"memory_bytes", static_cast<double>(c.memory_bytes), "%.0f"},
      {"data_ms", c.data_ms, "%.3f"},
      {"tokens_per_second_per_rank", per_second / static_cast<double>(c.ranks), "%.1f"},
      {"mfu", c.mfu, "%.4f"},
      {"exposed_comm_ms", c.exposed_comm_ms, "%.3f"},
      {"slowest_rank", c.slowest_rank < 0 ? kNone : static_cast<double>(c.slowest_rank), "%.0f"},
      {"slowest_ms", c.slowest_ms, "%.3f"},
      {"rank_work_ms", c.rank_work_ms, "%.3f"},
      {"rank_work_ms_least", c.rank_work_ms_least, "%.3f"},
      {"rank_work_ms_most", c.rank_work_ms_most, "%.3f"},
      {"loss_z", c.loss_z, "%.4g"},
      {"grad_norm_z", c.grad_norm_z, "%.4g"},
      {"skipped", c.skipped ? 1.0 : 0.0, "%.0f"},
      {"target_tokens", static_cast<double>(r.count), "%.0f"}};
  std::string out;
  for (const auto& [name, value, format] : all)
    out += text::format(", \"%s\": ", name) + number_text(value, format);
  return out;
}

int64_t sum_of(const std::vector<int64_t>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

std::string ratio(double value) { return text::format("%.2f", value); }

// A load beside the mean: nothing, then eight heights up to twice the mean and more, the mean
// itself at half.
std::string mark(const report::Style& style, double beside_mean) {
  constexpr const char* kBlocks[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr const char* kPlain[] = {".", "1", "2", "3", "4", "5", "6", "7", "8"};
  int height =
      beside_mean <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(beside_mean * 4)), 1, 8);
  const char* text = style.unicode ? kBlocks[height] : kPlain[height];
  report::Tone tone = height == 0 || height == 8 ? report::Tone::red
                      : height < 3 || height > 5 ? report::Tone::yellow
                                                 : report::Tone::green;
  return report::paint(style, tone, text);
}

}  // namespace

void LoadHistory::add(const StepResult& result) {
  if (result.experts.empty()) return;
  ++steps_;
  if (total_.empty()) {
    total_ = result.experts;
    return;
  }
  for (size_t b = 0; b < total_.size(); ++b)
    for (size_t e = 0; e < total_[b].tokens.size(); ++e)
      total_[b].tokens[e] += result.experts[b].tokens[e];
}

std::string LoadHistory::draw(const report::Style& style) const {
  if (total_.empty()) return "";
  constexpr size_t kMost = 16;
  std::vector<const ExpertLoad*> rows;
  for (const ExpertLoad& block : total_) rows.push_back(&block);
  std::string rest;
  if (rows.size() > kMost) {
    std::vector<const ExpertLoad*> worst = rows;
    std::ranges::stable_sort(worst, std::ranges::greater(), &ExpertLoad::imbalance);
    const double bound = worst[kMost]->imbalance();
    worst.resize(kMost);
    std::erase_if(
        rows, [&](const ExpertLoad* row) { return std::ranges::find(worst, row) == worst.end(); });
    rest = "and " + std::to_string(total_.size() - kMost) + " more blocks, none above " +
           ratio(bound) + "x\n";
  }
  size_t name = 5;
  for (const ExpertLoad* row : rows)
    name = std::max(name, report::display_width(report::printable(row->block)));
  std::string out = "expert load over " + text::counted(steps_, "step") + " beside the mean (" +
                    mark(style, 0) + " none, " + mark(style, 1) + " mean, " + mark(style, 2) +
                    " 2x and more)\n";
  constexpr size_t kNumbers = 30;  // room for what stands behind the marks
  size_t width =
      std::max<size_t>(static_cast<size_t>(std::max(style.width, 0)), name + kNumbers + 10) - name -
      kNumbers - 2;
  for (const ExpertLoad* row : rows) {
    size_t experts = row->tokens.size(), together = (experts + width - 1) / width;
    double mean = static_cast<double>(sum_of(row->tokens)) / static_cast<double>(experts);
    std::string marks;
    for (size_t e = 0; e < experts; e += together) {
      const int64_t most =
          std::ranges::max(std::span(row->tokens).subspan(e, std::min(together, experts - e)));
      marks += mark(style, mean > 0 ? static_cast<double>(most) / mean : 0);
    }
    const auto unused = std::ranges::count(row->tokens, 0);
    out += report::pad(report::printable(row->block), name) + "  " + marks + "  up to " +
           ratio(row->imbalance()) + "x" +
           (unused > 0 ? ", " + std::to_string(unused) + " unused" : "") + "\n";
  }
  out += rest;
  out.pop_back();
  return out;
}

std::string LoadHistory::json() const {
  namespace bj = boost::json;
  bj::array blocks;
  for (const ExpertLoad& block : total_)
    blocks.push_back(bj::object{{"block", report::printable(block.block)},
                                {"experts_per_token", block.active},
                                {"tokens", bj::array(block.tokens.begin(), block.tokens.end())},
                                {"imbalance", block.imbalance()}});
  return report::pretty_json(bj::object{{"steps", steps_}, {"blocks", blocks}});
}

std::string load_fields(const StepResult& result) {
  if (result.experts.empty()) return "";
  std::vector<int64_t> tokens;
  int64_t dropped = 0;
  for (const ExpertLoad& block : result.experts) {
    tokens.resize(std::max(tokens.size(), block.tokens.size()));
    for (size_t e = 0; e < block.tokens.size(); ++e) tokens[e] += block.tokens[e];
    dropped += result.positions * block.active - sum_of(block.tokens);
  }
  return ", \"expert_tokens\": " + text::list(tokens, [](int64_t n) { return std::to_string(n); }) +
         ", \"expert_imbalance\": " +
         text::list(
             result.experts,
             [](const ExpertLoad& block) { return text::format("%.4f", block.imbalance()); }) +
         ", \"dropped_tokens\": " + std::to_string(dropped);
}

std::string load_words(const StepResult& result) {
  double largest = 0;
  for (const ExpertLoad& block : result.experts) largest = std::max(largest, block.imbalance());
  return result.experts.empty() ? "" : "  experts up to " + ratio(largest) + "x";
}

namespace fs = std::filesystem;

namespace {

using text::format;

double per_second(int64_t count, double ms) {
  return ms > 0 ? static_cast<double>(count) * 1000 / ms : 0;
}

// Of a step, as words on the screen; empty: not known, or there is nothing to say.
std::string mfu_words(const StepCost& c) {
  return std::isfinite(c.mfu) ? format("mfu %.1f%%", 100 * c.mfu) : "";
}
std::string comm_words(const StepCost& c) {
  return std::isfinite(c.exposed_comm_ms) && c.ranks > 1 ? format("comm %.0f ms", c.exposed_comm_ms)
                                                         : "";
}
std::string slowest_words(const StepCost& c) {
  return c.slowest_rank < 0 ? ""
                            : format("slowest rank %lld (+%.0f ms)",
                                     static_cast<long long>(c.slowest_rank), c.slowest_ms);
}

std::string score_words(const char* name, double z) {
  return std::isfinite(z) ? format("%s z %+.1f", name, z) : "";
}

}  // namespace

namespace {

std::string loss_words(double loss, const char* pattern) {
  return std::isnan(loss) ? "n/a" : format(pattern, loss);
}

// "web 2.1, code n/a"
template <class Named>
std::string named_losses(const std::vector<Named>& all, const char* pattern) {
  std::string out;
  for (const Named& one : all)
    out += (out.empty() ? "" : ", ") + one.name + " " + loss_words(one.loss, pattern);
  return out;
}

// "(web 2.1034, code n/a)"
std::string source_words(const StepCost& c) {
  return c.source_losses ? "(" + named_losses(c.read, "%.4f") + ")" : "";
}

}  // namespace

std::string validation_words(double loss, const char* pattern, const std::vector<NamedLoss>& sets) {
  const std::string named = named_losses(sets, pattern);
  return "validation loss " + loss_words(loss, pattern) + (named.empty() ? "" : " (" + named + ")");
}

[[noreturn]] static void unwritable(const fs::path& path, int reason) {
  throw base::unwritable(path, reason).key("run.dir");
}

// The rows of metrics.jsonl of the first `steps` steps, whole lines only.
static std::string rows_before(const fs::path& path, int64_t steps) {
  const std::string all = base::read_file(path, SIZE_MAX / 2);
  std::string out;
  for (size_t at = 0, end; (end = all.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = all.substr(at, end - at);
    long long step = 0;
    if (std::sscanf(line.c_str(), "{\"step\": %lld", &step) != 1 || step >= steps) continue;
    out += line + "\n";
  }
  return out;
}

RunFolder::RunFolder(fs::path path, std::optional<int64_t> steps, const Tell& tell)
    : path_(std::move(path)) {
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed) unwritable(path_, failed.value());
  fs::path metrics = path_ / "metrics.jsonl";
  // Anything but a file stands there on purpose (a pipe, a link to a device), or is an error soon.
  bool has_rows = fs::is_regular_file(metrics, failed) && fs::file_size(metrics, failed) > 0;
  if (has_rows && steps) {
    put("metrics.jsonl", rows_before(metrics, *steps));
  } else if (has_rows) {
    int n = 0;
    do {
      kept_ = (path_ / ("metrics." + std::to_string(++n) + ".jsonl")).string();
    } while (fs::exists(kept_, failed));
    fs::rename(metrics, kept_, failed);
    if (failed) unwritable(kept_, failed.value());
  }
  metrics_.emplace(metrics, /*keep=*/steps.has_value(), tell);
  log_.emplace(path_ / "run.log", /*keep=*/true, tell);
}

// What stands in the way is told with the key that chooses another place.
RunFolder::Lines::Lines(const fs::path& path, bool keep, Tell tell) try
    : file_(std::make_unique<base::AppendFile>(
          path, keep ? base::AppendFile::Old::kept : base::AppendFile::Old::emptied)),
      tell_(std::move(tell)) {
} catch (const Error& error) {
  throw Error(error).key("run.dir");
}

RunFolder::Lines::~Lines() {
  if (waiting_lines_ > 0 && file_->append(waiting_) == 0) waiting_lines_ = 0;
  if (const int64_t missing = waiting_lines_ + lost_lines_; missing > 0)
    tell("warning: " + path() + " lacks " + text::counted(missing, "line") +
         " that could not be written");
}

void RunFolder::Lines::missed(int reason) {
  if (!warn_) unwritable(path(), reason);
  if (!std::exchange(failing_, true))
    warn_("cannot write " + path() + ": " + std::strerror(reason) +
          "; the run goes on (checkpoint.on_failure), and its lines wait until there is room");
}

// Somebody removed the file, or the folder with it, while the run writes it.
void RunFolder::Lines::make_again() {
  const fs::path where = file_->path();
  std::error_code failed;
  fs::create_directories(where.parent_path(), failed);
  try {
    file_ = std::make_unique<base::AppendFile>(where, base::AppendFile::Old::refused);
  } catch (const Error&) {
    return;  // the next line tries again; a file that is there is another run's
  }
  tell("warning: " + path() + " was removed while the run wrote it: it goes on in a new file");
}

void RunFolder::Lines::tell(const std::string& text) const {
  if (tell_)
    tell_(text);
  else
    std::fprintf(stderr, "%s\n", text.c_str());
}

void RunFolder::Lines::append(std::string_view line) {
  constexpr size_t kMostWaiting = 4 << 20;  // about 15,000 steps
  if (file_->removed()) make_again();
  if (waiting_.empty()) {
    int reason = file_->append(line);
    if (reason == 0) return;
    missed(reason);
  }
  bool first = waiting_.empty();
  if (waiting_.size() > kMostWaiting) {
    ++lost_lines_;
  } else {
    waiting_ += line;
    ++waiting_lines_;
  }
  if (first || file_->append(waiting_) != 0) return;
  // Both files may share one disk, and this file's warning may be a line of the other: state first,
  // words last.
  std::string words =
      path() + " is written again: " + text::counted(waiting_lines_, "line") + " had waited" +
      (lost_lines_ > 0 ? ", and " + std::to_string(lost_lines_) + " more are lost" : "");
  waiting_.clear();
  waiting_lines_ = 0;
  failing_ = false;
  warn_(words);
}

void RunFolder::outlive_full_disks(std::function<void(const std::string&)> warn) {
  metrics_->outlive(warn);
  log_->outlive(std::move(warn));
}

void RunFolder::put(const std::string& name, const std::string& contents) const {
  try {
    base::write_durably(path_ / name, contents);
  } catch (const Error& error) {
    throw Error(error).key("run.dir");
  }
}

void RunFolder::sync() {
  metrics_->sync();
  log_->sync();
}

void RunFolder::Lines::sync() {
  if (int reason = file_->sync(); reason != 0) missed(reason);
}

// How every row begins. `step` counts from 0, as lr(s) and the order of the data do; folders,
// screens and logs name the steps that are complete, so a row says both.
static std::string row_begin(int64_t step) {
  return "{\"step\": " + std::to_string(step) +
         ", \"completed_steps\": " + std::to_string(step + 1);
}

// {"web": 3, "code": 1}
template <class Named, class Value>
static std::string by_name(const std::vector<Named>& all, const Value& value) {
  std::string out = "{";
  for (const Named& one : all)
    out += (out.size() > 1 ? ", " : "") + boost::json::serialize(boost::json::string(one.name)) +
           ": " + value(one);
  return out + "}";
}

static std::string read_fields(const StepCost& cost) {
  const std::vector<SourceRead>& read = cost.read;
  if (read.empty()) return {};
  std::string out =
      ", \"source_samples\": " +
      by_name(read, [](const SourceRead& one) { return std::to_string(one.samples); }) +
      ", \"source_tokens\": " +
      by_name(read, [](const SourceRead& one) { return std::to_string(one.tokens); }) +
      ", \"source_target_tokens\": " +
      by_name(read, [](const SourceRead& one) { return std::to_string(one.targets); });
  if (std::isfinite(read.front().weight))
    out += ", \"source_target_weights\": " +
           by_name(read, [](const SourceRead& one) { return number_text(one.weight, "%.12g"); });
  if (cost.source_losses)
    out += ", \"source_losses\": " +
           by_name(read, [](const SourceRead& one) { return number_text(one.loss, "%.9g"); });
  return out;
}

std::string RunFolder::step(const StepResult& r, const StepCost& c) {
  std::string row = row_begin(r.step) + figures(r, c) + load_fields(r) + read_fields(c) + "}\n";
  metrics_->append(row);
  return row;
}

std::string RunFolder::validation(int64_t step, double loss, double auxiliary,
                                  const std::vector<NamedLoss>& sets) {
  std::string row = row_begin(step) + ", \"validation_loss\": " + number_text(loss, "%.9g");
  if (std::isfinite(auxiliary))
    row += ", \"validation_auxiliary_loss\": " + number_text(auxiliary, "%.9g");
  if (!sets.empty())
    row += ", \"validation_losses\": " +
           by_name(sets, [](const NamedLoss& set) { return number_text(set.loss, "%.9g"); });
  row += "}\n";
  metrics_->append(row);
  return row;
}

// As base::append_line() does it, whose lines are in the same file.
void RunFolder::log(const std::string& line) { log_->append(base::utc_now() + " " + line + "\n"); }

constexpr int64_t kFewSteps = 20;  // fewer have a line each
constexpr std::string_view kRedraw = "\r\x1b[K";

Progress::Progress(report::Output& out, const report::Style& style, bool live, int64_t steps,
                   bool details)
    : out_(out),
      style_(style),
      live_(live && steps >= kFewSteps),
      details_(details),
      width_(live ? style.width - 1 : std::numeric_limits<int>::max()),
      steps_(steps) {}

namespace {

std::string cost_words(const StepCost& c) {
  const std::string mfu = mfu_words(c);
  std::string out = "  " + (mfu.empty() ? "mfu n/a" : mfu) + format("  data %.0f ms", c.data_ms);
  for (const std::string& words : {comm_words(c), slowest_words(c), score_words("loss", c.loss_z),
                                   score_words("norm", c.grad_norm_z)})
    if (!words.empty()) out += "  " + words;
  return out;
}

// "59,619 tokens/s (29,810 a rank)"
std::string speed_words(const StepResult& r, const StepCost& c) {
  auto whole = [](double value) { return report::human_count(static_cast<int64_t>(value)); };
  const double all = per_second(r.tokens, c.step_ms);
  return whole(all) + " tokens/s" +
         (c.ranks > 1 ? " (" + whole(all / static_cast<double>(c.ranks)) + " a rank)" : "");
}

}  // namespace

std::string Progress::line(const StepResult& r, const StepCost& c, int64_t steps) {
  const std::string sources = source_words(c);
  return format("step %lld/%lld  loss %.4f%s%s  grad norm %.3f  lr %.2e  %s  %.0f ms",
                static_cast<long long>(r.step) + 1, static_cast<long long>(steps), r.loss,
                sources.empty() ? "" : " ", sources.c_str(), r.grad_norm, r.lr,
                speed_words(r, c).c_str(), c.step_ms) +
         cost_words(c) + load_words(r) + (c.skipped ? "  left out" : "");
}

// What is read first: the rest is in metrics.jsonl and run.log.
std::string Progress::short_line(const std::string& left) const {
  std::vector<report::LineField> fields = {
      {format("step %lld/%lld", static_cast<long long>(last_.step) + 1,
              static_cast<long long>(steps_))},
      {format("loss %.4f", last_.loss), 1},
      {format("grad norm %.3f", last_.grad_norm), 4},
      {format("lr %.2e", last_.lr), 6},
      {report::human_count(static_cast<int64_t>(per_second(last_.tokens, cost_.step_ms))) +
           " tokens/s",
       3},
      {format("%.0f ms", cost_.step_ms), 5}};
  if (const std::string sources = source_words(cost_); !sources.empty())
    fields.insert(fields.begin() + 2, {sources, report::display_width(sources) > 40 ? 7 : 2});
  if (cost_.skipped) fields.push_back({"left out"});
  if (!left.empty()) fields.push_back({left, 2});
  return report::fit_line(std::move(fields), width_);
}

void Progress::step(const StepResult& result, const StepCost& cost) {
  last_ = result;
  cost_ = cost;
  smooth_ms_ = smooth_ms_ == 0 ? cost.step_ms : 0.9 * smooth_ms_ + 0.1 * cost.step_ms;
  auto now = std::chrono::steady_clock::now();
  if (live_) {
    missing_ = true;
    if (result.step + 1 == steps_) return finish();
    if (now - said_ < std::chrono::milliseconds(100)) return;
    said_ = now;
    draw();
  } else if (result.step == 0 || result.step + 1 == steps_ || steps_ < kFewSteps ||
             now - said_ >= std::chrono::seconds(10)) {
    said_ = now;
    std::string left;
    if (result.step + 1 < steps_)
      left = report::human_duration(smooth_ms_ / 1000 *
                                    static_cast<double>(steps_ - result.step - 1)) +
             " left";
    if (!details_) return emit(short_line(left) + "\n");
    emit(line(result, cost, steps_) + (left.empty() ? "" : "  " + left) + "\n");
  }
}

void Progress::emit(const std::string& text) {
  if (gone_) return;
  try {
    // What draws the line again is ours, whatever the rest of the text holds.
    const size_t drawing = text.starts_with(kRedraw) ? kRedraw.size() : 0;
    if (drawing > 0) out_.write_data(kRedraw);
    out_.write(std::string_view(text).substr(drawing));
    out_.flush();
  } catch (const report::WriteFailed& failure) {
    gone_ = true;
    out_.give_up();
    if (!failure.closed_pipe())
      std::fprintf(stderr, "warning: %s; the run goes on, and its run.log has every line\n",
                   failure.what());
  }
}

void Progress::draw() {
  int64_t done = last_.step + 1;
  double left = smooth_ms_ / 1000 * static_cast<double>(steps_ - done);
  std::vector<report::LineField> fields = {
      {format("%lld/%lld", static_cast<long long>(done), static_cast<long long>(steps_))},
      {format("loss %.4f", last_.loss), 1},
      {report::human_count(static_cast<int64_t>(per_second(last_.tokens, cost_.step_ms))) +
           " tok/s",
       3},
      {report::human_duration(left) + " left", 2}};
  if (const std::string sources = source_words(cost_); !sources.empty())
    fields.insert(fields.begin() + 2, {sources, 5});
  if (validation_ >= 0)
    fields.insert(fields.begin() + 2, {format("validation %.4f", validation_), 4});
  std::string text = report::fit_line(fields, style_.width - 1), bar;
  // What else is known has the room that a short bar leaves.
  constexpr int kBar = 15;
  if (static_cast<int>(text.size()) <= style_.width - kBar) {
    int spare = 5;
    for (std::string words :
         {format("norm %.3f", last_.grad_norm), format("%.0f ms", cost_.step_ms),
          format("lr %.2e", last_.lr), mfu_words(cost_), comm_words(cost_), slowest_words(cost_),
          score_words("loss", cost_.loss_z), score_words("norm", cost_.grad_norm_z)})
      if (!words.empty()) fields.push_back({std::move(words), spare++});
    text = report::fit_line(fields, style_.width - kBar);
  }
  int room = style_.width - static_cast<int>(text.size()) - 4;
  if (room >= 10)
    bar = report::progress_bar(
              style_, static_cast<double>(done) / static_cast<double>(std::max<int64_t>(steps_, 1)),
              std::min(room, 30)) +
          "  ";
  emit(std::string(kRedraw) + bar + text);
  drawn_ = true;
}

void Progress::say(const std::string& text) {
  emit(std::string(drawn_ ? kRedraw : "") + text + "\n");
  drawn_ = false;
}

void Progress::validation(int64_t step, double loss, const std::vector<NamedLoss>& sets) {
  validation_ = loss;
  say(format("step %lld/%lld  ", static_cast<long long>(step) + 1, static_cast<long long>(steps_)) +
      validation_words(loss, "%.4f", sets));
}

void Progress::finish() {
  if (!missing_) return;
  draw();
  emit("\n");
  drawn_ = missing_ = false;
}

}  // namespace meshwright::train
