// What "auto" takes, and what it says of it.
#include "sdk/base/context_plan.h"

#include <doctest/doctest.h>

namespace context_plan_test {

using namespace meshwright;

TEST_CASE("context plan: auto takes what sends least, and a ring where hosts are several") {
  struct Row {
    int64_t ranks, heads, kv_heads;
    const char *method, *why, *across;
  };
  const char* odd = "6 query and 3 key-value heads cannot be shared out to 4 ranks";
  const char* unknown = "the model's heads are not known before it runs";
  const std::string on_one =
      "the ranks of cp are on several hosts; on one it would be all_gather: ";
  // all_gather sends less iff c < 2/3 (H / K + 1), of heads of 1 or more for each rank.
  for (const Row& row : {Row{2, 8, 8, "ulysses",
                             "it sends 67% of what all_gather would, with 8 query and 8 "
                             "key-value heads",
                             "ulysses"},
                         {4, 8, 4, "ulysses", nullptr, "ulysses"},
                         {2, 8, 1, "all_gather", nullptr, "ring"},
                         {4, 6, 3, "all_gather", odd, "ring"},
                         {2, 0, 0, "all_gather", unknown, "ring"}}) {
    CAPTURE(row.ranks);
    CAPTURE(row.heads);
    const ContextPlan plan = plan_context({}, row.ranks, row.heads, row.kv_heads);
    CHECK(context_method_name(plan) == row.method);
    if (row.why) CHECK(plan.why == row.why);
    const ContextPlan across = across_hosts(plan);
    CHECK(context_method_name(across) == row.across);
    CHECK(across.ring * across.ulysses == row.ranks);
    CHECK(across.why == (std::string(row.across) == "ring" ? on_one + plan.why : plan.why));
    // The engine writes the method into the options: that comes to the same.
    ContextOptions written;
    written.method = across.method;
    const ContextPlan again = plan_context(written, row.ranks, row.heads, row.kv_heads);
    CHECK(again.method == across.method);
    CHECK(again.ring == across.ring);
    CHECK(again.ulysses == across.ulysses);
  }
}

TEST_CASE("context plan: what somebody wrote stays on any number of hosts") {
  ContextOptions written;
  written.method = ContextMethod::all_gather;
  CHECK(context_method_name(across_hosts(plan_context(written, 4, 8, 8))) == "all_gather");
  written.ulysses_size = 2;
  CHECK(context_method_name(across_hosts(plan_context(written, 4, 8, 8))) ==
        "all_gather x ulysses");
}

}  // namespace context_plan_test
