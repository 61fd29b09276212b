#include "meshwright/parallel/context_parallel.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "context_attention.h"
#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/parts.h"

namespace meshwright {

using at::Tensor;

struct ContextParallel::Parts {
  std::shared_ptr<Group> group;
  ContextBalance balance;
  ContextSplit split(int64_t length) const { return {length, group->size(), balance}; }
};

std::shared_ptr<ContextParallel> detail::make_context_parallel(std::shared_ptr<Group> group,
                                                               ContextBalance balance) {
  return std::make_shared<ContextParallel>(std::unique_ptr<const ContextParallel::Parts>(
      new ContextParallel::Parts{std::move(group), balance}));
}

ContextParallel::ContextParallel(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ContextParallel::~ContextParallel() = default;
const std::shared_ptr<Group>& ContextParallel::group() const { return parts_->group; }
std::vector<PositionRun> ContextParallel::rows_of(int64_t length, int64_t rank) const {
  return parts_->split(length).runs_of(rank);
}
int64_t ContextParallel::tokens_of(int64_t length, int64_t rank) const {
  return parts_->split(length).tokens_of(rank);
}

Tensor ContextParallel::shard(const Tensor& x, int64_t dim, const c10::Scalar& padding) const {
  const int64_t d = dim < 0 ? dim + x.dim() : dim, length = x.size(d);
  const ContextSplit split = parts_->split(length);
  std::vector<Tensor> parts;
  for (const PositionRun& run : split.runs_of(group()->rank())) {
    const int64_t here = std::clamp<int64_t>(length - run.position, 0, run.count);
    Tensor part = x.narrow(d, std::min(run.position, length), here);
    if (here < run.count) {
      std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - d)), 0);
      pad.back() = run.count - here;
      part = at::constant_pad_nd(part, pad, padding);
    }
    parts.push_back(std::move(part));
  }
  return at::cat(parts, d);
}

Tensor ContextParallel::gather(const Tensor& x, int64_t dim, int64_t length) const {
  const int64_t d = dim < 0 ? dim + x.dim() : dim;
  const ContextSplit split = parts_->split(length);
  if (x.size(d) != split.rows())
    throw Error(ErrorCode::model_does_not_fit,
                "dimension " + std::to_string(d) + " has " + std::to_string(x.size(d)) +
                    " rows, but a rank of cp has " + std::to_string(split.rows()) +
                    " of samples of " + std::to_string(length) + " tokens")
        .help("give gather() what shard() gave, and the length that shard() was called with");
  c10::NoGradGuard no_grad;
  Tensor all = group()->size() == 1 ? x : detail::PartsGather(x.contiguous(), d, *group()).whole();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(d)] = split.padded();
  Tensor out = at::empty(sizes, x.options());
  for (int64_t rank = 0; rank < group()->size(); ++rank) {
    int64_t row = rank * split.rows();
    for (const PositionRun& run : split.runs_of(rank)) {
      out.narrow(d, run.position, run.count).copy_(all.narrow(d, row, run.count));
      row += run.count;
    }
  }
  return out.narrow(d, 0, length);
}

SequenceScope ContextParallel::scope(int64_t length, int64_t batch, const Tensor& documents,
                                     const Tensor& positions) const {
  const ContextSplit split = parts_->split(length);
  auto sequence = std::make_shared<Sequence>();
  sequence->length = length;
  sequence->rows = split.runs_of(group()->rank());
  if (documents.defined()) {
    // Padding is a document of its own, behind all others.
    sequence->documents =
        at::constant_pad_nd(documents, {0, split.padded() - length}, INT32_MAX).contiguous();
  }
  if (positions.defined()) sequence->positions = shard(positions, 1, 0);
  if (split.padded() != length) {
    Tensor here = at::empty({batch, split.rows()}, at::kBool);
    int64_t row = 0;
    for (const PositionRun& run : sequence->rows) {
      const int64_t tokens = std::clamp<int64_t>(length - run.position, 0, run.count);
      here.narrow(1, row, tokens).fill_(true);
      here.narrow(1, row + tokens, run.count - tokens).fill_(false);
      row += run.count;
    }
    sequence->counts = here;
  }
  return SequenceScope(std::move(sequence));
}

