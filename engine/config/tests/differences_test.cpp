#include "engine/config/config.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace meshwright;
using namespace meshwright::config;

TEST_CASE("configurations beside each other: what differs, key by key, and what is not there") {
  Diagnostics diagnostics;
  const auto a = settings_of("seed = 1\n[a]\nx = 1  # why\nlist = [1, 2]\n[a.b]\ny = \"z\"\n", "a",
                             diagnostics),
             b = settings_of("seed = 1\n[a]\nx = 2\n[a.b]\ny = \"z\"\n", "b", diagnostics);
  REQUIRE(diagnostics.ok());
  CHECK(a == std::vector<Setting>{
                 {"seed", "1"}, {"a.x", "1"}, {"a.list", "[1, 2]"}, {"a.b.y", "\"z\""}});
  const std::vector<Difference> found = differences({a, b});
  REQUIRE(found.size() == 2);
  CHECK(found[0].key == "a.x");
  CHECK(found[0].values == std::vector<std::string>{"1", "2"});
  CHECK(found[1].key == "a.list");
  CHECK(found[1].values == std::vector<std::string>{"[1, 2]", ""});
  CHECK(differences({a, a}).empty());
  CHECK(settings_of("[a\n", "c", diagnostics).empty());
  CHECK(!diagnostics.ok());
}

TEST_CASE("a key that one side alone has counts where it changes something") {
  Diagnostics diagnostics;
  LoadOptions options;
  options.file = "job.toml";
  const Config config = resolve(Source::parse("", options, diagnostics), {}, "fsdp2", diagnostics);
  const auto before = settings_of(
                 "[distributed]\nstrategy = \"fsdp2\"\n[distributed.other]\ndepth = 3\n"
                 "[distributed.pipeline]\npp_schedule = \"GPipe\"\npp_microbatch_size = 1\n"
                 "[dataset.theirs]\nformat = \"text\"\n",
                 "a", diagnostics),
             after = settings_of(
                 "[distributed]\nstrategy = \"ddp\"\n[distributed.moe]\nwrap_outer_model = "
                 "false\nlm_head_precision = \"none\"\n[optimizer]\nmomentum = 0.0\n"
                 "group = [{pattern = \"a\"}]\n",
                 "b", diagnostics);
  std::vector<std::string> keys;
  for (const Difference& one : with_effect(differences({before, after}), config))
    keys.push_back(one.key);
  CHECK(keys == std::vector<std::string>{"distributed.strategy", "distributed.pipeline.pp_schedule",
                                         "distributed.moe.wrap_outer_model", "optimizer.group"});
}

TEST_CASE("the text of a setting's value: a string, whatever its quotes, and nothing else") {
  struct Row {
    const char* value;
    std::optional<std::string> text;
  };
  for (const Row& row : std::vector<Row>{
           {"\"runs/first\"", "runs/first"},
           {"\"\"", ""},
           {"\"none\"", "none"},  // what that means is the key's
           {R"("a \"b\" \\ c\td\u00e9")", "a \"b\" \\ c\td\u00e9"},
           {R"('C:\new')", "C:\\new"},
           {"1", std::nullopt},
           {"0.5", std::nullopt},
           {"true", std::nullopt},
           {"1979-05-27", std::nullopt},
           {"[\"a\", \"b\"]", std::nullopt},
           {"{x = \"a\"}", std::nullopt},
           {"", std::nullopt},
           {"bare", std::nullopt},
           {"\"not closed", std::nullopt},
           {"\"a\" \"b\"", std::nullopt},
       }) {
    CAPTURE(row.value);
    CHECK(text_of(row.value) == row.text);
  }
  // As settings_of() gives them.
  Diagnostics diagnostics;
  const auto all = settings_of("path = 'a \"b\" \\'\n", "a", diagnostics);
  REQUIRE(all.size() == 1);
  CHECK(text_of(all[0].value) == "a \"b\" \\");
}
