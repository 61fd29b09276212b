#include "sizes.h"

#include <meshwright/model/config_json.h>

namespace gpt2 {

namespace mw = meshwright;

Sizes read_sizes(const mw::ModelRequest& request) {
  const mw::ConfigJson config = mw::ConfigJson::read(request.config);
  if (config.string("model_type", "gpt2") != "gpt2") config.refuse("model_type", "is not \"gpt2\"");
  auto whole = [&](const char* field, int64_t fallback) {
    return config.integer(field, 1, int64_t{1} << 24, fallback);
  };
  Sizes s;
  s.vocab = whole("vocab_size", s.vocab);
  s.positions = whole("n_positions", s.positions);
  s.width = whole("n_embd", s.width);
  s.layers = whole("n_layer", s.layers);
  s.heads = whole("n_head", s.heads);
  s.inner = whole("n_inner", 4 * s.width);
  if (s.width % s.heads != 0)
    config.refuse("n_embd",
                  std::to_string(s.width) + " is no multiple of n_head " + std::to_string(s.heads));
  s.activation = config.string("activation_function", "gelu_new");
  if (s.activation != "gelu_new" && s.activation != "gelu" && s.activation != "relu" &&
      s.activation != "silu")
    config.refuse("activation_function",
                  "\"" + s.activation + "\" is not known; known are gelu_new, gelu, relu, silu");
  s.epsilon = config.number("layer_norm_epsilon", 0, 1, s.epsilon);
  s.range = config.number("initializer_range", 0, 1000, s.range);
  s.embedding_dropout = config.number("embd_pdrop", 0, 1, 0.1);
  s.residual_dropout = config.number("resid_pdrop", 0, 1, 0.1);
  s.attention_dropout = config.number("attn_pdrop", 0, 1, 0.1);
  s.tied = config.boolean("tie_word_embeddings", true);
  s.scaled = config.boolean("scale_attn_weights", true);
  for (const char* field : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (config.boolean(field, false)) config.refuse(field, "is not built");
  return s;
}

}  // namespace gpt2