namespace {

// What is called attention and has no core in it, and LibTorch's own modules that mix tokens, would
// see this rank's rows alone.
void check_attention(torch::nn::Module& model, const ModelOutline& outline) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const std::string& name = item.key();
    const std::string last = text::lower(name.substr(name.rfind('.') + 1));
    const bool mixes = item.value()->as<torch::nn::MultiheadAttentionImpl>() != nullptr ||
                       item.value()->as<torch::nn::RNNImpl>() != nullptr ||
                       item.value()->as<torch::nn::LSTMImpl>() != nullptr ||
                       item.value()->as<torch::nn::GRUImpl>() != nullptr;
    if (!mixes && !last.ends_with("attn") && !last.ends_with("attention")) continue;
    if (item.value()->as<torch::nn::LinearImpl>() != nullptr) continue;  // GPT-2's c_attn
    const ModuleOutline* known = outline.find_module(name);
    if (known != nullptr && known->kind == ModuleKind::norm) continue;  // the one before it
    if (mixes || find_attention_cores(*item.value()).empty())
      throw Error(ErrorCode::bad_module,
                  name +
                      " computes a token from others by itself: with cp_size above 1 it would see "
                      "the tokens of its own rank alone")
          .key("distributed.cp_size")
          .help("let it call a meshwright::AttentionCore (meshwright/nn/attention.h)")
          .help("set distributed.cp_size = 1");
  }
}

Error refused(const std::string& why) {
  return Error(ErrorCode::not_in_release, why)
      .key("distributed.cp_size")
      .help("set distributed.cp_size = 1");
}

std::shared_ptr<Group> part_of(World& world, const Group& context, int64_t first, int64_t count,
                               int64_t step) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i)
    ranks.push_back(context.ranks()[static_cast<size_t>(first + i * step)]);
  return world.group("cp", ranks);
}

void add_balance_losses(torch::nn::Module& model, const std::shared_ptr<Group>& group) {
  for (auto& [name, block] : find_moe_blocks(model))
    if (const std::shared_ptr<LoadBalance>& balance = block->gate()->load_balance)
      balance->add_ranks = [group](const std::vector<Tensor>& sums) {
        std::vector<Tensor> flat;
        for (const Tensor& t : sums) flat.push_back(t.reshape({-1}));
        Tensor all = at::cat(flat);
        group->all_reduce(all, ReduceOp::sum, /*control=*/true).wait();
        int64_t at = 0;
        for (const Tensor& t : sums) {
          Tensor(t).copy_(all.narrow(0, at, t.numel()).view(t.sizes()));
          at += t.numel();
        }
      };
}

}  // namespace

std::shared_ptr<ContextParallel> apply_context_parallel(const ParallelizeRequest& request) {
  const SharedOptions& shared = request.config.shared();
  if (!request.mesh.device_mesh || request.mesh.device_mesh->size("cp") <= 1) {
    if (shared.sizes.cp > 1)
      throw refused("the strategy's mesh has no axis cp, so no ranks would share a sample");
    return nullptr;
  }
  const bool casts = shared.autocast_dtype.has_value();
  if (request.world->device().is_cpu() &&
      shared.autocast_dtype.value_or(shared.mp.param) == DType::float16) {
    const std::string key =
        casts ? "distributed.autocast_dtype" : "distributed.mp_policy.param_dtype";
    throw refused("attention over the ranks of cp is not computed in float16 on CPUs")
        .about(key)
        .help("set " + key + " = \"bfloat16\"");
  }
  std::shared_ptr<Group> group = DeviceMesh(*request.mesh.device_mesh, request.world).group("cp");
  auto cores = find_attention_cores(*request.model);
  const std::vector<ModuleOutline>& modules = request.outline.modules;
  const bool no_layers =  // as a stage at an end of a pipeline may
      shared.sizes.pp > 1 && std::none_of(modules.begin(), modules.end(), [](const auto& module) {
        return module.kind == ModuleKind::layer;
      });
  if (cores.empty() && !no_layers)
    throw Error(ErrorCode::bad_module, "the model " + request.outline.architecture +
                                           " has no attention core: nothing in it would see the "
                                           "tokens of other ranks")
        .key("distributed.cp_size")
        .help("let its attention call a meshwright::AttentionCore (meshwright/nn/attention.h)")
        .help("set distributed.cp_size = 1");
  check_attention(*request.model, request.outline);
  const ContextPlan plan = *plan_context(
      {request.outline, request.mesh, request.tp, request.config, {}, request.world->rank()});
  detail::ContextGroups groups;
  groups.context = group;
  groups.method = plan.method;
  groups.balance = plan.balance;
  const int64_t inner = group->rank() % plan.ulysses;
  groups.ulysses = part_of(*request.world, *group, group->rank() - inner, plan.ulysses, 1);
  groups.ring = part_of(*request.world, *group, inner, plan.ring, plan.ulysses);
  for (auto& [name, core] : cores) {
    if (core->options().dropout > 0)
      throw Error(ErrorCode::model_does_not_fit,
                  name +
                      " drops attention out in training, which ranks that share a sequence would "
                      "do each in its own way")
          .key("distributed.cp_size")
          .help("set attention_dropout to 0 in the model's config.json")
          .help("set distributed.cp_size = 1");
    core->set_method(detail::context_attention(groups, name));
  }
  add_balance_losses(*request.model, group);
  return detail::make_context_parallel(group, plan.balance);
}

}  // namespace meshwright
