// config.json as authors of models read it: fields, defaults, and where a mistake is.
#include "meshwright/model/config_json.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/handed_files.h"

namespace config_json_test {

using namespace meshwright;

namespace {

ConfigJson parse(const std::string& text) { return ConfigJson::parse(text, "config.json"); }

// What it throws, its code first.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.key() == "model.config");
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("config.json: fields are typed, and absent ones have the default") {
  const ConfigJson config = parse(
      R"({"width": 64, "eps": 1e-5, "tied": true, "act": "gelu", "none": null,
          "sizes": [1, 2], "names": ["a"], "inner": {"width": 8, "deep": {"x": 0.5}}})");
  CHECK(config.integer("width", 1, 100) == 64);
  CHECK(config.integer("none", 1, 100, 7) == 7);
  CHECK(config.integer("absent", 1, 100, 8) == 8);
  CHECK(config.number("eps", 0, 1) == 1e-5);
  CHECK(config.number("width", 0, 100) == 64);
  CHECK(config.boolean("tied", false));
  CHECK(config.string("act", "silu") == "gelu");
  CHECK(config.string("absent", "silu") == "silu");
  CHECK(config.integers("sizes", 0, 9) == std::vector<int64_t>{1, 2});
  CHECK(config.numbers("sizes", 0, 9) == std::vector<double>{1, 2});
  CHECK(config.strings("names") == std::vector<std::string>{"a"});
  CHECK(config.strings("absent").empty());
  CHECK(config.is_null("none"));
  CHECK(!config.has("none"));
  CHECK(!config.is_null("absent"));
  CHECK(config.is_list("sizes"));
  // A copy outlives what it is a part of.
  ConfigJson deep = ConfigJson(config.object("inner").object("deep"));
  CHECK(deep.number("x", 0, 1) == 0.5);
}

TEST_CASE("config.json: a mistake is told by file, field and line") {
  const ConfigJson config = parse(
      "{\n  \"width\": \"wide\",\n  \"list\": [{\"eps\": 3}, \"eps\"],\n  \"inner\": {\n"
      "    \"width\": true,\n    \"eps\": 7\n  },\n  \"eps\": 2, \"tied\": 1\n}");
  const auto code = [](ErrorCode c) { return "error[" + code_string(c) + "]: "; };
  const std::string bad = code(ErrorCode::bad_model_config);
  CHECK(refusal([&] { config.integer("width", 1, 9); }) ==
        bad + "config.json: width must be a whole number, found \"wide\" (line 2)");
  CHECK(refusal([&] { config.number("eps", 0, 1); }) ==
        bad + "config.json: eps = 2 is out of range (0 to 1) (line 8)");
  CHECK(refusal([&] { config.boolean("tied", true); }) ==
        bad + "config.json: tied must be true or false, found 1 (line 8)");
  CHECK(refusal([&] { config.object("inner").integer("width", 1, 9); }) ==
        bad + "config.json: inner: width must be a whole number, found true (line 5)");
  CHECK(refusal([&] { config.object("inner").number("eps", 0, 1); }) ==
        bad + "config.json: inner: eps = 7 is out of range (0 to 1) (line 6)");
  CHECK(refusal([&] { config.strings("list"); }) ==
        bad + "config.json: list must be a list of strings (line 3)");
  CHECK(refusal([&] { config.integer("heads", 1, 9); }) == bad + "config.json: heads is missing");
  CHECK(refusal([&] { config.refuse("width", "is no multiple of heads"); }) ==
        bad + "config.json: width is no multiple of heads (line 2)");
  CHECK(refusal([&] { parse("{\n\"a\": }"); }).find("at line 2, column 6") != std::string::npos);
  CHECK(refusal([&] { parse("[1]"); }) == bad + "config.json holds no JSON object");
}

TEST_CASE("config.json: a field that the model does not have is refused, with the one meant") {
  const ConfigJson config = parse(
      "{\"model_type\": \"mine\", \"torch_dtype\": \"bfloat16\", \"hidden_size\": 8,\n"
      "\"norm_epss\": 1}");
  config.expect_only({"hidden_size", "norm_epss"});
  const std::string said = refusal([&] { config.expect_only({"hidden_size", "norm_eps"}); });
  CHECK(said.find("norm_epss is no field of this model; did you mean norm_eps? (line 2)") !=
        std::string::npos);
}

TEST_CASE("config.json: a file or its folder is read, and none is told with what to set") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "meshwright_config_json_test";
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << "{\"width\": 3}";
  CHECK(ConfigJson::read(folder.string()).integer("width", 1, 9) == 3);
  CHECK(ConfigJson::read((folder / "config.json").string()).name() ==
        (folder / "config.json").string());
  // What the run began with counts, whatever becomes of the file and its folder.
  base::hand_files({{(folder / "config.json").string(), "{\"width\": 5}"}});
  CHECK(ConfigJson::read(folder.string()).integer("width", 1, 9) == 5);
  fs::remove_all(folder);
  CHECK(ConfigJson::read(folder.string()).integer("width", 1, 9) == 5);
  CHECK(ConfigJson::read((folder / "config.json").string()).integer("width", 1, 9) == 5);
  base::hand_files({});
  CHECK(refusal([&] { ConfigJson::read(folder.string()); }).find("no such file") !=
        std::string::npos);
  CHECK(refusal([] { ConfigJson::read(""); }).find("needs the config.json") != std::string::npos);
}

TEST_CASE("config.json: rotary embeddings of a family that is not built in") {
  const auto one = [](const std::string& text) { return read_ropes(parse(text), 8, 512).at(0); };
  CHECK(one("{}").type == RopeType::standard);
  CHECK(one("{}").theta == 1e4);
  CHECK(one("{}").dim == 8);
  CHECK(one("{}").max_positions == 512);
  CHECK(one(R"({"partial_rotary_factor": 0.5, "rope_theta": 500})").dim == 4);
  // transformers' Llama pays no heed to it.
  CHECK(read_ropes(parse(R"({"partial_rotary_factor": 0.5})"), 8, 512, "llama").at(0).dim == 8);
  const RopeConfig scaled = one(
      R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4, "original_max_position_embeddings": 64}})");
  CHECK(scaled.type == RopeType::llama3);
  CHECK(scaled.factor == 8);
  CHECK(scaled.original_positions == 64);
  CHECK(refusal([&] {
          one(R"({"rope_scaling": {"rope_type": "spiral"}})");
        }).find("those that run are default, linear, dynamic, llama3 and yarn") !=
        std::string::npos);
}

}  // namespace config_json_test
