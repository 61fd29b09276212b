#include "apps/prove/running/operators.h"

#include <optional>
#include <vector>

#include "sdk/kit/comparison/diagnosis.h"

namespace meshwright::prove {

std::string first_operator(const Run& truth, const Run& ranks, int64_t length) {
  const Captured& one = truth.ranks.front();
  std::vector<comparison::Seen> whole;
  for (const comparison::SeenOperator& seen : one.operators) {
    whole.push_back(seen.seen);
    if (whole.back().gradient.defined())
      whole.back().gradient = whole.back().gradient * one.seen.scale;
  }
  std::vector<comparison::RankSeen> all;
  for (const Captured& rank : ranks.ranks) {
    comparison::RankSeen& mine = all.emplace_back(rank.seen);
    mine.seen.clear();
    for (const comparison::SeenOperator& seen : rank.operators) mine.seen.push_back(seen.seen);
  }
  const std::optional<comparison::PlaceOfFault> fault =
      comparison::compare_modules(whole, all, length, 1e-9).fault;
  if (!fault) return "";
  if (!fault->backward) return "the first operator that differs is that of " + fault->module;
  std::string into;
  for (const Captured& rank : ranks.ranks)
    for (const comparison::SeenOperator& seen : rank.operators)
      if (into.empty() && seen.seen.module == fault->module) into = seen.into;
  return "the first gradient that differs is that of the output of " + fault->module +
         (into.empty() ? "" : ", which comes from " + into);
}

}  // namespace meshwright::prove
