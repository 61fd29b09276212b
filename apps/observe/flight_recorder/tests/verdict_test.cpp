// Who waited for whom, found out from written files.
#include "apps/observe/flight_recorder/verdict.h"

#include <doctest/doctest.h>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::postmortem;
using meshwright::detail::CollectiveState;
using meshwright::detail::LoggedCollective;

namespace {

constexpr int64_t kSecond = 1000000, kStart = 1800000000 * kSecond;

// A run's folder, and the ranks of a job in it.
class Run {
 public:
  explicit Run(int64_t world) : world_(world) { fs::create_directories(folder() / kFolder); }
  const fs::path& folder() const { return folder_.path; }
  fs::path file(int64_t rank) const { return folder() / kFolder / file_name(rank); }

  RankFile rank(int64_t number) const {
    RankFile out;
    out.rank = number;
    out.world = world_;
    out.host = "node1";
    out.record.taken = kStart + 10 * kSecond;
    std::vector<int64_t> all;
    for (int64_t r = 0; r < world_; ++r) all.push_back(r);
    for (const char* axis : {"dp", "world"})
      out.record.groups.push_back(
          {axis, all, 0, std::vector<int64_t>(all.size()), std::vector<int64_t>(all.size())});
    return out;
  }
  void write(const RankFile& rank) const { write_text(rank.rank, to_text(rank)); }
  void write_text(int64_t rank, const std::string& text) const { folder_.put(file(rank), text); }
  // Of what these ranks have left: the only sentence of the verdict, and the ranks it names.
  std::pair<std::string, std::vector<int64_t>> judged(const std::vector<RankFile>& ranks) const {
    for (const RankFile& rank : ranks) write(rank);
    const Verdict verdict = judge_run(folder());
    REQUIRE(verdict.sentences.size() == 1);
    return {verdict.sentences[0], verdict.ranks};
  }

 private:
  int64_t world_;
  scratch::Folder folder_;
};
using Ranks = std::vector<int64_t>;

// The rank's next collective, begun and, if ever, ended so many seconds after the start.
LoggedCollective& enter(RankFile& rank, size_t group, const char* op, CollectiveState state,
                        double began, double ended = 0, int64_t bytes = 394000) {
  LoggedCollective one;
  one.number = ++rank.record.groups[group].entered;
  one.op = op;
  one.group = group;
  one.bytes = bytes;
  one.state = state;
  one.began = one.waited_from = kStart + static_cast<int64_t>(began * 1e6);
  one.ended = ended == 0 ? 0 : kStart + static_cast<int64_t>(ended * 1e6);
  rank.record.collectives.push_back(one);
  return rank.record.collectives.back();
}

void complete(RankFile& rank, size_t group, const char* op, double ended) {
  enter(rank, group, op, CollectiveState::completed, ended, ended);
}

void exchange(RankFile& rank, int64_t other, bool sent, CollectiveState state, double began) {
  LoggedCollective one;
  one.op = "send_receive";
  one.bytes = 2000;
  one.state = state;
  one.began = one.waited_from = kStart + static_cast<int64_t>(began * 1e6);
  auto& group = rank.record.groups[0];
  auto& count = (sent ? group.sent : group.received)[static_cast<size_t>(other)];
  one.messages = {{other, sent, ++count, 2000}};
  rank.record.collectives.push_back(one);
}

}  // namespace

TEST_CASE("a rank that has not entered what another waits in is named, with where it is instead") {
  const Run run(2);
  RankFile waits = run.rank(0), late = run.rank(1);
  for (RankFile* rank : {&waits, &late}) complete(*rank, 0, "reduce_scatter", 7.9);
  enter(waits, 0, "all_gather", CollectiveState::failed, 6, 9).purpose =
      "gathering the parameters of the root";
  run.write(waits);
  run.write(late);
  const Verdict verdict = judge_run(run.folder());
  REQUIRE(verdict.sentences.size() == 1);
  CHECK(verdict.sentences[0] ==
        "rank 1 has not entered all_gather #2 of 394.0 kB in group dp [0, 1] (gathering the "
        "parameters of the root), in which rank 0 waits since 3.0 s; the last it did was "
        "reduce_scatter #1, 2.1 s before");
  CHECK(verdict.ranks == std::vector<int64_t>{1});
  CHECK(verdict.found);
  CHECK(verdict.told() == "verdict: " + verdict.sentences[0] + "\n");
}

