// footprint: where parameters lie, and what a layout costs by its plan. And the third hook.
#include <algorithm>
#include <map>
#include <set>

#include "meshwright/parallel/parallel.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t out = 1;
  for (int64_t size : shape) out *= size;
  return out;
}

int64_t held(const ParameterPlacement& p) {
  return p.local_range ? p.local_range->end - p.local_range->begin : product(p.local_shape);
}

// The axes of a plan, of both meshes, by name.
class Axes {
 public:
  explicit Axes(const MeshPlan& plan) : plan_(plan) {}

  // Size of an axis; 0 when there is none. Without a mesh there is one axis, dp.
  int64_t size(const std::string& axis) const {
    const Mesh* mesh = mesh_of(axis);
    if (mesh != nullptr) return mesh->size(axis);
    return !plan_.device_mesh && axis == "dp" ? plan_.dp : 0;
  }

  // Names the set of ranks that together hold one whole copy: all that differ from `rank` on the
  // cut axes alone. "" when the cut axes lie on two meshes.
  std::string copy_of(int64_t rank, const std::vector<std::string>& cut) const {
    if (!plan_.device_mesh) return cut.empty() ? std::to_string(rank) : "all";
    const Mesh* mesh = &*plan_.device_mesh;
    if (!cut.empty() && mesh_of(cut[0]) != nullptr) mesh = mesh_of(cut[0]);
    std::set<std::string> covered;
    for (const std::string& axis : cut) {
      if (!mesh->has_axis(axis)) return {};
      covered.insert(axis);
      for (const FlattenedAxis& flat : mesh->flattened())
        if (flat.name == axis) covered.insert(flat.axes.begin(), flat.axes.end());
    }
    std::string out = " ";
    for (const MeshAxis& axis : mesh->axes())
      if (!covered.contains(axis.name))
        out += axis.name + std::to_string(mesh->coordinate(rank, axis.name)) + " ";
    return out;
  }

 private:
  const Mesh* mesh_of(const std::string& axis) const {
    if (plan_.device_mesh && plan_.device_mesh->has_axis(axis)) return &*plan_.device_mesh;
    if (plan_.moe_mesh && plan_.moe_mesh->has_axis(axis)) return &*plan_.moe_mesh;
    return nullptr;
  }
  const MeshPlan& plan_;
};

constexpr const char* kOps[] = {"all_gather", "reduce_scatter", "all_reduce",
                                "broadcast",  "send",           "all_to_all"};

// All ranks of one layout, asked one by one.
class LayoutChecker {
 public:
  LayoutChecker(Strategy& strategy, const ParallelDims& dims, const MeshRequest& request,
                const MeshPlan& mesh, Report& report)
      : strategy_(strategy),
        dims_(dims),
        request_(request),
        mesh_(mesh),
        axes_(mesh),
        report_(report) {}

  // False when the strategy refused the layout as it may.
  bool run(const ModelOutline& model, const TpPlan& tp, bool may_refuse) {
    int64_t pp = mesh_.device_mesh ? mesh_.device_mesh->size("pp") : 1;
    std::vector<ModelOutline> stages(1, model);
    if (pp > 1) {
      PipelinePlan pipeline = plan_pipeline(model, pp, request_.config.shared().pipeline);
      stages.clear();
      for (int64_t stage = 0; stage < pp; ++stage)
        stages.push_back(stage_outline(model, pipeline, stage));
    }
    for (int64_t rank = 0; rank < dims_.world && !report_.full(); ++rank) {
      const ModelOutline& outline =
          stages[static_cast<size_t>(pp > 1 ? mesh_.device_mesh->coordinate(rank, "pp") : 0)];
      ShardingRequest cost{outline, mesh_, tp, request_.config, {2, 128, 2, DType::float32, 2},
                           rank};
      Answer<Footprint> answer =
          ask([&] { return footprint_of(cost, strategy_.plan_sharding(cost)); });
      lead_ = describe(dims_) + ", rank " + std::to_string(rank) + ": ";
      if (!answer.foreign.empty())
        fail(answer.foreign + " left plan_sharding; only meshwright::Error may");
      bool refusal = answer.error && static_cast<int>(answer.error->code()) / 100 == 3 &&
                     !answer.error->helps().empty();
      if (answer.error && !(refusal && may_refuse)) fail(one_line(*answer.error));
      if (!answer.value) return false;
      parameters(rank, outline, *answer.value);
      costs(outline, *answer.value);
    }
    // Each copy holds each element once: what its ranks hold adds up to the parameter.
    for (const auto& [copy, total] : elements_)
      if (!report_.full() && total.first != total.second)
        report_.fail(describe(dims_) + ": the ranks of one copy hold " +
                     std::to_string(total.first) + " of the " + std::to_string(total.second) +
                     " elements of " + copy.substr(0, copy.find(' ')));
    return true;
  }

