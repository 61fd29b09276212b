// Kernels of our own: their text compiled for the host against sums in float64, and compiled for a
// device by NVRTC, which a build for devices has.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_numbers.h"
#include "kernel_source.h"

namespace kernels_test {

constexpr double kNone = -std::numeric_limits<double>::infinity();

template <class T>
double rounded_to(double x) {
  return static_cast<double>(rounded<T>(static_cast<float>(x)));
}

struct Size {
  long long rows, size;
  bool packs;
};
const std::vector<Size> kSizes{{0, 8, true},  {1, 1, false},   {3, 7, false},
                               {5, 64, true}, {37, 33, false}, {9, 264, true}};

template <class T>
void test_rms_norm(const Size& s, bool long_rows, bool plus_one, bool with_sum) {
  const long long all = s.rows * s.size;
  auto x = Numbers<T>::random(all, 1), added = Numbers<T>::random(all, 2),
       weight = Numbers<T>::random(s.size, 3), grad = Numbers<T>::random(all, 4),
       more = Numbers<T>::random(all, 5);
  Numbers<T> sum(all), y(all), to_x(all), to_weight(s.size);
  std::vector<float> rstd(static_cast<size_t>(s.rows));
  const int teams = long_rows ? 1 : kBlock / 32;
  const long long blocks = 2;  // a team has several rows, or none
  std::vector<float> parts(static_cast<size_t>(blocks * teams * s.size), NAN);
  RmsNorm forward{.x = x.data(),
                  .weight = weight.data(),
                  .y = y.data(),
                  .rstd = rstd.data(),
                  .rows = s.rows,
                  .size = s.size,
                  .epsilon = 1e-5F,
                  .plus_one = plus_one ? 1 : 0};
  if (with_sum) forward.added = added.data(), forward.sum = sum.data();
  run<T>(long_rows ? "rms_norm_wide" : "rms_norm", s.packs, blocks, forward);
  RmsNormBackward backward{.x = with_sum ? sum.data() : x.data(),
                           .weight = weight.data(),
                           .grad = grad.data(),
                           .rstd = rstd.data(),
                           .to_x = to_x.data(),
                           .to_weight = parts.data(),
                           .rows = s.rows,
                           .size = s.size,
                           .plus_one = plus_one ? 1 : 0};
  if (with_sum) backward.grad_of_sum = more.data();
  run<T>(long_rows ? "rms_norm_wide_backward" : "rms_norm_backward", s.packs, blocks, backward,
         static_cast<size_t>(teams * s.size) * sizeof(float));
  run<T>("sum_rows", s.packs, 1, SumRows{parts.data(), to_weight.data(), blocks * teams, s.size},
         kBlock * sizeof(float));

  std::vector<double> want_weight(static_cast<size_t>(s.size));
  for (long long row = 0; row < s.rows; ++row) {
    const long long first = row * s.size;
    auto value = [&](long long i) {
      return with_sum ? rounded_to<T>(x[first + i] + added[first + i]) : x[first + i];
    };
    double squares = 0, back = 0;
    for (long long i = 0; i < s.size; ++i) squares += value(i) * value(i);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(s.size) + 1e-5);
    auto factor = [&](long long i) { return weight[i] + (plus_one ? 1 : 0); };
    for (long long i = 0; i < s.size; ++i)
      back += grad[first + i] * factor(i) * value(i) * scale / static_cast<double>(s.size);
    for (long long i = 0; i < s.size; ++i) {
      const double h = value(i) * scale;
      if (with_sum) CHECK(sum[first + i] == value(i));
      check_close<T>(y[first + i], h * factor(i), 0.01);
      check_close<T>(to_x[first + i], (grad[first + i] * factor(i) - h * back) * scale +
                                          (with_sum ? more[first + i] : 0));
      want_weight[static_cast<size_t>(i)] += grad[first + i] * h;
    }
  }
  for (long long i = 0; i < s.size; ++i)
    check_close<T>(to_weight[i], want_weight[static_cast<size_t>(i)],
                   std::sqrt(static_cast<double>(s.rows)));
}

