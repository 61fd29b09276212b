#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "pipeline_lists.h"
#include "pipeline_parts.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using pipeline::bad, pipeline::counted, pipeline::kCsvKey, pipeline::kScheduleKey,
    pipeline::set_line;
using Kind = PipelineAction::Kind;

// No model has more stages, and no run more micro-batches; larger numbers in a file are slips.
constexpr int64_t kLargest = 1'000'000;
constexpr std::string_view kPairEnd = ")OVERLAP_F_B";
// What PyTorch's files may hold beside actions; here it follows from them.
constexpr std::string_view kDerived[] = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                         "UNSHARD", "RESHARD", "REDUCE_GRAD"};

struct Place {
  size_t row = 0, column = 0;  // from 1; 0: there is none
  explicit operator bool() const { return row != 0; }
};

std::string words(const Place& place) {
  return "row " + std::to_string(place.row) + ", column " + std::to_string(place.column);
}

// Where each kind of a stage and micro-batch stands.
struct Found {
  Place forward, backward, input, weight;
  Place& of(Kind kind) {
    switch (kind) {
      case Kind::forward:
        return forward;
      case Kind::backward:
        return backward;
      case Kind::input:
        return input;
      case Kind::weight:
        break;
    }
    return weight;
  }
};

class ActionFile {
 public:
  ActionFile(std::string path, std::optional<int64_t> micro_batches)
      : path_(std::move(path)), micro_batches_(micro_batches) {}

  PipelineLists read(int64_t size);

 private:
  Error wrong(const Place& place, const std::string& what) const {
    return bad(words(place) + " of " + path_ + ": " + what, kCsvKey);
  }
  int64_t number(std::string_view digits, const char* what, const Place& place) const;
  PipelineAction plain(std::string_view cell, const Place& place) const;
  void add_cell(std::string_view cell, const Place& place);
  void add(const PipelineAction& action, const Place& place);
  void check_complete(int64_t size);
  void check_stages() const;

  std::string path_;
  std::optional<int64_t> micro_batches_;
  int64_t largest_ = -1;  // micro-batch
  PipelineLists lists_;
  std::vector<std::vector<Place>> places_;  // of the lists' actions
  std::map<int64_t, Place> stages_;         // where each is named first
  std::map<std::pair<int64_t, int64_t>, Found> found_;
};

int64_t ActionFile::number(std::string_view digits, const char* what, const Place& place) const {
  int64_t value = 0;
  auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure != std::errc() || value >= kLargest)
    throw wrong(place, "it names " + std::string(what) + " " + std::string(digits))
        .help("number the " + std::string(what) + (std::string_view(what) == "stage" ? "s" : "es") +
              " from 0 up, without gaps");
  return value;
}

// "3F5". Throws for everything else.
PipelineAction ActionFile::plain(std::string_view cell, const Place& place) const {
  constexpr std::string_view kDigits = "0123456789";
  const size_t letter = std::min(cell.find_first_not_of(kDigits), cell.size()),
               after = cell.find_first_of(kDigits, letter);
  const std::string_view stage = cell.substr(0, letter),
                         kind = cell.substr(letter, std::min(after, cell.size()) - letter),
                         micro_batch = after == std::string_view::npos ? "" : cell.substr(after);
  for (std::string_view derived : kDerived)
    if (!stage.empty() && kind == derived)
      throw wrong(place, text::quote(cell) +
                             " is a message or a gathering of weights, which follow from the "
                             "actions")
          .help("leave it out, and write only actions: F, B, or I and W");
  if (stage.empty() || micro_batch.empty() || kind.size() != 1 ||
      std::string_view("FBIW").find(kind) == std::string_view::npos ||
      micro_batch.find_first_not_of(kDigits) != std::string_view::npos)
    throw wrong(place, text::quote(cell) + " is no action")
        .help("write actions as stage, kind, micro-batch: 0F0,0F1,0B0")
        .help("write a forward beside a backward as (0F1;7B0)OVERLAP_F_B");
  return {static_cast<Kind>(kind.front()), number(stage, "stage", place),
          number(micro_batch, "micro-batch", place)};
}

void ActionFile::add_cell(std::string_view cell, const Place& place) {
  if (!cell.starts_with('(')) {
    add(plain(cell, place), place);
    return;
  }
  const size_t middle = cell.find(';');
  if (!cell.ends_with(kPairEnd) || middle == std::string_view::npos)
    throw wrong(place, text::quote(cell) + " is no pair of actions")
        .help("write a forward beside a backward as (0F1;7B0)OVERLAP_F_B");
  PipelineAction forward = plain(text::trim(cell.substr(1, middle - 1)), place);
  const PipelineAction backward =
      plain(text::trim(cell.substr(middle + 1, cell.size() - kPairEnd.size() - middle - 1)), place);
  if (forward.kind != Kind::forward || backward.kind != Kind::backward)
    throw wrong(place, text::quote(cell) + " is not a forward beside a whole backward")
        .help("write " + action_name(forward) + "," + action_name(backward));
  forward.paired = true;
  add(forward, place);
  add(backward, place);
}

