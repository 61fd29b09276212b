// Which entry of a pattern is for a module, as peft finds it, and what is refused.
#include "sdk/base/host/module_numbers.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace module_numbers_test {

using namespace meshwright;
using base::ModuleNumbers;

TEST_CASE("the first name or expression that a module's last parts match counts") {
  const ModuleNumbers numbers(8,
                              {{"layers.1.q_proj", "4"},
                               {"q_proj", "2"},
                               {"^model\\.layers\\.0\\..*", "16"},
                               {"layers\\.(2|3)\\.v_proj", "3"}},
                              true);
  CHECK(numbers.of("model.layers.1.q_proj") == 4);
  CHECK(numbers.of("model.layers.0.q_proj") == 2);
  CHECK(numbers.of("q_proj") == 2);
  CHECK(numbers.of("model.layers.0.k_proj") == 16);
  CHECK(numbers.of("x.model.layers.0.k_proj") == 8);
  CHECK(numbers.of("model.layers.3.v_proj") == 3);
  CHECK(numbers.of("model.layers.13.v_proj") == 8);
  CHECK(numbers.of("model.layers.4.v_proj") == 8);
  CHECK(numbers.of("model.layers.0.mq_proj") == 16);
  CHECK(numbers.of("model.layers.5.mq_proj") == 8);
  CHECK(numbers.of("transformer.h.5.attn", "model.layers.1.q_proj") == 4);
  CHECK(numbers.without_module({"a.q_proj", "layers.1.q_proj", "model.layers.0.x"}) ==
        "layers\\.(2|3)\\.v_proj");
  CHECK(numbers.without_module({"a.layers.1.q_proj", "model.layers.0.x", "layers.2.v_proj"}) == "");
  CHECK(ModuleNumbers(2.5, {}, false).of("anything") == 2.5);
}

TEST_CASE("an expression is broken where no program could read it") {
  for (const char* broken : {".*(q_proj", "q_proj)", "[q", "(?:q", "*q", "a|*", "[z-a]", "q\\"}) {
    CAPTURE(std::string(broken));
    CHECK(base::is_broken_expression(broken));
  }
  // Python has what is not read here.
  for (const char* fine : {"q_proj", ".*\\.(q|v)_proj", "(?:q|v)", "(?!q).*", "(?i)q", "(?P<x>q)",
                           "(?<=a)q", "a{2}", ".*\\Z", ""}) {
    CAPTURE(std::string(fine));
    CHECK_FALSE(base::is_broken_expression(fine));
  }
}

TEST_CASE("numbers and expressions that cannot be are refused by name") {
  auto refusal = [](const std::string& name, const std::string& number, bool whole) {
    try {
      const ModuleNumbers numbers(1, {{"fine", "2"}, {name, number}}, whole);
    } catch (const Error& error) {
      return code_string(error.code()) + " " + error.message();
    }
    return std::string();
  };
  CHECK(refusal("x", "2.5", false) == "");
  CHECK(refusal("x", "2.5", true) == "E0204 \"x\" = \"2.5\", but it must be an integer above 0");
  CHECK(refusal("x", "1e12", true).starts_with("E0204 "));
  for (const char* wrong : {"0", "-1", "nan", "inf", "", "2x", "two"}) {
    CAPTURE(std::string(wrong));
    CHECK(refusal("x", wrong, false).ends_with(", but it must be a number above 0"));
  }
  for (const std::string& wrong :
       std::vector<std::string>{"(", "[", "a{9999}", "(a)\\1", std::string(600, 'a')}) {
    CAPTURE(wrong);
    CHECK(refusal(wrong, "2", false).starts_with("E0208 "));
  }
  // Takes years where a search goes back on every way.
  const ModuleNumbers slow(1, {{"(x+x+)+y", "2"}}, false);
  CHECK(slow.of(std::string(200, 'x')) == 1);
}

}  // namespace module_numbers_test