template <class T>
void test_silu_times(const Size& s, long long gap) {
  const long long stride = s.size + gap, all = s.rows * s.size;
  auto gate = Numbers<T>::random(s.rows * stride, 1), up = Numbers<T>::random(s.rows * stride, 2),
       grad = Numbers<T>::random(all, 3);
  Numbers<T> out(all), to_gate(all), to_up(all);
  run<T>("silu_times", s.packs, 2,
         SiluTimes{gate.data(), up.data(), out.data(), s.rows, s.size, stride, stride});
  run<T>("silu_times_backward", s.packs, 2,
         SiluTimesBackward{gate.data(), up.data(), grad.data(), to_gate.data(), to_up.data(),
                           s.rows, s.size, stride, stride});
  for (long long i = 0; i < all; ++i) {
    const long long at = i / s.size * stride + i % s.size;
    const double g = gate[at], u = up[at], sigmoid = 1 / (1 + std::exp(-g));
    check_close<T>(out[i], g * sigmoid * u, 0.01);
    check_close<T>(to_gate[i], grad[i] * u * sigmoid * (1 + g * (1 - sigmoid)), 0.01);
    check_close<T>(to_up[i], grad[i] * g * sigmoid, 0.01);
  }
}

// Heads that lie in the columns of one product, as a fused projection gives them.
template <class T>
void test_rotate(long long size, long long dim, bool by_sample, float direction) {
  constexpr long long kBatch = 2, kLength = 5, kQueries = 4, kKeys = 2;
  const bool packs = size % Type<T>::pack == 0 && dim / 2 % Type<T>::pack == 0;
  const long long row = (kQueries + kKeys) * size,
                  angles = (by_sample ? kBatch : 1) * kLength * dim;
  auto in = Numbers<T>::random(kBatch * kLength * row, 1), cos = Numbers<T>::random(angles, 2),
       sin = Numbers<T>::random(angles, 3);
  Numbers<T> query(kBatch * kLength * kQueries * size), key(kBatch * kLength * kKeys * size);
  auto heads = [&](long long first, Numbers<T>& out, long long count) {
    return Heads{in.data() + first * size, out.data(), kLength * row, row, size,
                 static_cast<int>(count)};
  };
  run<T>("rotate", packs, 3,
         Rotate{heads(0, query, kQueries), heads(kQueries, key, kKeys), cos.data(), sin.data(),
                kBatch, kLength, static_cast<int>(size), static_cast<int>(dim), by_sample ? 1 : 0,
                /*wide_angles=*/0, direction});
  for (long long r = 0; r < kBatch * kLength; ++r)
    for (long long head = 0; head < kQueries + kKeys; ++head)
      for (long long i = 0; i < size; ++i) {
        const long long from = r * row + head * size, half = dim / 2,
                        angle = (by_sample ? r : r % kLength) * dim + i % half;
        // Both products are rounded before their sum is.
        double first = in[from + i], second = 0;
        if (i < dim) {
          first *= cos[angle];
          second = direction * sin[angle] * (i < half ? -in[from + i + half] : in[from + i - half]);
        }
        const double got = head < kQueries ? query[(r * kQueries + head) * size + i]
                                           : key[(r * kKeys + head - kQueries) * size + i];
        check_close<T>(got, first + second, std::abs(first) + std::abs(second));
      }
}

