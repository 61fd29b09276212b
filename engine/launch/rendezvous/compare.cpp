// compare_ranks(): all ranks mean the same job, or hear which one does not.
#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "engine/launch/rendezvous/told.h"
#include "engine/launch/rendezvous/with_others.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

constexpr size_t kMostDifferences = 6;

const std::string* find(const Facts& facts, const std::string& name) {
  for (const auto& [known, value] : facts)
    if (known == name) return &value;
  return nullptr;
}

std::string brief(const std::string& value) {
  return value.size() <= 80 ? value : value.substr(0, 77) + "...";
}

// "rank 2 has optimizer.lr 0.002, the others 0.001; ..." What only one side has (the options of its
// strategy, say) follows from something else, and is said only when nothing else differs.
std::string differences(const std::vector<int64_t>& odd, const Facts& theirs, const Facts& usual) {
  std::string who = named_ranks(odd) + (odd.size() == 1 ? " has " : " have ");
  std::vector<std::string> changed, lone;
  for (const auto& [name, value] : theirs) {
    const std::string* other = find(usual, name);
    if (other == nullptr)
      lone.push_back(name + " " + brief(value) + ", which the others do not have");
    else if (*other != value)
      changed.push_back(name + " " + brief(value) + ", the others " + brief(*other));
  }
  for (const auto& [name, value] : usual)
    if (find(theirs, name) == nullptr)
      lone.push_back("no " + name + ", the others " + brief(value));
  const std::vector<std::string>& said = changed.empty() ? lone : changed;
  std::string out;
  for (size_t i = 0; i < said.size() && i < kMostDifferences; ++i)
    out += (i ? "; " : who) + said[i];
  return said.size() > kMostDifferences
             ? out + "; and " + std::to_string(said.size() - kMostDifferences) + " more"
             : out;
}

// Rank 0 reads all: no other rank reads a world's worth. Empty: all are alike.
std::string judge(c10d::Store& store, int64_t world, const std::string& mine,
                  std::chrono::steady_clock::time_point end) {
  std::map<std::string, std::vector<int64_t>> kinds{{mine, {0}}};
  for (int64_t r = 1; r < world; ++r) {
    std::string key = std::to_string(r);
    try {
      store.wait({key}, left_until(end));
    } catch (const std::exception&) {
      throw Error(ErrorCode::rendezvous_failed,
                  "rank 0 timed out: rank " + key +
                      " did not say what it is to train; it ended, hangs or is stopped")
          .key("dist_env.timeout_minutes")
          .help("look at the log of rank " + key);
    }
    kinds[text_of(store.get(key))].push_back(r);
  }
  const std::string* usual = &mine;
  for (const auto& [kind, members] : kinds)
    if (members.size() > kinds[*usual].size()) usual = &kind;
  std::string out;
  for (const auto& [kind, members] : kinds)
    if (kind != *usual)
      out += (out.empty() ? "" : "; ") +
             differences(members, told<Facts>(kind, "compare", named_ranks(members)),
                         told<Facts>(*usual, "compare", "most ranks"));
  return out;
}

}  // namespace

void compare_ranks(c10d::Store& base, int64_t rank, int64_t world, const Facts& facts,
                   Milliseconds timeout) {
  if (world == 1) return;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "compare", c10::intrusive_ptr<c10d::Store>::reclaim_copy(&base));
  auto end = std::chrono::steady_clock::now() + timeout;
  const std::string mine = base::json_text(facts);
  const WithOthers words{rank, timeout, "compare itself with the others", "rank 0 gave no verdict"};
  const std::string verdict = with_others(words, timeout + Milliseconds(3000), [=] {
    if (rank != 0) {
      store->set(std::to_string(rank), bytes_of(mine));
      return hear(*store, "verdict", left_until(end) + Milliseconds(2000));
    }
    std::string found = judge(*store, world, mine, end);
    publish(*store, "verdict", found.empty() ? "-" : found, world - 1);
    return found;
  });
  if (!verdict.empty() && verdict != "-")
    throw Error(ErrorCode::ranks_disagree, verdict)
        .help("start all ranks with the same file, --set values, environment and installation");
}

}  // namespace meshwright::rendezvous
