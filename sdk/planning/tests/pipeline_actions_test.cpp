// The order of actions (semantics 11.2): lists written out, and what PyTorch's own schedules list.
#include "sdk/base/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "llama_outline.h"
#include "pipeline_cases.h"

namespace pipeline_actions_test {

using namespace meshwright;
using namespace meshwright::testing;

namespace {

using Kind = PipelineAction::Kind;

// Rows of actions: "0F0-3" and "2B3-0" are runs of micro-batches, "7FIW4-5" is 7F4 7I4 7W4
// 7F5 7I5 7W5, "(0F3+3B1)" a pair.
PipelineList spelled_out(const std::string& row) {
  PipelineList out;
  std::istringstream words(row);
  for (std::string word; words >> word;) {
    const bool pair = word.front() == '(';
    const size_t plus = word.find('+');
    for (std::string part :
         pair ? std::vector{word.substr(1, plus - 1), word.substr(plus + 1)} : std::vector{word}) {
      const size_t letter = part.find_first_of("FBIW"),
                   digit = part.find_first_of("0123456789", letter), dash = part.find('-');
      const int64_t stage = std::stoll(part), first = std::stoll(part.substr(digit)),
                    last = dash == std::string::npos ? first : std::stoll(part.substr(dash + 1));
      for (int64_t j = first;; j += first < last ? 1 : -1) {
        for (char kind : part.substr(letter, digit - letter))
          out.push_back({static_cast<Kind>(kind), stage, j});
        if (j == last) break;
      }
      if (pair && part.back() != ')') out.back().paired = true;
    }
  }
  return out;
}

uint64_t hash_of(const PipelineLists& lists) {
  uint64_t value = 14695981039346656037u;  // FNV-1a
  for (const PipelineList& list : lists)
    for (char c : actions_row(list) + "\n")
      value = (value ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return value;
}

}  // namespace

TEST_CASE("two ranks and four micro-batches run the lists written out here") {
  struct Row {
    PipelineSchedule schedule;
    int64_t local;
    const char *first, *second;
  };
  const Row rows[] = {
      {PipelineSchedule::gpipe, 1, "0F0-3 0B0-3", "1F0-3 1B0-3"},
      {PipelineSchedule::one_f_one_b, 1, "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3",
       "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"},
      {PipelineSchedule::looped_bfs, 2, "0F0-3 2F0-3 2B3-0 0B3-0", "1F0-3 3F0-3 3B3-0 1B3-0"},
      {PipelineSchedule::interleaved_1f1b, 2,
       "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
       "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"},
      {PipelineSchedule::interleaved_zero_bubble, 2,
       "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 "
       "0I3 0W3",
       "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 "
       "1W2 1W3"},
      {PipelineSchedule::zbv_zero_bubble, 2,
       "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 "
       "0I3 0W3",
       "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 "
       "2W3 1W3"},
      {PipelineSchedule::dual_pipe_v, 2,
       "0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3+3B1) (3F2+0B0) 3B2 (3F3+0B1) 3B3 0I2 0W2 0I3 0W3",
       "1F0 2F0 1F1 2F1 1F2 2B0 (2F2+1B0) (1F3+2B1) (2F3+1B1) 2B2 1B2 2I3 1I3 2W3 1W3"},
  };
  for (const Row& row : rows) {
    CAPTURE(schedule_name(row.schedule));
    const PipelineLists lists = make_actions(row.schedule, 2, row.local, 4);
    REQUIRE(lists.size() == 2);
    CHECK(actions_row(lists[0]) == actions_row(spelled_out(row.first)));
    CHECK(actions_row(lists[1]) == actions_row(spelled_out(row.second)));
  }
}

TEST_CASE("four ranks and eight micro-batches run the lists written out here") {
  struct Row {
    PipelineSchedule schedule;
    int64_t local;
    size_t rank;
    const char* text;
  };
  const Row rows[] = {
      {PipelineSchedule::one_f_one_b, 1, 1, "1F0-2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5-7"},
      {PipelineSchedule::interleaved_1f1b, 2, 0,
       "0F0-3 4F0-3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1-3 4B4-7 0B4-7"},
      {PipelineSchedule::interleaved_1f1b, 2, 3,
       "3F0-3 7FB0-3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7FB4-7 3B4-7"},
      {PipelineSchedule::zbv_zero_bubble, 2, 0,
       "0F0-6 7FIW0-3 0F7 0IW0 7FIW4 0IW1 7FIW5 0IW2 7FIW6 0IW3 7FIW7 0IW4-7"},
  };
  for (const Row& row : rows) {
    CAPTURE(schedule_name(row.schedule));
    CAPTURE(row.rank);
    CHECK(actions_row(make_actions(row.schedule, 4, row.local, 8).at(row.rank)) ==
          actions_row(spelled_out(row.text)));
  }
}

TEST_CASE("every list is the one that PyTorch's schedule of that name makes") {
  // Hashes of tests/reference_pytorch/make_pipeline.py.
  std::ifstream file(MESHWRIGHT_SOURCE_DIR "/tests/pipeline/torch_lists.txt");
  REQUIRE(file.good());
  int64_t listed = 0, looped = 0, run_only_here = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, hash;
    int64_t size = 0, local = 0;
    words >> name >> size >> local;
    CAPTURE(name);
    CAPTURE(size);
    CAPTURE(local);
    const PipelineSchedule schedule = parse_schedule(name);
    for (int64_t micro_batches = 1; words >> hash; ++micro_batches) {
      CAPTURE(micro_batches);
      if (hash == "-") {
        // 1F1B runs with fewer micro-batches than ranks, and DualPipeV with one less than stages.
        const bool here =
            schedule == PipelineSchedule::one_f_one_b ||
            (schedule == PipelineSchedule::dual_pipe_v && micro_batches == 2 * size - 1);
        CHECK(runs_micro_batches(schedule, size, micro_batches) == here);
        if (here) ++run_only_here;
        continue;
      }
      char ours[17];
      std::snprintf(ours, sizeof ours, "%016llx",
                    static_cast<unsigned long long>(
                        hash_of(make_actions(schedule, size, local, micro_batches))));
      CHECK(std::string(ours) == hash);
      ++(schedule == PipelineSchedule::one_f_one_b ? looped : listed);
    }
  }
  CHECK(listed == 1910);
  CHECK(looped == 164);
  CHECK(run_only_here == 28 + 8);
}

TEST_CASE("every list holds each forward once, behind it one whole backward or both halves") {
  for (const PipelineCase& one : pipeline_cases()) {
    INFO(one.text());
    std::set<int64_t> stages;
    for (const PipelineList& list : one.lists()) {
      std::set<std::tuple<Kind, int64_t, int64_t>> done;
      std::set<int64_t> local;
      for (size_t i = 0; i < list.size(); ++i) {
        const PipelineAction& action = list[i];
        auto did = [&](Kind kind) {
          return done.contains({kind, action.stage, action.micro_batch});
        };
        REQUIRE(action.micro_batch >= 0);
        REQUIRE(action.micro_batch < one.micro_batches);
        local.insert(action.stage);
        if (action.kind != Kind::forward) REQUIRE(did(Kind::forward));
        if (action.kind == Kind::weight) REQUIRE(did(Kind::input));
        if (action.kind == Kind::input) REQUIRE(!did(Kind::backward));
        if (action.kind == Kind::backward) REQUIRE(!did(Kind::input));
        REQUIRE(done.emplace(action.kind, action.stage, action.micro_batch).second);
        if (action.paired) {
          REQUIRE(action.kind == Kind::forward);
          REQUIRE(i + 1 < list.size());
          REQUIRE(list[i + 1].kind == Kind::backward);
        }
      }
      REQUIRE(static_cast<int64_t>(local.size()) == one.local);
      stages.insert(local.begin(), local.end());
      int64_t forwards = 0, ends = 0;
      for (const PipelineAction& action : list) {
        if (action.kind == Kind::forward) ++forwards;
        if (action.kind == Kind::backward || action.kind == Kind::weight) ++ends;
      }
      REQUIRE(forwards == one.local * one.micro_batches);
      REQUIRE(ends == forwards);
    }
    REQUIRE(static_cast<int64_t>(stages.size()) == one.size * one.local);
  }
}

TEST_CASE(
    "micro-batches that a schedule cannot deal out are refused with the nearest that it can") {
  struct Row {
    PipelineSchedule schedule;
    int64_t size, micro_batches;
    std::vector<int64_t> nearest;
  };
  const Row rows[] = {
      {PipelineSchedule::interleaved_1f1b, 4, 9, {8, 10}},
      {PipelineSchedule::interleaved_1f1b, 4, 11, {10, 12}},
      {PipelineSchedule::interleaved_zero_bubble, 4, 13, {12, 15}},
      {PipelineSchedule::interleaved_zero_bubble, 4, 14, {15, 12}},
      {PipelineSchedule::interleaved_1f1b, 8, 23, {22, 24}},
      {PipelineSchedule::interleaved_1f1b, 8, 0, {1}},
      {PipelineSchedule::dual_pipe_v, 4, 6, {7}},
      {PipelineSchedule::dual_pipe_v, 8, 1, {15}},
  };
  for (const Row& row : rows) {
    CAPTURE(schedule_name(row.schedule));
    CAPTURE(row.micro_batches);
    const Error error = refused(ErrorCode::bad_pipeline, std::to_string(row.micro_batches), [&] {
      make_actions(row.schedule, row.size, 2, row.micro_batches);
    });
    CHECK(error.key() == "distributed.pipeline.pp_batch_size");
    for (size_t i = 0; i < row.nearest.size(); ++i) {
      CHECK(error.helps().at(i) ==
            "set distributed.pipeline.pp_batch_size = " + std::to_string(row.nearest[i]));
      CHECK_NOTHROW(make_actions(row.schedule, row.size, 2, row.nearest[i]));
    }
    for (size_t i = row.nearest.size(); i < error.helps().size(); ++i)
      CHECK(error.helps()[i] == "set distributed.pipeline.pp_schedule = \"ZBVZeroBubble\"");
    // Nothing nearer would do.
    const int64_t distance = std::abs(row.nearest.front() - row.micro_batches);
    for (int64_t d = 1; d < distance; ++d)
      for (int64_t m : {row.micro_batches - d, row.micro_batches + d})
        CHECK(!runs_micro_batches(row.schedule, row.size, m));
  }
}

TEST_CASE("lists that nobody would run are refused before they are made") {
  for (auto [size, micro_batches] : {std::pair<int64_t, int64_t>(4, int64_t{1} << 40),
                                     {4, INT64_MAX},
                                     {int64_t{1} << 19, 1},
                                     {int64_t{1} << 40, 8},
                                     {INT64_MAX, INT64_MAX}}) {
    CAPTURE(size);
    CAPTURE(micro_batches);
    const Error error = refused(ErrorCode::bad_pipeline, "", [&, s = size, m = micro_batches] {
      make_actions(PipelineSchedule::interleaved_1f1b, s, 2, m);
    });
    REQUIRE(error.helps().size() == 1);
    const std::string& help = error.helps().front();
    const int64_t value = std::stoll(help.substr(help.find(" = ") + 3));
    if (help.find("pp_size") == std::string::npos)
      CHECK_NOTHROW(make_actions(PipelineSchedule::interleaved_1f1b, size, 2, value));
    else
      CHECK(value == 1);
  }
}

}  // namespace pipeline_actions_test
