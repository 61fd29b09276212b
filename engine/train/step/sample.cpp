#include "engine/train/step/sample.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "engine/models/running/philox.h"
#include "engine/train/step/last_logits.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/sampling.h"
#include "meshwright/error.h"

namespace meshwright::generate {

using at::Tensor;

NextToken next_token(std::span<float> logits, std::span<const int64_t> text,
                     const Sampling& sampling, uint64_t seed, int64_t step, bool log_probability) {
  if (std::ranges::any_of(logits, [](float v) {
        return std::isnan(v) || v == std::numeric_limits<float>::infinity();
      }))
    throw Error(ErrorCode::nonfinite,
                "the logits of generated token " + std::to_string(step) + " are not finite");
  std::vector<float> as_given;
  if (log_probability) as_given.assign(logits.begin(), logits.end());
  penalize(logits, text, sampling.repetition_penalty);
  NextToken out{std::ranges::max_element(logits) - logits.begin()};
  if (sampling.temperature > 0) {
    const auto at = static_cast<uint64_t>(step);
    const modules::PhiloxBits bits = modules::philox(
        {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0x53414D50U, 0},
        static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const uint64_t wide = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
    out.id = draw(weigh(logits, sampling), static_cast<double>(wide) * 0x1p-53);
  }
  if (log_probability) out.log_probability = generate::log_probability(as_given, out.id);
  return out;
}

std::vector<int64_t> generate_tokens(const LogitsOf& logits_of, std::vector<int64_t> prompt,
                                     const GenerateOptions& options) {
  if (prompt.empty()) refuse_to_generate("the prompt is empty");
  const Sampling sampling = options.sampling();
  check_sampling(sampling);
  if (options.context < 1)
    refuse_to_generate("context = " + std::to_string(options.context) + " must be at least 1");
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
    const NextToken next =
        next_token({logits.mutable_data_ptr<float>(), static_cast<size_t>(logits.numel())}, tokens,
                   sampling, options.seed, step, options.log_probabilities != nullptr);
    if (options.log_probabilities != nullptr)
      options.log_probabilities->push_back(next.log_probability);
    tokens.push_back(next.id);
    if (options.each) options.each(next.id);
    if (std::find(options.stop.begin(), options.stop.end(), next.id) != options.stop.end()) break;
    if (options.enough && options.enough()) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end()};
}

Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener, LastLogits* kept) {
  Continued out;
  out.prompt = prompt;
  out.context = context;
  auto ends_text = [&](int64_t id) { return std::ranges::find(stops, id) != stops.end(); };
  const GenerateOptions options{
      .max_new_tokens = request.max_new,
      .temperature = request.temperature,
      .seed = request.seed,
      .context = context,
      .stop = stops,
      .top_k = request.top_k,
      .top_p = request.top_p,
      .min_p = request.min_p,
      .repetition_penalty = request.repetition_penalty,
      // The token that ends a text is no part of it.
      .each = [&](int64_t id) { listener.token(id, ends_text(id)); },
      .enough = listener.enough,
      .log_probabilities = request.json ? &out.log_probabilities : nullptr};
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
  std::optional<LastLogits> own;
  LastLogits& last = kept != nullptr ? *kept : own.emplace(trainer, net);
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