TEST_CASE("of ranks that wait in a chain the one at its end is named, with its own error") {
  const Run run(3);
  RankFile first = run.rank(0), second = run.rank(1), third = run.rank(2);
  for (RankFile* rank : {&first, &second}) {
    complete(*rank, 0, "all_gather", 1);
    enter(*rank, 0, "reduce_scatter", CollectiveState::failed, 2, 3);
  }
  // Rank 0 is already further: nobody has entered that.
  enter(first, 1, "all_reduce", CollectiveState::failed, 2.5, 3, 16);
  complete(third, 0, "all_gather", 1);
  third.error = true;
  third.why = "error[E0702]: cannot read tokens.bin";
  for (const RankFile* rank : {&first, &second, &third}) run.write(*rank);
  const Verdict verdict = judge_run(run.folder());
  REQUIRE(verdict.sentences.size() == 1);
  CHECK(verdict.sentences[0] ==
        "rank 2 has not entered reduce_scatter #2 of 394.0 kB in group dp [0, 1, 2], in which "
        "ranks 0 and 1 wait since 1.0 s; the last it did was all_gather #1, 9.0 s before; it ended "
        "with error[E0702]: cannot read tokens.bin");
  CHECK(verdict.found);
  CHECK(verdict.told().empty());  // that error was told already
  CHECK(verdict.ranks == std::vector<int64_t>{2});
}

TEST_CASE("ranks that entered different collectives at one place are told, few beside many") {
  struct Row {
    const char* op;
    int64_t bytes;
    const char* says;
  };
  for (const Row& row :
       {Row{"all_gather", 394000,
            "rank 1 entered all_gather #1 of 394.0 kB, where ranks 0 and 2 entered all_reduce #1 "
            "of 394.0 kB in group dp [0, 1, 2]"},
        Row{"all_reduce", 512,
            "rank 1 entered all_reduce #1 of 512 bytes, where ranks 0 and 2 entered all_reduce #1 "
            "of 394.0 kB in group dp [0, 1, 2]"}}) {
    const Run run(3);
    std::vector<RankFile> ranks = {run.rank(0), run.rank(1), run.rank(2)};
    for (RankFile& rank : ranks)
      enter(rank, 0, rank.rank == 1 ? row.op : "all_reduce", CollectiveState::waiting, 1, 0,
            rank.rank == 1 ? row.bytes : 394000);
    const auto [sentence, named] = run.judged(ranks);
    CHECK(sentence == row.says);
    CHECK(named == Ranks{1});
  }
}

TEST_CASE("a rank that came when the other had given up is the one that was late") {
  const Run run(2);
  RankFile gone = run.rank(0), late = run.rank(1);
  for (RankFile* rank : {&gone, &late}) complete(*rank, 0, "reduce_scatter", 1);
  enter(gone, 0, "all_gather", CollectiveState::failed, 1, 10);
  gone.error = true;
  gone.why = "error[E0601]: rank 0 waited 9 s in vain for all_gather: no word from rank 1";
  // Ten seconds later: it goes on, and waits for the one that is gone.
  complete(late, 0, "all_gather", 19);
  enter(late, 0, "reduce_scatter", CollectiveState::waiting, 19.9);
  late.record.taken += 10 * kSecond;
  late.why = "told to end";
  const auto [sentence, named] = run.judged({gone, late});
  CHECK(
      sentence ==
      "rank 1 has not entered all_gather #2 of 394.0 kB in group dp [0, 1], in which rank 0 "
      "waits since 9.0 s; the last it did was reduce_scatter #1, 9.0 s before; it came after that "
      "one had ended in an error");
  CHECK(named == Ranks{1});
}

