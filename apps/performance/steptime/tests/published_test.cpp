// The model against runs that others published. The bars are those of the issue that asked for it;
// docs/step_time.md has the table and says where the model is off.
#include "published.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace meshwright::steptime::published {
namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/published";
const std::string kMachines = MESHWRIGHT_SOURCE_DIR "/configs/machines";

const std::vector<Compared>& compared_runs() {
  static const std::vector<Compared> all = compare(runs(kData), machines(kMachines));
  return all;
}

template <class Keep>
std::vector<double> errors(Keep keep) {
  std::vector<double> out;
  for (const Compared& c : compared_runs())
    if (keep(c)) out.push_back(c.error);
  return out;
}
bool held_dense(const Compared& c) {
  return c.row.set == "held" && !c.row.experts() && !c.row.job.fp8;
}

double within(const std::vector<double>& values, double most) {
  const auto count = std::ranges::count_if(values, [&](double e) { return e <= most; });
  return static_cast<double>(count) / static_cast<double>(values.size());
}

TEST_CASE("the rows that the constants were fitted on are met within 3% at the median") {
  const std::vector<double> fit = errors([](const Compared& c) { return c.row.set == "fit"; });
  CHECK(fit.size() == 27);
  CHECK(quantile(fit, 0.5) <= 0.03);
}

TEST_CASE("dense bf16 runs it never saw, memory not tight: 4% at the median, 9% for nine in ten") {
  // Below 85% of the card, as the bar is put: 150 rows within a tenth.
  const std::vector<double> held =
      errors([](const Compared& c) { return held_dense(c) && c.of_card < 0.85; });
  CHECK(held.size() == 166);
  CHECK(quantile(held, 0.5) <= 0.04);
  CHECK(quantile(held, 0.9) <= 0.09);
  CHECK(within(held, 0.10) * static_cast<double>(held.size()) >= 150);
  // Below 85% of what is left when others have theirs, which is what the program calls tight: a
  // share as large.
  const std::vector<double> comfortable =
      errors([](const Compared& c) { return held_dense(c) && c.use < 0.85; });
  CHECK(comfortable.size() == 150);
  CHECK(quantile(comfortable, 0.5) <= 0.04);
  CHECK(quantile(comfortable, 0.9) <= 0.09);
  CHECK(within(comfortable, 0.10) >= 150.0 / 161);
}

TEST_CASE("fp8 runs are met within 6% at the median") {
  const std::vector<double> fp8 = errors(
      [](const Compared& c) { return c.row.set == "held" && c.row.job.fp8 && !c.row.experts(); });
  CHECK(fp8.size() == 26);
  CHECK(quantile(fp8, 0.5) <= 0.06);
}

TEST_CASE("mixtures of experts are rough: within a fifth") {
  for (const Compared& c : compared_runs())
    if (c.row.set == "held" && c.row.experts()) {
      CAPTURE(c.row.id);
      CHECK(c.error <= 0.2);
    }
}

TEST_CASE("peak memory: 28 of 36 within a tenth") {
  int counted = 0, close = 0;
  for (const Compared& c : compared_runs()) {
    if (c.row.memory <= 0) continue;
    ++counted;
    close += c.memory_error() <= 0.10 ? 1 : 0;
  }
  CHECK(counted == 36);
  CHECK(close >= 28);
}

TEST_CASE("27 of 30 published comparisons come out in the order that was measured") {
  auto a_token = [](const std::string& id) {
    for (const Compared& c : compared_runs())
      if (c.row.id == id) return c.predicted.seconds * c.row.job.ranks / c.row.job.tokens_a_step();
    FAIL("no row " << id);
    return 0.0;
  };
  int right = 0, count = 0;
  for (const std::vector<std::string>& pair : pairs(kData)) {
    ++count;
    right += a_token(pair[1]) < a_token(pair[2]) ? 1 : 0;
  }
  CHECK(count == 30);
  CHECK(right >= 27);
}

TEST_CASE("the sweep over layouts: 8% at each model's median, the order, and what it would pick") {
  std::map<std::string, std::vector<Compared>> models;
  for (const Compared& c : compare(sweep(kData), machines(kMachines)))
    models[c.row.model].push_back(c);
  CHECK(models.size() == 4);
  int right = 0, count = 0;
  for (const auto& [name, rows] : models) {
    CAPTURE(name);
    std::vector<double> off;
    const Compared *pick = &rows.front(), *best = pick;
    for (const Compared& a : rows) {
      off.push_back(a.error);
      if (a.predicted.seconds < pick->predicted.seconds) pick = &a;
      if (a.row.seconds < best->row.seconds) best = &a;
      for (const Compared& b : rows) {
        if (b.row.seconds <= 1.05 * a.row.seconds) continue;  // b is clearly slower
        ++count;
        right += a.predicted.seconds < b.predicted.seconds ? 1 : 0;
      }
    }
    CHECK(quantile(off, 0.5) <= 0.08);
    CHECK(pick->row.seconds <= 1.06 * best->row.seconds);
  }
  CHECK(count == 572);
  CHECK(right >= 0.8 * count);
}

}  // namespace
}  // namespace meshwright::steptime::published
