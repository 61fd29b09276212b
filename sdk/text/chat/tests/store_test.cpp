#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "meshwright/error.h"
#include "sdk/text/chat/store.h"

namespace store_test {

using namespace meshwright;
using namespace meshwright::chat;
namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "meshwright_chat_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
  }
};

std::string refusal(const auto& doing) {
  try {
    doing();
  } catch (const Error& error) {
    return error.code() == ErrorCode::bad_template ? error.message() : "another code";
  }
  return "";
}

TEST_CASE("a template of the folder's own file hides that of the configuration") {
  Folder folder;
  folder.put("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": true}, "pad_token": null, "add_bos_token": true})");
  Store config = Store::read(folder.path);
  CHECK(config.choose(true).text() == "config");
  CHECK(config.special_tokens() == std::vector<std::pair<std::string, std::string>>{
                                       {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  folder.put("chat_template.jinja", "file");
  CHECK(Store::read(folder.path).choose(false).text() == "file");
  CHECK(Store::read(folder.path).names() == std::vector<std::string>{"default"});
  folder.put("additional_chat_templates/tool_use.jinja", "tools");
  folder.put("additional_chat_templates/rag.jinja", "{% broken");
  Store several = Store::read(folder.path);
  CHECK(several.names() == std::vector<std::string>{"default", "rag", "tool_use"});
  CHECK(several.texts() == std::vector<std::pair<std::string, std::string>>{
                               {"default", "file"}, {"rag", "{% broken"}, {"tool_use", "tools"}});
  CHECK(several.choose(true).text() == "tools");
  CHECK(several.choose(false).text() == "file");
  // One that is broken is an error once it is wanted.
  Store broken = Store::open(folder.path, "rag");
  CHECK(refusal([&] { broken.choose(false); }).find("rag.jinja:1:") != std::string::npos);
}

TEST_CASE("a list of templates: tool_use, default, or an error with the names") {
  Folder folder;
  folder.put(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  CHECK(Store::read(folder.path).choose(true).text() == "t");
  CHECK(Store::read(folder.path).choose(false).text() == "d");
  folder.put(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "a", "template": "1"}, {"name": "b", "template": "2"}]})");
  CHECK(refusal([&] { Store::read(folder.path).choose(false); }).find("\"a\", \"b\"") !=
        std::string::npos);
  CHECK(Store::open(folder.path, "b").choose(true).text() == "2");
  folder.put("tokenizer_config.json", R"({"chat_template": [{"name": "only", "template": "1"}]})");
  CHECK(Store::read(folder.path).choose(true).text() == "1");
  folder.put("tokenizer_config.json", R"({"chat_template": [1]})");
  CHECK(refusal([&] { Store::read(folder.path); }).find("must be a string or a list") !=
        std::string::npos);
  folder.put("tokenizer_config.json", "{");
  CHECK(refusal([&] { Store::read(folder.path); }).find("not valid JSON") != std::string::npos);
}

TEST_CASE("the help names the setting by its full name") {
  Folder folder;
  auto help = [&](const std::string& requested) {
    try {
      Store::open(folder.path, requested, "dataset.mine.chat_template").choose(false);
    } catch (const Error& error) {
      CHECK(error.key() == "dataset.mine.chat_template");
      return error.helps().at(0);
    }
    return std::string("nothing");
  };
  CHECK(help("") == "set dataset.mine.chat_template to a file, or to \"chatml\"");
  CHECK(help("other") == "set dataset.mine.chat_template = \"chatml\"");
  folder.put("additional_chat_templates/a.jinja", "1");
  folder.put("additional_chat_templates/b.jinja", "2");
  CHECK(help("") == "set dataset.mine.chat_template to one of them");
}

TEST_CASE("what is asked for: a file, a name, or chatml") {
  Folder folder;
  CHECK(Store::read(folder.path).empty());
  CHECK(refusal([&] { Store::read(folder.path).choose(false); }).find("has no chat template") !=
        std::string::npos);
  folder.put("mine.jinja", "mine");
  CHECK(Store::open(folder.path, (folder.path / "mine.jinja").string()).choose(true).text() ==
        "mine");
  CHECK(Store::open(folder.path, "chatml").choose(true).text() == chatml());
  CHECK(refusal([&] { Store::open(folder.path, "other"); }).find("there are \"chatml\"") !=
        std::string::npos);
  CHECK(Store::of_text("x", "here").choose(false).name() == "here");
}

}  // namespace store_test