void ActionFile::add(const PipelineAction& action, const Place& place) {
  const std::string name = action_name(action);
  const int64_t s = action.stage, j = action.micro_batch;
  if (auto [at, added] = stages_.emplace(s, place); !added && at->second.row != place.row)
    throw wrong(place, "stage " + std::to_string(s) + " stands in row " +
                           std::to_string(at->second.row) + " too, but a stage runs on one rank")
        .help("keep the actions of stage " + std::to_string(s) + " in one row");
  if (micro_batches_ && j >= *micro_batches_)
    throw wrong(place, name + ", but a run has " + counted(*micro_batches_, "micro-batch", "es") +
                           ", numbered from 0")
        .help("set " + std::string(pipeline::kBatchKey) + " so that a run has more micro-batches")
        .help("use a file of actions for " + counted(*micro_batches_, "micro-batch", "es"));
  largest_ = std::max(largest_, j);
  Found& found = found_[{s, j}];
  auto before = [&](Kind kind) { return action_name({kind, s, j}); };
  if (const Place& other = found.of(action.kind))
    throw wrong(place, name + " stands in column " + std::to_string(other.column) + " too")
        .help("leave out one of the two");
  const bool whole = action.kind == Kind::backward;
  for (Kind other : {Kind::backward, Kind::input, Kind::weight})
    if (action.kind != Kind::forward && whole != (other == Kind::backward) && found.of(other))
      throw wrong(place, name + " beside " + before(other) + " in column " +
                             std::to_string(found.of(other).column))
          .help("write one " + before(Kind::backward) + ", or " + before(Kind::input) +
                " and later " + before(Kind::weight));
  const Kind needed = action.kind == Kind::weight ? Kind::input : Kind::forward;
  if (action.kind != Kind::forward && !found.of(needed))
    throw wrong(place, name + " without " + before(needed) + " before it")
        .help("write " + before(needed) + " further to the left in this row");
  found.of(action.kind) = place;
  lists_.back().push_back(action);
  places_.back().push_back(place);
}

void ActionFile::check_stages() const {
  if (static_cast<int64_t>(stages_.size()) - 1 == stages_.rbegin()->first) return;
  const auto stages = static_cast<int64_t>(stages_.size());
  throw wrong(stages_.rbegin()->second, "stage " + std::to_string(stages_.rbegin()->first) +
                                            ", but the file names " + counted(stages, "stage") +
                                            ": some number below it is missing")
      .help("number the stages 0 to " + std::to_string(stages - 1));
}

void ActionFile::check_complete(int64_t size) {
  if (lists_.empty() || static_cast<int64_t>(lists_.size()) != size)
    throw bad(path_ + " has actions for " + counted(static_cast<int64_t>(lists_.size()), "rank") +
                  ", but pp_size is " + std::to_string(size),
              kCsvKey)
        .help("give the file " + counted(size, "row"))
        .help("leave out " + std::string(kCsvKey) + " and set " + std::string(kScheduleKey) +
              " = \"1F1B\"");
  check_stages();
  for (const auto& [s, first] : stages_)
    for (int64_t j = 0; j < micro_batches_.value_or(largest_ + 1); ++j) {
      Found& found = found_[{s, j}];
      auto name = [&, stage = s](Kind kind) { return action_name({kind, stage, j}); };
      if (!found.forward)
        throw wrong(first, "stage " + std::to_string(s) + " has no " + name(Kind::forward))
            .help("add " + name(Kind::forward) + " and its backward to this row");
      if (!found.backward && !found.input)
        throw wrong(found.forward, name(Kind::forward) + " has no backward")
            .help("add " + name(Kind::backward) + " to this row");
      if (found.input && !found.weight)
        throw wrong(found.input, name(Kind::input) + " has no " + name(Kind::weight))
            .help("add " + name(Kind::weight) + " further to the right in this row");
    }
}

PipelineLists ActionFile::read(int64_t size) {
  std::error_code failure;
  std::ifstream file;
  constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
  if (std::filesystem::is_regular_file(path_, failure) &&
      std::filesystem::file_size(path_, failure) <= kMost && !failure)
    file.open(path_);
  if (!file.is_open())
    throw Error(ErrorCode::file_unreadable,
                "the file of pipeline actions " + path_ + " cannot be read")
        .key(std::string(kCsvKey))
        .help(set_line(kCsvKey,
                       "the path of a file with one row of actions a rank, such as 0F0,0F1,0B0"))
        .help("leave out " + std::string(kCsvKey) + " and set " + std::string(kScheduleKey) +
              " = \"1F1B\"");
  std::string line;
  for (size_t row = 1; std::getline(file, line); ++row) {
    if (line.find_first_not_of(" \t\r,") == std::string::npos) continue;
    lists_.emplace_back();
    places_.emplace_back();
    size_t column = 0;
    for (std::string_view part : text::split(line, ',')) {
      ++column;
      if (const std::string_view cell = text::trim(part); !cell.empty())
        add_cell(cell, {row, column});
    }
  }
  check_complete(size);
  pipeline::run_lists(lists_, {},
                      {.lists = "the actions in " + path_, .place = [&](size_t rank, size_t i) {
                         return " (" + words(places_[rank][i]) + ")";
                       }});
  return std::move(lists_);
}

}  // namespace

PipelineLists read_actions(const std::string& path, int64_t size,
                           std::optional<int64_t> micro_batches) {
  return ActionFile(path, micro_batches).read(size);
}

}  // namespace meshwright
