#include "hosts.h"

#include <ATen/ops/zeros.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "parts.h"

namespace meshwright::detail {

namespace {

// Two containers of one machine may each have shared memory of their own.
int64_t identity_of_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat memory{};
  if (boot.empty() || ::stat("/dev/shm", &memory) != 0) return 0;
  boot += " " + std::to_string(memory.st_dev) + " " + std::to_string(memory.st_ino);
  return static_cast<int64_t>(std::hash<std::string>()(boot) | 1U);  // 0: none
}

std::vector<int64_t> numbers_in(std::string_view text) {
  std::vector<int64_t> out;
  while (!text.empty()) {
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    out.push_back(value);
    text.remove_prefix(std::min(text.find(','), text.size() - 1) + 1);
  }
  return out;
}

}  // namespace

HostMap::HostMap(const std::vector<int64_t>& identities) {
  std::vector<int64_t> met;
  for (size_t i = 0; i < identities.size(); ++i) {
    const auto known = std::find(met.begin(), met.end(), identities[i]);
    const auto index = static_cast<size_t>(known - met.begin());
    if (known == met.end()) {
      met.push_back(identities[i]);
      places.emplace_back();
    }
    host.push_back(static_cast<int64_t>(index));
    local.push_back(static_cast<int64_t>(places[index].size()));
    places[index].push_back(static_cast<int64_t>(i));
  }
}

bool HostMap::layered() const {
  return hosts() > 1 && each() > 1 && hosts() * each() <= kMostRanks &&
         std::all_of(places.begin(), places.end(),
                     [&](const auto& p) { return static_cast<int64_t>(p.size()) == each(); });
}

HostMap find_hosts(Transport& transport, const Place& place, int64_t rank) {
  const auto n = static_cast<int64_t>(place.ranks.size());
  std::vector<int64_t> identities(place.ranks.size(), 0);
  if (const char* told = std::getenv("MESHWRIGHT_HOSTS")) {
    const std::vector<int64_t> all = numbers_in(told);
    for (size_t i = 0; i < identities.size() && !all.empty(); ++i)
      identities[i] = all[static_cast<size_t>(place.ranks[i]) % all.size()];
    return HostMap(identities);
  }
  if (n < 4) return HostMap(identities);
  at::Tensor all = at::zeros({n}, at::kLong);
  auto* at = all.mutable_data_ptr<int64_t>();
  // A rank that wants no shared memory asks with the others, and says so.
  at[rank] = wants_shared_memory() ? identity_of_host() : 0;
  transport.all_reduce(all, ReduceOp::sum, /*control=*/true)->wait();
  std::copy(at, at + n, identities.begin());
  if (std::find(identities.begin(), identities.end(), 0) != identities.end())
    identities.assign(identities.size(), 0);
  return HostMap(identities);
}

}  // namespace meshwright::detail
