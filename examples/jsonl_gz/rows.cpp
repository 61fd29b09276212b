#include "rows.h"

#include <boost/json.hpp>
#include <cmath>

#include "meshwright/error.h"

namespace jsonl_gz {

namespace json = boost::json;
using meshwright::Error;
using meshwright::ErrorCode;

Row parse_row(std::string_view line, const RowFormat& format, const std::string& place) {
  auto refuse = [&](const std::string& what, ErrorCode code = ErrorCode::bad_dataset) {
    return Error(code, place + ": " + what);
  };
  boost::system::error_code failed;
  const json::value value = json::parse({line.data(), line.size()}, failed);
  if (failed) throw refuse("no JSON: " + failed.message());
  const json::object* row = value.if_object();
  if (row == nullptr) throw refuse("a row is an object, {...}");
  Row out;
  if (const json::value* tokens = row->if_contains(format.tokens_key)) {
    const json::array* list = tokens->if_array();
    if (list == nullptr) throw refuse("\"" + format.tokens_key + "\" is no list of token ids");
    for (const json::value& token : *list) {
      if (!token.is_int64())
        throw refuse("\"" + format.tokens_key + "\" holds " + json::serialize(token) +
                     ", which is no token id");
      out.tokens.push_back(token.get_int64());
    }
  } else if (const json::value* text = row->if_contains(format.text_key)) {
    if (!text->is_string()) throw refuse("\"" + format.text_key + "\" is no text");
    for (char c : text->get_string()) out.tokens.push_back(static_cast<unsigned char>(c));
  } else {
    throw refuse("the row has neither \"" + format.tokens_key + "\" nor \"" + format.text_key +
                 "\"");
  }
  if (format.end_token) out.tokens.push_back(*format.end_token);
  for (int64_t token : out.tokens)
    if (token < 0 || (format.vocabulary > 0 && token >= format.vocabulary))
      throw refuse("the token " + std::to_string(token) +
                       " lies outside of the model's vocabulary" +
                       (format.vocabulary > 0 ? " of " + std::to_string(format.vocabulary) : ""),
                   ErrorCode::bad_token)
          .help(
              "use a model whose config.json has a larger vocab_size, or its own tokenizer's ids");
  if (const json::value* weight =
          format.weight_key ? row->if_contains(*format.weight_key) : nullptr) {
    if (!weight->is_number()) throw refuse("\"" + *format.weight_key + "\" is no number");
    out.weight = weight->to_number<float>();
    if (!std::isfinite(out.weight) || out.weight < 0)
      throw refuse("\"" + *format.weight_key + "\" is " + json::serialize(*weight) +
                   ", but it must be 0 or more");
  }
  return out;
}

}  // namespace jsonl_gz
