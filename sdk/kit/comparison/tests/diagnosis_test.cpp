#include "sdk/kit/comparison/diagnosis.h"

#include <ATen/ops/arange.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/region.h"
#include "sdk/kit/comparison/wrong.h"

namespace diagnosis_test {

using namespace meshwright;
using namespace meshwright::comparison;
using at::Tensor;

namespace {

constexpr double kNear = 1e-9;

Tensor truth() { return at::arange(1, 13, at::kDouble).view({3, 4}); }

// Of a mesh of two axes of 2, as each rank sees it.
std::vector<std::vector<Axis>> mesh() {
  return {{{"dp", {0, 2}}, {"tp", {0, 1}}},
          {{"dp", {1, 3}}, {"tp", {0, 1}}},
          {{"dp", {0, 2}}, {"tp", {2, 3}}},
          {{"dp", {1, 3}}, {"tp", {2, 3}}}};
}

// Copies on all ranks, each made of the truth.
std::vector<Piece> copies(const std::function<Tensor(int64_t, Tensor)>& of) {
  std::vector<Piece> out;
  const std::vector<int64_t> shape = {3, 4};
  for (int64_t rank = 0; rank < 4; ++rank)
    out.push_back({rank, Region::whole(shape), of(rank, truth())});
  return out;
}

std::optional<Pattern> of(const std::vector<Piece>& pieces, int64_t accumulation = 1) {
  return diagnose(truth(), pieces, mesh(), accumulation, kNear);
}

Seen output_of(const char* module, const Tensor& output) {
  Seen out;
  out.module = module;
  out.output = output;
  return out;
}

}  // namespace

TEST_CASE("wrong values have a kind, the axes that it is of, and words") {
  struct Case {
    const char* text;
    Kind kind;
    std::vector<std::string> axes;
    bool mended;
    std::function<Tensor(int64_t, Tensor)> of;
  };
  for (const Case& one : std::vector<Case>{
           {"twice the truth on every rank, and dp and tp have 2 ranks",
            Kind::factor,
            {"dp", "tp"},
            true,
            [](int64_t, const Tensor& t) { return t * 2; }},
           {"1.25 times the truth on every rank",
            Kind::factor,
            {},
            false,
            [](int64_t, const Tensor& t) { return t * 1.25; }},
           {"zero on every rank",
            Kind::factor,
            {},
            true,
            [](int64_t, const Tensor& t) { return t * 0; }},
           {"differs between the ranks of tp: a sum over tp is missing",
            Kind::missing_sum,
            {"tp"},
            true,
            [](int64_t r, const Tensor& t) { return r % 2 == 0 ? t * t : t - t * t; }},
           {"differs between the ranks of dp: a mean over dp is missing",
            Kind::missing_mean,
            {"dp"},
            true,
            [](int64_t r, const Tensor& t) { return r < 2 ? t + t * t : t - t * t; }},
           {"differs between the ranks of tp, which should be alike",
            Kind::apart,
            {"tp"},
            true,
            [](int64_t r, const Tensor& t) { return r % 2 == 0 ? t + t * t : t - 3 * t * t; }},
           {"right on ranks 0 and 2, wrong on ranks 1 and 3, other ranks of tp: 3 times the truth",
            Kind::some_ranks,
            {"tp"},
            true,
            [](int64_t r, const Tensor& t) { return r % 2 == 0 ? t : t * 3; }},
           {"wrong on all ranks, by no factor, in rows 1 to 1 of 3 alone",
            Kind::other,
            {},
            false,
            [](int64_t, const Tensor& t) {
              Tensor out = t.clone();
              out[1].mul_(out[1]);
              return out;
            }}}) {
    CAPTURE(one.text);
    const std::optional<Pattern> found = of(copies(one.of));
    REQUIRE(found);
    CHECK(found->text == one.text);
    CHECK(found->kind == one.kind);
    CHECK(found->axes == one.axes);
    CHECK(found->mend.empty() != one.mended);
  }
}

TEST_CASE("factors of parts that no other rank has are told apart") {
  std::vector<Piece> rows;
  for (int64_t rank = 0; rank < 3; ++rank)
    rows.push_back({rank, Region::box({rank, 0}, {1, 4}),
                    truth().narrow(0, rank, 1) * (2.0 + static_cast<double>(rank))});
  const std::optional<Pattern> found = of(rows);
  REQUIRE(found);
  CHECK(found->kind == Kind::other_factors);
  CHECK(found->text == "other factors on other ranks, twice the truth on rank 0");
}

TEST_CASE("a factor that is the micro-batches' number says so") {
  const std::optional<Pattern> found =
      of(copies([](int64_t, const Tensor& t) { return t / 3; }), 3);
  REQUIRE(found);
  CHECK(found->text == "1/3 of the truth on every rank, and a step has 3 micro-batches");
  CHECK(found->mend.find("GradientSync::accumulate") != std::string::npos);
}

TEST_CASE("what is right, or off by less than the tolerance, is no fault") {
  CHECK(!of(copies([](int64_t, const Tensor& t) { return t; })));
  CHECK(!of(copies([](int64_t, const Tensor& t) { return t + kNear / 2; })));
}

TEST_CASE("tensors that are wrong in the same way are one group") {
  const std::vector<int64_t> shape = {3, 4};
  std::map<std::string, Tensor> all;
  std::map<std::string, std::vector<Piece>> pieces;
  for (const char* name : {"a", "b", "c", "d", "lost"}) all[name] = truth();
  pieces["a"] = pieces["c"] = copies([](int64_t, const Tensor& t) { return t * 2; });
  pieces["b"] = copies([](int64_t r, const Tensor& t) { return r == 1 ? t * 3 : t; });
  pieces["d"] = copies([](int64_t, const Tensor& t) { return t; });
  std::vector<std::string> missing;
  const std::vector<Wrong> found = wrong_tensors(all, pieces, mesh(), 1, kNear, missing);
  REQUIRE(found.size() == 2);
  CHECK(found[0].names == std::vector<std::string>{"a", "c"});
  CHECK(found[1].names == std::vector<std::string>{"b"});
  CHECK(found[1].pattern.kind == Kind::some_ranks);
  CHECK(missing == std::vector<std::string>{"lost"});
}

TEST_CASE("the first module that is wrong is named, with what makes it so") {
  const Tensor whole = truth(), later = truth() + 1;
  const std::vector<Seen> right = {output_of("rows", whole), output_of("next", later)};
  struct Case {
    const char* text;
    Kind kind;
    Tensor first, second;
  };
  const Tensor bias = at::arange(1, 5, at::kDouble);
  for (const Case& one : std::vector<Case>{
           {"differs between the ranks of tp: a sum over tp is missing", Kind::missing_sum,
            whole * whole, whole - whole * whole},
           {"off by the same row at every token, as of a bias that each rank of tp adds",
            Kind::other, whole + bias, whole + bias}}) {
    std::vector<RankSeen> ranks(2);
    for (RankSeen& rank : ranks) {
      rank.axes = {{"tp", {0, 1}}};
      rank.seen = {output_of("rows", &rank == &ranks[0] ? one.first : one.second),
                   output_of("next", later * 2)};
    }
    const Compared found = compare_modules(right, ranks, 3, kNear);
    REQUIRE(found.fault);
    CHECK(found.fault->module == "rows");
    CHECK(!found.fault->backward);
    CHECK(found.fault->pattern.text == one.text);
    CHECK(found.fault->pattern.kind == one.kind);
    CHECK(found.fault->pattern.mend.find("row-parallel") != std::string::npos);
    CHECK(found.fault->ranks == std::vector<int64_t>{0, 1});
    CHECK(found.modules == 2);
  }
}

}  // namespace diagnosis_test
