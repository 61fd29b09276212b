// What docs/support.md says is so: `prove` and the engine say it again, and the page is made of
// what they said.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "sdk/base/words.h"
#include "sdk/comm/tests/sampled.h"
#include "tests/contents.h"
#include "tests/fixtures/folder.h"
#include "tests/support/record.h"

namespace {

using namespace meshwright;
using namespace meshwright::support;
namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kMostRanks = 4, kMostRanksAlone = 16;
const fs::path kData = MESHWRIGHT_SOURCE_DIR "/tests/support/proofs.txt",
               kPage = MESHWRIGHT_SOURCE_DIR "/docs/support.md";

// "1", jobs to prove first ("cp: ring, dtype: float16; ..."), or "none": what is missing stays so.
const char* writes() {
  return std::getenv("MESHWRIGHT_WRITE_SUPPORT");  // NOLINT(concurrency-mt-unsafe)
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start: " + command);
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.append(buffer.data(), n);
  pclose(pipe);
  return out;
}

std::string word(const json::object& object, const char* key) {
  return std::string(object.at(key).as_string());
}

// The first row or place that differs.
std::string difference_of(const json::object& said) {
  for (const json::value& value : said.at("runs").as_array()) {
    const json::object& run = value.as_object();
    if (run.at("ok").as_bool()) continue;
    std::string out = "in " + word(run, "dtypes") + ": ";
    for (const json::value& problem : run.at("problems").as_array())
      return out + std::string(problem.as_string());
    std::vector<std::string> parts;
    for (const json::value& row : run.at("rows").as_array())
      if (!row.as_object().at("ok").as_bool() && word(row.as_object(), "not_compared").empty())
        parts.push_back(word(row.as_object(), "what"));
    for (const json::value& fault : run.at("faults").as_array()) {
      parts.push_back(word(fault.as_object(), "what"));
      break;
    }
    return out + text::join(parts, ", ");
  }
  return {};
}

Proof prove(const CoveringRow& row) {
  const TemporaryFolder folder;
  const std::string file = write_job(row, folder.path).string();
  const std::string said = output_of(
      "env -u WORLD_SIZE -u RANK NO_COLOR=1 OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 '" MESHWRIGHT_BUILD_DIR
      "/bin/meshwright' prove '" +
      file + "' --json --timeout 180 --world-size " + std::to_string(ranks_of(row)) +
      " 2>&1 </dev/null");
  const size_t begin = said.find('{');
  if (begin == std::string::npos) return {State::differs, row, "prove says nothing: " + said};
  const json::object found = json::parse(said.substr(begin)).as_object();
  if (!found.contains("proven"))
    return {State::refused, row, word(found.at("error").as_object(), "code")};
  if (found.at("proven").as_bool()) return {State::proven, row};
  std::string why = difference_of(found);
  if (why.find("did not end within") != std::string::npos) return {State::not_tried, row, why};
  // By the ranks themselves, once they run.
  constexpr std::string_view kRefused = ": refused: ";
  if (const size_t at = why.find(kRefused); at != std::string::npos)
    return {State::refused, row, why.substr(at + kRefused.size())};
  for (char& c : why)
    if (c == '|' || c == '\n') c = ' ';
  return {State::differs, row, why.substr(0, 300)};
}

// Of each two values whether a job may have both.
class Allowed {
 public:
  explicit Allowed(const std::vector<Proof>& refused) {
    for (const Column& column : columns()) {
      firsts_.push_back(count_);
      count_ += column.values.size();
    }
    allowed_.assign(count_ * count_, false);
    for (const CoveringPair& pair : asked_pairs()) at(pair) = true;
    for (const Proof& proof : refused)
      for (const CoveringPair& pair : asked_pairs())
        if (proof.state == State::refused && proof.row == plain_row(pair)) at(pair) = false;
  }
  bool operator()(const CoveringRow& row) const {
    for (size_t f = 0; f < kFactors; ++f)
      for (size_t g = f + 1; g < kFactors; ++g)
        if (!allowed_[(firsts_[f] + row[f]) * count_ + firsts_[g] + row[g]]) return false;
    return true;
  }