TEST_CASE("a message that was sent when the other had given up came too late") {
  const Run run(2);
  RankFile gone = run.rank(0), late = run.rank(1);
  exchange(gone, 1, false, CollectiveState::failed, 1);
  gone.error = true;
  gone.why = "error[E0601]: rank 0 waited 9 s in vain";
  exchange(late, 0, true, CollectiveState::completed, 15);
  exchange(late, 0, false, CollectiveState::waiting, 16);
  late.record.taken += 10 * kSecond;
  const auto [sentence, named] = run.judged({gone, late});
  CHECK(named == Ranks{1});
  CHECK(sentence.starts_with("rank 1 has not sent message #1"));
  CHECK(sentence.ends_with("; it came after that one had ended in an error"));
}

TEST_CASE("sizes of an all-to-all are each rank's own") {
  const Run run(2);
  for (int64_t number = 0; number < 2; ++number) {
    RankFile rank = run.rank(number);
    enter(rank, 0, "all_to_all", CollectiveState::failed, 1, 1.5, 1000 * (number + 1));
    run.write(rank);
  }
  const Verdict verdict = judge_run(run.folder());
  CHECK(verdict.ranks.empty());
  CHECK(!verdict.found);
}

TEST_CASE("a rank without a record is named as one that was killed or is stopped") {
  const Run run(3);
  std::vector<RankFile> ranks = {run.rank(0), run.rank(1)};
  for (RankFile& rank : ranks) enter(rank, 0, "all_reduce", CollectiveState::failed, 1, 4);
  const auto [sentence, named] = run.judged(ranks);
  CHECK(sentence ==
        "rank 2 left no record (it was killed, is stopped or ended without a word); ranks 0 and 1 "
        "wait for it since 3.0 s "
        "in all_reduce #1 of 394.0 kB in group dp [0, 1, 2]");
  CHECK(named == Ranks{2});
}

TEST_CASE(
    "a rank that the launcher saw stopped is named, also where it has begun what others wait in") {
  const Run run(2);
  for (int64_t number = 0; number < 2; ++number) {
    RankFile rank = run.rank(number);
    enter(rank, 0, "all_gather", number == 0 ? CollectiveState::failed : CollectiveState::waiting,
          2, number == 0 ? 5 : 0);
    run.write(rank);
  }
  CHECK(judge_run(run.folder()).ranks.empty());
  Verdict verdict = write_verdict(run.folder(), {1});
  REQUIRE(verdict.sentences.size() == 1);
  CHECK(verdict.sentences[0] ==
        "rank 1 was stopped by a signal or a debugger; rank 0 waits for it since 3.0 s in "
        "all_gather #1 of 394.0 kB in group dp [0, 1]; the last it began is all_gather #1, 8.0 s "
        "before");
  CHECK(judge_run(run.folder()).sentences == verdict.sentences);  // who comes later knows it too
}

TEST_CASE("a message that has not come names the rank that has not sent it") {
  const Run run(2);
  RankFile waits = run.rank(1), late = run.rank(0);
  exchange(late, 1, /*sent=*/true, CollectiveState::completed, 1);
  late.record.collectives.back().ended = kStart + kSecond;
  exchange(waits, 0, /*sent=*/false, CollectiveState::completed, 1);
  exchange(waits, 0, /*sent=*/false, CollectiveState::waiting, 5);
  CHECK(run.judged({waits, late}).first ==
        "rank 0 has not sent message #2 of 2000 bytes to rank 1 in group dp [0, 1], for which that "
        "one waits since 5.0 s; the last it did was send_receive, 9.0 s before");
}

TEST_CASE("ranks that wait for each other are all named") {
  const Run run(2);
  RankFile one = run.rank(0), other = run.rank(1);
  enter(one, 0, "all_gather", CollectiveState::waiting, 1);
  enter(other, 1, "all_reduce", CollectiveState::waiting, 1, 0, 8);
  run.write(one);
  run.write(other);
  const Verdict verdict = judge_run(run.folder());
  REQUIRE(verdict.sentences.size() == 3);
  CHECK(verdict.sentences[0].starts_with("rank 0 has not entered all_reduce #1 of 8 bytes in"));
  CHECK(verdict.sentences[1].starts_with("rank 1 has not entered all_gather #1 of 394.0 kB in"));
  CHECK(verdict.sentences[2] == "these ranks wait for each other");
  CHECK(verdict.ranks == std::vector<int64_t>{0, 1});
}

