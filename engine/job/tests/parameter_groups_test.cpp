// Which rule each parameter is updated by: the first group that matches, then no_decay.
#include "engine/job/parameter_groups.h"

#include "engine/job/tests/configured.h"

namespace plan_groups_test {

using namespace meshwright;
using plan::ParameterGroups;
using plan::UpdateRule;

namespace {

config::Config config_of(const std::string& text) { return plan::job_of(text).config; }

ModelOutline small() {
  ModelOutline out;
  out.architecture = "Small";
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"model.embed_tokens.weight", {8, 4}},
           {"model.layers.0.mlp.up_proj.weight", {6, 4}},
           {"model.layers.0.mlp.up_proj.bias", {6}},
           {"model.layers.10.mlp.up_proj.weight", {6, 4}},
           {"model.norm.weight", {4}},
           {"scale", {}}})
    out.parameters.push_back({.name = name, .shape = shape});
  return out;
}

struct Made {
  ParameterGroups groups;
  ModelOutline outline = small();
  std::vector<std::string> warnings;
  // "factor decay", or "frozen".
  std::string of(const std::string& name) const {
    const ParameterOutline* found = outline.find_parameter(name);
    REQUIRE(found != nullptr);
    if (!found->trainable) return "frozen";
    const UpdateRule& rule = groups.rules.at(groups.rule_of.at(name));
    return to_toml(rule.lr_factor) + " " + to_toml(rule.weight_decay);
  }
};

Made made(const std::string& text) {
  Made out;
  out.groups = plan::group_parameters(config_of(text), out.outline, out.warnings);
  return out;
}

std::string group(const std::string& keys) { return "[[optimizer.group]]\n" + keys + "\n"; }

}  // namespace

TEST_CASE("without groups all parameters are updated alike") {
  const Made m = made("[optimizer]\nweight_decay = 0.3\n");
  REQUIRE(m.groups.rules.size() == 1);
  CHECK(m.groups.rules[0] == UpdateRule{1, 0.3});
  CHECK(m.groups.rule_of.size() == 6);
  CHECK(m.groups.frozen.empty());
  CHECK(m.warnings.empty());
}

TEST_CASE("the first group that matches counts, and a group's own decay comes before no_decay") {
  const Made m = made("[optimizer]\nweight_decay = 0.3\nno_decay = \"norms_and_biases\"\n" +
                      group("pattern = \"*.0.*weight\"\nlr_factor = 0.5") +
                      group("pattern = \"model.layers.?.*\"\nlr_factor = 2\nweight_decay = 0.7") +
                      group("pattern = \"model.layers.*\"\nfrozen = true") +
                      group("pattern = \"model.norm.*\"\nlr_factor = 3"));
  CHECK(m.of("model.embed_tokens.weight") == "1 0.3");
  CHECK(m.of("model.layers.0.mlp.up_proj.weight") == "0.5 0.3");
  CHECK(m.of("model.layers.0.mlp.up_proj.bias") == "2 0.7");
  CHECK(m.of("model.layers.10.mlp.up_proj.weight") == "frozen");
  CHECK(m.of("model.norm.weight") == "3 0");
  CHECK(m.of("scale") == "1 0");
  CHECK(m.groups.frozen == std::vector<std::string>{"model.layers.10.mlp.up_proj.weight"});
  CHECK(m.warnings.empty());
}

TEST_CASE("a group of no parameter is warned of, by what is wrong with it") {
  const Made m = made(group("pattern = \"model.norm.weigth\"") + group("pattern = \"*\"") +
                      group("pattern = \"*.bias\"\nfrozen = true"));
  REQUIRE(m.warnings.size() == 2);
  CHECK(m.warnings[0] ==
        "[[optimizer.group]] with pattern = \"model.norm.weigth\" (line 2) has no effect: no "
        "parameter of Small has such a name; did you mean model.norm.weight?");
  CHECK(m.warnings[1] ==
        "[[optimizer.group]] with pattern = \"*.bias\" (line 6) has no effect: groups before it "
        "match all of its 1 parameter, and the first one counts");
  CHECK(m.of("model.layers.0.mlp.up_proj.bias") == "1 0.1");
}

TEST_CASE("a pattern that is nearly right is told what is meant, any other what names are like") {
  for (const auto& [pattern, meant] : std::vector<std::pair<std::string, std::string>>{
           {"model.embed_tokens", "did you mean model.embed_tokens.*?"},
           {"embed_tokens.*", "did you mean *.embed_tokens.*?"},
           {"mlp", "did you mean *.mlp.*?"},
           {"model.layer.0.*", "did you mean model.layers.0.*?"},
           {"model.layer.*.mlp.*", "did you mean model.layers.*.mlp.*?"},
           {"*.0.mpl.*", "did you mean *.0.mlp.*?"},
           {"*.up_prj.weight", "did you mean *.up_proj.weight?"},
           {"encoder.block.*",
            "names are like model.layers.10.mlp.up_proj.weight, and "
            "`meshwright plan --json` lists them"}}) {
    CAPTURE(pattern);
    const Made m = made(group("pattern = \"" + pattern + "\"\nlr_factor = 2"));
    REQUIRE(m.warnings.size() == 1);
    const std::string end = "has such a name; " + meant;
    CHECK_MESSAGE(m.warnings[0].ends_with(end), m.warnings[0]);
  }
}

TEST_CASE("what a model freezes by itself stays frozen, and nothing at all to train is refused") {
  Made m;
  for (ParameterOutline& p : m.outline.parameters) p.trainable = p.name != "scale";
  ModelOutline again = m.outline;
  m.groups = plan::group_parameters(config_of(group("pattern = \"scale\"\nfrozen = false")),
                                    m.outline, m.warnings);
  CHECK(m.of("scale") == "frozen");
  CHECK(m.groups.frozen.empty());
  CHECK_FALSE(m.groups.rule_of.contains("scale"));
  try {
    plan::group_parameters(config_of(group("pattern = \"model.*\"\nfrozen = true")), again,
                           m.warnings);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
    CHECK(error.key() == "optimizer.group.frozen");
    CHECK(error.origin().line == 3);
    REQUIRE(error.helps().size() == 2);
    CHECK(error.helps()[0] == "set frozen = false in the group with pattern = \"model.*\"");
  }
}

}  // namespace plan_groups_test
