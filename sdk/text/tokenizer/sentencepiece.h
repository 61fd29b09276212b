// A sentencepiece model, as folders have it under the name of tokenizer.model.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace meshwright::tokenizer {

// The tokenizer.json that transformers makes of it. `config`: the tokenizer_config.json beside it,
// whose tokenizer_class says what the file does not: LlamaTokenizer, GemmaTokenizer, T5Tokenizer,
// XLMRobertaTokenizer, AlbertTokenizer, or one of no family. Empty, or without a class: ids are
// those of sentencepiece itself. `name` stands for the file in messages. Throws
// Error(bad_tokenizer) with the place.
boost::json::value of_sentencepiece(std::string_view bytes, const std::string& name,
                                    const boost::json::object& config);

}  // namespace meshwright::tokenizer
