#include "sdk/base/pipeline.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "pipeline_parts.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"

namespace meshwright {

namespace {

using Kind = PipelineAction::Kind;

void add(PipelineList& list, Kind kind, int64_t stage, int64_t micro_batch) {
  list.push_back({kind, stage, micro_batch});
}

PipelineList gpipe(int64_t micro_batches, int64_t rank) {
  PipelineList out;
  for (Kind kind : {Kind::forward, Kind::backward})
    for (int64_t j = 0; j < micro_batches; ++j) add(out, kind, rank, j);
  return out;
}

PipelineList one_f_one_b(int64_t size, int64_t micro_batches, int64_t rank) {
  PipelineList out;
  const int64_t ahead = std::min(micro_batches, size - 1 - rank);
  for (int64_t j = 0; j < micro_batches + ahead; ++j) {
    if (j < micro_batches) add(out, Kind::forward, rank, j);
    if (j >= ahead) add(out, Kind::backward, rank, j - ahead);
  }
  return out;
}

PipelineList looped_bfs(int64_t size, int64_t local, int64_t micro_batches, int64_t rank) {
  PipelineList out;
  for (int64_t chunk = 0; chunk < local; ++chunk)
    for (int64_t j = 0; j < micro_batches; ++j) add(out, Kind::forward, chunk * size + rank, j);
  for (int64_t chunk = local - 1; chunk >= 0; --chunk)
    for (int64_t j = micro_batches - 1; j >= 0; --j)
      add(out, Kind::backward, chunk * size + rank, j);
  return out;
}

// Schedules that take `each` micro-batches through one stage before they turn to the next.
struct Rounds {
  int64_t size, local, micro_batches, rank;
  int64_t each = micro_batches / std::max<int64_t>(1, micro_batches / size);

  int64_t all() const { return local * micro_batches; }
  void add_nth(PipelineList& out, Kind kind, int64_t k) const {
    const int64_t turn = k / each % local, chunk = kind == Kind::forward ? turn : local - 1 - turn;
    add(out, kind, chunk * size + rank, k / (each * local) * each + k % each);
  }

  PipelineList whole_backward() const {
    PipelineList out;
    const int64_t ahead = std::min(all(), (local - 1) * each + 2 * (size - 1 - rank));
    for (int64_t k = 0; k < all() + ahead; ++k) {
      if (k < all()) add_nth(out, Kind::forward, k);
      if (k >= ahead) add_nth(out, Kind::backward, k - ahead);
    }
    return out;
  }
  // Gradients of weights wait for as many others as there are ranks before this one.
  PipelineList split_backward() const {
    PipelineList out;
    const int64_t ahead = std::min(all(), (local - 1) * each + size - 1 - rank);
    for (int64_t k = 0; k < ahead; ++k) add_nth(out, Kind::forward, k);
    for (int64_t k = 0; k < all() + rank; ++k) {
      if (k + ahead < all()) add_nth(out, Kind::forward, k + ahead);
      if (k < all()) add_nth(out, Kind::input, k);
      if (k >= rank && k - rank < all()) add_nth(out, Kind::weight, k - rank);
    }
    return out;
  }
};

// Two stages a rank, near and far from the input; numbers count up for each stage and kind.
class VPlaced {
 public:
  VPlaced(int64_t size, int64_t micro_batches, int64_t rank)
      : size_(size),
        micro_batches_(micro_batches),
        rank_(rank),
        stages_{rank, 2 * size - 1 - rank} {}

  PipelineList zero_bubble();
  PipelineList dual_pipe();

 private:
  enum Chunk : size_t { near = 0, far = 1 };

  // Whole backwards count with gradients of the input.
  static size_t counter(Kind kind) {
    return kind == Kind::forward ? 0 : kind == Kind::weight ? 2 : 1;
  }
  int64_t& count(Kind kind, Chunk chunk) { return counts_[counter(kind)][chunk]; }
  void act(Kind kind, Chunk chunk) {
    int64_t j = count(kind, chunk)++;
    if (kind == Kind::input) waiting_.emplace_back(stages_[chunk], j);
    if (j < micro_batches_) add(list_, kind, stages_[chunk], j);
  }
  void repeat(int64_t times, const std::vector<std::pair<Kind, Chunk>>& actions) {
    for (int64_t i = 0; i < times; ++i)
      for (auto [kind, chunk] : actions) act(kind, chunk);
  }
  void pair(Chunk forward, Chunk backward) {
    act(Kind::forward, forward);
    list_.back().paired = true;
    act(Kind::backward, backward);
  }
  void oldest_weight() {
    if (waiting_.empty()) return;
    auto [stage, j] = waiting_.front();
    waiting_.pop_front();
    add(list_, Kind::weight, stage, j);
  }

