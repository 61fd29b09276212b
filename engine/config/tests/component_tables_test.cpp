// The tables of model families and data sets below [model], [dataset] and [validation_dataset].
#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"

namespace meshwright::config {
namespace component_tables_test {

using testing::Loaded, testing::only_error;

constexpr meshwright_option kWidth[] = {int_option("width", "8", 1, "Rows of its weight.")};

PluginSchemas plugins(bool active) {
  PluginSchemas out;
  for (const char* table : {"model.net", "dataset.rows", "validation_dataset.rows"})
    out.components.push_back({make_schema(table, "x", kWidth), active});
  return out;
}

Loaded load(const std::vector<std::string>& sets, bool active = true) {
  return testing::load("", sets, {plugins(active), ""});
}

TEST_CASE("options of a model and of data stand in tables of their plugins' names") {
  Loaded l = load({"model.plugin=net", "model.net.width=3", "validation_dataset.rows.width=5"});
  REQUIRE(l.diagnostics.ok());
  CHECK(l.config.table("model").get_string("plugin") == "net");
  CHECK(l.config.table("model.net").get_int("width") == 3);
  CHECK(l.config.table("dataset.rows").get_int("width") == 8);
  CHECK(l.config.table("validation_dataset.rows").get_int("width") == 5);
}

TEST_CASE("values and keys in them are checked, also where the plugin is not asked for") {
  for (bool active : {true, false}) {
    CHECK(only_error(load({"model.net.width=0"}, active)).key() == "model.net.width");
    const Error unknown = only_error(load({"dataset.rows.widht=3"}, active));
    CHECK(unknown.code() == ErrorCode::unknown_key);
    CHECK(unknown.helps().at(0) == "did you mean dataset.rows.width?");
  }
}

TEST_CASE("options of data that nothing reads are told") {
  auto notices = [](const char* name, const std::vector<std::string>& sets, bool active) {
    PluginSchemas known;
    for (const std::string table : {"dataset.", "validation_dataset."})
      known.components.push_back({make_schema((table + name).c_str(), "x", kWidth), active});
    Loaded l = testing::load("", sets, {known, ""});
    CHECK(l.diagnostics.ok());
    return std::vector<std::string>(l.diagnostics.notices().begin(), l.diagnostics.notices().end());
  };
  using Lines = std::vector<std::string>;
  CHECK(notices("text", {"dataset.text.width=3"}, false) ==
        Lines{"dataset.text.width has no effect unless dataset.kind = \"text\" is read with a "
              "tokenizer"});
  CHECK(notices("rows", {"validation_dataset.rows.width=3"}, false) ==
        Lines{"validation_dataset.rows.width has no effect without validation_dataset.plugin = "
              "\"rows\""});
  CHECK(notices("text", {"dataset.text.width=3"}, true).empty());
  CHECK(notices("text", {"dataset.text.width=8"}, false).empty());  // the default
  // Nobody knows of a tokenizer in a folder that is not there yet; of bytes everybody does.
  const std::string later = "model.pretrained=/nowhere/at/all", path = "dataset.path=x";
  CHECK(notices("text", {"dataset.text.width=3", path, later}, false).empty());
  CHECK(notices("text", {"dataset.text.width=3", path, "model.pretrained=/"}, false).size() == 1);
  CHECK(notices("text", {"dataset.text.width=3", path, later, "dataset.tokenizer=bytes"}, false)
            .size() == 1);
  CHECK(
      notices("text", {"dataset.text.width=3", path, later, "dataset.kind=tokens"}, false).size() ==
      1);
}

TEST_CASE("a tokenizer that some source of a mix is read by is not told to be without effect") {
  auto notices = [](const std::string& first, const std::string& second,
                    const std::string& more = "") {
    Loaded l = testing::load("[dataset]\ntokenizer = \"t\"\nplugin = \"rows\"\n" + more +
                                 "[[dataset.mix]]\nname = \"a\"\npath = \"a\"\n" + first +
                                 "[[dataset.mix]]\nname = \"b\"\npath = \"b\"\n" + second,
                             {}, {plugins(true), ""});
    CHECK(l.diagnostics.ok());
    return std::vector<std::string>(l.diagnostics.notices().begin(), l.diagnostics.notices().end());
  };
  CHECK(notices("", "kind = \"text\"\n").empty());
  CHECK(notices("", "kind = \"tokens\"\n", "dtype = \"uint16\"\n") ==
        std::vector<std::string>{"dataset.tokenizer has no effect with dataset.plugin"});
  CHECK(notices("", "") ==
        std::vector<std::string>{"dataset.tokenizer has no effect with dataset.plugin"});
  // Texts of the validation take it from [dataset].
  CHECK(notices("", "", "[validation_dataset]\npath = \"v\"\n").empty());
}

constexpr meshwright_option kNames[] = {
    with_flags(option("names", MESHWRIGHT_STRING_MAP, nullptr, "Names."), MESHWRIGHT_OPTIONAL)};

TEST_CASE("a table of strings takes what is written without quotes as its text") {
  PluginSchemas known;
  known.components.push_back({make_schema("dataset.rows", "x", kNames), true});
  auto load = [&](const std::string& set) { return testing::load("", {set}, {known, ""}); };
  auto names = [&](const std::string& set) {
    Loaded l = load(set);
    REQUIRE(l.diagnostics.ok());
    return std::get<StringMap>(l.config.table("dataset.rows").value("names"));
  };
  CHECK(names("dataset.rows.names={a = false, b = 3, c = 1.0, d = 1e-5, e = \"no\"}") ==
        StringMap{{"a", "false"}, {"b", "3"}, {"c", "1.0"}, {"d", "1e-05"}, {"e", "no"}});
  CHECK(names("dataset.rows.names={a = [1, [true, \"x\\\"y\"]], b.c = 2}") ==
        StringMap{{"a", "[1, [true, \"x\\\"y\"]]"}, {"b.c", "2"}});
  CHECK(names("dataset.rows.names.a=false") == StringMap{{"a", "false"}});
  for (const char* bad : {"1979-05-27", "nan", "[{b = 1}]"})
    CHECK(only_error(load("dataset.rows.names={a = " + std::string(bad) + "}")).code() ==
          ErrorCode::wrong_type);
}

TEST_CASE("a table of a plugin that was not found is left out with a warning") {
  Loaded l = load({"model.nett.width=3"});
  REQUIRE(l.diagnostics.ok());
  REQUIRE(l.diagnostics.warnings().size() == 1);
  CHECK(l.diagnostics.warnings()[0].find("[model.nett] belongs to no plugin that was found, and is "
                                         "left out; did you mean [model.net]?") == 0);
  // That the one asked for was not found is an error of its own.
  CHECK(load({"model.plugin=nett", "model.nett.width=3"}).diagnostics.warnings().empty());
}

TEST_CASE("a plugin's name as kind of data is sent to plugin") {
  for (const char* table : {"dataset", "validation_dataset"}) {
    const std::string key = table;
    const Error error = only_error(load({key + ".kind=rows"}));
    CHECK(error.code() == ErrorCode::bad_choice);
    CHECK(error.key() == key + ".kind");
    CHECK(error.helps() ==
          std::vector<std::string>{"set " + key +
                                   ".plugin = \"rows\" in its place: that is a plugin's"});
    // Such a name has the plugins looked through; the engine's own kinds do not.
    auto tables = [&](const std::string& kind) {
      Diagnostics none;
      return Source::load({.file = {}, .sets = {key + ".kind=" + kind}, .environment = {}}, none)
          .component_tables();
    };
    CHECK(tables("rows") == std::vector<std::string>{key + ".rows"});
    CHECK(tables("tokens").empty());
  }
  CHECK(load({"dataset.kind=raws"}).diagnostics.errors().at(0).helps().at(0) ==
        "set dataset.kind = \"text\"");
}

TEST_CASE("a key right in [model] that only a plugin's table has is sent there") {
  CHECK(only_error(load({"model.width=3"})).code() == ErrorCode::unknown_key);
}

TEST_CASE("explain, search and the JSON Schema know their tables") {
  CHECK(explain("model.net.width", plugins(false)).find("Rows of its weight.") !=
        std::string::npos);
  CHECK(is_explained("dataset.rows", plugins(false)));
  const boost::json::object schema = json_schema(plugins(false));
  CHECK(schema.at("properties").at("model").at("properties").as_object().contains("net"));
}

}  // namespace component_tables_test
}  // namespace meshwright::config
