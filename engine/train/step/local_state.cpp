#include "engine/train/step/local_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/job/plan.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::train {

// Which tensor it is, without what a rank has of it.
BOOST_DESCRIBE_STRUCT(LocalTensor, (), (state, name, dtype, shape, stored, frozen))

using at::Tensor;

std::string stored_name(const ModelOutline& stages, const std::string& parameter) {
  const ParameterOutline* found = stages.find_parameter(parameter);
  return found == nullptr || found->copy_of.empty() ? parameter : found->copy_of;
}

static Region stored_region(const Region& region, const std::vector<int64_t>& shape) {
  return region.within_box() ? as_run(region, shape) : region;
}

Region region_of(const ParallelParameter& p) { return stored_region(p.region, p.global_shape); }

Tensor updated_part(const ParallelParameter& parameter, const UpdatePlace& place,
                    const ParallelModel& model, Optimizer& optimizer) {
  const std::vector<FlatParameterGroup>& groups = model.update_groups();
  if (place.group == SIZE_MAX || !optimizer.has_main(groups[place.group]))
    return parameter.local.detach();
  return optimizer.weights(groups, place.group)
      .narrow(0, place.begin, parameter.local.numel())
      .view(parameter.local.sizes());
}

std::string own_suffix(const Trainer& trainer) {
  const std::string axis = trainer.model().independent_axis();
  const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
  const int64_t replica =
      axis.empty() || !mesh ? 0 : mesh->coordinate(trainer.world().rank(), axis);
  return of_replica("", replica);
}

std::vector<LocalTensor> local_state(Trainer& trainer) {
  const ParallelModel& model = trainer.model();
  Optimizer& optimizer = optimizer_of(trainer);
  const torch::nn::Module& module = trainer.module();
  const ModelOutline* stages = trainer.stages() != nullptr ? &trainer.stages()->outline() : nullptr;
  const std::string suffix = own_suffix(trainer);
  std::vector<LocalTensor> out;
  const std::vector<ParallelParameter>& parameters = model.parameters();
  auto saved_as = [&](const std::string& name) {
    return stages != nullptr ? stored_name(*stages, name) : name;
  };
  std::vector<UpdatePlace> places = update_places(model);
  std::set<std::string> frozen_names;
  for (const auto& item : module.named_parameters())
    if (!item.value().requires_grad()) frozen_names.insert(item.key());
  // The dtype of what the optimizer keeps of a parameter, also on a rank that holds nothing of it:
  // the files of all ranks must agree.
  auto dtype = [&](const ParallelParameter& p, const Tensor& part) {
    if (part.defined() && part.numel() > 0) return dtype_of(part);
    at::ScalarType type = p.local.scalar_type();
    return meshwright::dtype_of(frozen_names.contains(p.name) ? type : optimizer.weight_type(type));
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParallelParameter& p = parameters[i];
    Tensor part = updated_part(p, places[i], model, optimizer);
    const bool frozen = frozen_names.contains(p.name);
    out.push_back({frozen ? "" : suffix, saved_as(p.name), dtype(p, part), p.global_shape,
                   region_of(p), part, dtype_of(p.local), frozen});
  }
  for (const Optimizer::State& state : optimizer.state()) {
    if (state.tensors.empty()) continue;  // before the first step
    for (size_t i = 0; i < parameters.size(); ++i) {
      const ParallelParameter& p = parameters[i];
      Tensor local;
      if (places[i].group != SIZE_MAX)
        local = state.tensors[places[i].group]
                    .narrow(0, places[i].begin, p.local.numel())
                    .view(p.local.sizes());
      // A frozen parameter has no state; one that this rank holds nothing of may have some
      // elsewhere.
      bool frozen = p.local.numel() > 0 && places[i].group == SIZE_MAX;
      Region region = frozen ? Region::run(0, 0) : region_of(p);
      out.push_back({state.name + suffix, saved_as(p.name), dtype(p, local), p.global_shape, region,
                     local, dtype(p, local), frozen_names.contains(p.name)});
    }
  }
  for (const StateTensor& state : model.state_tensors())
    out.push_back({of_replica(state.state, state.replica ? state.replica->index : 0),
                   saved_as(state.name), state.dtype, state.global_shape,
                   stored_region(state.region, state.global_shape), state.local, state.dtype,
                   /*frozen=*/false, state.replica});
  for (const auto& buffer : module.named_buffers())
    if (buffer.value().defined() && !buffer.value().is_meta()) {
      Tensor value = buffer.value().detach();
      out.push_back({"buffer", buffer.key(), dtype_of(value), value.sizes().vec(),
                     Region::whole(value.sizes()), value.contiguous()});
    }
  return out;
}

