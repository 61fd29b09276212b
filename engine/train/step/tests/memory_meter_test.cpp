// What a rank's tensors take on the CPU. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/step/memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <thread>

namespace memory_meter_test {

using meshwright::train::MemoryMeter;

TEST_CASE("a meter counts what its thread makes, whoever gives it back, and when") {
  at::Tensor before = at::empty({1000});
  std::optional<at::Tensor> kept;
  {
    MemoryMeter meter(at::kCPU);
    at::Tensor mine = at::empty({1000});
    CHECK(meter.live() == 4000);
    std::thread([] { at::empty({500}); }).join();  // another thread's own
    CHECK(meter.live() == 4000);
    CHECK(meter.peak() == 4000);
    std::thread([given = std::move(mine)]() mutable { given = at::Tensor(); }).join();
    CHECK(meter.live() == 0);
    before = at::Tensor();  // made before the meter
    CHECK(meter.live() == 0);
    kept = at::empty({10});
    meter.reset_peak();
    CHECK(meter.peak() == 40);
  }
  kept.reset();
  MemoryMeter other(at::kCPU);
  CHECK(other.live() == 0);
}

TEST_CASE("memory is the unit's that its thread was at, while it is held") {
  MemoryMeter meter(at::kCPU);
  auto units = [&] {
    std::map<int32_t, int64_t> out;
    meter.each_of_units([&](const void*, int64_t bytes, int32_t unit) { out[unit] += bytes; });
    return out;
  };
  const at::Tensor nobodys = at::empty({10});
  CHECK(MemoryMeter::unit_is(3) == MemoryMeter::kNoUnit);
  at::Tensor one = at::empty({1000});
  CHECK(MemoryMeter::unit_is(4) == 3);
  const at::Tensor other = at::empty({500}), more = at::empty({500});
  std::thread([] { CHECK(MemoryMeter::unit_is(MemoryMeter::kNoUnit) == -1); }).join();
  CHECK(MemoryMeter::unit_is(MemoryMeter::kNoUnit) == 4);
  const at::Tensor after = at::empty({10});
  CHECK(units() == std::map<int32_t, int64_t>{{3, 4000}, {4, 4000}});
  one = at::Tensor();
  CHECK(units() == std::map<int32_t, int64_t>{{4, 4000}});
}

// oneDNN takes and gives back memory by address alone, also without a meter.
TEST_CASE("products of oneDNN go on behind a meter") {
  const at::Tensor bf16 = at::ones({256, 256}, at::kBFloat16), fp32 = at::ones({256, 256});
  auto right = [&] {
    return at::mm(bf16, bf16)[3][5].item<float>() == 256 &&
           at::mm(fp32, fp32)[3][5].item<float>() == 256;
  };
  {
    MemoryMeter meter(at::kCPU);
    const int64_t live = meter.live();
    for (int i = 0; i < 3; ++i) CHECK(right());
    CHECK(meter.live() >= live);
  }
  CHECK(right());
}

}  // namespace memory_meter_test
