// tokenize TOKENIZER.json: reads one JSON value a line. A string becomes its ids, a list of ids its
// text, {"bare": text} the ids without what the template adds, {"ranges": text} a list of these and
// of where in the bytes of the text each of them stands; each as one line of JSON. What cannot be
// done becomes {"error": message}.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_from.hpp>
#include <boost/json/value_to.hpp>
#include <iostream>

#include "meshwright/error.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace json = boost::json;
using meshwright::tokenizer::ByteRange;
using meshwright::tokenizer::Encoded;
using meshwright::tokenizer::Tokenizer;

namespace {

json::value answer(const Tokenizer& tokenizer, const json::value& asked) {
  if (asked.is_array())
    return json::string(tokenizer.decode(json::value_to<std::vector<int64_t>>(asked)));
  if (asked.is_object() && asked.as_object().contains("ranges")) {
    const Encoded encoded =
        tokenizer.encode_ranges(std::string(asked.at("ranges").as_string()), {});
    json::array ranges;
    for (const ByteRange& range : encoded.ranges)
      ranges.push_back(json::array{range.begin, range.end});
    return json::array{json::value_from(encoded.ids), ranges};
  }
  bool bare = asked.is_object();
  return json::value_from(
      tokenizer.encode(std::string((bare ? asked.at("bare") : asked).as_string()), !bare));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2)
      throw meshwright::Error(meshwright::ErrorCode::usage,
                              "usage: tokenize TOKENIZER.json < LINES");
    Tokenizer tokenizer = Tokenizer::load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      json::value out;
      try {
        out = answer(tokenizer, json::parse(line));
      } catch (const meshwright::Error& error) {
        out = {{"error", error.message()}};
      }
      std::cout << out << '\n';
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
