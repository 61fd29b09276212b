// tokenizer_config.json, as it should be and as it should not.
#include "sdk/tokenizer/tokenizer_config.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "meshwright/error.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::tokenizer;

namespace tokenizer_config_test {

// Empty: it was read.
std::string failure(const std::string& text) {
  try {
    parse_tokenizer_config(text, "tokenizer_config.json");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_tokenizer);
    CHECK(!error.helps().empty());
    return error.message();
  }
  return "";
}

}  // namespace tokenizer_config_test

using namespace tokenizer_config_test;

TEST_CASE("special tokens and templates are read in each of their forms") {
  TokenizerConfig config = parse_tokenizer_config(R"({
    "add_bos_token": false, "model_max_length": 131072, "clean_up_tokenization_spaces": false,
    "added_tokens_decoder": {"7": {"content": "<x>", "special": true}},
    "bos_token": null, "eos_token": "<|im_end|>", "pad_token": {"content": "<pad>", "lstrip": true},
    "image_token": "<|image|>", "add_eos_token": true,
    "additional_special_tokens": ["<a>", {"content": "<b>"}],
    "chat_template": "{{ messages }}"})",
                                                  "x");
  CHECK(config.special_tokens == std::map<std::string, std::string>{{"eos_token", "<|im_end|>"},
                                                                    {"pad_token", "<pad>"},
                                                                    {"image_token", "<|image|>"}});
  CHECK(config.special_token("eos_token") == "<|im_end|>");
  CHECK(!config.special_token("bos_token"));
  CHECK(config.additional_special_tokens == std::vector<std::string>{"<a>", "<b>"});
  REQUIRE(config.chat_templates.size() == 1);
  CHECK(config.chat_templates[0].name == "default");
  REQUIRE(config.chat_template() != nullptr);
  CHECK(config.chat_template()->text == "{{ messages }}");
  CHECK(config.chat_template("tool_use") == nullptr);

  config = parse_tokenizer_config(
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"template": "D", "name": "default"}]})",
      "x");
  REQUIRE(config.chat_templates.size() == 2);
  CHECK(config.chat_templates[0].name == "tool_use");
  CHECK(config.chat_template("tool_use")->text == "T");
  CHECK(config.chat_template()->text == "D");

  config = parse_tokenizer_config(R"({"chat_template": null})", "x");
  CHECK(config.chat_templates.empty());
  CHECK(config.special_tokens.empty());
  CHECK(config.chat_template() == nullptr);
}

TEST_CASE("what is of the wrong kind is refused, with its place") {
  for (
      const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
          {"", "the file is not valid JSON"},
          {"[]", "the file must be an object, not array"},
          {R"({"eos_token": "a", "eos_token": "b"})", "lists \"eos_token\" twice"},
          {R"({"eos_token": 3})",
           "eos_token must be a string, or an object whose content is one, not int64"},
          {R"({"pad_token": {"lstrip": true}})", "pad_token must be"},
          {R"({"pad_token": {"content": 1}})", "not object without it"},
          {R"({"additional_special_tokens": "a"})",
           "additional_special_tokens must be a list, not string"},
          {R"({"additional_special_tokens": ["a", null]})", "additional_special_tokens[1] must be"},
          {R"({"chat_template": 1})", "chat_template must be a string, or a list"},
          {R"({"chat_template": {"default": "a"}})", "not object"},
          {R"({"chat_template": ["a"]})", "chat_template[0] has no string \"name\""},
          {R"({"chat_template": [{"name": "a"}]})", "chat_template[0] has no string \"template\""},
          {R"({"chat_template": [{"name": "a", "template": "b"}, {"name": "a", "template": "c"}]})",
           "chat_template[1] is called \"a\", as an earlier one"}}) {
    std::string found = failure(text);
    INFO(text, " -> ", found);
    CHECK(found.starts_with("tokenizer_config.json: "));
    CHECK(found.find(part) != std::string::npos);
  }
}

TEST_CASE("a file that is not there is empty, one that cannot be read is not") {
  fs::path folder =
      fs::temp_directory_path() / ("meshwright_tokenizer_config_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  CHECK(read_tokenizer_config(folder / "tokenizer_config.json").special_tokens.empty());
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token": "<s>"})";
  CHECK(read_tokenizer_config(folder / "tokenizer_config.json").special_token("bos_token") ==
        "<s>");
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token": )";
  for (const fs::path& path : {folder / "tokenizer_config.json", folder}) {
    try {
      read_tokenizer_config(path);
      FAIL("read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_tokenizer);
      CHECK(error.message().find(path.string()) != std::string::npos);
    }
  }
  fs::remove_all(folder);
}
