// Bytes that passes keep for backward, at the fullest moment of a step.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "footprint_parts.h"
#include "pipeline_lists.h"
#include "sdk/base/head_of.h"
#include "sdk/base/pipeline.h"
#include "token_activations.h"

namespace meshwright {

namespace {

using namespace footprint;

using Run = std::shared_ptr<const PipelineRun>;

// A run of the schedule; none: one that does not run as it stands.
Run run_of(const ShardingRequest& request) {
  const PipelineOptions& options = request.config.shared.pipeline;
  const int64_t size = pipeline_size(request), micro_batches = micro_batches_of(request);
  if (!options.schedule_csv.empty())
    return std::make_shared<PipelineRun>(
        simulate_pipeline(read_actions(options.schedule_csv, size, micro_batches)));
  if (options.schedule.empty()) return nullptr;
  const PipelineSchedule schedule = parse_schedule(options.schedule);
  const int64_t local = request.outline.stages / size;
  if (local < 1 || !pipeline::can_be_listed(size, local, micro_batches) ||
      !runs_micro_batches(schedule, size, micro_batches))
    return nullptr;
  return pipeline::run_of_schedule(schedule, size, local, micro_batches);
}

// Bytes that one pass of a stage holds, and what its backward needs beside.
struct PassBytes {
  int64_t layers = 0;     // kept by its forward
  int64_t head = 0;       // beside them, on the last stage; without logits
  int64_t logits = 0;     // until its backward
  int64_t loss = 0;       // beside all of it as that begins: the gradient of the logits
  int64_t waiting = 0;    // instead of all, while gradients of weights wait
  int64_t turn = 0;       // beside the rest, while its layers' backwards run one after the other
  int64_t halved = 0;     // the same of a backward whose weights wait
  int64_t gradients = 0;  // that add up whole from its first backward on
};

using StagePasses = std::map<int64_t, PassBytes>;

// Of a pass: its tokens, bytes of an element, and of a token's logits and their gradient.
struct PassSizes {
  int64_t tokens = 0, element = 0, logits = 0, loss = 0;
  int64_t of(int64_t elements, int64_t dropped = 0) const {
    return times(tokens, plus(times(elements, element), dropped));
  }
};

// Layers in the order of the model; backward takes them from the end.
StagePasses passes_of_stages(const ModelOutline& outline, const TokenActivations& token,
                             const PassSizes& sizes, int64_t gradients) {
  StagePasses out;
  int64_t trainable = 0;
  for (const ParameterOutline& p : outline.parameters)
    if (p.trainable) trainable = plus(trainable, element_count(p.shape));
  for (const ParameterOutline& p : outline.parameters) {
    PassBytes& pass = out[std::max<int64_t>(p.stage, 0)];
    if (p.trainable)
      pass.gradients += static_cast<int64_t>(static_cast<double>(gradients) *
                                             static_cast<double>(element_count(p.shape)) /
                                             static_cast<double>(trainable));
  }
  std::map<int64_t, int64_t> more;  // while weights wait: of the layers that are done
  for (auto layer = token.layers.rbegin(); layer != token.layers.rend(); ++layer) {
    PassBytes& pass = out[std::max<int64_t>(layer->stage, 0)];
    int64_t& done = more[std::max<int64_t>(layer->stage, 0)];
    const int64_t again = sizes.of(plus(layer->again, layer->turn), layer->dropped_again),
                  kept = sizes.of(layer->kept, layer->dropped),
                  waiting = sizes.of(layer->waiting, layer->dropped);
    pass.layers = plus(pass.layers, kept);
    pass.waiting = plus(pass.waiting, waiting);
    pass.turn = std::max(pass.turn, again);
    pass.halved = std::max(pass.halved, plus(done, again));
    done = plus(done, std::max<int64_t>(waiting - kept, 0));
  }
  if (auto last = out.find(outline.stages - 1); last != out.end()) {
    PassBytes& pass = last->second;
    pass.logits = times(sizes.tokens, sizes.logits);
    pass.loss = times(sizes.tokens, sizes.loss);
    pass.head = sizes.of(token.outside);
    // The head's weights wait with its input and the gradient of the logits.
    pass.waiting = plus(pass.waiting, plus(pass.head, pass.logits));
  }
  return out;
}

// What a rank holds while it goes through its steps, as the runner does.
class RunWalk {
 public:
  // `message`: bytes of one between two stages.
  RunWalk(const PipelineRun& run, StagePasses passes, int64_t message)
      : slots_(run.slots), passes_(std::move(passes)), sent_(2 * run.slots.size()) {
    size_t most_steps = 0;
    for (const std::vector<PipelineStep>& steps : run.steps)
      most_steps = std::max(most_steps, steps.size());
    // Sums and differences of these do not overflow.
    const int64_t most = INT64_MAX / (16 * (static_cast<int64_t>(most_steps) + 1));
    for (auto& [stage, pass] : passes_)
      for (int64_t PassBytes::* bytes :
           {&PassBytes::layers, &PassBytes::head, &PassBytes::logits, &PassBytes::loss,
            &PassBytes::waiting, &PassBytes::turn, &PassBytes::halved, &PassBytes::gradients})
        pass.*bytes = std::min(pass.*bytes, most);
    message_ = std::min(message, most);
  }

