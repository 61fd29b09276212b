#include <doctest/doctest.h>

#include <optional>

#include "cases.h"

namespace semantics_test {

using namespace meshwright::chat;
using testing::text;

TEST_CASE("expressions and templates mean what they mean to Jinja") {
  Value file = parse_json(testing::file_text("semantics.json"));
  const Value* context = file.get("context");
  int texts = 0, errors = 0;
  for (const Value& one : file.get("cases")->as_list()) {
    std::string source = text(one, "template");
    CAPTURE(source);
    std::optional<std::string> refused = testing::refusal(source, context);
    if (one.get("error") != nullptr) {
      std::string jinja = text(one, "error");
      CAPTURE(jinja);
      CHECK(refused.has_value());
      ++errors;
      continue;
    }
    CHECK(refused.value_or("") == "");
    if (!refused) CHECK(testing::rendered(source, context) == text(one, "text"));
    ++texts;
  }
  CHECK(texts == 4432);
  CHECK(errors == 2048);
}

}  // namespace semantics_test