TEST_CASE("where all ranks have entered the same nobody is blamed") {
  const Run run(2);
  for (int64_t number = 0; number < 2; ++number) {
    RankFile rank = run.rank(number);
    complete(rank, 0, "all_gather", 1);
    // What runs beside computation may be further on one rank.
    if (number == 0) enter(rank, 0, "reduce_scatter", CollectiveState::under_way, 2);
    run.write(rank);
  }
  Verdict verdict = judge_run(run.folder());
  REQUIRE(verdict.sentences.size() == 1);
  CHECK(verdict.sentences[0] == "no rank waited for another in a collective");
  CHECK(!verdict.found);
  CHECK(verdict.told().empty());

  for (int64_t number = 0; number < 2; ++number) {
    RankFile rank = run.rank(number);
    enter(rank, 0, "all_gather", CollectiveState::failed, 1, 9);
    run.write(rank);
  }
  verdict = judge_run(run.folder());
  REQUIRE(verdict.sentences.size() == 1);
  CHECK(verdict.sentences[0] ==
        "rank 0 waited 8.0 s in all_gather #1 of 394.0 kB in group dp [0, 1], which all ranks that "
        "left a record have entered: look at the network, or at the devices");
  CHECK(verdict.ranks.empty());
  CHECK(verdict.found);
}

TEST_CASE("a torn file is told, and its rank counts as one without a record") {
  const Run run(2);
  RankFile rank = run.rank(0);
  enter(rank, 0, "all_reduce", CollectiveState::failed, 1, 4);
  run.write(rank);
  const std::string whole = to_text(run.rank(1));
  // At any length, also where it is no JSON of ours.
  for (size_t length = 0; length < whole.size() - 1; ++length) {
    run.write_text(1, whole.substr(0, length));
    const Verdict verdict = judge_run(run.folder());
    REQUIRE(verdict.problems.size() == 1);
    CHECK(verdict.problems[0].find("rank_1.json is damaged (") != std::string::npos);
    REQUIRE(verdict.sentences.size() == 1);
    CHECK(verdict.sentences[0].starts_with("rank 1 left no record (it was killed"));
  }
  for (const char* text : {"[]", "{}", "null", R"({"rank": "one"})"}) {
    run.write_text(1, text);
    CHECK(judge_run(run.folder()).problems.size() == 1);
  }
}

TEST_CASE("files of an attempt before do not mix with those of the newest") {
  const Run run(2);
  for (int64_t number = 0; number < 2; ++number) {
    RankFile rank = run.rank(number);
    rank.attempt = number;
    enter(rank, 0, "all_reduce", CollectiveState::failed, 1, 4);
    run.write(rank);
  }
  const Verdict verdict = judge_run(run.folder());
  REQUIRE(verdict.problems.size() == 1);
  CHECK(verdict.problems[0].find("rank_0.json is of attempt 0, others of 1") != std::string::npos);
  CHECK(verdict.ranks == std::vector<int64_t>{0});
}

TEST_CASE("what is written is read back, and a folder without files has no verdict") {
  const Run run(2);
  CHECK(judge_run(run.folder()).sentences.empty());
  CHECK(judge_run(run.folder() / "elsewhere").sentences.empty());
  CHECK(write_verdict(run.folder()).text().empty());
  CHECK(!fs::exists(run.folder() / kFolder / "verdict.txt"));
  RankFile rank = run.rank(1);
  rank.why = "error[E0601]: \"late\"";
  rank.error = true;
  rank.process = 4242;
  enter(rank, 1, "all_reduce", CollectiveState::queued, 2, 0, 8).purpose = "a \"norm\"";
  exchange(rank, 0, /*sent=*/true, CollectiveState::under_way, 3);
  run.write(rank);
  CHECK(to_text(parse(base::read_file(run.file(1)))) == to_text(rank));
  CHECK(!write_verdict(run.folder()).sentences.empty());
  CHECK(base::read_file(run.folder() / kFolder / "verdict.txt").starts_with("rank 0 left no "));
}
