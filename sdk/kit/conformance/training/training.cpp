// The case of a strategy that trains: a small net on ranks that are threads, beside a plain loop;
// in several layouts, each of which also goes on from what another one saved. A library of its own,
// which the kit loads when it is needed, because planning needs no LibTorch.
#include <c10/util/Logging.h>

#include <algorithm>
#include <functional>
#include <map>

#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/kit/conformance/probe.h"
#include "sdk/kit/conformance/training/model.h"
#include "sdk/kit/conformance/training/place.h"
#include "sdk/kit/conformance/training/rank_run.h"
#include "sdk/kit/conformance/training/ranks.h"

namespace meshwright::conformance {
namespace {

// How the ranks of a run share the work. `size`: the key of [distributed] that is not as ever, or
// null: a size that is 2, or activation_checkpointing or the dtype in which units compute.
struct Layout {
  int64_t ranks;
  const char* size;
  const char* name;
  ContextMethod method = ContextMethod::all_gather;
};
constexpr char kRecompute[] = "activation_checkpointing", kDType[] = "mp_policy.param_dtype";

// Another value than 2 of that key; "" for sizes.
std::string_view value_of(std::string_view key) {
  return key == kRecompute ? "full" : key == kDType ? "bfloat16" : "";
}

constexpr Layout kLayouts[] = {
    {1, nullptr, "1"},
    {2, nullptr, "2"},
    {3, nullptr, "3"},
    {4, "dp_replicate_size", "4"},
    {2, "cp_size", "all_gather"},
    {2, "cp_size", "ring", ContextMethod::ring},
    {2, "cp_size", "ulysses", ContextMethod::ulysses},
    {4, "cp_size", "ring on 4 ranks", ContextMethod::ring},
    {2, "tp_size", "2"},
    {4, "tp_size", "4"},
    {2, "pp_size", "2"},
    {4, "pp_size", "4"},
    {2, kRecompute, "2"},
    {2, kDType, "2"},
};

std::string text_of(const Layout& layout) {
  std::string out = std::to_string(layout.ranks) + (layout.ranks == 1 ? " rank" : " ranks");
  if (layout.size == nullptr) return out;
  if (const std::string_view value = value_of(layout.size); !value.empty())
    return out + ", " + std::string(value == "full" ? "layers recomputed" : value);
  out += ", " + std::string(layout.size) + " 2";
  return layout.size == std::string_view("cp_size") ? out + ", " + layout.name : out;
}

// The job of a layout: in float32, where it does not say otherwise.
MeshRequest request_of(const Subject& subject, const Layout& layout) {
  const std::string size = layout.size != nullptr ? layout.size : "";
  ParallelDims dims;
  dims.world = layout.ranks;
  if (size == "dp_replicate_size") dims.dp_replicate = 2;
  if (size == "cp_size") dims.cp = 2;
  if (size == "tp_size") dims.tp = 2;
  if (size == "pp_size") dims.pp = 2;
  MeshRequest request = make_request(subject, dims);
  SharedOptions& shared = request.config.shared();
  shared.mp = MixedPrecision{DType::float32, DType::float32, DType::float32, true};
  shared.context.method = layout.method;
  if (size == kRecompute) shared.activation_checkpointing = ActivationCheckpointing::full;
  if (size == kDType)
    shared.mp = MixedPrecision{DType::bfloat16, DType::float32, DType::bfloat16, true};
  return request;
}

Answer<MeshPlan> plan_of(const Subject& subject, const MeshRequest& request) {
  return ask([&] {
    Instance strategy(subject);
    Diagnostics diagnostics;
    strategy->validate(request.config, diagnostics);
    diagnostics.throw_if_any();
    return strategy->plan_mesh(request);
  });
}

constexpr char kIndependent[] = "independent";

RunOutcome run(const Subject& subject, const MeshRequest& request, const Reference& reference,
               const std::function<void(RankRun&, int64_t rank)>& body) {
  return collect(request.world_size, [&](const std::shared_ptr<World>& world, RankFound& found) {
    RankRun rank(subject, request, reference, world, found.problems);
    if (found.problems.empty() && rank.independent())
      found.refusal = kIndependent;
    else
      body(rank, world->rank());
  });
}

// Trains in all layouts that the strategy takes.
class Kit {
 public:
  // What is wrong is said through `fail`.
  Kit(const Subject& subject, void* context, Say fail)
      : subject_(subject), findings_{context, fail} {}

