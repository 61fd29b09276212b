#include <algorithm>
#include <set>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using namespace footprint;

[[noreturn]] void refuse_class(std::string message, const ModelOutline& outline,
                               const std::string& key) {
  std::set<std::string> repeated, others;
  for (const ModuleOutline& module : outline.modules)
    if (!module.class_name.empty())
      (module.kind == ModuleKind::layer ? repeated : others).insert(module.class_name);
  Error error(ErrorCode::unit_class_missing, std::move(message));
  if (!key.empty()) error.key(key);
  for (const std::string& name : repeated)
    error.help(key.empty() ? "the model repeats modules of the class " + name
                           : "set " + key + " = [" + text::quote(name) + "]");
  if (!repeated.empty())
    error.help("leave out " + (key.empty() ? std::string("the classes") : key) +
               ": the repeated layers are the units");
  else if (!others.empty())
    error.help("the model has modules of the classes " + text::join(others, ", "));
  throw error;
}

}  // namespace

std::vector<FlatBuffer> flat_buffers(const ModelOutline& outline, const std::vector<int64_t>& sizes,
                                     const FlatPolicy& policy) {
  std::vector<FlatBuffer> buffers;
  std::vector<size_t> outside;
  if (policy.unit_classes.empty()) {
    for (Unit& unit : plan_units(outline)) {
      if (unit.name == "root")
        outside = std::move(unit.parameters);
      else
        buffers.push_back({unit.name, std::move(unit.parameters), true});
    }
    if (buffers.empty())
      refuse_class("the model " + outline.architecture + " has no repeated layers to make units of",
                   outline, policy.unit_classes_key);
  } else {
    std::set<std::string> wanted, found;
    for (const std::string& path : policy.unit_classes)
      wanted.insert(path.substr(path.rfind('.') + 1));
    for (const ModuleOutline& module : outline.modules) {
      if (!wanted.contains(module.class_name)) continue;
      found.insert(module.class_name);
      // Parents come first, so a module inside a unit belongs to it.
      if (std::none_of(buffers.begin(), buffers.end(),
                       [&](const FlatBuffer& b) { return text::lies_under(module.name, b.name); }))
        buffers.push_back({module.name, {}, true});
    }
    for (const std::string& name : wanted)
      if (!found.contains(name))
        refuse_class("no module of the model has the class " + name, outline,
                     policy.unit_classes_key);
    for (size_t p = 0; p < outline.parameters.size(); ++p) {
      // A head outside of the unit would use its weight while it is freed.
      const ModuleOutline* module = outline.find_module(module_of(outline.parameters[p].name));
      bool shared =
          outline.tied_embeddings && module != nullptr && module->kind == ModuleKind::embedding;
      auto owner = std::find_if(buffers.begin(), buffers.end(), [&](const FlatBuffer& b) {
        return text::lies_under(outline.parameters[p].name, b.name);
      });
      if (owner == buffers.end() || (shared && !owner->name.empty()))
        outside.push_back(p);
      else
        owner->parameters.push_back(p);
    }
    for (const FlatBuffer& buffer : buffers)
      if (buffer.parameters.empty() && outline.tied_embeddings)
        refuse_class(
            "the module " + buffer.name +
                " has no weights but the embedding, which the head shares, so it cannot be a unit",
            outline, policy.unit_classes_key);
  }
  for (FlatBuffer& buffer : buffers)
    if (buffer.name.empty()) buffer.name = outline.architecture;  // the whole model is one unit
  // A bucket never grows past the limit, but one parameter may; a tied weight stands alone.
  std::vector<FlatBuffer> buckets;
  int64_t filled = 0;
  bool closed = true;
  for (size_t p : outside) {
    int64_t elements = sizes[p];
    const ModuleOutline* module = outline.find_module(module_of(outline.parameters[p].name));
    bool tied =
        outline.tied_embeddings && module != nullptr && module->kind == ModuleKind::embedding;
    if (closed || tied ||
        (policy.bucket_elements > 0 && plus(filled, elements) > policy.bucket_elements)) {
      buckets.push_back({});
      filled = 0;
    }
    buckets.back().parameters.push_back(p);
    filled = plus(filled, elements);
    closed = tied;
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    buckets[b].name = buckets.size() == 1 ? "root" : "root[" + std::to_string(b) + "]";
    buffers.push_back(std::move(buckets[b]));
  }
  return buffers;
}

