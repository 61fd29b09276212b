#include "engine/train/step/rank_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/config/describe.h"
#include "engine/job/plan.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/used_up.h"
#include "sdk/base/words.h"

namespace meshwright::train {

std::vector<std::string> gather_texts(World& world, const std::string& mine) {
  if (world.size() == 1) return {mine};
  std::shared_ptr<Group> everyone = world.everyone();
  at::Tensor most = at::tensor({static_cast<int64_t>(mine.size())}, at::kLong).to(world.device());
  everyone->all_reduce(most, ReduceOp::max, /*control=*/true).wait();
  int64_t room = detail::read_by_host(*everyone, most).item<int64_t>() + 8;
  at::Tensor packed = at::zeros({room}, at::kByte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  uint64_t length = mine.size();
  std::memcpy(bytes, &length, 8);
  std::copy(mine.begin(), mine.end(), bytes + 8);
  at::Tensor all = at::empty({room * world.size()}, packed.options().device(world.device())),
             own = packed.to(world.device());
  everyone->all_gather(own, all).wait();
  all = detail::read_by_host(*everyone, all);
  std::vector<std::string> out;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) {  // whose slot a gather leaves unspecified
      out.push_back(mine);
      continue;
    }
    const uint8_t* at = all.const_data_ptr<uint8_t>() + rank * room;
    std::memcpy(&length, at, 8);
    out.emplace_back(reinterpret_cast<const char*>(at) + 8, length);
  }
  return out;
}

std::vector<int64_t> hosts_of_ranks(World& world, const std::string& here) {
  std::vector<int64_t> out;
  std::map<std::string, int64_t> first;
  for (const std::string& host : gather_texts(world, here))
    out.push_back(first.emplace(host, static_cast<int64_t>(out.size())).first->second);
  return out;
}

// Hooks of modules and of autograd that a plugin left behind run in LibTorch's calls, where nothing
// tells them from the engine's own.
static Error maybe_of_plugin(Error error) {
  if (const detail::PluginCode* plugin = detail::last_plugin())
    error.note(std::string("or a defect of the plugin ") + detail::told(plugin) +
               ", if a hook that it left behind threw this");
  return error;
}

Error error_being_handled() {
  try {
    throw;
  } catch (const Error& error) {
    return detail::used_up(error).value_or(error);
  } catch (const std::exception& error) {
    if (std::optional<Error> limit = detail::used_up(error)) return *limit;
    const std::string what = error.what();
    // LibTorch reports a use of freed memory with words of ours in the middle of its own.
    const std::string line = what.substr(0, what.find('\n'));
    if (what.find("was used outside its unit") != std::string::npos)
      return {ErrorCode::parameter_freed, line};
    return maybe_of_plugin({ErrorCode::internal, line});
  } catch (...) {
    return maybe_of_plugin({ErrorCode::internal, "something that is no exception, of type " +
                                                     detail::exception_type() + ", was thrown"});
  }
}

Outcome outcome_of(const std::function<std::string()>& work) {
  try {
    return {work(), std::nullopt};
  } catch (...) {
    return {"", error_being_handled()};
  }
}

Agreement agree(World& world, const Outcome& mine) {
  std::vector<std::string> texts = gather_texts(
      world, mine.error ? "E" + rendezvous::encode_error(*mine.error) : "T" + mine.text);
  // Where it happened is news when the others did not see it.
  bool everywhere = std::all_of(texts.begin(), texts.end(),
                                [&](const std::string& text) { return text == texts[0]; });
  Agreement out;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank][0] == 'E' && !out.error) {
      out.error = rendezvous::decode_error(texts[rank].substr(1));
      if (rank > 0 && !everywhere) out.error->note("on rank " + std::to_string(rank));
    }
    out.texts.push_back(texts[rank].substr(1));
  }
  return out;
}

std::vector<std::string> agree_or_throw(World& world, const Outcome& mine) {
  Agreement all = agree(world, mine);
  if (all.error) throw *all.error;
  return std::move(all.texts);
}

std::vector<double> largest_of_ranks(World& world, const std::vector<double>& mine) {
  if (world.size() == 1) return mine;
  // Pinned, so that the copy to a device keeps nobody waiting.
  at::Tensor here =
      at::empty({static_cast<int64_t>(mine.size())},
                at::TensorOptions().dtype(at::kDouble).pinned_memory(world.device().is_cuda()));
  std::copy(mine.begin(), mine.end(), here.mutable_data_ptr<double>());
  at::Tensor all = here.to(world.device(), at::kDouble, /*non_blocking=*/true, /*copy=*/true);
  world.everyone()->all_reduce(all, ReduceOp::max, /*control=*/true).wait();
  here.copy_(all);
  world.check();
  const double* largest = here.const_data_ptr<double>();
  return {largest, largest + mine.size()};
}

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
                             {"plugin build", plugin.facts_hash}};
  // The text of a configuration is long; what differs in it is found line by line.
  std::string table;
  for (const std::string& line : text::split(config::show_toml(job.impl().config, false), '\n')) {
    if (line.starts_with('[')) table = line.substr(1, line.find(']') - 1) + ".";
    if (const size_t equals = line.find(" = "); equals != std::string::npos)
      facts.emplace_back(table + line.substr(0, equals), line.substr(equals + 3));
  }
  facts.insert(facts.end(), extra.begin(), extra.end());
  if (const SharedOptions& shared = job.impl().config.shared;
      shared.sizes.pp > 1 && !shared.pipeline.schedule_csv.empty())
    facts.emplace_back(
        "file of pp_schedule_csv, whose hash is",
        std::to_string(std::hash<std::string>()(base::read_file(shared.pipeline.schedule_csv))));
  const rendezvous::WithOthers words{ranks.rank, timeout, "compare its device with the others'",
                                     "the store did not answer"};
  if (chosen.nccl != nullptr)
    rendezvous::with_others(words, timeout, [=] { device::claim(chosen, *store, ranks.rank); });
  rendezvous::compare_ranks(*store, ranks.rank, ranks.world_size, facts, timeout);
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
