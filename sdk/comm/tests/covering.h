// Tables of many factors, of which each two values meet in some row: where all of their products
// would be too many, a fault of two things together is found by a few hundred rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace meshwright {

using CoveringRow = std::vector<size_t>;     // of each factor the place of its value; 0: plain
using CoveringPair = std::array<size_t, 4>;  // factor, value, a later factor, value

struct CoveringFactors {
  std::vector<size_t> sizes;  // how many values each factor has
  // Whether such a row can be, as far as that is told at once.
  std::function<bool(const CoveringRow&)> can_be;
  // Whether it is, asked once of the best candidates alone.
  std::function<bool(const CoveringRow&)> is;
  // What the pair needs of other factors, into a row that is plain beside it. May be empty.
  std::function<void(CoveringRow&, const CoveringPair&, std::mt19937&)> bring;
  // Rows that there are already, whose pairs have met.
  std::vector<CoveringRow> met = {};
};

struct Covering {
  std::vector<CoveringRow> rows;
  std::vector<CoveringPair> apart;  // that meet in none
};

// Greedy, the same for a seed.
inline Covering covering(const CoveringFactors& factors, unsigned seed) {
  const size_t count = factors.sizes.size();
  std::set<CoveringPair> open;
  for (size_t f = 0; f < count; ++f)
    for (size_t g = f + 1; g < count; ++g)
      for (size_t v = 0; v < factors.sizes[f]; ++v)
        for (size_t w = 0; w < factors.sizes[g]; ++w) open.insert({f, v, g, w});
  auto close = [&](const CoveringRow& row) {
    for (size_t f = 0; f < count; ++f)
      for (size_t g = f + 1; g < count; ++g) open.erase({f, row[f], g, row[g]});
  };
  for (const CoveringRow& row : factors.met) close(row);
  auto gain_of = [&](const CoveringRow& row, size_t f) {
    long out = 0;
    for (size_t g = 0; g < count; ++g)
      if (g != f)
        out += open.contains(f < g ? CoveringPair{f, row[f], g, row[g]}
                                   : CoveringPair{g, row[g], f, row[f]});
    return out;
  };
  std::mt19937 random(seed);
  std::map<CoveringRow, bool> known;
  // A row with this pair: each other factor in turn takes the value that meets most others which
  // have not met.
  auto made = [&](const CoveringPair& wanted) -> std::optional<CoveringRow> {
    CoveringRow row(count);
    row[wanted[0]] = wanted[1], row[wanted[2]] = wanted[3];
    if (factors.bring) factors.bring(row, wanted, random);
    if (!factors.can_be(row)) return std::nullopt;
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = count - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    for (const size_t f : order) {
      if (f == wanted[0] || f == wanted[2]) continue;
      const size_t was = row[f], first = random() % factors.sizes[f];
      std::pair<long, size_t> best{-1, was};
      for (size_t i = 0; i < factors.sizes[f]; ++i) {
        row[f] = (first + i) % factors.sizes[f];
        if (factors.can_be(row)) best = std::max(best, std::pair(gain_of(row, f), row[f]));
      }
      row[f] = best.second;
    }
    return row;
  };
  Covering out;
  while (!open.empty()) {
    const CoveringPair wanted = *open.begin();
    std::vector<std::pair<long, CoveringRow>> candidates;
    for (int i = 0; i < 60; ++i)
      if (const std::optional<CoveringRow> row = made(wanted)) {
        long gain = 0;
        for (size_t f = 0; f < count; ++f) gain += gain_of(*row, f);
        candidates.emplace_back(-gain, *row);
      }
    std::sort(candidates.begin(), candidates.end());
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& one) {
      auto [it, added] = known.try_emplace(one.second);
      if (added) it->second = factors.is(one.second);
      return it->second;
    });
    open.erase(wanted);
    if (found == candidates.end()) {
      out.apart.push_back(wanted);
      continue;
    }
    out.rows.push_back(found->second);
    close(found->second);
  }
  return out;
}

}  // namespace meshwright
