#include "engine/trainer/local_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/trainer/rank_agreement.h"
#include "meshwright/error.h"

namespace meshwright::train {

using at::Tensor;

Region region_of(const ParallelParameter& p) {
  return p.region.within_box() ? as_run(p.region, p.global_shape) : p.region;
}

std::vector<OptimizerPlace> optimizer_places(const ParallelModel& model) {
  std::vector<OptimizerPlace> out;
  const std::vector<FlatParameterGroup>& groups = model.update_groups();
  for (const ParallelParameter& p : model.parameters()) {
    OptimizerPlace place;
    for (size_t g = 0; g < groups.size() && place.group == SIZE_MAX && p.local.numel() > 0; ++g) {
      const Tensor& values = groups[g].values;
      int64_t begin = p.local.storage_offset() - values.storage_offset();
      if (values.scalar_type() == p.local.scalar_type() &&
          values.storage().is_alias_of(p.local.storage()) && begin >= 0 &&
          begin + p.local.numel() <= values.numel())
        place = {g, begin};
    }
    out.push_back(place);
  }
  return out;
}

Tensor updated_part(const ParallelParameter& parameter, const OptimizerPlace& place,
                    const ParallelModel& model, Optimizer& optimizer) {
  const std::vector<FlatParameterGroup>& groups = model.update_groups();
  if (place.group == SIZE_MAX || !optimizer.has_main(groups[place.group]))
    return parameter.local.detach();
  return optimizer.weights(groups, place.group)
      .narrow(0, place.begin, parameter.local.numel())
      .view(parameter.local.sizes());
}

std::vector<LocalTensor> local_state(const ParallelModel& model, Optimizer& optimizer,
                                     const torch::nn::Module& module) {
  std::vector<LocalTensor> out;
  const std::vector<ParallelParameter>& parameters = model.parameters();
  std::vector<OptimizerPlace> places = optimizer_places(model);
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
    out.push_back(
        {"", p.name, dtype(p, part), p.global_shape, region_of(p), part, dtype_of(p.local)});
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
      out.push_back({state.name, p.name, dtype(p, local), p.global_shape, region, local});
    }
  }
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
  std::vector<int64_t> out{static_cast<int64_t>(tensors.size())};
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
  for (auto at = numbers.begin() + 1; at != numbers.end();) {
    int64_t dims = *at++;
    out.push_back({{at, at + dims}, {at + dims, at + 2 * dims}, at[2 * dims], at[2 * dims + 1]});
    at += 2 * dims + 2;
  }
  return out;
}

// A run of whole rows is stored as these rows.
Region as_rows(const Region& run, const std::vector<int64_t>& shape) {
  if (shape.empty() || shape[0] == 0) return run;
  int64_t width = 1;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  if (width == 0 || run.begin % width != 0 || run.end % width != 0) return run;
  std::vector<int64_t> offsets(shape.size(), 0), sizes = shape;
  offsets[0] = run.begin / width;
  sizes[0] = (run.end - run.begin) / width;
  return Region::box(std::move(offsets), std::move(sizes));
}

// Part j of k, of about equal length; rows stay whole where there are enough.
Region part_of(const Region& run, const std::vector<int64_t>& shape, int64_t j, int64_t k) {
  int64_t width = 1, count = run.end - run.begin;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  if (width == 0 || run.begin % width != 0 || count % width != 0 || count / width < k) width = 1;
  int64_t units = count / width;
  return Region::run(run.begin + units * j / k * width, run.begin + units * (j + 1) / k * width);
}

}  // namespace

Shares::Shares(World& world, const std::vector<LocalTensor>& tensors) {
  std::vector<std::vector<Region>> all;  // by rank, then by tensor
  for (const std::string& text : gather_texts(world, encode(tensors)))
    all.push_back(decode_regions(text));
  for (const std::vector<Region>& regions : all)
    if (regions.size() != tensors.size())
      throw Error(ErrorCode::internal, "the ranks hold different numbers of tensors");
  std::map<std::vector<int64_t>, std::vector<size_t>> together;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[i];
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
    std::sort(shares.begin(), shares.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
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

const Region* Shares::share(size_t tensor, int64_t rank) const {
  for (const auto& [writer, region] : shares_[tensor])
    if (writer == rank) return &region;
  return nullptr;
}

}  // namespace meshwright::train
