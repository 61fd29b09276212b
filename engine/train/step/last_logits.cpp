#include "engine/train/step/last_logits.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
#include <utility>

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
  ours_ = proven_ = dynamic_cast<const modules::CausalLMImpl*>(&module) != nullptr;
}

Tensor LastLogits::of(const std::vector<Text>& texts) {
  std::vector<Part> parts;
  std::vector<std::vector<int64_t>> places;  // of each part's texts, among those given
  std::optional<size_t> together;
  computed_ = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& [number, ids] = texts[i];
    std::vector<int64_t>& read = read_[number];
    // A text that is longer than the context has lost its first token: all positions are others. Of
    // one that was read already the last token is computed again, for its logits.
    const auto alike = std::ranges::mismatch(read, ids).in1 - read.begin();
    const auto length = static_cast<int64_t>(ids.size());
    const int64_t position = keeps_ ? std::min<int64_t>(alike, length - 1) : 0;
    read.assign(ids.begin(), ids.end());
    computed_ += length - position;
    const Tensor fresh = at::empty({1, length - position}, at::kLong);
    std::copy(ids.begin() + position, ids.end(), fresh.mutable_data_ptr<int64_t>());
    // Another's model may read where its rows stand as if all samples stood alike.
    if (ours_ && position > 0 && position + 1 == length) {
      if (together) {
        Part& part = parts[*together];
        part.texts.push_back(number);
        part.positions.push_back(position);
        part.ids = at::cat({part.ids, fresh});
        places[*together].push_back(static_cast<int64_t>(i));
        continue;
      }
      together = parts.size();
    }
    parts.push_back({{number}, {position}, fresh});
    places.push_back({static_cast<int64_t>(i)});
  }
  Tensor out;
  for (size_t p = 0; p < parts.size(); ++p) {
    const Text& first = texts[static_cast<size_t>(places[p].front())];
    const bool goes_on = parts[p].positions.front() > 0;
    // Since a text before this one nothing is kept any more.
    Tensor found = goes_on && !keeps_ ? last_of_whole(first) : last_of(parts[p]);
    if (!proven_ && keeps_ && goes_on) found = proven(first, found);
    if (parts.size() == 1) return found;
    if (!out.defined())
      out = at::empty({static_cast<int64_t>(texts.size()), found.size(1)}, found.options());
    for (size_t i = 0; i < places[p].size(); ++i)
      out.select(0, places[p][i]).copy_(found.select(0, static_cast<int64_t>(i)));
  }
  return out;
}

Tensor LastLogits::of(const Tensor& ids) {
  const std::span<const int64_t> text(ids.const_data_ptr<int64_t>(),
                                      static_cast<size_t>(ids.size(1)));
  return of(std::vector<Text>{{0, text}}).unsqueeze(1);
}

void LastLogits::drop(int64_t text) {
  read_.erase(text);
  cache_.drop(text);
}

// Another's model may mix positions beside its attention cores: its first token is computed both
// ways. Collective; gives what is right.
Tensor LastLogits::proven(const Text& text, const Tensor& found) {
  proven_ = true;
  keeps_ = false;
  const Tensor whole = last_of_whole(text);
  const bool same = (found - whole).abs().max().item<double>() <=
                    tolerance() * std::max(1.0, whole.abs().max().item<double>());
  Tensor others = at::full({1}, same ? 0 : 1, at::kLong).to(trainer_.world().device());
  trainer_.world().everyone()->all_reduce(others, ReduceOp::sum, /*control=*/true).wait();
  keeps_ = others.item<int64_t>() == 0;
  return keeps_ ? found : whole;
}

Tensor LastLogits::last_of_whole(const Text& text) {
  const Tensor ids = at::empty({1, static_cast<int64_t>(text.ids.size())}, at::kLong);
  std::ranges::copy(text.ids, ids.mutable_data_ptr<int64_t>());
  return last_of({{text.number}, {0}, ids});
}

Tensor LastLogits::last_of(const Part& part) {
  std::optional<detail::KeyValueScope> scope;
  if (keeps_) {
    std::vector<detail::KeyValuePlace> places;
    for (size_t i = 0; i < part.texts.size(); ++i)
      places.push_back({part.texts[i], part.positions[i]});
    scope.emplace(cache_, std::move(places));
  }
  const Tensor all = train::logits_of(trainer_, net_, part.ids, part.positions,
                                      /*last_alone=*/true);
  // No other positions are read.
  return detail::read_by_host(*trainer_.world().everyone(), all.select(1, all.size(1) - 1))
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
