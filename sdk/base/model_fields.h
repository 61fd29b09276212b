// Fields of a config.json that no model is made of. Not public.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace meshwright::base {

// What libraries write beside a model, and what the tokens mean to whoever makes text.
inline bool is_of_no_model(std::string_view field) {
  static constexpr std::string_view kFields[] = {"_attn_implementation",
                                                 "_commit_hash",
                                                 "_name_or_path",
                                                 "auto_map",
                                                 "bos_token_id",
                                                 "cache_implementation",
                                                 "dtype",
                                                 "eos_token_id",
                                                 "id2label",
                                                 "label2id",
                                                 "task_specific_params",
                                                 "tokenizer_class",
                                                 "torch_dtype",
                                                 "torchscript",
                                                 "transformers_version",
                                                 "use_cache"};
  return std::ranges::find(kFields, field) != std::end(kFields);
}

}  // namespace meshwright::base
