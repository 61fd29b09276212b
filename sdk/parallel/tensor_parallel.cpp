#include "meshwright/parallel/tensor_parallel.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/collectives.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/parts.h"
#include "tp_hooks.h"

namespace meshwright {

struct TensorParallel::Parts {
  std::shared_ptr<Group> group;
  std::map<std::string, Cut, std::less<>> cuts = {};
  std::vector<std::string> partial = {};  // parameters whose gradients are sums over the group
  std::optional<VocabularyShard> vocabulary = {};
  at::Tensor packed = {};
  std::shared_ptr<bool> unfinished = {};  // a backward left out some modules that share an input
};

namespace {

using at::Tensor;

// The part of a parameter, in its place: modules, optimizers and autograd that hold it see the
// change.
void become_part(const Tensor& parameter, int64_t dim, Chunk chunk, Group& group) {
  c10::NoGradGuard no_grad;
  Tensor local;
  if (parameter.is_meta()) {
    std::vector<int64_t> sizes = parameter.sizes().vec();
    sizes[static_cast<size_t>(dim)] = chunk.end - chunk.begin;
    local = at::empty(sizes, parameter.options());
  } else {
    Tensor values = detail::where_sent(parameter.detach().contiguous(), group);
    if (!values.is_cpu() || group.size() > 1) group.broadcast(values, 0).wait();
    local = values.narrow(dim, chunk.begin, chunk.end - chunk.begin).clone();
  }
  parameter.set_data(local);
}

// Embeddings look up ids of their own rows only.
void keep_padding_row(torch::nn::EmbeddingImpl& embedding, Chunk rows) {
  std::optional<int64_t> row = embedding.options.padding_idx();
  if (!row) return;
  int64_t whole = embedding.options.num_embeddings(), at = *row < 0 ? *row + whole : *row;
  bool mine = at >= rows.begin && at < rows.end;
  embedding.options.padding_idx(mine ? std::optional<int64_t>(at - rows.begin) : std::nullopt);
}

class Applier {
 public:
  Applier(const ParallelizeRequest& request, std::shared_ptr<Group> group,
          std::map<std::string, TensorParallel::Cut, std::less<>>& cuts)
      : request_(request),
        group_(std::move(group)),
        cuts_(cuts),
        hooks_(std::make_shared<detail::TpHooks>(group_, request.world)) {
    hooks_->pieces = request.config.shared().enable_async_tensor_parallel;
    for (const auto& item : request.model->named_modules())
      modules_.emplace(item.key(), item.value());
  }

  void apply(const TpModule& styled) {
    auto found = modules_.find(styled.name);
    if (found == modules_.end())
      throw Error(ErrorCode::bad_module,
                  "the model has no module " + styled.name + ", which its outline lists")
          .help("make the outline from the model itself (outline_of), or give both the same names");
    torch::nn::Module& module = *found->second;
    if (styled.style.kind == TpStyleKind::rotary)
      return;  // its tables are whole on every rank already
    HookHost* host = HookHost::of(module);
    if (host == nullptr)
      throw Error(ErrorCode::bad_module, "the tensor-parallel plan styles " + styled.name + ", a " +
                                             module.name() + " without hooks")
          .key("distributed.tp_plan")
          .help(
              "take Linear, Embedding and RMSNorm from meshwright/nn/layers.h, or declare the "
              "class with MESHWRIGHT_MODULE(...)");
    auto* linear = module.as<torch::nn::LinearImpl>();
    auto* embedding = module.as<torch::nn::EmbeddingImpl>();
    bool norm = styled.style.kind == TpStyleKind::sequence ||
                styled.style.kind == TpStyleKind::sequence_all_gather;
    const ModuleOutline* outlined = request_.outline.find_module(styled.name);
    if (!norm && outlined != nullptr && outlined->kind == ModuleKind::other) {
      // What the model holds by head: each rank computes with its own, whose gradients are whole.
      for (const auto& item : module.named_parameters(/*recurse=*/false))
        cut(styled.name + "." + item.key(), item.value(), 0);
      return;
    }
    if (!norm && linear == nullptr && embedding == nullptr)
      throw Error(ErrorCode::bad_module, "the tensor-parallel plan cuts " + styled.name + ", a " +
                                             host->hooked_class_name() +
                                             "; only Linear and Embedding can be cut")
          .key("distributed.tp_plan")
          .help("name the Linear modules below it");
    if (!norm) check_parameters(module, styled);
    if (norm)
      hooks_->norm(*host, styled);
    else if (linear != nullptr)
      cut_linear(*host, *linear, styled);
    else
      cut_embedding(*host, *embedding, styled);
  }

