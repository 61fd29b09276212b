// bench_packing [DOCUMENTS]: seconds that the lengths of so many documents (a million) take to pack
// by packing = "bfd", their seeded order included, in one thread: medians of five.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

#include "plugins/jsonl/packed_source.h"

namespace {

using namespace meshwright::jsonl;

// Many short documents and a few as long as a sample.
std::vector<uint32_t> lengths_of(uint32_t documents, uint32_t room) {
  std::mt19937_64 random(room);
  std::vector<uint32_t> out(documents);
  for (uint32_t& length : out) {
    const double part = static_cast<double>(random() >> 11) * 0x1p-53;  // 0 .. 1
    length = 1 + static_cast<uint32_t>(part * part * part * (room - 1));
  }
  return out;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <size_t N>
double median(std::array<double, N> times) {
  std::sort(times.begin(), times.end());
  return times[N / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  const uint32_t documents =
      argc > 1 ? static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 1'000'000;
  if (documents == 0) {
    std::fprintf(stderr, "bench_packing [DOCUMENTS]\n");
    return 2;
  }
  std::printf("%10s %12s %12s %12s %10s\n", "positions", "seconds", "of order", "packs", "filled");
  for (const uint32_t room : {128U, 4096U, 131072U}) {
    const std::vector<uint32_t> lengths = lengths_of(documents, room);
    std::array<double, 5> all{}, ordering{};
    Packs packs;
    for (size_t i = 0; i < all.size(); ++i) {
      const double begin = seconds();
      const std::vector<uint32_t> order = seeded_order(documents, i);
      ordering[i] = seconds() - begin;
      packs = pack(lengths, room, Packing::best_fit, order);
      all[i] = seconds() - begin;
    }
    double positions = 0;
    for (const uint32_t length : lengths) positions += length;
    std::printf("%10u %12.3f %12.3f %12lld %9.2f%%\n", room, median(all), median(ordering),
                static_cast<long long>(packs.count()),
                100 * positions / (static_cast<double>(packs.count()) * room));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_packing: %s\n", error.what());
  return 1;
}
