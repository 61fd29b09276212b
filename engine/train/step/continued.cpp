#include "engine/train/step/continued.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "engine/train/step/logits.h"
#include "engine/train/step/sample.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::generate {

namespace {

using Clock = std::chrono::steady_clock;

GenerateOptions options_of(const Request& request, const std::vector<int64_t>& stops,
                           int64_t context) {
  GenerateOptions options;
  options.max_new_tokens = request.max_new;
  options.temperature = request.temperature;
  options.top_k = request.top_k;
  options.top_p = request.top_p;
  options.seed = request.seed;
  options.context = context;
  options.stop = stops;
  return options;
}

// The token that ends a text is no part of it.
bool ends_text(int64_t id, const std::vector<int64_t>& stops) {
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

}  // namespace

Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener) {
  Continued out;
  out.prompt = prompt;
  GenerateOptions options = options_of(request, stops, context);
  if (trainer.world().rank() == 0) {
    if (const std::string notice = train::whole_text_notice(trainer); !notice.empty())
      listener.notice(notice);
    if (static_cast<int64_t>(prompt.size()) > options.context)
      listener.notice("the prompt has " + std::to_string(prompt.size()) +
                      " tokens, of which the model sees the last " +
                      std::to_string(options.context));
  }
  listener.begin(trainer.world().rank(), prompt);
  options.each = [&](int64_t id) { listener.token(id, ends_text(id, stops)); };
  const bool training = net.module()->is_training();
  net.module()->eval();
  Clock::time_point begin = Clock::now();
  // No others are read.
  auto last_logits = [&](const at::Tensor& ids) {
    const at::Tensor all = train::logits_of(trainer, net, ids);
    return detail::read_by_host(*trainer.world().everyone(), all.narrow(1, all.size(1) - 1, 1));
  };
  trainer.model().summon_full_parameters([&] {
    begin = Clock::now();
    out.tokens = generate_tokens(last_logits, prompt, options);
  });
  net.module()->train(training);
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.ended = !out.tokens.empty() && ends_text(out.tokens.back(), options.stop);
  return out;
}

}  // namespace meshwright::generate