namespace {

// Regions as whole numbers: dims, offsets..., sizes..., begin, end.
std::string encode(const std::vector<LocalTensor>& tensors) {
  std::vector<int64_t> out;
  for (const LocalTensor& tensor : tensors) {
    const Region& r = tensor.region;
    out.push_back(static_cast<int64_t>(r.sizes.size()));
    out.insert(out.end(), r.offsets.begin(), r.offsets.end());
    out.insert(out.end(), r.sizes.begin(), r.sizes.end());
    out.insert(out.end(), {r.begin, r.end});
  }
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(int64_t)};
}

std::vector<Region> decode_regions(const std::string& text) {
  std::vector<int64_t> numbers(text.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(int64_t));
  std::vector<Region> out;
  for (auto at = numbers.begin(); at != numbers.end();) {
    int64_t dims = *at++;
    out.push_back({{at, at + dims}, {at + dims, at + 2 * dims}, at[2 * dims], at[2 * dims + 1]});
    at += 2 * dims + 2;
  }
  return out;
}

// Collective. The tensors of all ranks, and by rank the places of its own among them. Ranks that
// hold the same list say so by its hash; of each list one rank tells the others.
struct AllTensors {
  std::vector<LocalTensor> tensors;
  std::vector<std::vector<size_t>> of_rank;
};
AllTensors list_all(World& world, const std::vector<LocalTensor>& tensors) {
  const std::string mine = base::json_text(tensors),
                    hash = std::to_string(std::hash<std::string>()(mine));
  const std::vector<std::string> hashes = gather_texts(world, hash);
  std::map<std::string, size_t> speakers;  // the first rank with that list
  for (size_t rank = 0; rank < hashes.size(); ++rank) speakers.emplace(hashes[rank], rank);
  const bool speaks = speakers.at(hash) == static_cast<size_t>(world.rank());
  const std::vector<std::string> lists = speakers.size() == 1
                                             ? std::vector<std::string>(hashes.size(), mine)
                                             : gather_texts(world, speaks ? mine : "");
  // By state, in the order in which states and then tensors come up.
  std::vector<std::vector<LocalTensor>> told;
  std::map<std::string, size_t> told_by;  // by hash
  std::vector<std::string> states;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (speakers.at(hashes[rank]) != rank) continue;
    told_by.emplace(hashes[rank], told.size());
    for (const LocalTensor& tensor :
         told.emplace_back(base::read_json_text<std::vector<LocalTensor>>(lists[rank])))
      if (std::ranges::find(states, tensor.state) == states.end()) states.push_back(tensor.state);
  }
  AllTensors out;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const std::string& state : states)
    for (const std::vector<LocalTensor>& list : told)
      for (const LocalTensor& tensor : list)
        if (tensor.state == state &&
            places.emplace(std::pair(state, tensor.name), out.tensors.size()).second)
          out.tensors.push_back(tensor);
  for (const std::string& of : hashes) {
    std::vector<size_t>& own = out.of_rank.emplace_back();
    for (const LocalTensor& tensor : told[told_by.at(of)])
      own.push_back(places.at({tensor.state, tensor.name}));
  }
  return out;
}

// Elements of a row.
int64_t width_of(const std::vector<int64_t>& shape) {
  int64_t width = 1;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  return width;
}

// A run of whole rows is stored as these rows.
Region as_rows(const Region& run, const std::vector<int64_t>& shape) {
  if (shape.empty() || shape[0] == 0) return run;
  const int64_t width = width_of(shape);
  if (width == 0 || run.begin % width != 0 || run.end % width != 0) return run;
  std::vector<int64_t> offsets(shape.size(), 0), sizes = shape;
  offsets[0] = run.begin / width;
  sizes[0] = (run.end - run.begin) / width;
  return Region::box(std::move(offsets), std::move(sizes));
}

