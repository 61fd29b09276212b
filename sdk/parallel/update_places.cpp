// Where parameters lie among the flat tensors that an optimizer updates.
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/scalar_type.h"

namespace meshwright {

using at::Tensor;

std::vector<UpdatePlace> update_places(const ParallelModel& model) {
  std::vector<UpdatePlace> out;
  const std::vector<FlatParameterGroup>& groups = model.update_groups();
  for (const ParallelParameter& p : model.parameters()) {
    UpdatePlace place;
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

std::vector<StateTensor> state_beside(const ParallelModel& model, const std::string& state,
                                      const std::vector<Tensor>& flat, bool own) {
  std::vector<StateTensor> out;
  const std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    const ParallelParameter& p = model.parameters()[i];
    if (p.local.numel() > 0 && places[i].group == SIZE_MAX) continue;  // frozen
    StateTensor tensor{state, p.name, p.global_shape, p.region, {}, own};
    if (!flat.empty()) tensor.dtype = dtype_of(flat.front().scalar_type());
    if (places[i].group != SIZE_MAX)
      tensor.local =
          flat[places[i].group].narrow(0, places[i].begin, p.local.numel()).view(p.local.sizes());
    out.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace meshwright