 private:
  void fail(const std::string& what) { report_.fail(lead_ + what); }

  void parameters(int64_t rank, const ModelOutline& outline, const Footprint& f) {
    if (f.parameters.size() != outline.parameters.size())
      return fail("it places " + std::to_string(f.parameters.size()) + " of " +
                  std::to_string(outline.parameters.size()) + " parameters");
    for (size_t i = 0; i < f.parameters.size(); ++i) {
      const ParameterPlacement& p = f.parameters[i];
      if (p.name != outline.parameters[i].name || p.global_shape != outline.parameters[i].shape)
        return fail("parameter " + std::to_string(i) + " is " + p.name + ", not " +
                    outline.parameters[i].name + " of its shape");
      std::vector<std::string> cut;
      bool flat = false;
      for (const auto& [axis, where] : p.placement) {
        if (axes_.size(axis) == 0) fail(p.name + " lies on an axis that does not exist: " + axis);
        if (axes_.size(axis) == 1) fail(p.name + " is placed on " + axis + ", which has size 1");
        flat = flat || where == "flat";
        if (where == "replicate") continue;
        cut.push_back(axis);
        if (where != "flat" &&
            (where.size() != 8 || !where.starts_with("shard(") || where.back() != ')'))
          fail(p.name + " has the placement \"" + where + "\"");
        else if (where != "flat" && static_cast<size_t>(where[6] - '0') >= p.global_shape.size())
          fail(p.name + " is cut along a dimension it does not have: " + where);
      }
      if (flat && !p.local_range) fail(p.name + ": lies in a flat buffer, but has no local range");
      if (!p.local_range && p.local_shape.size() != p.global_shape.size())
        return fail(p.name + " changes its number of dimensions");
      if (held(p) < 0 || held(p) > product(p.global_shape))
        fail(p.name + " holds " + std::to_string(held(p)) + " elements");
      std::string copy = axes_.copy_of(rank, cut);
      if (copy.empty()) return fail(p.name + " is cut over axes of two meshes");
      auto& total = elements_[p.name + copy];
      total.first += held(p);
      total.second = product(p.global_shape);
    }
  }

  void costs(const ModelOutline& outline, const Footprint& f) {
    for (int64_t bytes : {f.bytes.weights, f.bytes.gradients, f.bytes.optimizer, f.bytes.transient,
                          f.bytes.activations})
      if (bytes < 0) fail("a negative number of bytes");
    // A rank cannot store less than one byte per element of what it holds, nor more than everything
    // in the widest type.
    int64_t mine = 0, all = 0;
    for (const ParameterPlacement& p : f.parameters)
      mine += held(p), all += product(p.global_shape);
    if (f.bytes.weights < mine)
      fail(std::to_string(f.bytes.weights) + " bytes of weights for " + std::to_string(mine) +
           " elements");
    int64_t padding =
        static_cast<int64_t>(outline.parameters.size()) * dims_.world * outline.hidden_size;
    if (f.bytes.weights > 8 * (all + padding))
      fail(std::to_string(f.bytes.weights) + " bytes of weights for a model of " +
           std::to_string(all) + " elements");
    for (const UnitCost& unit : f.units)
      if (unit.parameters < 0 || unit.padded_bytes < unit.parameters)
        fail("unit " + unit.name + " is smaller than its parameters");
    std::set<std::string> seen;
    for (const WireRow& row : f.wire) {
      if (axes_.size(row.axis) == 0) fail("traffic on an axis that does not exist: " + row.axis);
      if (axes_.size(row.axis) == 1) fail("traffic on " + row.axis + ", which has size 1");
      if (std::find(std::begin(kOps), std::end(kOps), row.op) == std::end(kOps))
        fail("an operation nobody knows: " + row.op);
      if (row.count <= 0 || row.bytes < 0)
        fail("no or negative traffic on " + row.axis + ": " + row.op);
      if (!seen.insert(row.axis + " " + row.op).second)
        fail("two rows for " + row.axis + " and " + row.op);
    }
  }

  Strategy& strategy_;
  const ParallelDims& dims_;
  const MeshRequest& request_;
  const MeshPlan& mesh_;
  const Axes axes_;
  Report& report_;
  std::string lead_;
  std::map<std::string, std::pair<int64_t, int64_t>>
      elements_;  // by parameter and copy: held, wanted
};