// Part j of k, of about equal length; rows stay whole where there are enough.
Region part_of(const Region& run, const std::vector<int64_t>& shape, int64_t j, int64_t k) {
  int64_t width = width_of(shape), count = run.end - run.begin;
  if (width == 0 || run.begin % width != 0 || count % width != 0 || count / width < k) width = 1;
  int64_t units = count / width;
  return Region::run(run.begin + units * j / k * width, run.begin + units * (j + 1) / k * width);
}

}  // namespace

Shares::Shares(World& world, const std::vector<LocalTensor>& tensors) {
  AllTensors listed = list_all(world, tensors);
  all_ = std::move(listed.tensors);
  mine_ = listed.of_rank[static_cast<size_t>(world.rank())];
  std::vector<std::vector<Region>> all;  // by rank, then by tensor
  for (const std::string& text : gather_texts(world, encode(tensors))) {
    const std::vector<size_t>& places = listed.of_rank[all.size()];
    const std::vector<Region> regions = decode_regions(text);
    all.emplace_back(all_.size(), Region::run(0, 0));
    for (size_t i = 0; i < regions.size(); ++i) all.back()[places[i]] = regions[i];
  }
  std::map<std::vector<int64_t>, std::vector<size_t>> together;
  for (size_t i = 0; i < all_.size(); ++i) {
    const LocalTensor& tensor = all_[i];
    std::vector<std::pair<int64_t, Region>>& shares = shares_.emplace_back();
    // Ranks that hold the same region, in the order of the first of them.
    std::vector<std::pair<Region, std::vector<int64_t>>> holders;
    std::map<std::vector<int64_t>, size_t> known;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const Region& region = all[rank][i];
      if (region.count() == 0) continue;
      std::vector<int64_t> key = region.offsets;
      key.insert(key.end(), region.sizes.begin(), region.sizes.end());
      key.insert(key.end(), {region.begin, region.end});
      auto [at, fresh] = known.emplace(std::move(key), holders.size());
      if (fresh) holders.emplace_back(region, std::vector<int64_t>());
      holders[at->second].second.push_back(static_cast<int64_t>(rank));
    }
    for (const auto& [region, ranks] : holders) {
      auto k = static_cast<int64_t>(ranks.size());
      if (k > 1 && tensor.state != "buffer") together[ranks].push_back(i);
      Region run = as_run(region, tensor.shape);
      if (tensor.state == "buffer") {
        // The ranks' running statistics differ: the first rank's become everybody's.
        shares.emplace_back(ranks[0], region);
      } else if (!run.flat()) {
        shares.emplace_back(ranks[i % ranks.size()], region);
      } else {
        for (int64_t j = 0; j < k; ++j) {
          Region part = k == 1 ? run : part_of(run, tensor.shape, j, k);
          if (part.count() > 0)
            shares.emplace_back(ranks[static_cast<size_t>(j)], as_rows(part, tensor.shape));
        }
      }
    }
    std::ranges::sort(shares, {}, &std::pair<int64_t, Region>::first);
    checkpoint::TensorRecord record{tensor.state, tensor.name, tensor.dtype,
                                    tensor.shape, {},          tensor.dtype};
    for (const auto& [rank, region] : shares) record.pieces.push_back({0, "", region});
    bool frozen = shares.empty() && !tensor.state.empty();
    if (!frozen && !checkpoint::covers(record))
      throw Error(ErrorCode::internal,
                  "the ranks' parts of " + tensor.name +
                      " do not make up the whole: the strategy's parameters() is wrong");
  }
  for (auto& [ranks, indices] : together) replicas_.push_back({ranks, std::move(indices)});
}

std::vector<LocalTensor> Shares::in_order(const std::vector<LocalTensor>& tensors) const {
  std::vector<LocalTensor> out = all_;
  for (size_t i = 0; i < tensors.size(); ++i) out[mine_[i]] = tensors[i];
  return out;
}

const Region* Shares::share(size_t tensor, int64_t rank) const {
  for (const auto& [writer, region] : shares_[tensor])
    if (writer == rank) return &region;
  return nullptr;
}

}  // namespace meshwright::train