  // The layouts of one key of [distributed] alone: what is wrong beside others does not show.
  void run_of(std::string_view key) {
    for (const Layout& layout : kLayouts)
      if (layout.size != nullptr && layout.size == key && findings_.count < 6) train(layout);
  }

  void run_all() {
    for (const Layout& layout : kLayouts)
      if (findings_.count < 6) train(layout);
    if (!looked_at_.empty()) try_options();
    for (size_t i = 0; i < saves_.size() && findings_.count == 0; ++i) {
      resume(*saves_[i].layout, save_for(i));
      if (saves_[i].approximate() && findings_.count == 0)
        resume(*saves_[i].layout, saves_[i], saves_[i].ends);
    }
    if (looked_at_.empty())
      findings_.add("it plans no mesh of 1, 2 or 3 ranks, so nothing could be trained");
  }

  std::string note() const {
    std::string out = "trained on " + looked_at_ + " ranks as a plain loop";
    for (const auto& [size, what] : sized_)
      out += "; " + what + (what.starts_with("with") && size != "cp_size" ? " ranks" : "");
    if (options_ > 0)
      out += "; with " + std::to_string(options_) + (options_ == 1 ? " value" : " values") +
             " of its own options";
    if (declared_error_)
      out += text::format("; gradients measured off by up to %.2g, gradient_tolerance declares %g",
                          gradient_error_, *declared_error_);
    if (!refused_options_.empty()) out += "; refused: " + refused_options_;
    return out;
  }
  bool trained() const { return !looked_at_.empty(); }

 private:
  struct Save {
    const Layout* layout;
    TrainingState state;
    SavedParts ends;  // after the last step; only where gradients are approximate
    bool approximate() const { return !ends.empty(); }
  };

  // The save of the layout before, which that of saves_[i] goes on from. One whose gradients are
  // exact is held to the plain loop, where approximate ones did not leave the parameters.
  const Save& save_for(size_t i) const {
    size_t from = i;
    do {
      from = (from + saves_.size() - 1) % saves_.size();
    } while (saves_[from].approximate() && !saves_[i].approximate());
    return saves_[from];
  }

  void train(const Layout& layout) {
    const std::string size = layout.size != nullptr ? layout.size : "";
    const MeshRequest request = request_of(subject_, layout);
    const Answer<MeshPlan> mesh = plan_of(subject_, request);
    if (mesh.error) return refused(size, code_string(mesh.error->code()));
    // Of other answers the case mesh says whether they may be.
    if (!mesh.value || !mesh.value->delegate_to.empty() || !has_axis(*mesh.value, size)) return;
    SavedParts parts(static_cast<size_t>(layout.ranks)), ends(parts.size());
    std::vector<Evidence> evidence(parts.size());
    TrainingState expected = reference_.states[static_cast<size_t>(kSavedStep)];
    RunOutcome outcome = run(subject_, request, reference_, [&](RankRun& rank, int64_t number) {
      if (!rank.approximate()) rank.watch(evidence[static_cast<size_t>(number)]);
      rank.train(parts[static_cast<size_t>(number)]);
      if (!rank.approximate()) return;
      ends[static_cast<size_t>(number)] = rank.save();
      if (number > 0) return;
      expected = rank.reference().states[static_cast<size_t>(kSavedStep)];
      gradient_error_ = std::max(gradient_error_, rank.gradient_error());
      if (rank.approximate()) declared_error_ = rank.declared_error();
    });
    if (ends.front().empty()) ends.clear();
    if (!outcome.refusal.empty() && !size.empty()) return refused(size, outcome.refusal);
    if (!outcome.refusal.empty()) outcome.problems[-1] = {"it refuses: " + outcome.refusal};
    looked_at(layout, size);
    if (outcome.problems.empty() && size != kDType) keep(layout, parts, expected, std::move(ends));
    tell(outcome, text_of(layout), findings_,
         outcome.problems.empty()
             ? std::vector<std::string>()
             : place_of_fault(evidence, reference_, size == kDType ? 0.1 : 1e-4));
  }

  // Each switch and choice of its own table that is not as ever, alone.
  void try_options() {
    const Options usual = make_config(subject_, ParallelDims{}).own();
    for (const meshwright_option* option : usual.schema().options) {
      std::vector<OptionValue> values;
      if ((option->type & MESHWRIGHT_BOOL) != 0) values = {OptionValue(true), OptionValue(false)};
      if ((option->type & MESHWRIGHT_STRING) != 0)
        for (const std::string& word : text::split_names(option->choices, '|'))
          values.emplace_back(word);
      for (const OptionValue& value : values)
        if (findings_.count < 6 &&
            (!usual.is_set(option->name) || to_toml(usual.value(option->name)) != to_toml(value)))
          try_option(option->name, value);
    }
  }

