#include "apps/performance/calibrate/measured.h"

#include <algorithm>

namespace meshwright::calibrate {

namespace {

// All that differs between ranks, in one order. `messages`: of collectives, which end together.
template <class Times, class Kernels, class Messages>
void each(Times& times, const Kernels& kernels, const Messages& messages) {
  for (auto& one : times.products) kernels(one.seconds);
  for (auto& one : times.moved) kernels(one.seconds);
  for (auto& one : times.attention) {
    kernels(one.forward);
    kernels(one.backward);
  }
  for (auto* models : {&times.launches, &times.layers})
    for (auto& one : *models) {
      kernels(one.forward);
      kernels(one.backward);
    }
  messages(times.alone);  // of one rank
  for (auto* seconds : {&times.beside.alone, &times.beside.beside, &times.beside.gathers})
    messages(*seconds);
  for (auto& group : times.groups)
    for (auto& one : group.collectives) {
      messages(one.latency);
      messages(one.seconds);
    }
}

}  // namespace

std::vector<double> Measured::times() const {
  std::vector<double> out = {memory};
  auto add = [&](const double& seconds) { out.push_back(seconds); };
  each(*this, add, add);
  return out;
}

void Measured::take_all(const std::vector<std::vector<double>>& of_ranks) {
  size_t at = 1;
  auto slowest = [&](double& seconds) {
    for (const std::vector<double>& times : of_ranks) seconds = std::max(seconds, times.at(at));
    ++at;
  };
  auto kernel = [&](double& seconds) {
    if (!cores_shared) return slowest(seconds);
    double calls = 0;  // a second, of all ranks
    for (const std::vector<double>& times : of_ranks) calls += 1 / std::max(times.at(at), 1e-9);
    seconds = static_cast<double>(of_ranks.size()) / calls;
    ++at;
  };
  for (const std::vector<double>& times : of_ranks) memory = std::min(memory, times.at(0));
  each(*this, kernel, slowest);
}

namespace {

using steptime::Precision;

struct Weight {
  double columns, inner;
};

void add_products(Measured& to, Precision precision, const std::vector<double>& rows,
                  const std::vector<Weight>& weights) {
  for (const double count : rows)
    for (const Weight& weight : weights)
      for (const bool backward : {false, true})
        to.products.push_back({{count, weight.columns, weight.inner}, precision, backward, 0});
}

}  // namespace

void add_sizes(Measured& to, Widths widths) {
  const bool half = widths != Widths::full, full = widths != Widths::half;
  if (to.cuda) {
    const std::vector<Weight> large = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {4096, 512}};
    if (half) add_products(to, Precision::half, {1024, 8192}, large);
    if (full) add_products(to, Precision::full, {1024}, large);
    for (const char* kernel : {"copy", "norm", "gate", "optimizer"})
      to.moved.push_back({kernel, 0, 0});
    for (const double length : {2048.0, 8192.0}) to.attention.push_back({1, 32, 128, length, 0, 0});
  } else {
    const std::vector<Weight> small = {{256, 256}, {1024, 256}, {256, 1024}, {1024, 1024}};
    if (full) add_products(to, Precision::full, {256, 1024}, small);
    if (half) add_products(to, Precision::half, {128}, small);
    for (const char* kernel : {"copy", "optimizer"}) to.moved.push_back({kernel, 0, 0});
    for (const double length : {256.0, 1024.0}) to.attention.push_back({1, 8, 64, length, 0, 0});
    // Caches hold much of what a layer's kernels move, which no kernel alone shows.
    for (const double layers : {1.0, 3.0})
      to.layers.push_back({.layers = layers,
                           .hidden = 256,
                           .ffn = 688,
                           .heads = 4,
                           .kv_heads = 2,
                           .batch = 4,
                           .length = 256});
  }
  for (const double layers : {2.0, 6.0}) to.launches.push_back({.layers = layers});
}

size_t count_points(const Measured& of) {
  return of.products.size() + of.moved.size() + 2 * of.attention.size() +
         2 * (of.launches.size() + of.layers.size());
}

std::vector<Ranks> groups_of(const std::vector<int64_t>& host, int64_t rank) {
  std::vector<int64_t> here, leaders;
  std::vector<int64_t> counts(host.size());
  for (size_t r = 0; r < host.size(); ++r) {
    const int64_t first = host[r];
    if (++counts[static_cast<size_t>(first)] == 1) leaders.push_back(first);
    if (first == host[static_cast<size_t>(rank)]) here.push_back(static_cast<int64_t>(r));
  }
  const auto world = std::ssize(host), hosts = std::ssize(leaders), each = std::ssize(here);
  std::vector<Ranks> out;
  if (world < 2) return out;
  bool even = true;
  for (const int64_t leader : leaders)
    even = even && counts[static_cast<size_t>(leader)] == world / hosts;
  even = even && world % hosts == 0;
  const auto a_host = static_cast<double>(world / hosts);
  std::vector<int64_t> all;
  for (int64_t r = 0; r < world; ++r) all.push_back(r);
  if (!even) {
    out.push_back({GroupTime::Kind::all, "all", all, {static_cast<double>(world), 1, a_host}});
    return out;
  }
  const auto place = std::ranges::find(here, rank) - here.begin();
  if (each > 1) out.push_back({GroupTime::Kind::host, "host", here, {a_host, 1, a_host}});
  if (each > 2 && each % 2 == 0) {
    const auto even_place = static_cast<size_t>(place - place % 2);
    out.push_back(
        {GroupTime::Kind::pair, "pair", {here[even_place], here[even_place + 1]}, {2, 1, a_host}});
  }
  if (hosts < 2) return out;
  // The rank of each host that has this one's place there.
  std::vector<int64_t> across;
  for (const int64_t leader : leaders) {
    int64_t seen = 0;
    for (int64_t r = 0; r < world; ++r)
      if (host[static_cast<size_t>(r)] == leader && seen++ == place) across.push_back(r);
  }
  out.push_back(
      {GroupTime::Kind::across, "across", across, {static_cast<double>(hosts), a_host, a_host}});
  return out;
}

}  // namespace meshwright::calibrate