  int64_t size_, micro_batches_, rank_;
  std::array<int64_t, 2> stages_;
  std::array<std::array<int64_t, 2>, 3> counts_{};
  std::deque<std::pair<int64_t, int64_t>> waiting_;
  PipelineList list_;
};

PipelineList VPlaced::zero_bubble() {
  const Kind f = Kind::forward, i = Kind::input, w = Kind::weight;
  // Fewer micro-batches than fill the pipeline are the first ones of as many as do.
  const int64_t full = std::max(2 * size_ - 1, micro_batches_);
  repeat(2 * (size_ - rank_) - 1, {{f, near}});
  repeat(rank_, {{f, far}, {f, near}});
  repeat(size_ - rank_, {{f, far}, {i, far}, {w, far}});
  while (count(f, far) < count(f, near) || count(f, near) < full) {
    if (count(f, near) < full) act(f, near);
    repeat(1, {{i, near}, {w, near}, {f, far}, {i, far}, {w, far}});
  }
  repeat(rank_, {{i, near}, {i, far}});
  repeat(size_ - rank_, {{i, near}, {w, near}});
  for (Chunk chunk : {far, near})
    while (count(w, chunk) < count(i, chunk)) act(w, chunk);
  return std::move(list_);
}

PipelineList VPlaced::dual_pipe() {
  const Kind f = Kind::forward, b = Kind::backward, i = Kind::input;
  const int64_t after = size_ - 1 - rank_;
  repeat(2 * after, {{f, near}});
  repeat(rank_ + 1, {{f, near}, {f, far}});
  for (int64_t k = 0; k < after; ++k) {
    act(i, far);
    oldest_weight();
    act(f, far);
  }
  for (int64_t k = 0; k < micro_batches_ - 2 * size_ + rank_ + 1; ++k) {
    if (k == 0 && after == 0)
      repeat(1, {{f, near}, {b, far}});
    else
      pair(near, far);
    pair(far, near);
  }
  for (int64_t k = 0; k < after; ++k) {
    act(b, far);
    pair(far, near);
  }
  // The second half of the last backwards is split, so that weights fill the end.
  const int64_t middle = (rank_ + 1) / 2;
  for (int64_t k = 0; k <= rank_; ++k) {
    act(k > middle || (k == middle && rank_ % 2 == 1) ? i : b, far);
    act(k >= middle ? i : b, near);
  }
  for (int64_t k = 0; k < after; ++k) {
    oldest_weight();
    act(i, near);
  }
  for (int64_t k = 0; k <= rank_; ++k) oldest_weight();
  return std::move(list_);
}

// For micro-batches that the schedule runs.
PipelineList rank_actions(PipelineSchedule schedule, int64_t size, int64_t local,
                          int64_t micro_batches, int64_t rank) {
  const Rounds rounds{size, local, micro_batches, rank};
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return gpipe(micro_batches, rank);
    case PipelineSchedule::one_f_one_b:
      return one_f_one_b(size, micro_batches, rank);
    case PipelineSchedule::interleaved_1f1b:
      return rounds.whole_backward();
    case PipelineSchedule::looped_bfs:
      return looped_bfs(size, local, micro_batches, rank);
    case PipelineSchedule::interleaved_zero_bubble:
      return rounds.split_backward();
    case PipelineSchedule::zbv_zero_bubble:
      return VPlaced(size, micro_batches, rank).zero_bubble();
    case PipelineSchedule::dual_pipe_v:
      return VPlaced(size, micro_batches, rank).dual_pipe();
  }
  return {};
}

}  // namespace

std::string action_name(const PipelineAction& action) {
  return std::to_string(action.stage) + static_cast<char>(action.kind) +
         std::to_string(action.micro_batch);
}

std::string actions_row(const PipelineList& actions) {
  std::string out;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (i > 0) out += ',';
    if (actions[i].paired && i + 1 < actions.size()) {
      out += '(' + action_name(actions[i]) + ';' + action_name(actions[i + 1]) + ")OVERLAP_F_B";
      ++i;
    } else {
      out += action_name(actions[i]);
    }
  }
  return out;
}

PipelineLists make_forwards(const std::vector<std::vector<int64_t>>& stages_of_rank,
                            int64_t micro_batches) {
  const auto ranks = static_cast<int64_t>(stages_of_rank.size());
  PipelineLists out;
  for (const std::vector<int64_t>& stages : stages_of_rank) {
    PipelineList& list = out.emplace_back();
    for (int64_t first = 0; first < micro_batches; first += ranks)
      for (int64_t stage : stages)
        for (int64_t j = first; j < std::min(first + ranks, micro_batches); ++j)
          list.push_back({PipelineAction::Kind::forward, stage, j});
  }
  return out;
}

PipelineLists make_actions(PipelineSchedule schedule, int64_t size, int64_t local,
                           int64_t micro_batches) {
  pipeline::check_micro_batches(schedule, size, local, micro_batches);
  PipelineLists out;
  for (int64_t rank = 0; rank < size; ++rank)
    out.push_back(rank_actions(schedule, size, local, micro_batches, rank));
  return out;
}

PipelineLists plan_actions(const PipelinePlan& plan, const PipelineOptions& options,
                           int64_t micro_batches) {
  const auto size = static_cast<int64_t>(plan.stages_of_rank.size());
  if (plan.from_csv) return read_actions(options.schedule_csv, size, micro_batches);
  return make_actions(plan.schedule, size, static_cast<int64_t>(plan.stages_of_rank.front().size()),
                      micro_batches);
}

namespace {

using pipeline::bad, pipeline::counted, pipeline::kCsvKey, pipeline::leave_out_csv,
    pipeline::set_line;

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
        .help(leave_out_csv());
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
        .help(leave_out_csv());
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
  pipeline::run_lists(lists_,
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