  // Dropout of the heads of one rank is not that of another's.
  void draw_apart() {
    for (auto& [name, core] : find_attention_cores(*request_.model)) {
      const std::string_view block = module_of(name);
      if (std::any_of(cuts_.begin(), cuts_.end(),
                      [&](const auto& cut) { return module_of(module_of(cut.first)) == block; }))
        hooks_->own_draws(*core);
    }
  }

  // Broadcasts unsharded parameters from group rank 0.
  void share_the_rest() {
    c10::NoGradGuard no_grad;
    for (auto& item : request_.model->named_parameters()) {
      if (item.value().is_meta() ||
          !names_.emplace(item.value().unsafeGetTensorImpl(), item.key()).second)
        continue;
      Tensor values = detail::where_sent(item.value().detach().contiguous(), *group_);
      group_->broadcast(values, 0).wait();
      item.value().copy_(values);
    }
  }

  const std::optional<VocabularyShard>& vocabulary() const { return vocabulary_; }
  const std::shared_ptr<bool>& unfinished() const { return hooks_->unfinished; }

 private:
  std::string pattern_of(const std::string& module) const {
    for (const TpEntry& entry : request_.tp.entries)
      if (std::find(entry.modules.begin(), entry.modules.end(), module) != entry.modules.end())
        return entry.pattern;
    return module;
  }

  // A factor of an adapter beside a Linear; nullptr: there is none.
  torch::nn::Module* factor_of(const std::string& linear, std::string_view part) const {
    const std::string name = linear + "." + std::string(part);
    const ModuleOutline* outlined = request_.outline.find_module(name);
    auto found = modules_.find(name);
    return found != modules_.end() && outlined != nullptr && is_added_factor(*outlined)
               ? found->second.get()
               : nullptr;
  }

  // A matrix and its bias are cut, and adapters with them; what else a derived module has would
  // stay whole beside them.
  void check_parameters(torch::nn::Module& module, const TpModule& styled) const {
    std::string problem;
    for (const auto& item : module.named_parameters(/*recurse=*/true)) {
      const std::string_view inside = module_of(item.key());
      if (!inside.empty() && factor_of(styled.name, inside) != nullptr) continue;
      const int64_t dims = item.key() == "weight" ? 2 : 1;
      if (item.key() != "weight" && item.key() != "bias")
        problem = "beside weight and bias it has " + item.key() + ", which nothing cuts";
      else if (item.value().dim() != dims)
        problem = "its " + item.key() + " has " + std::to_string(item.value().dim()) +
                  " dimensions, not " + std::to_string(dims);
      if (!problem.empty()) break;
    }
    if (problem.empty()) return;
    const std::string pattern = pattern_of(styled.name);
    throw Error(ErrorCode::tp_plan_does_not_fit, "the tensor-parallel plan cuts " + styled.name +
                                                     " (pattern \"" + pattern + "\"), but " +
                                                     problem)
        .key("distributed.tp_plan")
        .help("remove the pattern \"" + pattern + "\"");
  }

  Chunk cut(const std::string& name, const Tensor& parameter, int64_t dim) {
    if (auto known = cuts_.find(name); known != cuts_.end()) return known->second.chunk;
    // A tied weight is cut once, and known by each of its names.
    auto [first, fresh] = names_.emplace(parameter.unsafeGetTensorImpl(), name);
    if (!fresh) {
      const TensorParallel::Cut& same = cuts_.at(first->second);
      if (same.dim != dim)
        throw Error(ErrorCode::tp_plan_does_not_fit,
                    name + " is the same parameter as " + first->second +
                        ", but the plan cuts it along another dimension")
            .key("distributed.tp_plan")
            .help(
                "give the embedding and the tied head styles that both cut the vocabulary: rowwise "
                "and colwise");
      return cuts_.emplace(name, TensorParallel::Cut(same)).first->second.chunk;
    }
    TensorParallel::Cut made{dim, parameter.sizes().vec(), {}};
    made.chunk = ceil_chunk(parameter.size(dim), group_->size(), group_->rank());
    become_part(parameter, dim, made.chunk, *group_);
    return cuts_.emplace(name, std::move(made)).first->second.chunk;
  }