  // At the fullest moment, the gradients that have begun to add up among them.
  int64_t fullest(const std::vector<PipelineStep>& steps) {
    take_messages(steps);
    for (const PipelineStep& step : steps) {
      if (step.kind == PipelineStep::Kind::compute) compute(step.action);
      if (step.kind == PipelineStep::Kind::send) send(step.action);
    }
    return peak_;
  }

 private:
  using Kind = PipelineAction::Kind;

  // Memory of messages that come is used again, in this run and in the next: as much as is needed
  // at once. What came for a forward is the input that its first layer keeps.
  void take_messages(const std::vector<PipelineStep>& steps) {
    std::map<std::pair<int64_t, int64_t>, int64_t> held;  // by stage and micro-batch
    std::set<int64_t> fed;
    int64_t taken = 0, most = 0;
    for (const PipelineStep& step : steps) {
      const std::pair pass(step.action.stage, step.action.micro_batch);
      if (step.kind == PipelineStep::Kind::receive) {
        if (step.action.kind == Kind::forward) fed.insert(step.action.stage);
        ++held[pass];
        most = std::max(most, ++taken);
      } else if (step.kind == PipelineStep::Kind::compute &&
                 (step.action.kind == Kind::backward || step.action.kind == Kind::weight)) {
        taken -= std::exchange(held[pass], 0);
      }
    }
    for (int64_t stage : fed) {
      int64_t& layers = passes_[stage].layers;
      layers = std::max<int64_t>(layers - message_, 0);
    }
    now_ = peak_ = most * message_;
  }

  // As many as never make the sender wait are kept alive, until the end of the run.
  void send(const PipelineAction& made) {
    const bool there = made.kind == Kind::forward;
    const auto boundary = static_cast<size_t>(made.stage - (there ? 0 : 1));
    int64_t& sent = sent_[2 * boundary + (there ? 0 : 1)];
    if (sent >= std::max<int64_t>(slots_[boundary], 1)) return;
    ++sent;
    now_ += message_;
    peak_ = std::max(peak_, now_);
  }

  void compute(const PipelineAction& action) {
    PassBytes& pass = passes_[action.stage];
    const bool halved = action.kind == Kind::input;
    switch (action.kind) {
      case Kind::forward:
        now_ += pass.layers + pass.head + pass.logits;
        break;
      case Kind::backward:
      case Kind::input:
        peak_ = std::max(peak_, now_ + pass.loss);
        // The head is done, and layers follow.
        if (!halved) now_ -= pass.logits + pass.head;
        peak_ = std::max(peak_, now_ + (halved ? pass.halved : pass.turn));
        now_ += halved ? pass.waiting - pass.layers - pass.head - pass.logits : -pass.layers;
        break;
      case Kind::weight:
        now_ -= pass.waiting;
        break;
    }
    if (action.kind == Kind::backward || action.kind == Kind::weight)
      now_ += std::exchange(pass.gradients, 0);
    peak_ = std::max(peak_, now_);
  }

  const std::vector<int64_t>& slots_;  // [stage]
  StagePasses passes_;
  std::vector<int64_t> sent_;  // messages kept alive, by boundary and way
  int64_t message_ = 0, now_ = 0, peak_ = 0;
};

// In stages, with what is on its way between them.
int64_t held_in_stages(const ShardingRequest& request, const TokenActivations& token,
                       const PassSizes& sizes, int64_t gradients) {
  const ModelOutline& outline = request.outline;
  const StagePasses passes = passes_of_stages(outline, token, sizes, gradients);
  const int64_t message = message_bytes(request);
  if (const Run run = run_of(request)) {
    const auto rank = static_cast<size_t>(request.mesh.device_mesh->coordinate(request.rank, "pp"));
    // The gradients are counted elsewhere.
    return std::max<int64_t>(
        RunWalk(*run, passes, message).fullest(run->steps.at(rank)) - gradients, 0);
  }
  // As if all forwards came first.
  int64_t held = 0, turn = 0;
  for (const auto& [stage, pass] : passes) {
    held = plus(held, plus(pass.layers, plus(pass.head, pass.logits)));
    turn = std::max(turn, std::max(pass.loss, pass.turn));
  }
  const int64_t micro_batches = micro_batches_of(request),
                each = times(std::max<int64_t>(outline.stages / pipeline_size(request), 1),
                             micro_batches);
  // What was sent stays, and one comes.
  return plus(plus(times(held, micro_batches), turn), times(message, plus(each, 1)));
}

// Gradients that come with the backward of what they are of, `coming` bytes in all, shared out by
// the elements that train.
class ComingGradients {
 public:
  ComingGradients(const ModelOutline& outline, int64_t coming) : coming_(coming) {
    for (const ParameterOutline& p : outline.parameters)
      if (p.trainable) all_ = plus(all_, element_count(p.shape));
  }
  int64_t of(int64_t trainable) const {
    return all_ == 0
               ? 0
               : static_cast<int64_t>(static_cast<double>(coming_) *
                                      static_cast<double>(trainable) / static_cast<double>(all_));
  }
  int64_t outside(const std::vector<LayerActivations>& layers) const {
    int64_t inside = 0;
    for (const LayerActivations& layer : layers) inside = plus(inside, layer.trainable);
    return of(std::max<int64_t>(all_ - inside, 0));
  }

