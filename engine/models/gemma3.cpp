#include "engine/models/decoder_family.h"
#include "engine/models/families.h"

namespace meshwright::outlines {

ModelOutline gemma3(const ConfigJson& config, DType storage) {
  DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b = begin_decoder("Gemma3ForCausalLM", "gemma3_text", "Gemma3Text", s, storage,
                                   "Gemma3TextScaledWordEmbedding");
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "Gemma3DecoderLayer");
    attention(b, layer, "Gemma3", s, family.attention);
    gated_mlp(b, layer + ".mlp", "Gemma3", s.hidden, s.intermediate, false, "GELUTanh");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      b.norm(layer + "." + norm, s.hidden, "Gemma3RMSNorm");
  }
  end_decoder(b, "Gemma3", s);
  b.own_plan(gated_mlp_plan(attention_plan(true)));
  return std::move(b.outline);
}

}  // namespace meshwright::outlines
