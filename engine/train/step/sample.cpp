#include "engine/train/step/sample.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/philox.h"
#include "engine/train/step/logits.h"
#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/rotary.h"
#include "sdk/base/attention_cache.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::generate {

namespace {

using at::Tensor;

// Inverse of the cumulative distribution at `uniform` in [0, 1). Tokens that top_k and top_p rule
// out have no weight.
int64_t draw(const float* logits, int64_t vocab, const GenerateOptions& options, double uniform) {
  double top = static_cast<double>(*std::max_element(logits, logits + vocab)), sum = 0;
  std::vector<double> weights(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i)
    sum += weights[static_cast<size_t>(i)] =
        std::exp((static_cast<double>(logits[i]) - top) / options.temperature);
  bool some = options.top_k > 0 && options.top_k < vocab;
  if (some || options.top_p < 1) {
    std::vector<int64_t> order(static_cast<size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    // By logit: weights of unlikely tokens are all zero.
    auto likelier = [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    auto kept = static_cast<size_t>(some ? options.top_k : vocab);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                      likelier);
    double all = 0, held = 0;
    for (size_t i = 0; i < kept; ++i) all += weights[static_cast<size_t>(order[i])];
    size_t last = 0;
    while (last < kept && (last == 0 || held < options.top_p * all))
      held += weights[static_cast<size_t>(order[last++])];
    for (size_t i = last; i < order.size(); ++i) weights[static_cast<size_t>(order[i])] = 0;
    sum = held;
  }
  double left = uniform * sum;
  int64_t last = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    double weight = weights[static_cast<size_t>(i)];
    if (weight == 0) continue;
    last = i;
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

// The logits of a text's last position, of texts that mostly go on from the one before: keys and
// values of what was read stay, and the model computes what has come since.
class LastLogits {
 public:
  LastLogits(Trainer& trainer, RunningModel& net) : trainer_(trainer), net_(net) {
    torch::nn::Module& module = *net.module();
    keeps_ = !find_attention_cores(module).empty();
    // What turns keys by other angles in longer texts would have them computed anew.
    for (const auto& one : module.modules())
      if (const auto* rotary = dynamic_cast<const RotaryEmbeddingImpl*>(one.get()))
        keeps_ = keeps_ && !rotary->follows_length();
    proven_ = dynamic_cast<const modules::CausalLMImpl*>(&module) != nullptr;
  }

  // Collective. ids [1, length] int64 on the CPU; gives [1, 1, vocabulary] on the host.
  Tensor of(const Tensor& ids) {
    const int64_t length = ids.size(1);
    const auto* begin = ids.const_data_ptr<int64_t>();
    // A text that is longer than the context has lost its first token: all positions are others.
    const auto known = static_cast<int64_t>(read_.size());
    const bool goes_on =
        keeps_ && known > 0 && known < length && std::equal(read_.begin(), read_.end(), begin);
    const int64_t position = goes_on ? known : 0;
    read_.assign(begin, begin + length);
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

 private:
  // No others are read.
  Tensor last_of(const Tensor& ids, int64_t position) {
    const Tensor all = train::logits_of(trainer_, net_, ids, position);
    return detail::read_by_host(*trainer_.world().everyone(), all.narrow(1, all.size(1) - 1, 1))
        .to(at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
  }
  // Of what is rounded in its dtype, in another order of the same sums.
  double tolerance() const {
    const std::vector<Tensor> parameters = net_.module()->parameters();
    const bool full = std::ranges::all_of(parameters, [](const Tensor& p) {
      return p.scalar_type() == at::kFloat || p.scalar_type() == at::kDouble;
    });
    return full ? 1e-4 : 5e-2;
  }

  Trainer& trainer_;
  RunningModel& net_;
  detail::KeyValueCache cache_;
  std::vector<int64_t> read_;
  bool keeps_ = false, proven_ = false;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::out_of_range, "cannot generate: " + what);
}

}  // namespace

void check_sampling(double temperature, int64_t top_k, double top_p) {
  if (!(temperature >= 0) || !std::isfinite(temperature))
    refuse("the temperature must be a number of at least 0");
  if (top_k < 0) refuse("top_k = " + std::to_string(top_k) + " must not be negative");
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p must be above 0 and at most 1");
}

std::vector<int64_t> generate_tokens(const LogitsOf& logits_of, std::vector<int64_t> prompt,
                                     const GenerateOptions& options) {
  if (prompt.empty()) refuse("the prompt is empty");
  check_sampling(options.temperature, options.top_k, options.top_p);
  if (options.context < 1)
    refuse("context = " + std::to_string(options.context) + " must be at least 1");
  c10::NoGradGuard no_grad;
  std::vector<int64_t> tokens = std::move(prompt);
  size_t given = tokens.size();
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    int64_t length = std::min(options.context, static_cast<int64_t>(tokens.size()));
    Tensor ids = at::empty({1, length}, at::kLong);
    std::copy(tokens.end() - length, tokens.end(), ids.mutable_data_ptr<int64_t>());
    Tensor logits = logits_of(ids)
                        .select(1, -1)  // under a pipeline there are no others
                        .flatten()
                        .to(at::TensorOptions().dtype(at::kFloat).device(at::kCPU))
                        .contiguous();
    const float* values = logits.const_data_ptr<float>();
    int64_t vocab = logits.numel();
    if (std::any_of(values, values + vocab, [](float v) {
          return std::isnan(v) || v == std::numeric_limits<float>::infinity();
        }))
      throw Error(ErrorCode::nonfinite,
                  "the logits of generated token " + std::to_string(step) + " are not finite");
    int64_t next = std::max_element(values, values + vocab) - values;
    if (options.temperature > 0) {
      uint64_t at = static_cast<uint64_t>(step);
      modules::PhiloxBits bits = modules::philox(
          {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0x53414D50U, 0},
          static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32));
      uint64_t wide = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
      next = draw(values, vocab, options, static_cast<double>(wide) * 0x1p-53);
    }
    tokens.push_back(next);
    if (options.each) options.each(next);
    if (std::find(options.stop.begin(), options.stop.end(), next) != options.stop.end()) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end()};
}

Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener) {
  Continued out;
  out.prompt = prompt;
  auto ends_text = [&](int64_t id) { return std::ranges::find(stops, id) != stops.end(); };
  const GenerateOptions options{.max_new_tokens = request.max_new,
                                .temperature = request.temperature,
                                .seed = request.seed,
                                .context = context,
                                .stop = stops,
                                .top_k = request.top_k,
                                .top_p = request.top_p,
                                // The token that ends a text is no part of it.
                                .each = [&](int64_t id) { listener.token(id, ends_text(id)); }};
  if (trainer.world().rank() == 0) {
    if (const std::string notice = train::whole_text_notice(trainer); !notice.empty())
      listener.notice(notice);
    if (static_cast<int64_t>(prompt.size()) > options.context)
      listener.notice("the prompt has " + std::to_string(prompt.size()) +
                      " tokens, of which the model sees the last " +
                      std::to_string(options.context));
  }
  listener.begin(trainer.world().rank(), prompt);
  const bool training = net.module()->is_training();
  net.module()->eval();
  auto begin = std::chrono::steady_clock::now();
  LastLogits last(trainer, net);
  trainer.model().summon_full_parameters([&] {
    begin = std::chrono::steady_clock::now();
    out.tokens = generate_tokens([&](const Tensor& ids) { return last.of(ids); }, prompt, options);
  });
  net.module()->train(training);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  out.ended = !out.tokens.empty() && ends_text(out.tokens.back());
  return out;
}

std::string write_sample(Trainer& trainer, RunningModel& net, const SampleRequest& request,
                         int64_t seq_len) {
  std::vector<int64_t> prompt;
  for (char c : request.prompt) prompt.push_back(static_cast<unsigned char>(c));
  Request wanted;
  wanted.max_new = request.max_bytes;
  wanted.temperature = request.temperature;
  wanted.seed = request.seed;
  const Continued made = continue_prompt(
      trainer, net, prompt, wanted, /*stops=*/{}, std::min(seq_len, net.max_positions()),
      {[](const std::string&) {}, [](int64_t, const std::vector<int64_t>&) {},
       [](int64_t, bool) {}});
  std::string text = request.prompt;
  for (int64_t byte : made.tokens) text.push_back(static_cast<char>(byte));
  return text;
}

}  // namespace meshwright::generate
