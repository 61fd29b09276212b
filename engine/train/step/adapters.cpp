#include "engine/train/step/adapters.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "engine/models/running/initialize.h"
#include "engine/models/running/philox.h"
#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/add_low_rank.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/vectorised.h"

namespace meshwright::train {

namespace {

using at::Tensor;

constexpr int64_t kBlocks = 64;  // of four columns, drawn at once
constexpr int64_t kAtOnce = 4 * kBlocks;
constexpr int64_t kGrain = 16384;

// A row of a Linear's input. Its parts, with the columns, are the counter of the generator.
struct Place {
  uint32_t position, row, step;
  uint64_t key;
};

// Of columns 4 first .. 4 (first + kBlocks), which of them are dropped.
MESHWRIGHT_VECTORISED void draw(uint32_t first, const Place& place, uint32_t below,
                                bool* __restrict out) {
  uint32_t drawn[4][kBlocks];
  for (int64_t i = 0; i < kBlocks; ++i) {
    const modules::PhiloxBits bits =
        modules::philox({first + static_cast<uint32_t>(i), place.position, place.row, place.step},
                        static_cast<uint32_t>(place.key), static_cast<uint32_t>(place.key >> 32));
    for (size_t j = 0; j < 4; ++j) drawn[j][i] = bits[j];
  }
  for (int64_t i = 0; i < kBlocks; ++i)
    for (int64_t j = 0; j < 4; ++j) out[4 * i + j] = drawn[j][i] < below;
}

// Columns [begin, begin + count).
void draw_row(const Place& place, uint32_t below, int64_t begin, int64_t count, bool* out) {
  bool drawn[kAtOnce];
  for (int64_t done = 0; done < count;) {
    const int64_t at = begin + done, chunk = at / kAtOnce, skip = at % kAtOnce,
                  n = std::min(kAtOnce - skip, count - done);
    draw(static_cast<uint32_t>(chunk * kBlocks), place, below, drawn);
    std::copy_n(drawn + skip, n, out + done);
    done += n;
  }
}

// Of the rows of each sample: part number `index` of equal ones.
std::vector<int64_t> positions(int64_t length, int64_t parts, int64_t index) {
  std::vector<int64_t> all;
  if (const std::shared_ptr<const Sequence> sequence = current_sequence())
    for (const PositionRun& run : sequence->rows)
      for (int64_t i = 0; i < run.count; ++i) all.push_back(run.position + i);
  if (static_cast<int64_t>(all.size()) != length * parts) {
    all.resize(static_cast<size_t>(length * parts));
    std::iota(all.begin(), all.end(), int64_t{0});
  }
  const auto begin = all.begin() + index * length;
  return {begin, begin + length};
}

}  // namespace

Tensor AdapterDropout::dropped(const Tensor& x, std::string_view module, int64_t columns,
                               bool part) const {
  Tensor dropped = at::empty(x.sizes(), at::kBool);
  if (x.numel() == 0) return dropped.to(x.device());
  const std::vector<Tensor> kept = once_under_recompute([this]() -> std::vector<Tensor> {
    return {at::tensor({place_.step, place_.first_row, place_.rows}, at::kLong)};
  });
  const int64_t* place = kept[0].const_data_ptr<int64_t>();
  const int64_t here = x.size(-1), tokens = x.numel() / here,
                begin = here < columns ? ceil_chunk(columns, tensor_ranks_, tensor_rank_).begin : 0,
                length = tokens % place[2] == 0 ? tokens / place[2] : 1;
  const std::vector<int64_t> position =
      positions(length, part ? tensor_ranks_ : 1, part ? tensor_rank_ : 0);
  const auto below = static_cast<uint32_t>(rate_ * 0x1p32);
  const uint64_t key = seed_ ^ base::fnv1a(module);
  bool* out = dropped.mutable_data_ptr<bool>();
  at::parallel_for(
      0, tokens, std::max<int64_t>(1, kGrain / here), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
          draw_row(
              {static_cast<uint32_t>(position[static_cast<size_t>(i % length)]),
               static_cast<uint32_t>(place[1] + i / length), static_cast<uint32_t>(place[0]), key},
              below, begin, here, out + i * here);
      });
  return dropped.to(x.device());
}

