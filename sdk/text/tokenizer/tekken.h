// Mistral's own file of a tokenizer, tekken.json.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace meshwright::tokenizer {

// The tokenizer.json that transformers makes of it, with no token around a text. `name` stands for
// the file in messages. Throws Error(bad_tokenizer) with the place.
boost::json::value of_tekken(std::string_view text, const std::string& name);

}  // namespace meshwright::tokenizer