  void cut_linear(HookHost& host, torch::nn::LinearImpl& linear, const TpModule& styled) {
    bool column = styled.style.kind == TpStyleKind::column;
    std::string weight = styled.name + ".weight";
    cut(weight, linear.weight, column ? 0 : 1);
    int64_t size = cuts_.at(weight).whole[column ? 0 : 1];
    Tensor bias = linear.bias;
    const bool adapted = cut_factors(styled);
    if (column) {
      if (bias.defined()) cut(styled.name + ".bias", bias, 0);
      hooks_->column(host, styled, size, &linear);
      const ModuleOutline* head = head_of(request_.outline);
      if (styled.style.output == TpLayout::shard_last && head != nullptr &&
          head->name == styled.name)
        vocabulary_ = VocabularyShard::of(group_, size);
    } else {
      // Added once, after the sum.
      linear.bias = Tensor();
      hooks_->row(host, styled, linear, bias, size, adapted);
    }
  }

  // What an adapter adds to a Linear goes through the Linear's own collectives: its factors lie as
  // the matrix does. Whether there is one.
  bool cut_factors(const TpModule& styled) {
    bool any = false;
    for (std::string_view part : {kFactorIn, kFactorOut}) {
      torch::nn::Module* module = factor_of(styled.name, part);
      auto* factor = module != nullptr ? module->as<torch::nn::LinearImpl>() : nullptr;
      if (factor == nullptr) continue;
      any = true;
      TpModule beside = styled;
      beside.name += "." + std::string(part);
      const std::string weight = beside.name + ".weight";
      if (const auto dim = tp_shard_dim(request_.tp, request_.outline, weight))
        cut(weight, factor->weight, *dim);
      if (HookHost* host = HookHost::of(*module); host != nullptr && part == kFactorIn)
        hooks_->factor_in(*host, beside, *factor);
    }
    return any;
  }

  void cut_embedding(HookHost& host, torch::nn::EmbeddingImpl& embedding, const TpModule& styled) {
    bool column = styled.style.kind == TpStyleKind::column;
    std::string weight = styled.name + ".weight";
    Chunk chunk = cut(weight, embedding.weight, column ? 1 : 0);
    if (column) {
      hooks_->column(host, styled, cuts_.at(weight).whole[1], nullptr);
      return;
    }
    keep_padding_row(embedding, chunk);
    hooks_->vocabulary(host, styled, chunk, embedding.weight);
  }

