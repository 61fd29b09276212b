// Conversations as prompts: the ids of transformers, what ends a turn, and what is refused.
#include "apps/inference/chat_format.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>

#include "apps/inference/ask.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "tests/contents.h"

namespace chat_format_test {

namespace fs = std::filesystem;
namespace json = boost::json;
using namespace meshwright;
using generate::ChatFormat;
using generate::Conversation;
using generate::Source;

namespace {

const std::string kRoot = MESHWRIGHT_SOURCE_DIR;

struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_inference_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path put(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    base::write_durably(path / name, text);
    return path / name;
  }
};

json::value golden() { return json::parse(contents(kRoot + "/tests/data/generate/chat.json")); }

// The folder that a row of the goldens is of, with its tokenizer and template.
Source source_of(const Folder& folder, const json::value& row) {
  const std::string name(row.at("template").as_string());
  if (name == "chat-tiny") {
    const std::string from = kRoot + "/configs/models/chat-tiny/";
    for (const char* file : {"tokenizer.json", "chat_template.jinja", "tokenizer_config.json"})
      folder.put(name + "/" + file, contents(from + file));
  } else {
    const json::value templates =
        json::parse(contents(kRoot + "/sdk/text/chat/tests/chat-golden.json"));
    json::object config;
    for (const char* token : {"bos_token", "eos_token"})
      if (const json::value* text = row.as_object().if_contains(token)) config[token] = *text;
    config["chat_template"] = templates.at("templates").at(name).at("source");
    folder.put(name + "/tokenizer_config.json", json::serialize(config));
    folder.put(name + "/tokenizer.json",
               contents(kRoot + "/tests/data/tokenizers/" +
                        std::string(row.at("tokenizer").as_string()) + ".json"));
  }
  return Source::of_model(folder.path / name / "config.json", 4000, false);
}

Conversation conversation_of(const json::value& messages) {
  Conversation out;
  out.messages = chat::parse_json(json::serialize(messages));
  return out;
}

// "CODE message | help | ..."
std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    std::string out = code_string(error.code()) + " " + error.message();
    for (const std::string& help : error.helps()) out += " | " + help;
    return out;
  }
  return "nothing";
}
bool says(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) MESSAGE(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("prompts of conversations have the ids of transformers, and end where a turn ends") {
  const Folder folder;
  const json::value all = golden();
  for (const json::value& row : all.at("rows").as_array()) {
    const std::string name(row.at("template").as_string());
    CAPTURE(name);
    const Source source = source_of(folder, row);
    const ChatFormat format(source, std::nullopt, std::nullopt);
    const std::vector<int64_t> ids = format.prompt(conversation_of(row.at("messages")));
    CHECK(json::serialize(json::array(ids.begin(), ids.end())) == json::serialize(row.at("ids")));
    CHECK(format.end_of_turn() == row.at("end_of_turn").as_int64());
  }
}

TEST_CASE("what looks like a special token in a message is text") {
  const Folder folder;
  const Source source = source_of(folder, golden().at("rows").at(0));
  const ChatFormat format(source, std::nullopt, std::nullopt);
  const std::vector<int64_t> ids = format.prompt(
      conversation_of(json::parse(R"([{"role": "user", "content": "a<|im_end|>b"}])")));
  CHECK(std::ranges::count(ids, 258) == 1);  // the template's own
  CHECK(std::ranges::count(ids, 257) == 2);
}

TEST_CASE("ids that end an answer: --stop alone, or the folder's and the end of a turn") {
  const Folder folder;
  const Source source = source_of(folder, golden().at("rows").at(0));
  folder.put("chat-tiny/config.json", "{}");
  const ChatFormat format(source, std::nullopt, std::nullopt);
  generate::Request request;
  CHECK(format.stops(source, request) == std::vector<int64_t>{258});
  folder.put("chat-tiny/generation_config.json", R"({"eos_token_id": [256, 258]})");
  CHECK(format.stops(source, request) == std::vector<int64_t>{256, 258});
  folder.put("chat-tiny/generation_config.json", R"({"eos_token_id": 7})");
  CHECK(format.stops(source, request) == std::vector<int64_t>{7, 258});
  request.stop = "3,4";
  CHECK(format.stops(source, request) == std::vector<int64_t>{3, 4});
  request.stop = "none";
  CHECK(format.stops(source, request).empty());
}

TEST_CASE("a folder without a template says so, and takes one that is named, or its adapter's") {
  const Folder folder;
  const Source whole = source_of(folder, golden().at("rows").at(0));
  folder.put("bare/tokenizer.json", contents(folder.path / "chat-tiny/tokenizer.json"));
  const Source bare = Source::of_model(folder.path / "bare/config.json", 4000, false);
  const std::string none = refused([&] { ChatFormat(bare, std::nullopt, std::nullopt); });
  CHECK(says(none, "E0710"));
  CHECK(says(none, "bare has no chat template"));
  CHECK(says(none, "--prompt 'Once upon a time'"));
  CHECK(says(none, "--chat-template chatml"));
  const Conversation one = conversation_of(json::parse(R"([{"role": "user", "content": "a"}])"));
  const std::vector<int64_t> ids = ChatFormat(whole, std::nullopt, std::nullopt).prompt(one);
  CHECK(ChatFormat(bare, "chatml", std::nullopt).prompt(one) == ids);
  CHECK(ChatFormat(bare, (folder.path / "chat-tiny/chat_template.jinja").string(), std::nullopt)
            .prompt(one) == ids);
  CHECK(ChatFormat(bare, std::nullopt, (folder.path / "chat-tiny").string()).prompt(one) == ids);
  CHECK(says(refused([&] { ChatFormat(bare, "alpaca", std::nullopt); }), "\"alpaca\""));
  const Source bytes = Source::of_model(folder.path / "bare/config.json", 256, true);
  CHECK(says(refused([&] { ChatFormat(bytes, "chatml", std::nullopt); }), "needs a tokenizer"));
  const Source small = Source::of_model(folder.path / "chat-tiny/config.json", 200, false);
  CHECK(says(refused([&] { ChatFormat(small, std::nullopt, std::nullopt).prompt(one); }),
             "the model's vocabulary has 200 entries"));
}

TEST_CASE("roles that neither chats nor the template know are refused with what may be meant") {
  const Folder folder;
  const Source source = source_of(folder, golden().at("rows").at(0));
  const ChatFormat format(source, std::nullopt, std::nullopt);
  auto of_role = [&](const std::string& role) {
    return refused([&] {
      format.prompt(conversation_of(
          json::value{{{"role", role}, {"content", "x"}}, {{"role", "user"}, {"content", "y"}}}));
    });
  };
  CHECK(of_role("developer") == "nothing");
  CHECK(says(of_role("asistant"), "did you mean \"assistant\"?"));
  CHECK(says(of_role("human"), "did you mean \"user\"?"));
  CHECK(says(of_role("narrator"), "know the role \"narrator\""));
}

TEST_CASE("files of messages are read, and refused with their place") {
  const Folder folder;
  auto read = [&](const std::string& text) {
    return refused([&] { generate::parse_messages(text, "messages.json"); });
  };
  const std::string good = R"([{"role": "user", "content": "a"}])";
  CHECK(read(good) == "nothing");
  CHECK(read(R"({"messages": )" + good + R"(, "tools": [{"name": "f"}]})") == "nothing");
  CHECK(read(R"([{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": null}])") ==
        "nothing");
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "the file is empty"},
           {" \n", "the file is empty"},
           {"[", "messages.json: 1:2"},
           {"[]", "there is no message"},
           {"\"a\"", "it holds a string, no list of messages"},
           {"{}", "it holds an object without \"messages\""},
           {R"({"messages": 1})", "it holds a number"},
           {R"({"messages": [], "tools": 1})", "\"tools\" is a number"},
           {"[1]", "message 0: is a number, no object"},
           {R"([{"content": "a"}])", "message 0: has no \"role\""},
           {R"([{"role": 1, "content": "a"}])", "message 0: \"role\" is no name"},
           {R"([{"role": "a b", "content": "a"}])", "\"role\" is no name"},
           {R"([{"role": "user"}])", "message 0: has no \"content\""},
           {R"([{"role": "user", "content": 1}])", "\"content\" is a number, no string"},
           {R"([{"role": "assistant", "content": "a"}])", "nothing asks for an answer"}})
    CHECK(says(read(text), part));
}

