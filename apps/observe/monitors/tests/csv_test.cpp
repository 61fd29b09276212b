#include "apps/observe/monitors/sinks.h"

#include <doctest/doctest.h>

#include "apps/observe/monitors/tests/folder.h"

using namespace meshwright::monitor;
using monitor_tests::step_row;
using monitor_tests::validation_row;

TEST_CASE(
    "a line a step: a validation stands in its step's line, null is empty, numbers are whole") {
  const std::string rows = step_row(0) + validation_row(0, "2.75") +
                           "{\"step\": 1, \"completed_steps\": 2, \"loss\": null}\n" + step_row(2);
  CHECK(csv_of(rows) ==
        "step,completed_steps,loss,grad_norm,lr,tokens,step_ms,tokens_per_second,memory_bytes,"
        "data_ms,validation_loss\r\n"
        "0,1,3,0.75,1.5e-05,2048,250.125,8187.9,1048576,2.5,2.75\r\n"
        "1,2,,,,,,,,,\r\n"
        "2,3,2.5,0.75,1.5e-05,2048,250.125,8187.9,1048576,2.5,\r\n");
}

TEST_CASE(
    "what later rows add has a column; lists keep all their numbers; quotes as RFC 4180 asks") {
  const std::string rows =
      "{\"step\": 0, \"loss\": 1}\n"
      "{\"step\": 1, \"loss\": 2, \"expert_tokens\": [3, 4], \"note\": \"a, \\\"b\\\"\"}\n";
  CHECK(csv_of(rows) ==
        "step,completed_steps,loss,expert_tokens,note,validation_loss\r\n"
        "0,1,1,,,\r\n1,2,2,3 4,\"a, \"\"b\"\"\",\r\n");
}

TEST_CASE("lines that are no rows, and one that is still being written, are left out") {
  CHECK(csv_of("garbage\n[1]\n{\"step\": -1}\n{\"step\": 4, \"loss\": 1}\n{\"step\": 5, \"lo") ==
        "step,completed_steps,loss,validation_loss\r\n4,5,1,\r\n");
  CHECK(csv_of("") == "step,completed_steps,validation_loss\r\n");
}

TEST_CASE("a line is held until nothing can come to it any more") {
  CsvLines lines(csv_columns(step_row(0)));
  const std::optional<Row> first = parse_row(step_row(0)), second = parse_row(step_row(1));
  REQUIRE((first && second));
  CHECK(lines.add(*first).empty());
  CHECK(lines.add(*second).starts_with("0,1,"));
  CHECK(lines.rest().starts_with("1,2,"));
  CHECK(lines.rest().empty());
  CHECK(lines.has_columns_for(*first));
  CHECK(!lines.has_columns_for(*parse_row(step_row(2, ", \"mfu\": 0.5"))));
}
