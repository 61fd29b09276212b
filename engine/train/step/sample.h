// Text from a model, one token after another: greedy or with a temperature.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/preflight/source.h"
#include "engine/train/step/sampling.h"
#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace meshwright::generate {

// Token ids [1, length] int64 on the CPU to logits [1, length, vocab] on any device, or to those of
// the last position alone. Under a sharded strategy every rank must call generate_tokens() alike,
// because every forward is collective.
using LogitsOf = std::function<at::Tensor(const at::Tensor& ids)>;

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  double temperature = 0;          // as Sampling has it, and so have the others of their names
  uint64_t seed = 0;               // with a temperature; the same seed gives the same text
  int64_t context = 0;             // the model sees at most the last `context` tokens; required
  std::vector<int64_t> stop = {};  // ends after one of these
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::function<void(int64_t token)> each = {};  // hears every new token at once
  // Asked behind every new token: whether it was the last one. Every rank says the same.
  std::function<bool()> enough = {};
  // Where one goes for every new token: of log_probability(), before the penalty.
  std::vector<double>* log_probabilities = nullptr;

  Sampling sampling() const { return {temperature, top_k, top_p, min_p, repetition_penalty}; }
};

// The token behind `text`, the ids so far, of which `step` are new, and its natural logarithm of
// probability in the logits as they were given, before the penalty. Changes the logits. Throws
// Error(nonfinite) where they are not numbers.
struct NextToken {
  int64_t id = 0;
  double log_probability = 0;  // 0 unless it is wanted
};
NextToken next_token(std::span<float> logits, std::span<const int64_t> text,
                     const Sampling& sampling, uint64_t seed, int64_t step, bool log_probability);

// The new tokens, without the prompt. Throws Error(out_of_range) for an empty prompt, a context
// below 1, and as check_sampling() does; Error(nonfinite) when the logits are not numbers.
std::vector<int64_t> generate_tokens(const LogitsOf& logits_of, std::vector<int64_t> prompt,
                                     const GenerateOptions& options);

class LastLogits;

// Who hears of it while it is made; all but `enough` must be set.
struct Listener {
  std::function<void(const std::string& text)> notice;  // rank 0
  std::function<void(int64_t rank, const std::vector<int64_t>& prompt)> begin;
  std::function<void(int64_t id, bool ends)> token;  // `ends`: no part of the text, but its end
  std::function<bool()> enough = {};                 // as GenerateOptions has it
};

// The tokens behind the prompt, and how long they took.
struct Continued {
  std::vector<int64_t> prompt, tokens;
  bool ended = false;                          // the last one is a stop token
  std::vector<double> log_probabilities = {};  // of the tokens, where the request is for JSON
  int64_t context = 0;                         // how far the model looked back
  double seconds = 0;
  // How many of the first tokens the model did not see any more at the end.
  int64_t forgotten() const {
    const auto read = static_cast<int64_t>(prompt.size() + tokens.size()) - 1;
    return tokens.empty() || read <= context ? 0 : read - context;
  }
  double rate() const { return seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0; }
};

// Collective. `context`: how far the model looks back. `kept`: what was read of texts before, of
// which this one may begin as the last one did.
Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener, LastLogits* kept = nullptr);

// What `train --sample` asks for.
struct SampleRequest {
  std::string prompt;     // its bytes are the tokens
  int64_t max_bytes = 0;  // new ones
  double temperature = 0;
  uint64_t seed = 0;
};

// Collective. Parameters are gathered once for the whole text; every rank writes the same one.
// `seq_len`: of training; the model looks no further back.
std::string write_sample(Trainer& trainer, RunningModel& net, const SampleRequest& request,
                         int64_t seq_len);

// What a model writes, token by token with the text of each: for an application. `tell`: hears
// notices. `token`: hears every new id and the text that it adds to the prompt's; at
// the end -1 with what was held back of a character that was not complete, if anything was. Models
// whose tokens have no text here give ids alone.
class TextPieces {
 public:
  using Token = std::function<void(int64_t id, const std::string& text)>;
  TextPieces(const Source& source, std::function<void(const std::string&)> tell, Token token)
      : with_text_(source.tokenizer() != nullptr || source.bytes()),
        text_(source, Text::Form::text),
        tell_(std::move(tell)),
        token_(std::move(token)) {}

  Listener listener() {
    return {.notice = [this](const std::string& text) { tell_("notice: " + text); },
            .begin =
                [this](int64_t, const std::vector<int64_t>& prompt) {
                  for (int64_t id : prompt)
                    if (with_text_) text_.add(id);
                },
            .token =
                [this](int64_t id, bool ends) {
                  token_(id, with_text_ && !ends ? text_.add(id) : std::string());
                }};
  }
  void finish() {
    if (const std::string rest = with_text_ ? text_.finish() : ""; !rest.empty()) token_(-1, rest);
  }

 private:
  bool with_text_;
  Text text_;
  std::function<void(const std::string&)> tell_;
  Token token_;
};

}  // namespace meshwright::generate