Footprint flat_footprint(const FootprintRequest& request, const FlatPolicy& policy) {
  Layout layout = make_layout(request);
  const MixedPrecision& mp = request.config.shared.mp;
  const Workload& work = request.workload;
  const Axis& axis = layout.shard;
  DType gradient = policy.grad_reduce_in_fp32 ? DType::float32 : work.storage;
  DType reduce = policy.grad_reduce_in_fp32 ? DType::float32 : mp.reduce;
  int64_t reduce_size = dtype_size(reduce);
  int64_t gather_size = dtype_size(policy.level == 3 ? mp.param : work.storage);
  int64_t passes = passes_of(request);
  Footprint out;
  Traffic wire;
  for (size_t i = 0; i < layout.shares.size(); ++i)
    out.parameters.push_back(placement_of(request.outline.parameters[i], layout.shares[i], layout,
                                          policy.level == 3 ? "flat" : "replicate"));

  std::vector<int64_t> held(layout.shares.size());  // elements of each gradient once it is reduced
  int64_t whole = 0, mine = 0, kept = 0, outside_gradients = 0;
  std::vector<int64_t> gathered, gradients;
  std::vector<int64_t> sizes;
  for (const Share& share : layout.shares) sizes.push_back(share.elements);
  for (const FlatBuffer& buffer : flat_buffers(request.outline, sizes, policy)) {
    UnitLayout unit =
        UnitLayout::flat(unit_parameters(request, layout, buffer.parameters), axis.size);
    const int64_t elements = unit.elements(), padded = times(unit.shard_size(), axis.size);
    whole = plus(whole, elements);
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      const size_t p = buffer.parameters[unit.given(i)];
      const Chunk range = unit.part(i, axis.index);
      mine = plus(mine, range.end - range.begin);
      held[p] = policy.level >= 1 ? range.end - range.begin : layout.shares[p].elements;
      if (policy.level == 3) {
        out.parameters[p].local_range = range;
        if (axis.size > 1) out.parameters[p].local_shape = {range.end - range.begin};
      }
    }
    bool reshards = policy.level == 3 && buffer.unit;
    out.units.push_back({buffer.name, elements, times(padded, gather_size), reshards});
    int64_t reduced = times(padded, reduce_size);
    switch (policy.level) {
      case 0:
        wire.add(axis, "all_reduce", 1, times(elements, reduce_size));
        break;
      case 1:
        wire.add(axis, "reduce_scatter", 1, reduced);
        wire.add(axis, "all_gather", 1, times(padded, gather_size));
        break;
      case 2:
        wire.add(axis, "reduce_scatter", passes, reduced);
        wire.add(axis, "all_gather", 1, times(padded, gather_size));
        break;
      case 3:
        wire.add(axis, "all_gather", times(reshards ? 2 : 1, passes), times(padded, gather_size));
        wire.add(axis, "reduce_scatter", passes, reduced);
        break;
      default: {
        Error error(ErrorCode::out_of_range, "there is no level " + std::to_string(policy.level) +
                                                 ", the levels are 0 to 3");
        if (!policy.level_key.empty())
          error.key(policy.level_key).help("set " + policy.level_key + " = 3");
        throw error;
      }
    }
    if (reshards)
      gathered.push_back(times(padded, gather_size));
    else
      kept = plus(kept, times(padded, gather_size));
    if (buffer.unit)
      gradients.push_back(reduced);
    else
      outside_gradients = plus(outside_gradients, reduced);
  }

  int64_t storage = dtype_size(work.storage);
  // fp32 weights beside the model's own; weights that are fp32 already serve as both.
  int64_t main_weight = policy.preserve_fp32_weights && work.storage != DType::float32 ? 4 : 0;
  int64_t state = policy.preserve_fp32_weights ? 4 : storage;
  out.bytes.weights = times(policy.level == 3 ? mine : whole, storage);
  out.bytes.gradients = times(policy.level >= 2 ? mine : whole, dtype_size(gradient));
  out.bytes.optimizer = times(policy.level >= 1 ? mine : whole,
                              plus(main_weight, times(state, work.optimizer_states)));
  int64_t parameters = 0, unreduced = 0;
  if (policy.level == 3 && (axis.size > 1 || mp.param != work.storage))
    parameters =
        plus(kept, sum_of_largest(gathered, plus(std::max<int64_t>(policy.prefetch_depth, 0), 1)));
  else if (policy.level < 3 && mp.param != work.storage)
    parameters = times(whole, dtype_size(mp.param));
  // From level 2 on the whole gradient of a unit exists only until it is reduced; below, only its
  // cast copy does.
  if (axis.size > 1 && policy.level >= 2)
    unreduced = plus(outside_gradients, sum_of_largest(gradients, 2));
  else if (axis.size > 1 && reduce_size != dtype_size(gradient))
    unreduced = sum_of_largest(gradients, 2);
  out.bytes.transient = plus(parameters, unreduced);
  out.bytes.activations = activation_bytes(request, /*whole_layers=*/true);
  add_common_rows(request, held, reduce, wire);
  out.wire = wire.rows();
  return out;
}

}  // namespace meshwright
