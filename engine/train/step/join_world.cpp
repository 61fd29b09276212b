#include "engine/train/step/join_world.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/config/describe.h"
#include "engine/job/plan.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::train {

std::string unlike_vectors(const std::vector<std::string>& vectors) {
  std::map<std::string, std::vector<int64_t>> ranks;
  for (size_t rank = 0; rank < vectors.size(); ++rank)
    ranks[vectors[rank]].push_back(static_cast<int64_t>(rank));
  if (ranks.size() <= 1) return "";
  std::string list;
  for (const auto& [vector, of] : ranks)
    list += (list.empty() ? "" : ", ") + rendezvous::named_ranks(of) + " with " + vector;
  return "processors compute with unlike vectors (" + list +
         "): what ranks compute alike may differ in its last bit, and a save refuses copies that "
         "do (E0714); with ATEN_CPU_CAPABILITY=avx2, MKL_ENABLE_INSTRUCTIONS=AVX2 and "
         "DNNL_MAX_CPU_ISA=AVX2 in the environment of all ranks they compute alike";
}

}  // namespace meshwright::train

namespace meshwright {

std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& facts) {
  return train::join_world(job, facts, nullptr);
}

namespace train {

std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& extra,
                                  rendezvous::Ending* ending) {
  const Options& dist = job.table("dist_env");
  double minutes = dist.get_number("timeout_minutes");
  auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::clamp(minutes * 60000, 1.0, 1e12)));
  launch::RankEnvironment ranks =
      launch::detect_ranks(launch::process_environment()).value_or(launch::RankEnvironment{});
  device::Chosen chosen = device::choose(dist, ranks);
  if (ending) ending->meeting();
  const std::string interface =
      dist.is_set("interface") ? dist.get_string("interface") : std::string();
  c10::intrusive_ptr<c10d::Store> store = rendezvous::connect_store(ranks, timeout, interface);
  const loader::LoadedPlugin& plugin = *job.impl().strategy.plugin;
  rendezvous::Facts facts = {{"WORLD_SIZE", std::to_string(ranks.world_size)},
                             {"device", chosen.device.is_cuda() ? "cuda" : "cpu"},
                             {"back end", chosen.nccl ? "nccl" : "gloo"},
                             {"plugin", plugin.name + " " + plugin.version},
                             {"plugin build", plugin.facts_hash},
                             {"configuration", config::show_toml(job.impl().config, false)}};
  facts.insert(facts.end(), extra.begin(), extra.end());
  if (const SharedOptions& shared = job.impl().config.shared;
      shared.sizes.pp > 1 && !shared.pipeline.schedule_csv.empty())
    facts.emplace_back(
        "file of pp_schedule_csv, whose hash is",
        std::to_string(std::hash<std::string>()(base::read_file(shared.pipeline.schedule_csv))));
  // The text of a configuration is long; what differs in it is found line by line.
  rendezvous::Facts split;
  for (const auto& [name, value] : facts) {
    if (name != "configuration") {
      split.emplace_back(name, value);
      continue;
    }
    std::string table;
    for (size_t at = 0; at < value.size();) {
      size_t end = std::min(value.find('\n', at), value.size());
      std::string line = value.substr(at, end - at);
      at = end + 1;
      if (line.starts_with('[')) table = line.substr(1, line.find(']') - 1) + ".";
      size_t equals = line.find(" = ");
      if (equals != std::string::npos)
        split.emplace_back(table + line.substr(0, equals), line.substr(equals + 3));
    }
  }
  const rendezvous::WithOthers words{ranks.rank, timeout, "compare its device with the others'",
                                     "the store did not answer"};
  if (chosen.nccl != nullptr)
    rendezvous::with_others(words, timeout, [=] { device::claim(chosen, *store, ranks.rank); });
  rendezvous::compare_ranks(*store, ranks.rank, ranks.world_size, split, timeout);
  if (chosen.nccl != nullptr)  // all have said which device they have
    chosen = rendezvous::with_others(words, timeout, [=, settled = chosen]() mutable {
      device::settle(settled, *store, ranks.rank, ranks.world_size, dist);
      return settled;
    });
  std::shared_ptr<rendezvous::ErrorExchange> exchange;
  if (ending && ranks.world_size > 1 && ranks.source != launch::RankEnvironment::Source::local)
    exchange = std::make_shared<rendezvous::ErrorExchange>(ranks, store, timeout);
  if (ending) ending->joined(exchange);
  return rendezvous::make_world(ranks, store, chosen, timeout, interface, exchange,
                                dist.get_int("connections_per_peer"));
}

}  // namespace train

}  // namespace meshwright