// `begin`: these columns are a part of the vocabulary.
template <class T>
void test_cross_entropy(const Size& s, long long begin, bool in_place) {
  constexpr long long kIgnore = -100;
  const bool whole = begin == 0;
  const long long vocabulary = whole ? s.size : begin + 2 * s.size;
  auto logits = Numbers<T>::random(s.rows * s.size, 1);
  std::vector<long long> targets;
  for (long long row = 0; row < s.rows; ++row)
    targets.push_back(row % 4 == 3 ? kIgnore : (row * 5 + begin) % vocabulary);
  if (s.rows > 4) {
    logits.set(s.size, kNone);  // of the second row
    for (long long i = 0; i < s.size; ++i) logits.set(2 * s.size + i, kNone);
    logits.set(4 * s.size, NAN);
  }
  const Numbers<T> given = logits;
  auto rows = static_cast<size_t>(s.rows);
  std::vector<float> max(rows), sum(rows), picked(rows);
  std::vector<double> losses(rows);
  long long bad = -1;
  CrossEntropy forward{.logits = logits.data(),
                       .targets = targets.data(),
                       .max = max.data(),
                       .sum = sum.data(),
                       .picked = picked.data(),
                       .bad = &bad,
                       .rows = s.rows,
                       .columns = s.size,
                       .stride = s.size,
                       .begin = begin,
                       .vocabulary = vocabulary,
                       .ignore = kIgnore};
  if (whole) forward.losses = losses.data();
  run<T>("cross_entropy", s.packs, 2, forward);
  CHECK(bad == -1);
  std::vector<float> shift = max, inverse = sum;
  if (!whole)
    for (size_t r = 0; r < rows; ++r) inverse[r] = 1 / sum[r];
  const float grad = 0.5F;
  Numbers<T> fresh(s.rows * s.size);
  Numbers<T>& out = in_place ? logits : fresh;
  run<T>("cross_entropy_backward", s.packs, 2,
         CrossEntropyBackward{logits.data(), targets.data(), shift.data(), inverse.data(), &grad,
                              out.data(), s.rows, s.size, s.size, begin, kIgnore});
  for (size_t r = 0; r < rows; ++r) {
    CAPTURE(r);
    const long long first = static_cast<long long>(r) * s.size, place = targets[r] - begin;
    const bool here = targets[r] != kIgnore && place >= 0 && place < s.size;
    double most = kNone, all = 0;
    for (long long i = 0; i < s.size; ++i) most = std::fmax(most, given[first + i]);
    const double below = most == kNone ? 0 : most;
    for (long long i = 0; i < s.size; ++i) all += std::exp(given[first + i] - below);
    const double wanted_pick = here ? given[first + place] : 0;
    CHECK(static_cast<double>(max[r]) == (whole ? below : most));
    if (whole && targets[r] == kIgnore) CHECK(losses[r] == 0);
    if (std::isnan(all)) {
      CHECK(std::isnan(sum[r]));
      if (targets[r] != kIgnore) CHECK((!whole || std::isnan(losses[r])));
      continue;
    }
    CHECK((std::isnan(wanted_pick) || static_cast<double>(picked[r]) == wanted_pick));
    const double want_sum = whole ? 1 / all : all;
    if (all == 0) {
      CHECK(static_cast<double>(sum[r]) == want_sum);
      continue;
    }
    CHECK(static_cast<double>(sum[r]) == doctest::Approx(want_sum).epsilon(1e-5));
    if (whole && targets[r] != kIgnore)
      CHECK(losses[r] == doctest::Approx(std::log(all) + below - wanted_pick).epsilon(1e-5));
    for (long long i = 0; i < s.size; ++i) {
      double want = std::exp(given[first + i] - below) / all;
      if (here && i == place) want -= 1;
      check_close<T>(out[first + i], targets[r] == kIgnore ? 0 : want * 0.5, 1e-3);
    }
  }
}

template <class T>
void test_all() {
  CAPTURE(Type<T>::name);
  for (const Size& s : kSizes) {
    CAPTURE(s.rows);
    CAPTURE(s.size);
    for (const bool long_rows : {false, true})
      for (const bool plus_one : {false, true})
        for (const bool with_sum : {false, true})
          test_rms_norm<T>(s, long_rows, plus_one, with_sum);
    for (const long long gap : {0, 24}) test_silu_times<T>(s, gap);
    for (const long long begin : {0, 40})
      for (const bool in_place : {false, true}) test_cross_entropy<T>(s, begin, in_place);
  }
  for (const bool by_sample : {false, true})
    for (const float direction : {1.0F, -1.0F})
      for (const auto& [size, dim] : {std::pair{64, 64}, {32, 16}, {6, 6}, {10, 4}})
        test_rotate<T>(size, dim, by_sample, direction);
}

}  // namespace kernels_test