  void try_option(const std::string& name, const OptionValue& value) {
    const Layout& layout = kLayouts[1];
    Subject changed = subject_;
    changed.settings.emplace_back(name, value);
    const std::string setting = name + " = " + to_toml(value);
    const MeshRequest request = request_of(changed, layout);
    const Answer<MeshPlan> mesh = plan_of(changed, request);
    const bool planned = mesh.value && mesh.value->delegate_to.empty();
    RunOutcome outcome;
    if (planned)
      outcome = run(changed, request, reference_, [&](RankRun& rank, int64_t) {
        SavedParts unused(1);
        rank.train(unused.front());
      });
    if (mesh.error) outcome.refusal = code_string(mesh.error->code());
    if (!outcome.refusal.empty())
      refused_options_ +=
          (refused_options_.empty() ? "" : ", ") + setting + " (" + outcome.refusal + ")";
    else if (planned)
      ++options_;
    tell(outcome, text_of(layout) + ", " + setting, findings_);
  }

  static bool has_axis(const MeshPlan& mesh, const std::string& size) {
    return size.empty() || !value_of(size).empty() ||
           (mesh.device_mesh &&
            mesh.device_mesh->find_size(size.substr(0, size.rfind('_'))).value_or(1) == 2);
  }

  void keep(const Layout& layout, const SavedParts& parts, const TrainingState& expected,
            SavedParts ends) {
    std::vector<std::string> problems;
    TrainingState state = assemble(parts, expected, problems);
    if (problems.empty()) return saves_.push_back({&layout, std::move(state), std::move(ends)});
    findings_.add(text_of(layout) + ": " + problems.front());
  }

  // `ends`: with what the ranks of the same layout end without a stop.
  void resume(const Layout& layout, const Save& save, const SavedParts& ends = {}) {
    const RunOutcome outcome =
        run(subject_, request_of(subject_, layout), reference_, [&](RankRun& rank, int64_t number) {
          rank.resume(save.state);
          if (!ends.empty()) rank.check_end(ends[static_cast<size_t>(number)]);
        });
    tell(outcome, text_of(layout) + ", from what " + text_of(*save.layout) + " saved", findings_);
  }

  static std::string setting_of(const std::string& size) {
    const std::string_view value = value_of(size);
    return size + " = " + std::string(value.empty() ? "2" : value);
  }

  void refused(const std::string& size, const std::string& code) {
    if (!size.empty() && !sized_.contains(size))
      sized_[size] =
          setting_of(size) + (code == kIndependent
                                  ? " makes replicas that go their own ways, which was not tried"
                                  : " is refused (" + code + ")");
  }

  void looked_at(const Layout& layout, const std::string& size) {
    std::string& list = size.empty() ? looked_at_ : sized_[size];
    if (!list.empty())
      list += ", ";
    else if (!size.empty())
      list = "with " + setting_of(size) + (size == "cp_size" ? " by " : " on ");
    list += layout.name;
  }

  const Subject& subject_;
  Findings findings_;
  const Reference reference_ = plain_loop();
  std::string looked_at_, refused_options_;
  int64_t options_ = 0;                       // values that were tried
  std::map<std::string, std::string> sized_;  // by key
  std::vector<Save> saves_;
  double gradient_error_ = 0;  // where they are approximate
  std::optional<double> declared_error_;
};

}  // namespace
}  // namespace meshwright::conformance

// Says what it found through the two functions.
extern "C" MESHWRIGHT_API void meshwright_check_training(
    const meshwright::conformance::Subject* subject, void* context,
    meshwright::conformance::Say fail, meshwright::conformance::Say note) {
  // The meter of memory hears of what was made before it, which is not to be told.
  FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  meshwright::conformance::Kit kit(*subject, context, fail);
  kit.run_all();
  if (kit.trained()) note(context, kit.note().c_str());
}

// Of the layouts of one key of [distributed], for tests of what they alone find.
extern "C" MESHWRIGHT_API void meshwright_check_training_of(
    const meshwright::conformance::Subject* subject, const char* key, void* context,
    meshwright::conformance::Say fail) {
  meshwright::conformance::Kit(*subject, context, fail).run_of(key);
}