 private:
  std::vector<bool>::reference at(const CoveringPair& pair) {
    return allowed_[(firsts_[pair[0]] + pair[1]) * count_ + firsts_[pair[2]] + pair[3]];
  }
  std::vector<size_t> firsts_;
  size_t count_ = 0;
  std::vector<bool> allowed_;
};

// Of pairs that no recorded job was proven with.
std::vector<Proof> refused_pairs(const std::vector<Proof>& recorded, const fs::path& folder) {
  std::vector<Proof> out;
  std::set<CoveringRow> seen;
  for (const CoveringPair& pair : asked_pairs())
    if (const CoveringRow row = plain_row(pair); seen.insert(row).second) {
      const Proof* known = proof_of(recorded, pair);
      if (known != nullptr && known->state == State::proven) continue;
      if (const std::optional<Error> error = refusal_of(row, folder))
        out.push_back({State::refused, row, code_string(error->code())});
    }
  return out;
}

// What no job stands for is written down as that.
void write_missing(std::vector<Proof> proofs) {
  std::set<CoveringRow> added;
  for (const CoveringPair& pair : asked_pairs())
    if (const CoveringRow row = plain_row(pair);
        is_provable(row) && proof_of(proofs, pair) == nullptr && added.insert(row).second)
      proofs.push_back(
          {State::not_tried, row, "not yet; needs " + text::counted(ranks_of(row), "rank")});
  std::ofstream(kData) << text_of(proofs);
}

// Goes on from what the file has: jobs that were proven stay, and what the ranks refused.
void write_data() {
  constexpr size_t kAtOnce = 3;
  TemporaryFolder folder;
  const std::vector<Proof> recorded = read_record(contents(kData)).proofs;
  std::vector<Proof> proofs = refused_pairs(recorded, folder.path);
  std::vector<CoveringRow> met;
  std::set<CoveringRow> tried;
  auto add = [&](const Proof& proof) {
    if (proof.state == State::proven) met.push_back(proof.row);
    if (tried.insert(proof.row).second) proofs.push_back(proof);
  };
  auto prove_all = [&](const std::vector<CoveringRow>& rows) {
    for (size_t first = 0; first < rows.size(); first += kAtOnce) {
      std::vector<std::future<Proof>> running;
      for (size_t i = first; i < std::min(first + kAtOnce, rows.size()); ++i)
        running.push_back(std::async(std::launch::async, prove, rows[i]));
      for (std::future<Proof>& one : running) {
        add(one.get());
        std::fprintf(stderr, "%s\n", text_of(proofs.back()).c_str());
      }
      std::ofstream(kData) << text_of(proofs);
    }
  };
  for (const Proof& proof : proofs) tried.insert(proof.row);
  const Allowed planned(proofs);
  for (const Proof& proof : recorded)
    if ((proof.state == State::proven || proof.state == State::refused) && planned(proof.row) &&
        is_provable(proof.row))
      add(proof);
  std::vector<CoveringRow> wanted;
  for (const std::string& job : text::split(writes(), ';'))
    if (const std::optional<CoveringRow> row = row_of(std::string(text::trim(job)));
        row && !tried.contains(*row))
      wanted.push_back(*row);
  prove_all(wanted);
  CoveringFactors factors;
  for (const Column& column : columns()) factors.sizes.push_back(column.values.size());
  factors.is = [&](const CoveringRow& row) {
    return !tried.contains(row) && !refusal_of(row, folder.path);
  };
  factors.bring = [](CoveringRow& row, const CoveringPair& pair, std::mt19937&) {
    bring(row, pair);
  };
  // What met only in jobs that were not proven meets others in the next turn.
  for (unsigned seed = 1; seed <= 2; ++seed) {
    const Allowed allowed(proofs);
    factors.can_be = [&](const CoveringRow& row) {
      return ranks_of(row) <= kMostRanks && is_provable(row) && allowed(row);
    };
    factors.met = met;
    const std::vector<CoveringRow> rows = covering(factors, seed).rows;
    std::fprintf(stderr, "%zu jobs to prove\n", rows.size());
    prove_all(rows);
  }
  // And what meets in none of these, alone, the smallest first.
  std::multimap<int64_t, CoveringRow> alone;
  for (const CoveringPair& pair : asked_pairs()) {
    const CoveringRow row = plain_row(pair);
    const Proof* known = proof_of(proofs, pair);
    if ((known == nullptr || known->state == State::differs) && is_provable(row) &&
        ranks_of(row) <= kMostRanksAlone && !tried.contains(row) &&
        std::ranges::none_of(alone, [&](const auto& one) { return one.second == row; }))
      alone.emplace(ranks_of(row), row);
  }
  wanted.clear();
  for (const auto& [ranks, row] : alone) wanted.push_back(row);
  std::fprintf(stderr, "%zu jobs of two options alone\n", wanted.size());
  prove_all(wanted);
  write_missing(proofs);
}

// Of this tree, so that each commit proves others.
unsigned turn_of_tree() {
  const std::string name =
      output_of("git -C '" MESHWRIGHT_SOURCE_DIR "' rev-parse 'HEAD^{tree}' 2>/dev/null");
  unsigned out = 0;
  for (const char c : name.substr(0, 8)) out = out * 31 + static_cast<unsigned char>(c);
  return out;
}

// `count` of those in that state, all with MESHWRIGHT_ALL_LAYOUTS=1.
std::vector<Proof> some(const std::vector<Proof>& proofs, State state, size_t count) {
  std::vector<Proof> out;
  std::ranges::copy_if(proofs, std::back_inserter(out),
                       [&](const Proof& proof) { return proof.state == state; });
  if (all_layouts() || out.size() <= count) return out;
  std::mt19937 random(turn_of_tree());
  for (size_t i = 0; i < count; ++i) std::swap(out[i], out[i + random() % (out.size() - i)]);
  out.resize(count);
  return out;
}

}  // namespace

