// Structs as JSON and back: what is refused by name, and numbers to the last bit.
#include "sdk/base/files/json_codec.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

namespace json_codec_test {

using namespace meshwright;
using base::json_text, base::read_json_text;

enum class Colour : uint8_t { red, green };
BOOST_DESCRIBE_ENUM(Colour, red, green)
enum class Number : uint8_t { zero, one };

struct Part {
  std::string name;
  std::optional<int64_t> steps = {};
  bool operator==(const Part&) const = default;
};
BOOST_DESCRIBE_STRUCT(Part, (), (name, steps))

struct Whole {
  bool good = false;
  int64_t least = 0;
  uint64_t most = 0;
  uint8_t small = 0;
  double for_ = 0;
  Colour colour = Colour::red;
  Number number = Number::zero;
  std::vector<Part> parts = {};
  std::vector<bool> marks = {};
  std::map<std::string, double> by_name = {};
  std::vector<std::pair<std::string, int64_t>> pairs = {};
  bool operator==(const Whole&) const = default;
};
BOOST_DESCRIBE_STRUCT(Whole, (),
                      (good, least, most, small, for_, colour, number, parts, marks, by_name,
                       pairs))

const Whole kWhole{true,          INT64_MIN,
                   UINT64_MAX,    255,
                   0.1,           Colour::green,
                   Number::one,   {{"a \"b\"\n", 3}, {std::string("\xff\0\x1f", 3)}},
                   {true, false}, {{"x", -0.25}, {"", 3}},
                   {{"p", -1}}};

template <class T>
std::string problem_of(const std::string& text) {
  try {
    read_json_text<T>(text);
  } catch (const base::JsonProblem& problem) {
    return problem.what;
  }
  return "";
}

TEST_CASE("a struct is the same struct again, with names and file names of any bytes") {
  CHECK(read_json_text<Whole>(json_text(kWhole)) == kWhole);
  CHECK(json_text(kWhole).starts_with(R"({"good":true,"least":-9223372036854775808,)"
                                      R"("most":18446744073709551615,"small":255,"for":1E-1,)"
                                      R"("colour":"green","number":1,"parts":[{"name":)"));
  CHECK(json_text(Part{"a", std::nullopt}) == R"({"name":"a"})");
  CHECK(read_json_text<Part>(R"( {"steps": null, "name": "a"} )") == Part{"a", std::nullopt});
  CHECK(read_json_text<std::vector<Part>>("[]").empty());
}

TEST_CASE("what does not fit is refused, with its place and key") {
  CHECK(problem_of<Part>("{}") == "the text lacks \"name\"");
  CHECK(problem_of<Part>(R"({"name": "a", "stepz": 1})") ==
        "the text has \"stepz\", which this version does not know");
  CHECK(problem_of<Part>(R"({"name": "a", "name": "a"})") == "lists \"name\" twice");
  CHECK(problem_of<Part>(R"({"name": 1})") == "\"name\" needs a string");
  CHECK(problem_of<Part>(R"({"name": "a", "steps": 1.0})") == "\"steps\" needs a whole number");
  CHECK(problem_of<Part>("[]") == "the text needs an object");
  CHECK(problem_of<std::vector<Part>>(R"([{"name": ""}, {"name": "", "steps": true}])") ==
        "[1].\"steps\" needs a whole number");
  std::map<std::string, std::vector<Part>> parts = {{"parts", {{"a", 1}, {"b", 2}}}};
  CHECK(problem_of<decltype(parts)>(R"({"parts": [{"name": "a"}, {"nam": "b"}]})") ==
        "\"parts\"[1] lacks \"name\"");
  CHECK(problem_of<Colour>("\"blue\"") == "the text has an unknown name: \"blue\"");
  CHECK(problem_of<Number>("256") == "the text needs a whole number of at least 0");
  CHECK(problem_of<std::pair<int, int>>("[1]") == "the text needs a list of two");
  CHECK(problem_of<bool>("1") == "the text needs true or false");
  CHECK(problem_of<double>("\"1x\"") == "the text needs a number");
  CHECK(problem_of<int64_t>("9223372036854775808") == "the text needs a whole number");
  CHECK(problem_of<uint64_t>("-1") == "the text needs a whole number of at least 0");
  CHECK(problem_of<int64_t>("1 2").find("is not valid JSON") == 0);
  CHECK(problem_of<int64_t>("").find("is not valid JSON") == 0);
  CHECK(problem_of<boost::json::value>(std::string(100, '[')).find("is not valid JSON") == 0);
}

TEST_CASE("numbers are the same to the last bit, also those that JSON does not have") {
  using Limits = std::numeric_limits<double>;
  for (double number :
       {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 5e-324, Limits::min(), Limits::max(), 6631236846766476e100,
        1e23, -8.41e21, 9007199254740993.0, Limits::infinity(), -Limits::infinity()}) {
    const double again = read_json_text<double>(json_text(number));
    CHECK(std::bit_cast<uint64_t>(again) == std::bit_cast<uint64_t>(number));
  }
  CHECK(std::isnan(read_json_text<double>(json_text(Limits::quiet_NaN()))));
  CHECK(json_text(Limits::infinity()) == "\"inf\"");
  // Of random bits, as texts of 17 digits and of as few as there may be.
  uint64_t bits = 1;
  for (int i = 0; i < 20000; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    const auto number = std::bit_cast<double>(bits);
    if (!std::isfinite(number)) continue;
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", number);
    CHECK(read_json_text<double>(digits) == number);
    CHECK(read_json_text<double>(json_text(number)) == number);
    CHECK(base::parse_strictly(digits, {}).to_number<double>() == number);
  }
}

TEST_CASE("what is foreign is bounded and has one meaning, and what is our own is not bounded") {
  auto problem = [](std::string_view text, const base::JsonBounds& bounds) -> std::string {
    try {
      base::parse_strictly(text, bounds);
    } catch (const base::JsonProblem& found) {
      return found.what;
    }
    return "";
  };
  CHECK(problem("[1, 2, 3]", {.depth = 2, .elements = 3}).empty());
  CHECK(problem("[1, 2, 3]", {.depth = 2, .elements = 2}) == "has a list of 3 values");
  CHECK(problem("[[[1]]]", {.depth = 3}).empty());
  CHECK(problem("[[[1]]]", {.depth = 2}).starts_with("is not valid JSON"));
  CHECK(problem(R"({"a": 1, "b": {"a": 2}})", {}).empty());
  CHECK(problem(R"({"a": 1, "\u0061": 2})", {}) == "lists \"a\" twice");
  CHECK(problem("1 2", {}).starts_with("is not valid JSON"));
  CHECK(problem("[\"\xff\"]", {}).starts_with("is not valid JSON"));
  CHECK(problem("{\"" + std::string(5000, 'k') + "\": 1}", {}) != "");
  const std::string many = json_text(std::vector<int>(5000)), wrong = "[\"\xff\"]";
  CHECK(problem(many, {}) != "");
  CHECK(base::parse_strictly(many, {.elements = 5000}).get_array().size() == 5000);
  CHECK(read_json_text<std::vector<int>>(json_text(std::vector<int>(2 << 20))).size() == 2 << 20);
  CHECK(read_json_text<std::vector<std::string>>(wrong)[0] == "\xff");
}

}  // namespace json_codec_test
