// Text from a model, one token after another: greedy or with a temperature.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/preflight/source.h"
#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace meshwright::generate {

// Token ids [1, length] int64 on the CPU to logits [1, length, vocab] on any device, or to those of
// the last position alone. Under a sharded strategy every rank must call generate_tokens() alike,
// because every forward is collective.
using LogitsOf = std::function<at::Tensor(const at::Tensor& ids)>;

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  double temperature = 0;          // 0: the most likely token, the first of equals
  uint64_t seed = 0;               // with a temperature; the same seed gives the same text
  int64_t context = 0;             // the model sees at most the last `context` tokens; required
  std::vector<int64_t> stop = {};  // ends after one of these
  // With a temperature: only the k most likely tokens, the first of equals; 0: all. And of these
  // only the most likely ones until they hold this part of the probability.
  int64_t top_k = 0;
  double top_p = 1;
  std::function<void(int64_t token)> each = {};  // hears every new token at once
};

// Throws Error(out_of_range), as generate_tokens() does.
void check_sampling(double temperature, int64_t top_k, double top_p);

// The new tokens, without the prompt. Throws Error(out_of_range) for an empty prompt, a temperature
// that is not finite and >= 0, a negative top_k, a top_p outside (0, 1], or a context below 1;
// Error(nonfinite) when the logits are not numbers.
std::vector<int64_t> generate_tokens(const LogitsOf& logits_of, std::vector<int64_t> prompt,
                                     const GenerateOptions& options);

// Who hears of it while it is made; all must be set.
struct Listener {
  std::function<void(const std::string& text)> notice;  // rank 0
  std::function<void(int64_t rank, const std::vector<int64_t>& prompt)> begin;
  std::function<void(int64_t id, bool ends)> token;  // `ends`: no part of the text, but its end
};

// The tokens behind the prompt, and how long they took.
struct Continued {
  std::vector<int64_t> prompt, tokens;
  bool ended = false;  // the last one is a stop token
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0; }
};

// Collective. `context`: how far the model looks back.
Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener);

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
