// Model families and kinds of data sets: found by name, judged and made as strategies are.
#include "engine/plugins/tests/fixtures.h"

namespace meshwright::loader::test {
namespace components_test {

SearchPath only(const std::string& name) {
  SearchPath search = nowhere();
  search.files = {fixture(name)};
  return search;
}

TEST_CASE("a plugin without strategies brings a model and data sets, found by name and alias") {
  Registry registry(only("components"));
  LoadedModel model = registry.find_model("fixture_model");
  CHECK(model.info->schema.table == "model.fixture_model");
  CHECK(model.plugin->strategies.empty());
  CHECK(model.plugin->datasets.size() == 2);
  CHECK(registry.find_model("Fixture-Net").made == model.made);
  ModelRequest request;
  request.options = Options(model.info->schema);
  request.options.set("width", int64_t{6});
  const ModelOutline outline = model.made->outline(request);
  CHECK(outline.parameters.at(0).shape == std::vector<int64_t>{6, 4});
  CHECK(outline.initial_value(outline.parameters[0].name).value == 0.02);

  // A data set may have a model's name.
  LoadedDataset data = registry.find_dataset("fixture_model", "validation_dataset.plugin");
  CHECK(data.info->schema.table == "dataset.fixture_model");
  CHECK(data.made->open({})->samples() == 3);
}

TEST_CASE(
    "a name that no plugin has is told with the key, where it was looked for, and the nearest") {
  Registry registry(only("components"));
  Error error =
      error_of([&] { registry.find_dataset("fixture_dta", "validation_dataset.plugin"); });
  CHECK(error.code() == ErrorCode::plugin_not_found);
  CHECK(error.key() == "validation_dataset.plugin");
  CHECK(error.message().find("no plugin has a data set \"fixture_dta\"") == 0);
  REQUIRE(error.helps().size() == 3);
  CHECK(error.helps()[0] == "set validation_dataset.plugin = \"fixture_data\"");
  CHECK(error.helps()[1] == "data sets that were found: fixture_data, fixture_model");
  CHECK(error_of([&] { registry.find("fixture_model"); }).code() == ErrorCode::plugin_not_found);
}

TEST_CASE("every wrong component has its own words") {
  struct Row {
    const char* name;
    ErrorCode code;
    const char* says;
  };
  for (const Row& row :
       {Row{"components_no_create", ErrorCode::plugin_bad_descriptor,
            "model fixture_model has no create or destroy function"},
        Row{"components_odd", ErrorCode::plugin_bad_descriptor, "a model's struct says"},
        Row{"components_unlisted", ErrorCode::plugin_bad_descriptor,
            "model fixture_other is not among the MODELS given to meshwright_add_plugin()"},
        Row{"components_twins", ErrorCode::plugin_bad_descriptor,
            "two data sets named fixture_data"},
        Row{"components_throw", ErrorCode::plugin_create_failed,
            "model fixture_model of fixture_components_throw 1.0.0"}}) {
    const std::string name = row.name;
    CAPTURE(name);
    Error error = error_of([&] { Registry(only(name)).find_model("fixture_model"); });
    INFO(error.what());
    CHECK(code_string(error.code()) == code_string(row.code));
    CHECK(error.message().find(row.says) != std::string::npos);
  }
}

}  // namespace components_test
}  // namespace meshwright::loader::test