TEST_CASE("a conversation takes what generation_config.json says, unless the user says otherwise") {
  const Folder folder;
  const Source source = source_of(folder, golden().at("rows").at(0));
  auto taken = [&](const std::string& text, generate::Ask& ask, bool conversation) {
    folder.put("chat-tiny/generation_config.json", text);
    return generate::take_generation_config(source, ask, conversation);
  };
  const std::string all =
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
          "repetition_penalty": 1.05})";
  generate::Ask ask;
  CHECK(says(taken(all, ask, true),
             "--temperature 0.6 --top-k 20 --top-p 0.95 --min-p 0.1 --repetition-penalty 1.05"));
  CHECK(ask.temperature == 0.6);
  CHECK(ask.top_k == 20);
  CHECK(ask.top_p == 0.95);
  CHECK(ask.min_p == 0.1);
  CHECK(ask.repetition_penalty == 1.05);
  generate::Ask given;
  given.given = {"temperature", "top-k"};
  CHECK(says(taken(all, given, true), ": --top-p 0.95"));
  CHECK(given.temperature == 0.7);
  CHECK(given.top_k == 0);
  generate::Ask text;
  CHECK(says(taken(all, text, false), "which conversations take"));
  CHECK(text.temperature == 0.7);
  generate::Ask greedy;
  CHECK(
      says(taken(R"({"do_sample": false, "temperature": 0.6})", greedy, true), "--temperature 0"));
  CHECK(greedy.temperature == 0);
  generate::Ask none;
  CHECK(taken(R"({"eos_token_id": 2})", none, true).empty());
  CHECK(says(refused([&] { taken(R"({"top_p": 2})", none, true); }), "generation_config.json"));
}

}  // namespace chat_format_test
