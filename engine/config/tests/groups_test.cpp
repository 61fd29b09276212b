// [[optimizer.group]], an array of tables: read in order with the place of each value, shown,
// explained, and refused where something is wrong in it.
#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"

namespace groups_test {

using namespace meshwright;
using namespace meshwright::config;
using config::testing::Loaded, config::testing::only_error, config::testing::says;

namespace {

Loaded load(const std::string& text, std::vector<std::string> sets = {}) {
  return config::testing::load(text, std::move(sets), {.environment = {{"RATE", "x.*"}}});
}

const char* const kTwo =
    "[optimizer]\nlr = 1e-3\n\n"
    "[[optimizer.group]]\npattern = \"model.embed_tokens.*\"\nlr_factor = 0.1\n\n"
    "[[optimizer.group]]\npattern = \"*norm.weight\"\nweight_decay = 0\n"
    "[[optimizer.group]]\n  pattern = \"${RATE}\"\n  frozen = true\n";

}  // namespace

TEST_CASE("groups are read in the order of the file, with defaults and places") {
  const Loaded l = load(kTwo);
  for (const Error& error : l.diagnostics.errors()) MESSAGE(error.what());
  REQUIRE(l.diagnostics.ok());
  const std::vector<Options>& groups = l.config.list("optimizer.group");
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].get_string("pattern") == "model.embed_tokens.*");
  CHECK(groups[0].get_number("lr_factor") == 0.1);
  CHECK_FALSE(groups[0].is_set("weight_decay"));
  CHECK_FALSE(groups[0].get_bool("frozen"));
  CHECK(groups[0].origin("lr_factor").line == 6);
  CHECK(groups[1].get_number("weight_decay") == 0);
  CHECK(groups[1].get_number("lr_factor") == 1);
  CHECK(groups[2].get_string("pattern") == "x.*");
  CHECK(groups[2].origin("pattern").source == Origin::Source::environment);
  CHECK(groups[2].get_bool("frozen"));
  CHECK(load("").config.list("optimizer.group").empty());
  CHECK(load("").config.table("optimizer").get_string("no_decay") == "none");
}

TEST_CASE("a list of inline tables, in a file or by --set, says the same; --set replaces all") {
  const std::string list = "[{pattern = \"a.*\", frozen = true}, {pattern = \"b\", lr_factor = 2}]";
  for (const Loaded& l :
       {load("[optimizer]\ngroup = " + list + "\n"), load(kTwo, {"optimizer.group=" + list})}) {
    REQUIRE(l.diagnostics.ok());
    REQUIRE(l.config.list("optimizer.group").size() == 2);
    CHECK(l.config.list("optimizer.group")[0].get_bool("frozen"));
    CHECK(l.config.list("optimizer.group")[1].get_number("lr_factor") == 2);
    CHECK(value_toml(l.config, "optimizer.group") ==
          "[{pattern = \"a.*\", frozen = true}, {pattern = \"b\", lr_factor = 2.0}]");
  }
  CHECK(load(kTwo, {"optimizer.group=[]"}).config.list("optimizer.group").empty());
  CHECK(value_toml(load("").config, "optimizer.group") == "[]");
}

TEST_CASE("what is wrong in a group is refused at its own place") {
  struct Row {
    const char *group, *code, *key, *help;
    int line, column;
  };
  for (const Row& row : std::vector<Row>{
           {"[[optimizer.group]]\npattern = \"*\"\nlr_factr = 2\n", "E0202",
            "optimizer.group.lr_factr", "did you mean optimizer.group.lr_factor?", 3, 1},
           {"[[optimizer.group]]\npattern = \"*\"\nlr = 1e-5\n", "E0202", "optimizer.group.lr",
            "optimizer.group.lr_factor", 3, 1},
           {"[[optimizer.group]]\npattern = \"*\"\nlearning_rate = 1e-5\n", "E0202",
            "optimizer.group.learning_rate", "optimizer.group.lr_factor", 3, 1},
           {"[[optimizer.group]]\npattern = \"*\"\nlr_factor = -0.5\n", "E0204",
            "optimizer.group.lr_factor", "set optimizer.group.lr_factor = 1", 3, 13},
           {"[[optimizer.group]]\npattern = \"*\"\nlr_factor = \"half\"\n", "E0203",
            "optimizer.group.lr_factor", "", 3, 13},
           {"[[optimizer.group]]\npattern = \"*\"\nweight_decay = -1\n", "E0204",
            "optimizer.group.weight_decay", "", 3, 16},
           {"[[optimizer.group]]\npattern = 3\n", "E0203", "optimizer.group.pattern", "", 2, 11},
           {"[[optimizer.group]]\npattern = \"*\"\nfrozen = \"yes\"\n", "E0203",
            "optimizer.group.frozen", "set optimizer.group.frozen = true", 3, 10},
           {"[[optimizer.group]]\npattern = \"a\"\n[[optimizer.group]]\nlr_factor = 2\n", "E0206",
            "optimizer.group.pattern", "add pattern = ", 3, 1},
           {"[[optimizer.group]]\npattern = \"\"\n", "E0206", "optimizer.group.pattern", "", 1, 1},
           {"[optimizer.group]\npattern = \"*\"\n", "E0203", "optimizer.group",
            "write [[optimizer.group]]", 1, 1},
           {"[optimizer]\ngroup = true\n", "E0203", "optimizer.group", "write [[optimizer.group]]",
            2, 9},
           {"[optimizer]\ngroup = [1]\n", "E0203", "optimizer.group", "write [[optimizer.group]]",
            2, 10},
           {"[optimizer]\nno_decay = \"norms\"\n", "E0205", "optimizer.no_decay", "", 2, 12},
       }) {
    INFO(std::string(row.group));
    const Error error = only_error(load(row.group));
    CHECK_MESSAGE(code_string(error.code()) == row.code, error.what());
    CHECK(error.key() == row.key);
    CHECK(error.origin().file == "job.toml");
    CHECK(error.origin().line == row.line);
    CHECK(error.origin().column == row.column);
    const std::vector<std::string>& helps = error.helps();
    if (*row.help != '\0') CHECK_MESSAGE(says(helps, row.help), (helps.empty() ? "" : helps[0]));
  }
}