 private:
  int64_t coming_, all_ = 0;
};

// Of one pass without stages, `exchange` bytes a token while attention has its gradients; with the
// gradients that have come by then.
int64_t fullest_of_pass(const ShardingRequest& request, const TokenActivations& token,
                        const PassSizes& sizes, int64_t exchange, int64_t coming) {
  const std::vector<LayerActivations>& layers = token.layers;
  std::vector<int64_t> held;  // by the layers up to each
  int64_t all = 0;
  for (const LayerActivations& layer : layers)
    held.push_back(all = plus(all, sizes.of(layer.kept, layer.dropped)));
  const int64_t hidden = sizes.of(request.outline.hidden_size);
  // The gradient of the logits comes to them, and then takes their place beside the one of the
  // head's input.
  int64_t peak = plus(plus(all, sizes.of(token.outside)), times(sizes.tokens, sizes.logits));
  if (sizes.logits > 0) peak = plus(peak, std::max(times(sizes.tokens, sizes.loss), hidden));
  // Backward, from the last layer on.
  const ComingGradients gradients(request.outline, coming);
  int64_t come = gradients.outside(layers);
  for (size_t i = layers.size(); i-- > 0;) {
    const LayerActivations& layer = layers[i];
    come = plus(come, gradients.of(layer.trainable));
    const int64_t turn = std::max(sizes.of(layer.mlp_turn), plus(sizes.of(layer.attention_turn),
                                                                 times(sizes.tokens, exchange)));
    peak = std::max(
        peak, plus(plus(held[i], sizes.of(layer.again, layer.dropped_again)), plus(turn, come)));
  }
  return std::max(peak, plus(coming, hidden));
}

}  // namespace

namespace footprint {

int64_t bytes_of_passes(const ShardingRequest& request, const ActivationQuestion& asked,
                        const TokenActivations& token) {
  const int64_t tokens = tokens_of(request);
  const ModelOutline& outline = request.outline;
  const MixedPrecision mp = precision_of(request);
  PassSizes sizes{.tokens = tokens, .element = dtype_size(mp.param)};
  // The head's logits.
  if (head_of(outline) != nullptr) {
    const int64_t ranks = token.vocabulary_ranks(),
                  words = (outline.vocab_size + ranks - 1) / ranks;
    sizes.logits = sizes.loss = times(words, dtype_size(mp.output));
    // On a device the loss writes the gradient over them, in rows of whole 16 bytes
    // (sdk/nn/loss.cpp); where they were cast, the one of what was cast comes beside that.
    constexpr int64_t kPack = 16;
    if (asked.facts.where == MemoryFacts::Where::device && sizes.logits % kPack == 0)
      sizes.loss = mp.output == mp.param ? 0 : times(words, dtype_size(mp.param));
  }
  const std::optional<ContextAttentionPlan> attention = context_attention_of(request);
  const ContextHeld exchanged = attention ? context_transient(request, *attention) : ContextHeld{};
  if (pipeline_size(request) > 1)
    return plus(held_in_stages(request, token, sizes, asked.gradients),
                times(tokens, exchanged.all()));
  const int64_t fullest = fullest_of_pass(request, token, sizes, exchanged.backward, asked.coming);
  const int64_t held = fullest == INT64_MAX ? fullest : fullest - asked.coming;
  return plus(held, plus(times(tokens, exchanged.room), token.scratch));
}

}  // namespace footprint

int64_t activation_bytes(const ShardingRequest& request, const ActivationQuestion& asked) {
  if (tokens_of(request) == 0) return 0;
  TokenActivations token(request, asked.whole_layers, asked.facts);
  token.add_all();
  return bytes_of_passes(request, asked, token);
}

int64_t activation_bytes(const ShardingRequest& request, bool whole_layers, int64_t gradients) {
  return activation_bytes(request, {.whole_layers = whole_layers, .gradients = gradients});
}

}  // namespace meshwright
