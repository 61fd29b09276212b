#include "engine/train/step/rank_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/launch/rendezvous/error_exchange.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/used_up.h"

namespace meshwright::train {

std::vector<std::string> gather_texts(World& world, const std::string& mine) {
  if (world.size() == 1) return {mine};
  std::shared_ptr<Group> everyone = world.everyone();
  at::TensorOptions options = at::TensorOptions().device(world.device());
  at::Tensor most = at::tensor({static_cast<int64_t>(mine.size())}, at::kLong).to(world.device());
  everyone->all_reduce(most, ReduceOp::max, /*control=*/true).wait();
  int64_t room = detail::read_by_host(*everyone, most).item<int64_t>() + 8;
  at::Tensor packed = at::zeros({room}, at::kByte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  uint64_t length = mine.size();
  std::memcpy(bytes, &length, 8);
  std::copy(mine.begin(), mine.end(), bytes + 8);
  at::Tensor all = at::empty({room * world.size()}, options.dtype(at::kByte)),
             own = packed.to(world.device());
  everyone->all_gather(own, all).wait();
  all = detail::read_by_host(*everyone, all);
  std::vector<std::string> out;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) {
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

namespace {

// Hooks of modules and of autograd that a plugin left behind run in LibTorch's calls, where nothing
// tells them from the engine's own.
Error maybe_of_plugin(Error error) {
  if (const detail::PluginCode* plugin = detail::last_plugin())
    error.note(std::string("or a defect of the plugin ") + detail::told(plugin) +
               ", if a hook that it left behind threw this");
  return error;
}

}  // namespace

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

}  // namespace meshwright::train