TEST_CASE("what a frozen group would not use is told, and so is no_decay without decay") {
  const Loaded l = load(
      "[[optimizer.group]]\npattern = \"a\"\nfrozen = true\nlr_factor = 2\n"
      "[[optimizer.group]]\npattern = \"b\"\nlr_factor = 2\n");
  REQUIRE(l.diagnostics.ok());
  CHECK(l.diagnostics.notices() ==
        std::vector<std::string>{
            "optimizer.group.lr_factor of \"a\" has no effect with frozen = true"});
  CHECK(says(load("[optimizer]\nweight_decay = 0\nno_decay = \"norms_and_biases\"\n")
                 .diagnostics.notices(),
             "optimizer.no_decay has no effect with optimizer.weight_decay = 0"));
}

TEST_CASE("groups are shown, and read back to the same values without a word") {
  const Loaded l = load(kTwo);
  const std::string text = show_toml(l.config);
  CHECK(text.find("[[optimizer.group]]\npattern = \"model.embed_tokens.*\"") != std::string::npos);
  CHECK(text.find("# job.toml:6") != std::string::npos);
  const Loaded again = load(text);
  for (const Error& error : again.diagnostics.errors()) MESSAGE(error.what());
  REQUIRE(again.diagnostics.ok());
  CHECK(again.diagnostics.notices().empty());
  const std::vector<Options>&one = l.config.list("optimizer.group"),
        &two = again.config.list("optimizer.group");
  REQUIRE(one.size() == two.size());
  for (size_t i = 0; i < one.size(); ++i)
    for (const meshwright_option* option : one[i].schema().options)
      CHECK(to_toml(one[i].value(option->name)) == to_toml(two[i].value(option->name)));
  const boost::json::value shown = show_json(l.config);
  const boost::json::value& first = shown.at("optimizer.group").at(0).at("lr_factor");
  CHECK(first.at("value") == 0.1);
  CHECK(first.at("line") == 6);
}

TEST_CASE("groups that differ are one difference") {
  Diagnostics ignored;
  auto settings = [&](const std::string& text) {
    return settings_of(show_toml(load(text).config), "x", ignored);
  };
  const std::vector<Difference> found = differences(
      {settings(""), settings("[[optimizer.group]]\npattern = \"a\"\nfrozen = true\n")});
  REQUIRE(found.size() == 1);
  CHECK(found[0].key == "optimizer.group");
  CHECK(found[0].values[0].empty());
  CHECK(found[0].values[1].find("pattern = \"a\"") != std::string::npos);
  CHECK(differences({settings(kTwo), settings(kTwo)}).empty());
}

TEST_CASE("schema, explanations and search know the keys of groups") {
  const boost::json::value schema = json_schema({});
  const boost::json::value& group = schema.at_pointer("/properties/optimizer/properties/group");
  CHECK(group.at("type") == "array");
  const boost::json::object& item = group.at("items").as_object();
  CHECK(item.at("additionalProperties") == false);
  CHECK(item.at("required") == boost::json::array{"pattern"});
  for (const char* key : {"pattern", "lr_factor", "weight_decay", "frozen"})
    CHECK(item.at("properties").as_object().contains(key));
  CHECK(explain("optimizer.group", {}).rfind("[[optimizer.group]]", 0) == 0);
  CHECK(explain("optimizer.group.frozen", {}).find("[[optimizer.group]]\n  frozen = false") !=
        std::string::npos);
  CHECK(explain("", {}).find("[[optimizer.group]]") != std::string::npos);
  CHECK(search_options("frozen", {}).keys.at(0).key == "optimizer.group.frozen");
}

}  // namespace groups_test