TEST_CASE("every two options that say something together have met, were refused, or it is said") {
  if (writes() != nullptr && std::string(writes()) == "none")
    write_missing(read_record(contents(kData)).proofs);
  else if (writes() != nullptr)
    write_data();
  const Record record = read_record(contents(kData));
  CHECK(record.proofs.size() > 200);
  for (const std::string& line : record.unknown) FAIL_CHECK("no value has this name: " << line);
  for (const CoveringPair& pair : asked_pairs()) {
    const CoveringRow row = plain_row(pair);
    INFO("MESHWRIGHT_WRITE_SUPPORT=1 build/bin/test_support proves it: " << text_of(row));
    CHECK((proof_of(record.proofs, pair) != nullptr || !is_provable(row)));
  }
}

TEST_CASE("docs/support.md is made of what was proven") {
  const std::string page = page_of(read_record(contents(kData)).proofs);
  if (writes() != nullptr) std::ofstream(kPage) << page;
  INFO("MESHWRIGHT_WRITE_SUPPORT=1 build/bin/test_support makes it anew");
  CHECK((contents(kPage) == page));
}

TEST_CASE("what is recorded as refused is refused with the same code") {
  TemporaryFolder folder;
  const std::vector<Proof> all = read_record(contents(kData)).proofs;
  for (const Proof& proof : some(all, State::refused, 60)) {
    INFO(text_of(proof));
    if (const std::optional<Error> error = refusal_of(proof.row, folder.path))
      CHECK(code_string(error->code()) == proof.why);
    else
      CHECK(text_of(prove(proof.row)) == text_of(proof));
  }
}

TEST_CASE("what is recorded as proven is proven, and nothing that differs is called so in vain") {
  const std::vector<Proof> all = read_record(contents(kData)).proofs;
  for (const State state : {State::proven, State::differs})
    for (const Proof& proof : some(all, state, state == State::proven ? 4 : 1)) {
      INFO(text_of(proof));
      const Proof again = prove(proof.row);
      INFO(text_of(again));
      CHECK(again.state == proof.state);
    }
}
