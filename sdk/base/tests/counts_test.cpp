// Numbers of things as people read them.
#include "sdk/base/words.h"

#include <doctest/doctest.h>

#include <limits>

using meshwright::text::counted;
using meshwright::text::divisors_near;
using meshwright::text::grouped;

TEST_CASE("numbers are grouped by thousands, the sign apart") {
  struct Row {
    int64_t value;
    const char* text;
  };
  for (const Row& row : {Row{0, "0"},
                         {999, "999"},
                         {1000, "1,000"},
                         {1234567, "1,234,567"},
                         {-999, "-999"},
                         {-1234, "-1,234"},
                         {std::numeric_limits<int64_t>::min(), "-9,223,372,036,854,775,808"}})
    CHECK(grouped(row.value) == row.text);
}

TEST_CASE("one thing is counted without an ending, others with theirs") {
  CHECK(counted(1, "row") == "1 row");
  CHECK(counted(0, "row") == "0 rows");
  CHECK(counted(1200, "row") == "1,200 rows");
  CHECK(counted(1, "batch", "es") == "1 batch");
  CHECK(counted(2, "batch", "es") == "2 batches");
}

TEST_CASE("the divisors that are nearest by their ratio come first") {
  CHECK(divisors_near(12, 3) == std::vector<int64_t>{3, 4, 2, 6, 1, 12});
  CHECK(divisors_near(1, 5) == std::vector<int64_t>{1});
}