namespace {

std::string below(const std::string& module, std::string_view part) {
  return module + "." + std::string(part);
}

Error not_adaptable(const std::string& module, const std::string& why) {
  return Error(ErrorCode::bad_module, module + " can have no adapter: " + why)
      .key("lora.target_modules")
      .help("add \"" + module + "\" to lora.exclude_modules");
}

// The factor below a Linear, without values.
void attach(torch::nn::Module& linear, std::string_view part, const ParameterOutline& parameter,
            const plan::Adapters& adapters, uint64_t seed) {
  const Tensor weight = linear.named_parameters(/*recurse=*/false)["weight"];
  Linear factor =
      make_linear(parameter.shape[1], parameter.shape[0], /*bias=*/false,
                  at::TensorOptions().dtype(scalar_type(parameter.dtype)).device(weight.device()));
  linear.register_module(std::string(part), factor);
  if (weight.is_meta()) return;
  modules::initialize(parameter.name, parameter.shape,
                      std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape,
                      plan::initial_adapter(parameter, adapters.gaussian), seed, factor->weight);
}

// Autocast casts by itself; else a unit of its own dtype may lie around one of the two.
Tensor as_type_of(const Tensor& x, const Tensor& like) {
  return at::autocast::is_autocast_enabled(x.device().type()) ? x : x.to(like.scalar_type());
}

// What an adapter reads of the Linear's input in training.
struct Drop {
  std::shared_ptr<const AdapterDropout> dropout;  // nullptr: all of it
  std::string module;
  int64_t columns;
  bool at_work(const torch::nn::Module& linear) const {
    return dropout != nullptr && linear.is_training() && c10::GradMode::is_enabled();
  }
};

// What Linears that read one x have in common: their module, and the first of their names, as
// Hugging Face's models call them. Others are alone.
std::string readers_of(const std::string& linear) {
  constexpr std::array<std::array<std::string_view, 3>, 2> kReaders{
      {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", ""}}};
  const std::string_view parent = module_of(linear),
                         last = std::string_view(linear).substr(linear.rfind('.') + 1);
  for (const auto& names : kReaders)
    if (std::ranges::find(names, last) != names.end())
      return std::string(parent) + "." + std::string(names[0]);
  return linear;
}

// Whether calls of a factor are its product alone.
bool bare(const Linear& factor) {
  const HookHost& host = *factor;
  return host.before_forward.empty() && host.after_forward.empty() && !host.around;
}

// Of Linears that read one x: the first of them that runs multiplies x with the A of all of them
// that have its scale. Where a later one reads another x after all, that has the A of those from it
// on. Nothing is kept from one forward of their module to the next.
class Together {
 public:
  size_t join(Linear in, double scale) {
    all_.push_back({std::move(in), scale});
    return all_.size() - 1;
  }
  // scale A x for number `which`, whose own A fits.
  Tensor narrowed(const Tensor& x, size_t which) {
    if (!is_of(x))
      read(x, which);
    else if (!waiting_.at(which).defined())  // it runs before its turn, or has a scale of its own
      return narrow_low_rank(x, {all_[which].in->weight}, all_[which].scale)[0];
    return std::exchange(waiting_[which], Tensor());
  }
  void forget() {
    waiting_.assign(all_.size(), Tensor());
    from_.reset();
  }

 private:
  struct Member {
    Linear in;  // its A
    double scale;
  };
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  static int64_t version_of(const Tensor& x) { return x.is_inference() ? 0 : x._version(); }

  bool is_of(const Tensor& x) const {
    return from_ && !from_->expired() && from_->_unsafe_get_target() == x.unsafeGetTensorImpl() &&
           version_ == version_of(x) && training_ == c10::GradMode::is_enabled();
  }
  bool joins(const Tensor& x, const Member& member, double scale) const {
    return member.scale == scale && bare(member.in) && reads_low_rank(x, member.in->weight);
  }
  void read(const Tensor& x, size_t first) {
    const double scale = all_.at(first).scale;
    std::vector<size_t> whose;
    std::vector<Tensor> factors;
    for (size_t i = first; i < all_.size(); ++i) {
      if (i != first && !joins(x, all_[i], scale)) continue;
      whose.push_back(i);
      factors.push_back(all_[i].in->weight);
    }
    std::vector<Tensor> made = narrow_low_rank(x, factors, scale);
    waiting_.assign(all_.size(), Tensor());
    for (size_t i = 0; i < whose.size(); ++i) waiting_[whose[i]] = std::move(made[i]);
    from_ = Weak(x.getIntrusivePtr());
    version_ = version_of(x);
    training_ = c10::GradMode::is_enabled();
  }

  std::vector<Member> all_;  // in the outline's order
  // Of the last x, for those that have not run since.
  std::optional<Weak> from_;
  int64_t version_ = 0;
  bool training_ = false;
  std::vector<Tensor> waiting_;
};

// `modules`: of the model, by name.
HookHost* host_of_parent(
    torch::nn::Module& model,
    const torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>& modules,
    const std::string& linear) {
  const std::string parent(module_of(linear));
  if (parent.empty()) return HookHost::of(model);
  const auto* found = modules.find(parent);
  return found == nullptr ? nullptr : HookHost::of(**found);
}

// A Linear's place among those that read its x.
struct Reader {
  std::shared_ptr<Together> together;
  size_t which;
};

// y + scale B (A x), in two hooks around the Linear. The output of one of our own is nobody else's
// yet, so that the sum may take its memory. With dropout each Linear drops elements of its own.
void run(HookHost& host, Linear in, Linear out, double scale, Drop drop, Reader reader) {
  auto input = std::make_shared<Tensor>();  // between the two hooks of a call
  host.before_forward.emplace_back(
      [input](torch::nn::Module&, TensorRefs& inputs) { *input = *inputs.at(0); });
  host.after_forward.insert(
      host.after_forward.begin(),
      [input, in = std::move(in), out = std::move(out), scale, drop = std::move(drop),
       reader = std::move(reader)](torch::nn::Module& linear, TensorRefs& outputs) mutable {
        const Tensor given = std::exchange(*input, Tensor());
        Tensor x = given, dropped;
        Tensor& y = *outputs.at(0);
        double times = scale;
        if (drop.at_work(linear)) {
          // Where the factor gathers its input by itself, x is this rank's part of the positions.
          const HookHost& reads = *in;
          dropped = drop.dropout->dropped(x, drop.module, drop.columns,
                                          /*part=*/static_cast<bool>(reads.around));
          times /= 1 - drop.dropout->rate();
        }
        x = as_type_of(x, in->weight);
        const bool ours = typeid(linear) == typeid(Linear::ContainedType);
        if (!ours || !bare(in) || !bare(out) || !fits_low_rank(y, x, in->weight, out->weight))
          y = y +
              as_type_of(out(in(dropped.defined() ? x.masked_fill(dropped, 0) : x).mul(times)), y);
        else if (x.is_same(given) && !dropped.defined())
          y = widen_low_rank(y, reader.together->narrowed(x, reader.which), out->weight);
        else
          y = add_low_rank(y, x, in->weight, out->weight, times, dropped);
      });
}

}  // namespace

void attach_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                     torch::nn::Module& model, uint64_t seed) {
  auto modules = model.named_modules("", /*include_self=*/false);
  for (const std::string& name : adapters.modules) {
    if (!modules.contains(name))
      throw Error(ErrorCode::bad_module,
                  "the model has no module " + name + ", which its outline lists");
    torch::nn::Module& linear = *modules[name];
    if (HookHost::of(linear) == nullptr)
      throw not_adaptable(name, "it has no hooks")
          .help(
              "take Linear from meshwright/nn/layers.h, or declare the class with "
              "MESHWRIGHT_MODULE(...)");
    for (std::string_view part : {kFactorIn, kFactorOut}) {
      if (linear.named_children().contains(std::string(part)))
        throw not_adaptable(name, "it has a " + std::string(part) + " already");
      attach(linear, part, *outline.find_parameter(below(name, part) + ".weight"), adapters, seed);
    }
  }
}

void run_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                  torch::nn::Module& model, const std::shared_ptr<AdapterDropout>& dropout) {
  if (!adapters.any()) return;
  auto modules = model.named_modules("", /*include_self=*/false);
  auto factor = [&](const std::string& name, std::string_view part) {
    return Linear(std::dynamic_pointer_cast<Linear::ContainedType>(modules[below(name, part)]));
  };
  std::map<std::string, std::shared_ptr<Together>> beside;
  for (const std::string& name : adapters.modules) {
    if (!modules.contains(name)) continue;  // it is of another stage
    const Linear in = factor(name, kFactorIn);
    const int64_t columns = outline.find_parameter(below(name, kFactorIn) + ".weight")->shape[1];
    // Their module says when a forward is over; without hooks of its own each is alone.
    HookHost* const parent = host_of_parent(model, modules, name);
    std::shared_ptr<Together>& together = beside[parent == nullptr ? name : readers_of(name)];
    if (!together) together = std::make_shared<Together>();
    const size_t which = together->join(in, adapters.scale(name));
    if (which == 1)
      for (auto* hooks : {&parent->before_forward, &parent->after_forward})
        hooks->emplace_back([together](torch::nn::Module&, TensorRefs&) { together->forget(); });
    run(*HookHost::of(*modules[name]), in, factor(name, kFactorOut), adapters.scale(name),
        {dropout, name, columns}, {together, which});
  }
}

}  // namespace meshwright::train