using namespace kernels_test;

TEST_CASE("kernels of our own compute what their definitions say") {
  test_all<float>();
  test_all<BFloat16>();
  test_all<Half>();
}

TEST_CASE("a number becomes the nearest bfloat16, of two the even one") {
  for (const auto& [from, to] : std::vector<std::pair<float, float>>{
           {1.0F, 1.0F},
           {1.00390625F, 1.0F},       // between 1 and 1.0078125
           {1.01171875F, 1.015625F},  // between 1.0078125 and 1.015625
           {1.00390637F, 1.0078125F},
           {-1.01171875F, -1.015625F},
           {3.4e38F, INFINITY},
           {INFINITY, INFINITY}})
    CHECK(rounded<BFloat16>(from) == to);
  CHECK(std::isnan(rounded<BFloat16>(NAN)));
  CHECK(std::isnan(rounded<BFloat16>(std::bit_cast<float>(0x7fffffffU))));
}

TEST_CASE("a target that is none is told, and has no number for a loss") {
  std::vector<float> logits(12, 0), max(3), sum(3), picked(3);
  const std::vector<long long> targets{1, 4, -100};
  std::vector<double> losses(3);
  long long bad = -1;
  run<float>("cross_entropy", false, 1,
             CrossEntropy{logits.data(), targets.data(), max.data(), sum.data(), picked.data(),
                          losses.data(), &bad, 3, 4, 4, 0, 4, -100});
  CHECK(bad == 4);
  CHECK(losses[0] == doctest::Approx(std::log(4)));
  CHECK(std::isnan(losses[1]));
  CHECK(losses[2] == 0);
}

// Only what the test calls of NVRTC's interface.
TEST_CASE("NVRTC compiles the kernels without a word") {
  const char* file = MESHWRIGHT_NVRTC;
  void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string why = ::dlerror();
    REQUIRE_MESSAGE(MESHWRIGHT_HAS_CUDA == 0, why);  // it comes with what that part is built from
    std::printf("not tried, for NVRTC is not there: %s\n", why.c_str());
    return;
  }
  auto call = [&]<class... A>(const char* name, A... arguments) {
    auto* function = reinterpret_cast<int (*)(A...)>(::dlsym(library, name));
    REQUIRE(static_cast<bool>(function));
    return function(arguments...);
  };
  // Each type, with packs and without; the host's compiler has read all six.
  for (const char* type : {"bfloat16_packs", "half", "float"}) {
    CAPTURE(type);
    void* program = nullptr;
    const void* none = nullptr;
    REQUIRE(call("nvrtcCreateProgram", &program, kKernelSource, "kernels.cu", 0, none, none) == 0);
    const std::string define = std::string("-DMESHWRIGHT_KERNELS=MESHWRIGHT_KERNELS_") + type;
    const char* options[] = {"--gpu-architecture=sm_90", "--std=c++17",
                             "--device-as-default-execution-space", "--fmad=false", define.c_str()};
    const int result =
        call("nvrtcCompileProgram", program, static_cast<int>(std::size(options)), &options[0]);
    size_t size = 0;
    REQUIRE(call("nvrtcGetProgramLogSize", program, &size) == 0);
    std::string log(size, 0);
    REQUIRE(call("nvrtcGetProgramLog", program, log.data()) == 0);
    CHECK(log.find_first_not_of('\0') == std::string::npos);
    CHECK_MESSAGE(result == 0, log);
    REQUIRE(call("nvrtcGetCUBINSize", program, &size) == 0);
    CHECK(size > 10000);
    CHECK(call("nvrtcDestroyProgram", &program) == 0);
  }
}
