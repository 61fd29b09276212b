#include "engine/train/step/last_logits.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "engine/models/running/causal_lm.h"
#include "engine/train/step/logits.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/rotary.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::generate {

using at::Tensor;

LastLogits::LastLogits(Trainer& trainer, RunningModel& net) : trainer_(trainer), net_(net) {
  torch::nn::Module& module = *net.module();
  keeps_ = !find_attention_cores(module).empty();
  // What turns keys by other angles in longer texts would have them computed anew.
  for (const auto& one : module.modules())
    if (const auto* rotary = dynamic_cast<const RotaryEmbeddingImpl*>(one.get()))
      keeps_ = keeps_ && !rotary->follows_length();
  proven_ = dynamic_cast<const modules::CausalLMImpl*>(&module) != nullptr;
}

Tensor LastLogits::of(const Tensor& ids) {
  const int64_t length = ids.size(1);
  const auto* begin = ids.const_data_ptr<int64_t>();
  // A text that is longer than the context has lost its first token: all positions are others. Of
  // one that was read already the last token is computed again, for its logits.
  const int64_t alike =
      std::mismatch(read_.begin(), read_.end(), begin, begin + length).first - read_.begin();
  const int64_t position = keeps_ ? std::min(alike, length - 1) : 0;
  read_.assign(begin, begin + length);
  computed_ = length - position;
  if (!keeps_) return last_of(ids, 0);
  Tensor out;
  {
    detail::KeyValueScope scope(cache_);
    out = last_of(ids.narrow(1, position, length - position), position);
  }
  if (position == 0 || proven_) return out;
  // Another's model may mix positions beside its attention cores: its first token is computed
  // both ways.
  proven_ = true;
  const Tensor whole = last_of(ids, 0);
  const bool same = (out - whole).abs().max().item<double>() <=
                    tolerance() * std::max(1.0, whole.abs().max().item<double>());
  Tensor others = at::full({1}, same ? 0 : 1, at::kLong).to(trainer_.world().device());
  trainer_.world().everyone()->all_reduce(others, ReduceOp::sum, /*control=*/true).wait();
  keeps_ = others.item<int64_t>() == 0;
  return keeps_ ? out : whole;
}

// No others are read.
Tensor LastLogits::last_of(const Tensor& ids, int64_t position) {
  const Tensor all = train::logits_of(trainer_, net_, ids, position);
  return detail::read_by_host(*trainer_.world().everyone(), all.narrow(1, all.size(1) - 1, 1))
      .to(at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
}

// Of what is rounded in its dtype, in another order of the same sums.
double LastLogits::tolerance() const {
  const std::vector<Tensor> parameters = net_.module()->parameters();
  const bool full = std::ranges::all_of(parameters, [](const Tensor& p) {
    return p.scalar_type() == at::kFloat || p.scalar_type() == at::kDouble;
  });
  return full ? 1e-4 : 5e-2;
}

}  // namespace meshwright::generate
