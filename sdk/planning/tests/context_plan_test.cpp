// What "auto" takes, and what it says of it.
#include "sdk/base/context_plan.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/shared_schemas.h"

namespace context_plan_test {

using namespace meshwright;

namespace {

std::optional<Error> refusal(const ContextOptions& options, int64_t ranks, int64_t heads,
                             int64_t kv_heads) {
  try {
    plan_context(options, ranks, heads, kv_heads);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// The options after somebody did what a help says: keys with a value are set, others left out.
ContextOptions after(const std::string& help, ContextOptions options) {
  auto said = [&](const std::string& key) -> std::optional<std::string> {
    const std::string name = "distributed.context." + key;
    const size_t at = help.find(name);
    if (at == std::string::npos) return std::nullopt;
    const std::string rest = help.substr(at + name.size());
    return rest.starts_with(" = ") ? rest.substr(3) : "";
  };
  auto size = [&](const std::string& key, std::optional<int64_t>& value) {
    const std::optional<std::string> text = said(key);
    if (text) value = text->empty() ? std::nullopt : std::optional<int64_t>(std::stoll(*text));
  };
  size("ring_size", options.ring_size);
  size("ulysses_size", options.ulysses_size);
  const std::optional<std::string> method = said("method");
  if (method && method->empty()) options.method = std::nullopt;
  if (method && method->starts_with("\"all_gather\"")) options.method = ContextMethod::all_gather;
  return options;
}

}  // namespace

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

TEST_CASE("context plan: auto goes by what the methods send, where that is known") {
  struct Row {
    int64_t gather, ulysses;
    const char *method, *why;
  };
  for (const Row& row : {Row{40, 100, "all_gather", "it sends 40% of what ulysses would"},
                         Row{100, 40, "ulysses", "it sends 40% of what all_gather would"},
                         Row{100, 100, "all_gather", "it sends as much as ulysses would"},
                         Row{0, 100, "all_gather", "it sends 0% of what ulysses would"}}) {
    CAPTURE(row.why);
    const ContextPlan plan = plan_context({}, 4, 32, 8, [&](const ContextPlan& asked) {
      CHECK(asked.ring * asked.ulysses == 4);
      return asked.ulysses == 4 ? row.ulysses : row.gather;
    });
    CHECK(context_method_name(plan) == row.method);
    CHECK(plan.why == std::string(row.why) + ", with 32 query and 8 key-value heads");
  }
}

TEST_CASE("context plan: what a refusal tells to do is accepted") {
  struct Heads {
    int64_t query, key_value;
  };
  const std::optional<int64_t> sizes[] = {std::nullopt, 1, 2, 3, 4, 6};
  const std::optional<ContextMethod> methods[] = {std::nullopt, ContextMethod::all_gather,
                                                  ContextMethod::ring, ContextMethod::ulysses};
  int refused = 0;
  for (int64_t ranks : {2, 4, 6})
    for (Heads heads : {Heads{8, 8}, Heads{6, 3}, Heads{8, 1}, Heads{5, 5}, Heads{0, 0}})
      for (const std::optional<ContextMethod>& method : methods)
        for (const std::optional<int64_t>& ring : sizes)
          for (const std::optional<int64_t>& ulysses : sizes) {
            ContextOptions options;
            options.method = method;
            options.ring_size = ring;
            options.ulysses_size = ulysses;
            const std::optional<Error> error =
                refusal(options, ranks, heads.query, heads.key_value);
            if (!error) continue;
            ++refused;
            CAPTURE(std::string(error->what()));
            CHECK_FALSE(error->helps().empty());
            for (const std::string& help : error->helps()) {
              CAPTURE(help);
              CHECK_FALSE(refusal(after(help, options), ranks, heads.query, heads.key_value));
            }
          }
  CHECK(refused > 100);
}

}  // namespace context_plan_test
