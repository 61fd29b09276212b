// Kernels of our own on the host, and numbers of their types.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "sdk/base/kernels/host_team.h"
// After it, as the device's compiler reads them.
#include "sdk/base/kernels/arguments.h"
#include "sdk/base/kernels/grouped_product.h"
#include "sdk/base/kernels/kernels.h"

namespace kernels_test {

using namespace meshwright::kernels;

// Numbers of a type; 16 bytes of them begin where a pack may begin.
template <class T>
struct Numbers {
  std::vector<T> all;
  explicit Numbers(long long count) : all(static_cast<size_t>(count)) {}
  double operator[](long long i) const {
    return static_cast<double>(wide(all[static_cast<size_t>(i)]));
  }
  void set(long long i, double x) { put(all[static_cast<size_t>(i)], static_cast<float>(x)); }
  static Numbers random(long long count, unsigned seed) {
    Numbers out(count);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (long long i = 0; i < count; ++i) out.set(i, normal(generator));
    return out;
  }
  T* data() { return all.data(); }
};

template <class T>
struct Type;
template <>
struct Type<float> {
  static constexpr const char* name = "float";
  static constexpr double epsilon = 3e-6;
  static constexpr int pack = 4;
};
template <>
struct Type<BFloat16> {
  static constexpr const char* name = "bfloat16";
  static constexpr double epsilon = 1.0 / 128;
  static constexpr int pack = 8;
};
template <>
struct Type<Half> {
  static constexpr const char* name = "half";
  static constexpr double epsilon = 1.0 / 1024;
  static constexpr int pack = 8;
};

template <class T>
std::string named(const char* kernel, bool packs) {
  return std::string(kernel) + "_" + Type<T>::name + (packs ? "_packs" : "");
}
template <class T, class Arguments>
void run(const char* kernel, bool packs, long long blocks, const Arguments& arguments,
         size_t shared = 0) {
  CAPTURE(kernel);
  REQUIRE(run_on_host(named<T>(kernel, packs), blocks, shared, &arguments));
}
template <class T>
void check_close(double got, double want, double size = 1) {
  CHECK(std::abs(got - want) <= Type<T>::epsilon * (std::abs(want) + size));
}

}  // namespace kernels_test