// Layouts of up to 16 ranks. Sizes that the strategy does not have are left out by it.
std::vector<ParallelDims> layouts(const meshwright_strategy& strategy) {
  std::vector<ParallelDims> out;
  for (int64_t world : {1, 2, 3, 4, 6, 8, 12, 16})
    for (int64_t tp : {1, 2, 4})
      for (int64_t rep : {1, 2})
        for (int64_t cp : {1, 2})
          for (int64_t pp : {1, 2})
            for (int64_t ep : {1, 2, 4}) {
              if (world % (tp * cp * pp) != 0 || cp * pp * ep * rep > 8) continue;
              ParallelDims dims;
              dims.world = world;
              dims.tp = tp, dims.dp_replicate = rep, dims.cp = cp, dims.pp = pp, dims.ep = ep;
              out.push_back(dims);
            }
  Random random(11);
  for (size_t i = 0, n = out.size(); i < n; ++i) {  // and with other options
    if (!random.chance(50)) continue;
    ParallelDims dims = out[i];
    randomize_own(strategy, dims, random);
    out.push_back(std::move(dims));
  }
  return out;
}

}  // namespace

void check_footprint(const Subject& subject, Report& report) {
  Instance strategy(subject);
  ModelShape dense, sparse;
  sparse.architecture = "MixtralForCausalLM";
  sparse.experts = 8;
  sparse.ffn = 192;
  const ModelOutline llama = make_outline(dense), mixtral = make_outline(sparse);
  int looked_at = 0;
  for (const ParallelDims& dims : layouts(*subject.strategy)) {
    if (report.full()) return;
    Answer<MeshRequest> request = ask([&] { return make_request(subject, dims); });
    if (!request.value) continue;
    Answer<bool> valid = ask([&] {
      Diagnostics diagnostics;
      strategy->validate(request.value->config, diagnostics);
      return diagnostics.ok();
    });
    if (!valid.value.value_or(false)) continue;
    Answer<MeshPlan> mesh = ask([&] { return strategy->plan_mesh(*request.value); });
    if (!mesh.value || !mesh.value->delegate_to.empty()) continue;
    const ModelOutline& model = mesh.value->moe_mesh ? mixtral : llama;
    const SharedOptions& shared = request.value->config.shared();
    Answer<TpPlan> tp = ask([&] {
      return strategy->translate_tp_plan(
          model, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
    });
    if (!tp.value) continue;  // case tp_plan says whether it may
    // A refusal is fine where an option or the expert sizes ask for what this model lacks; the rest
    // must have a cost.
    bool may_refuse = !dims.own.empty() || mesh.value->moe_mesh.has_value();
    looked_at += LayoutChecker(*strategy, dims, *request.value, *mesh.value, report)
                         .run(model, *tp.value, may_refuse)
                     ? 1
                     : 0;
  }
  if (looked_at == 0) report.fail("no layout of 1 to 16 ranks could be looked at");
  report.note(std::to_string(looked_at) + " layouts", looked_at);
}

namespace {

void check_training(const Subject& subject, Report& report) {
  void* symbol = symbol_of_training("meshwright_check_training", report);
  if (symbol == nullptr) return;
  reinterpret_cast<void (*)(const Subject*, void*, Say, Say)>(symbol)(&subject, &report, &say_fail,
                                                                      &say_note);
}

}  // namespace

void check_parallelize(const Subject& subject, Report& report) {
  if ((subject.strategy->capabilities & MESHWRIGHT_CAN_PARALLELIZE) != 0)
    return check_training(subject, report);
  Instance strategy(subject);
  ModelOutline outline = make_outline({});
  MeshRequest mesh_request = make_request(subject, ParallelDims{});
  MeshPlan mesh;
  TpPlan tp;
  ParallelizeRequest request{nullptr, outline, mesh, tp, mesh_request.config, nullptr};
  Answer<bool> answer = ask([&] { return strategy->parallelize(request) != nullptr; });
  if (answer.value)
    report.fail("it does not say that it can train, but parallelize answers");
  else if (!answer.foreign.empty())
    report.fail(answer.foreign + " left parallelize");
  else if (answer.error && answer.error->code() != ErrorCode::not_in_release)
    report.fail("parallelize should answer " + code_string(ErrorCode::not_in_release) + ", found " +
                one_line(*answer.error));
  report.note("plans only; answers " + code_string(ErrorCode::not_in_release), 1);
}

}  // namespace meshwright::conformance