  const ParallelizeRequest& request_;
  std::shared_ptr<Group> group_;
  std::map<std::string, TensorParallel::Cut, std::less<>>& cuts_;
  std::shared_ptr<detail::TpHooks> hooks_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>, std::less<>> modules_;
  std::map<const c10::TensorImpl*, std::string> names_;
  std::optional<VocabularyShard> vocabulary_;
};

}  // namespace

TensorParallel::TensorParallel(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
TensorParallel::~TensorParallel() = default;
const std::shared_ptr<Group>& TensorParallel::group() const { return parts_->group; }
const std::optional<VocabularyShard>& TensorParallel::vocabulary() const {
  return parts_->vocabulary;
}

const TensorParallel::Cut* TensorParallel::find(std::string_view parameter) const {
  auto found = parts_->cuts.find(parameter);
  return found == parts_->cuts.end() ? nullptr : &found->second;
}

void TensorParallel::describe(ParallelParameter& parameter) const {
  if (parts_->group->size() == 1) return;
  const Cut* cut = find(parameter.name);
  parameter.placement.emplace_back(
      parts_->group->axis(),
      cut == nullptr ? "replicate" : "shard(" + std::to_string(cut->dim) + ")");
  if (cut == nullptr) return;
  Region part = Region::whole(parameter.global_shape);
  part.offsets[static_cast<size_t>(cut->dim)] = cut->chunk.begin;
  parameter.region = within(part, parameter.region);
  parameter.global_shape = cut->whole;
}

Tensor TensorParallel::whole(std::string_view parameter, const Tensor& local) const {
  const Cut* cut = find(parameter);
  if (cut == nullptr) return local;
  c10::NoGradGuard no_grad;
  return detail::join_chunks(detail::where_sent(local, *parts_->group), cut->dim,
                             cut->whole[static_cast<size_t>(cut->dim)], parts_->group)
      .to(local.device());
}

std::vector<GradientSet> TensorParallel::gradient_sets(
    const std::vector<ParallelParameter>& parameters,
    const std::vector<std::shared_ptr<Group>>& groups) const {
  GradientSet cut{{}, groups}, whole{{}, groups};
  cut.groups.push_back(parts_->group);
  for (const ParallelParameter& p : parameters)
    if (p.grad.defined())
      (find(p.name) != nullptr ? cut : whole).gradients.push_back(p.grad.view({-1}));
  return {std::move(cut), std::move(whole)};
}

void TensorParallel::sum_partial_gradients(const std::vector<ParallelParameter>& parameters,
                                           at::ScalarType reduce) {
  if (parts_->unfinished && std::exchange(*parts_->unfinished, false))
    throw Error(
        ErrorCode::bad_module,
        "projections beside each other take one input, but only some of them had a gradient")
        .key("distributed.enable_async_tensor_parallel")
        .help("set distributed.enable_async_tensor_parallel = false");
  if (parts_->group->size() == 1 || parts_->partial.empty()) return;
  c10::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  int64_t count = 0;
  for (const ParallelParameter& p : parameters)
    if (p.grad.defined() && p.grad.numel() > 0 &&
        std::binary_search(parts_->partial.begin(), parts_->partial.end(), p.name)) {
      gradients.push_back(p.grad);
      count += p.grad.numel();
    }
  if (count == 0) return;
  if (!parts_->packed.defined() || parts_->packed.numel() != count)
    parts_->packed = detail::where_sent(at::empty({count}, gradients[0].options().dtype(reduce)),
                                        *parts_->group);
  auto each = [&](auto visit) {
    int64_t at = 0;
    for (Tensor& g : gradients) {
      visit(g, parts_->packed.narrow(0, at, g.numel()).view(g.sizes()));
      at += g.numel();
    }
  };
  // Gradients that lie on the host go to the device and back with one wait, for the last of them.
  each([](const Tensor& g, const Tensor& slot) { slot.copy_(g, /*non_blocking=*/true); });
  parts_->group->all_reduce(parts_->packed).wait();
  each([last = &gradients.back()](Tensor& g, const Tensor& slot) {
    g.copy_(g.device() == slot.device() ? slot : slot.to(g.scalar_type()),
            /*non_blocking=*/&g != last);
  });
}

std::shared_ptr<TensorParallel> apply_tensor_parallel(const ParallelizeRequest& request) {
  const std::optional<Mesh>& mesh = request.mesh.device_mesh;
  if (!mesh || mesh->size("tp") <= 1 || request.tp.entries.empty()) return nullptr;
  check_tp_blocks(request.tp, request.outline);
  std::shared_ptr<Group> group = DeviceMesh(*mesh, request.world).group("tp");
  auto made = std::make_unique<TensorParallel::Parts>(group);
  Applier applier(request, group, made->cuts);
  for (const TpModule& styled : resolve_tp_modules(request.tp, request.outline))
    applier.apply(styled);
  applier.draw_apart();
  applier.share_the_rest();
  made->vocabulary = applier.vocabulary();
  made->unfinished = applier.unfinished();
  made->partial = partial_gradient_parameters(request.tp, request.outline);
  std::sort(made->partial.begin(), made->partial.end());
  return std::make_shared<TensorParallel>(std::move(made));
}

Tensor whole_logits(const Tensor& logits, const std::optional<VocabularyShard>& shard) {
  if (!shard) return logits;
  return detail::join_chunks(logits, -1, shard->size, shard->group);
}

}  // namespace meshwright
