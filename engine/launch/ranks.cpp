#include "engine/launch/ranks.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "meshwright/error.h"

namespace meshwright::launch {

namespace {

using Source = RankEnvironment::Source;

class Reader {
 public:
  Reader(const Lookup& lookup) : lookup_(lookup) {}
  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = lookup_(name);
    return value && value->empty() ? std::nullopt : value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }
  std::optional<int64_t> number(const std::string& name, int64_t low, int64_t high) const {
    std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int64_t out = 0;
    const char* end = value->data() + value->size();
    auto [stop, error] = std::from_chars(value->data(), end, out);
    if (error != std::errc() || stop != end || out < low || out > high)
      fail(name, name + " = \"" + *value + "\" is not a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    return out;
  }
  int64_t need(const std::string& name, int64_t low, int64_t high, const std::string& because) const {
    if (std::optional<int64_t> value = number(name, low, high)) return *value;
    fail(name, name + " is not set, but " + because);
  }
  [[noreturn]] static void fail(const std::string& name, const std::string& what) {
    throw Error(ErrorCode::bad_rank_environment, what)
        .help("let the launcher set " + name + ", or unset its variables and use `meshwright train FILE --nproc N`");
  }

 private:
  const Lookup& lookup_;
};

constexpr int64_t kMost = int64_t{1} << 22;

void check_rank(const RankEnvironment& e, const char* rank, const char* world) {
  if (e.rank >= e.world_size)
    Reader::fail(rank,
                 std::string(rank) + " = " + std::to_string(e.rank) + " is not below " + world + " = " + std::to_string(e.world_size));
  if (e.local_rank >= e.local_world_size)
    Reader::fail(rank, "the local rank " + std::to_string(e.local_rank) + " is not below the " + std::to_string(e.local_world_size) +
                           " ranks of its host");
  if (e.local_world_size > e.world_size)
    Reader::fail(world, std::to_string(e.local_world_size) + " ranks on this host, but only " + std::to_string(e.world_size) + " in all");
}

RankEnvironment plain(const Reader& read, Source source) {
  RankEnvironment e;
  e.source = source;
  e.rank = read.need("RANK", 0, kMost, "WORLD_SIZE is");
  e.world_size = read.need("WORLD_SIZE", 1, kMost, "RANK is");
  std::optional<int64_t> local_world = read.number("LOCAL_WORLD_SIZE", 1, kMost);
  std::optional<int64_t> local = read.number("LOCAL_RANK", 0, kMost);
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  bool loopback = addr && (*addr == "localhost" || addr->starts_with("127.") || *addr == "::1");
  e.local_world_size = local_world.value_or(loopback || e.world_size == 1 ? e.world_size : local.value_or(0) + 1);
  e.local_rank = local.value_or(loopback ? e.rank : 0);
  check_rank(e, "RANK", "WORLD_SIZE");
  if (e.world_size > 1) {
    if (!addr) Reader::fail("MASTER_ADDR", "MASTER_ADDR is not set, but the job has " + std::to_string(e.world_size) + " ranks");
    e.master_addr = *addr;
    e.master_port = static_cast<int>(read.need("MASTER_PORT", 1, 65535, "the job has " + std::to_string(e.world_size) + " ranks"));
  }
  if (std::optional<int64_t> fd = read.number("MESHWRIGHT_STORE_FD", 0, 1 << 20); fd && e.rank == 0) e.listen_fd = static_cast<int>(*fd);
  return e;
}

}  // namespace

Lookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::vector<std::string> expand_hosts(const std::string& list) {
  std::vector<std::string> out;
  auto bad = [&]() { Reader::fail("SLURM_STEP_NODELIST", "the list of hosts \"" + list + "\" cannot be read"); };
  size_t at = 0;
  while (at < list.size()) {
    size_t end = at;
    int depth = 0;
    for (; end < list.size() && (list[end] != ',' || depth > 0); ++end) depth += list[end] == '[' ? 1 : list[end] == ']' ? -1 : 0;
    std::string item = list.substr(at, end - at);
    at = end + 1;
    size_t open = item.find('['), close = item.find(']');
    if (open == std::string::npos && close == std::string::npos) {
      if (!item.empty()) out.push_back(item);
      continue;
    }
    if (open == std::string::npos || close == std::string::npos || close < open || item.find('[', open + 1) != std::string::npos) bad();
    std::string before = item.substr(0, open), inside = item.substr(open + 1, close - open - 1), after = item.substr(close + 1);
    size_t from = 0;
    while (from <= inside.size()) {
      size_t comma = std::min(inside.find(',', from), inside.size());
      std::string part = inside.substr(from, comma - from);
      from = comma + 1;
      size_t dash = part.find('-');
      std::string low = part.substr(0, dash), high = dash == std::string::npos ? low : part.substr(dash + 1);
      if (low.empty() || low.size() > 9 || high.size() > 9 || (low + high).find_first_not_of("0123456789") != std::string::npos ||
          high.empty())
        bad();
      for (int64_t i = std::stoll(low); i <= std::stoll(high); ++i) {
        std::string digits = std::to_string(i);
        if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
        out.push_back(before + digits + after);
        if (out.size() > 65536) bad();
      }
    }
  }
  return out;
}

std::optional<RankEnvironment> detect_ranks(const Lookup& environment) {
  Reader read(environment);
  if (read.has("TORCHELASTIC_RUN_ID")) {
    RankEnvironment e = plain(read, Source::torchrun);
    std::optional<std::string> agent = read.text("TORCHELASTIC_USE_AGENT_STORE");
    e.agent_store = agent && (*agent == "True" || *agent == "true" || *agent == "1");
    return e;
  }
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    // WORLD_SIZE alone only tells `plan` a size.
    if (read.has("RANK")) return plain(read, read.has("MESHWRIGHT_LOCAL_JOB") ? Source::local : Source::plain);
  }
  // Inside `srun`; the batch script itself is one process, not a rank.
  if (read.has("SLURM_STEP_ID") && read.has("SLURM_PROCID") && read.text("SLURM_STEP_ID") != "4294967291" &&
      read.has("SLURM_STEP_NODELIST")) {
    RankEnvironment e;
    e.source = Source::slurm;
    e.rank = read.need("SLURM_PROCID", 0, kMost, "SLURM_STEP_ID is");
    e.world_size = read.need(read.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1, kMost, "SLURM_PROCID is");
    e.local_rank = read.need("SLURM_LOCALID", 0, kMost, "SLURM_PROCID is");
    std::vector<std::string> hosts = expand_hosts(*read.text("SLURM_STEP_NODELIST"));
    if (hosts.empty()) Reader::fail("SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST names no host");
    // "4(x2),3": tasks a host; one host is all that matters here.
    e.local_world_size = hosts.size() == 1 ? e.world_size : e.local_rank + 1;
    e.master_addr = read.text("MASTER_ADDR").value_or(hosts.size() == 1 ? "127.0.0.1" : hosts[0]);
    int64_t job = read.number("SLURM_JOB_ID", 0, INT64_MAX).value_or(0);
    e.master_port = static_cast<int>(read.number("MASTER_PORT", 1, 65535).value_or(20000 + job % 40000));
    check_rank(e, "SLURM_PROCID", "SLURM_NTASKS");
    return e;
  }
  for (auto [rank, world, local, local_world] :
       {std::array{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        std::array{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}}) {
    if (!read.has(rank)) continue;
    RankEnvironment e;
    e.source = Source::openmpi;
    e.rank = read.need(rank, 0, kMost, "the job runs under MPI");
    e.world_size = read.need(world, 1, kMost, std::string(rank) + " is");
    e.local_rank = read.number(local, 0, kMost).value_or(0);
    e.local_world_size = read.number(local_world, 1, kMost).value_or(e.world_size == 1 ? 1 : e.local_rank + 1);
    check_rank(e, rank, world);
    if (e.world_size > 1) {
      std::optional<std::string> addr = read.text("MASTER_ADDR");
      if (!addr && !e.one_host()) Reader::fail("MASTER_ADDR", "MASTER_ADDR is not set, and the MPI job spans hosts");
      e.master_addr = addr.value_or("127.0.0.1");
      e.master_port = static_cast<int>(read.number("MASTER_PORT", 1, 65535).value_or(29500));
    }
    return e;
  }
  return std::nullopt;
}

const char* source_name(Source source) {
  switch (source) {
    case Source::single:
      return "one process";
    case Source::local:
      return "local ranks";
    case Source::torchrun:
      return "torchrun";
    case Source::plain:
      return "RANK and WORLD_SIZE";
    case Source::slurm:
      return "Slurm";
    case Source::openmpi:
      return "MPI";
  }
  return "";
}

}  // namespace meshwright::launch
