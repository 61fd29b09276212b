// Conversations, as a user has them: `generate --chat` and `--messages`, and `chat` with and
// without a terminal.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <utility>

#include "ran.h"
#include "sdk/text/tokenizer/normalize.h"

namespace chat_test {

namespace {

// The 256 letters and the end of a turn: 257 tokens, as llama_tied_257 has.
std::string letters_and_end() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab[meshwright::tokenizer::letter_of(static_cast<uint8_t>(byte))] = byte;
  return json::serialize(
      json::value{{"version", "1.0"},
                  {"added_tokens",
                   {{{"id", 256},
                     {"content", "<|end|>"},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}}}},
                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}}});
}

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role + ':' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

// As ids with commas.
std::string ids_of(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool end = text.compare(at, 7, "<|end|>") == 0;
    out += (out.empty() ? "" : ",") +
           std::to_string(end ? 256 : static_cast<int>(static_cast<unsigned char>(text[at])));
    at += end ? 6 : 0;
  }
  return out;
}

struct ChatFolder : Folder {
  fs::path model = net("llama_tied_257");
  ChatFolder() {
    put(model / "tokenizer.json", letters_and_end());
    put(model / "chat_template.jinja", kTemplate);
  }
};

json::value made(const std::string& arguments) {
  const Ran ran = run("generate " + arguments + " --json");
  INFO(arguments, "\n", run("generate " + arguments, true).out);
  REQUIRE(ran.status == 0);
  return json::parse(ran.out);
}

std::string text_of(const json::value& made, const char* key) {
  return json::serialize(made.at(key));
}

// `chat` with lines from a file.
Ran talk(const fs::path& model, const std::string& lines, const std::string& more,
         bool errors = false) {
  const fs::path file = model.parent_path() / "lines.txt";
  put(file, lines);
  // What `run` adds is of `exit`, which gives the status of the command before.
  return run("chat " + quoted(model) + " " + more + " < " + quoted(file) +
                 (errors ? " 2>&1" : " 2>/dev/null") + "; exit",
             errors);
}

// `chat` on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::string& arguments) {
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    const std::string command = "cd '" MESHWRIGHT_SOURCE_DIR
                                "' && exec env NO_COLOR=1 TERM=vt100 HOME=/nowhere LC_ALL=C.UTF-8 "
                                "OMP_NUM_THREADS=1 '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " +
                                arguments;
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  void type(const std::string& keys) const {
    REQUIRE(::write(fd_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  // Reads until `part` has come behind what was waited for before; what lies between.
  std::string until(const std::string& part) {
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      if (const size_t at = all_.find(part, read_); at != all_.npos) {
        const std::string out = all_.substr(read_, at - read_);
        read_ = at + part.size();
        return out;
      }
      INFO("waiting for \"", part, "\" in:\n", all_);
      REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::minutes(3));
      if (!more()) FAIL("the program has ended");
    }
  }
  // The exit status, once the program has ended by itself.
  int end() {
    while (more()) {
    }
    int raw = 0;
    ::waitpid(std::exchange(pid_, 0), &raw, 0);
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  }

 private:
  bool more() {
    pollfd one{fd_, POLLIN, 0};
    if (::poll(&one, 1, 1000) <= 0) return true;
    char room[4096];
    const ssize_t n = ::read(fd_, room, sizeof room);
    if (n > 0) all_.append(room, static_cast<size_t>(n));
    return n > 0;
  }
  int fd_ = -1;
  pid_t pid_ = 0;
  std::string all_;
  size_t read_ = 0;
};

}  // namespace

TEST_CASE("--chat, --messages and --system make the prompt of the folder's template") {
  const ChatFolder folder;
  const std::string model = quoted(folder.model), greedy = " --temperature 0 --max-new 12";
  const json::value chat = made(model + " --chat hi" + greedy);
  const std::string prompt = "user:hi<|end|>assistant:";
  CHECK(text_of(chat, "prompt_ids") == "[" + ids_of(prompt) + "]");
  const json::value by_ids = made(model + " --stop none --tokens " + ids_of(prompt) + greedy);
  CHECK(text_of(chat, "new_ids") == text_of(by_ids, "new_ids"));
  // The answer alone is the text, and standard output.
  const std::string answer(chat.at("text").as_string());
  CHECK(run("generate " + model + " --chat hi" + greedy).out == answer + "\n");
  put(folder.path / "messages.json",
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}])");
  const json::value all = made(model + " --system s --messages " +
                               quoted(folder.path / "messages.json") + greedy + " --nproc 2");
  CHECK(text_of(all, "prompt_ids") ==
        "[" + ids_of("system:s<|end|>user:a<|end|>assistant:b<|end|>user:c<|end|>assistant:") +
            "]");
  // generation_config.json is for conversations, and told.
  put(folder.model / "generation_config.json", R"({"do_sample": false, "eos_token_id": 300})");
  CHECK(text_of(made(model + " --chat hi --max-new 12"), "new_ids") == text_of(chat, "new_ids"));
  const Ran told = run("generate " + model + " --chat hi --max-new 2", true);
  CHECK(told.out.find("generation_config.json has it: --temperature 0") != std::string::npos);
}

TEST_CASE("log-probabilities of the tokens stand beside them, of the model's own distribution") {
  const ChatFolder folder;
  const std::string base = quoted(folder.model) + " --prompt abc --stop none --max-new 6 ";
  const json::value greedy = made(base + "--temperature 0");
  REQUIRE(greedy.at("log_probabilities").as_array().size() == 6);
  const json::value one = made(base + "--temperature 3 --top-k 1");
  CHECK(one.at("new_ids") == greedy.at("new_ids"));
  CHECK(one.at("log_probabilities") == greedy.at("log_probabilities"));
  for (const json::value& each : greedy.at("log_probabilities").as_array())
    CHECK(each.to_number<double>() < 0);
}

TEST_CASE("a stop text ends the answer, and is not written, on any number of ranks") {
  const ChatFolder folder;
  const std::string base =
      quoted(folder.model) + " --prompt abc --stop none --temperature 0.9 --max-new 60 ";
  const json::value whole = made(base);
  const std::string text(whole.at("text").as_string());
  // Two characters of the middle that stand nowhere before.
  std::string stop;
  for (size_t at = 8; at + 2 < text.size() && stop.empty(); ++at)
    if ((text[at] & 0x80) == 0 && (text[at + 1] & 0x80) == 0 && text[at] > ' ' &&
        text[at + 1] > ' ' && text[at] != '\'' && text[at + 1] != '\'' &&
        text.find(text.substr(at, 2)) == at)
      stop = text.substr(at, 2);
  REQUIRE(!stop.empty());
  const std::string before = text.substr(0, text.find(stop));
  for (const char* ranks : {"", " --nproc 2"}) {
    const json::value cut = made(base + "--stop-text nowhere --stop-text '" + stop + "'" + ranks);
    CHECK(std::string(cut.at("text").as_string()) == before);
    CHECK(cut.at("stopped").as_string() == "stop_text");
    CHECK(std::string(cut.at("stop_text").as_string()) == stop);
    CHECK(cut.at("new_ids").as_array().size() < 60);
  }
  CHECK(run("generate " + base + "--stop-text '" + stop + "'").out == before + "\n");
  // What waits for the rest of a stop text comes at the end.
  CHECK(std::string(made(base + "--stop-text '" + text.substr(text.size() - 1) + "never'")
                        .at("text")
                        .as_string()) == text);
}

TEST_CASE("min-p and the repetition penalty change what is drawn") {
  const ChatFolder folder;
  const std::string base = quoted(folder.model) + " --tokens 97,98,99 --stop none --max-new 40 ";
  const std::string greedy = text_of(made(base + "--temperature 0"), "new_ids");
  CHECK(text_of(made(base + "--temperature 5 --min-p 1"), "new_ids") == greedy);
  CHECK(text_of(made(base + "--temperature 5 --min-p 0.001"), "new_ids") != greedy);
  const json::value apart = made(base + "--temperature 0 --repetition-penalty 1e6");
  std::vector<int64_t> ids;
  for (const json::value& id : apart.at("new_ids").as_array()) ids.push_back(id.as_int64());
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());  // none comes twice
}

TEST_CASE("what is wrong with a conversation is said before a model is loaded") {
  const ChatFolder folder;
  const std::string model = quoted(folder.model);
  put(folder.path / "empty.json", "");
  put(folder.path / "role.json", R"([{"role": "humann", "content": "a"}])");
  put(folder.path / "system.json",
      R"([{"role": "system", "content": "a"}, {"role": "user", "content": "a"}])");
  check_refused(
      {{model + " --chat a --prompt b", 2, "--prompt and --chat each say what is answered"},
       {model + " --chat a --messages x", 2, "--chat and --messages"},
       {model + " --prompt b --system s", 2, "--system is of a conversation"},
       {model + " --prompt b --chat-template chatml", 2, "--chat-template is of a conversation"},
       {model + " --messages " + quoted(folder.path / "empty.json"), 7, "the file is empty"},
       {model + " --messages " + quoted(folder.path / "role.json"), 2, "know the role \"humann\""},
       {model + " --messages nowhere.json", 2, "nowhere.json"},
       {model + " --system s --messages " + quoted(folder.path / "system.json"), 2,
        "the first message of "},
       {model + " --chat a --chat-template nope", 7, "\"nope\""},
       {model + " --prompt a --stop-text ''", 2, "--stop-text is empty"},
       {model + " --prompt a --stop-text $(printf '\\377')", 2, "--stop-text is no UTF-8"},
       {model + " --tokens 1 --stop-text a", 2, "--tokens gives ids"},
       {model + " --prompt a --min-p 1.5", 2, "--min-p wants a number of at least 0 and at most 1"},
       {model + " --prompt a --min-p -0.1", 2, "--min-p wants"},
       {model + " --prompt a --repetition-penalty 0", 2, "--repetition-penalty wants"},
       {"tests/data/nets/llama --chat a", 7, "has no chat template"},
       {"tests/data/nets/llama --tokens 1 --stop-text a", 2, "--stop-text"}});
  const Ran none = run("chat tests/data/nets/llama", true);
  CHECK(none.status == 7);
  CHECK(none.out.find("--chat-template chatml") != std::string::npos);
  const Ran ranks = run("chat " + model + " --nproc 2", true);
  CHECK(ranks.status != 0);
  CHECK(ranks.out.find("E0390") != std::string::npos);
  CHECK(ranks.out.find("--chat TEXT --nproc 2") != std::string::npos);
}

TEST_CASE("chat: lines of standard input are turns, and standard output has the answers alone") {
  const ChatFolder folder;
  const std::string model = quoted(folder.model), greedy = "--temperature 0 --max-new 9";
  const Ran one = talk(folder.model, "hi\n", greedy);
  CHECK(one.status == 0);
  const std::string first = one.out;
  CHECK(first == run("generate " + model + " --chat hi " + greedy).out);
  // The second turn reads the first with its answer: as the file of messages does.
  const fs::path saved = folder.path / "talk.json";
  const Ran two =
      talk(folder.model, "hi\n\nyes\n/save " + saved.string() + "\n/reset\nhi\n/exit\nx\n", greedy);
  CHECK(two.status == 0);
  json::array messages = json::parse(contents(saved)).as_array();
  REQUIRE(messages.size() == 4);
  CHECK(std::string(messages[1].at("content").as_string()) + "\n" == first);
  const std::string second(messages[3].at("content").as_string());
  messages.pop_back();
  put(folder.path / "three.json", json::serialize(messages));
  CHECK(
      run("generate " + model + " --messages " + quoted(folder.path / "three.json") + " " + greedy)
          .out == second + "\n");
  CHECK(two.out == first + second + "\n" + first);
}

TEST_CASE("chat on a terminal: lines are edited and kept, Ctrl-C stops an answer, Ctrl-D ends") {
  const ChatFolder folder;
  json::object config = json::parse(contents(folder.model / "config.json")).as_object();
  config["max_position_embeddings"] = 100000;
  put(folder.model / "config.json", json::serialize(config));
  const std::string chat =
      "chat " + quoted(folder.model) + " --stop none --temperature 0 --max-new ";
  {
    Terminal terminal(chat + "9");
    terminal.until("/help");
    terminal.until("> ");
    terminal.type("hxi");
    terminal.type("\x1b[D\x7f\r");  // left, and what lies before the cursor goes
    terminal.until("\n");
    const std::string first = terminal.until("> ");
    CHECK(first.find(run("generate " + quoted(folder.model) +
                         " --chat hi --stop none --temperature 0 --max-new 9")
                         .out.substr(0, 3)) != std::string::npos);
    terminal.type("/reset\r");
    terminal.until("a new conversation");
    terminal.until("> ");
    terminal.type("\x1b[A\x1b[A\r");  // the line before the last one
    terminal.until("\n");
    CHECK(terminal.until("> ") == first);
    terminal.type("half\x03");
    terminal.until("Ctrl-C again");
    terminal.until("> ");
    terminal.type("\x04");
    CHECK(terminal.end() == 0);
  }
  Terminal terminal(chat + "50000");
  terminal.until("> ");
  terminal.type("hi\r");
  terminal.until("\n");
  terminal.until("\xef");  // it answers
  terminal.type("\x03");
  terminal.until("> ");
  terminal.type("\x03");
  terminal.until("> ");
  terminal.type("\x03");
  CHECK(terminal.end() == 0);
}

TEST_CASE("chat: turns that leave the context are forgotten, and told; a long line is left out") {
  const ChatFolder folder;
  json::object config = json::parse(contents(folder.model / "config.json")).as_object();
  config["max_position_embeddings"] = 64;
  put(folder.model / "config.json", json::serialize(config));
  const std::string ten = "0123456789";
  const Ran ran = talk(
      folder.model, ten + "\n" + ten + "\n" + ten + ten + ten + ten + ten + ten + "\n" + ten + "\n",
      "--temperature 0 --max-new 8", true);
  CAPTURE(ran.out);
  CHECK(ran.status == 0);
  CHECK(ran.out.find("the context of 64 tokens is full: the oldest 1 turn is forgotten") !=
        std::string::npos);
  CHECK(ran.out.find("the message is longer than the context of 64 tokens") != std::string::npos);
}

TEST_CASE("a file of prompts is answered row by row, as each row is alone") {
  const ChatFolder folder;
  const std::string model = quoted(folder.model), stops = " --stop-text zq --max-new 9";
  // Which a conversation takes, and a text beside it does not.
  put(folder.model / "generation_config.json", R"({"top_p": 0.2})");
  std::string rows;
  std::vector<json::value> alone;
  for (const auto& [row, asked] : std::vector<std::pair<std::string, std::string>>{
           {R"({"id": "a", "prompt": "The first"})", "--prompt 'The first'"},
           {R"({"tokens": [1, 2, 3], "text": "old"})", "--tokens 1,2,3"},
           {R"({"messages": [{"role": "user", "content": "hi"}]})", "--chat hi"},
           {R"({"prompt": "A longer one that was given later"})",
            "--prompt 'A longer one that was given later'"},
           {R"({"prompt": "é"})", "--prompt é"}}) {
    rows += row + "\n\n";
    alone.push_back(made(model + " " + asked + " --temperature 0.8 --top-k 40 --seed " +
                         std::to_string(5 + alone.size()) +
                         (asked.starts_with("--tokens") ? " --max-new 9" : stops)));
  }
  const fs::path file = folder.path / "rows.jsonl", out = folder.path / "out.jsonl";
  put(file, rows);
  const std::string asks = model + " --prompts " + quoted(file) + " --out " + quoted(out) +
                           " --temperature 0.8 --top-k 40 --seed 5" + stops;
  for (const std::string more :
       {"", " --batch 1", " --batch 3",
        " --batch 4 --nproc 2 --set distributed.strategy=fsdp2 --set distributed.tp_size=2",
        " --nproc 2 --set distributed.strategy=fsdp2 --set distributed.pp_size=2"}) {
    const Ran ran = run("generate " + asks + more, true);
    INFO(more, "\n", ran.out);
    REQUIRE(ran.status == 0);
    CHECK(ran.out.find("5 prompts, ") != std::string::npos);
    std::istringstream lines(contents(out));
    size_t count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      REQUIRE(count < alone.size());
      const json::value row = json::parse(line);
      CAPTURE(line);
      CHECK(row.at("new_ids") == alone[count].at("new_ids"));
      CHECK(row.at("stopped") == alone[count].at("stopped"));
      const std::string& asked = count == 2 ? "messages" : count == 1 ? "tokens" : "prompt";
      CHECK(row.as_object().contains(asked));
      const std::string whole(alone[count].at("text").as_string()),
          text(row.at("text").as_string());
      if (asked == "prompt")
        CHECK(whole == std::string(row.at("prompt").as_string()) + text);
      else if (asked == "messages")
        CHECK(whole == text);
      else
        CHECK(whole.ends_with(text));
      REQUIRE(row.at("log_probabilities").as_array().size() == row.at("new_ids").as_array().size());
      for (size_t i = 0; i < row.at("log_probabilities").as_array().size(); ++i)
        CHECK(
            row.at("log_probabilities").at(i).as_double() ==
            doctest::Approx(alone[count].at("log_probabilities").at(i).as_double()).epsilon(1e-5));
    }
    CHECK(count == alone.size());
    CHECK(json::parse(contents(out).substr(0, contents(out).find('\n'))).at("id") == "a");
    CHECK_FALSE(fs::exists(out.string() + ".part"));
    fs::remove(out);
  }
}

TEST_CASE("a file of prompts is refused with the line") {
  const ChatFolder folder;
  const fs::path file = folder.path / "rows.jsonl";
  const std::string asks = quoted(folder.model) + " --prompts " + quoted(file),
                    out = " --out " + quoted(folder.path / "o");
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "has no row"},
           {"\n{\"prompt\": \"a\"}\n{\"prompt\": 1}\n", "rows.jsonl:3"},
           {"{\"prompt\": \"a\"", "is no JSON object: at byte"},
           {"[]", "is no JSON object"},
           {"{}", "has neither \"prompt\" nor \"tokens\" nor \"messages\""},
           {R"({"prompt": "a", "tokens": [1]})", "has \"prompt\" and \"tokens\""},
           {R"({"tokens": [1, "a"]})", "no list of ids"},
           {R"({"tokens": [999]})", "999"},
           {R"({"messages": []})", "there is no message"}}) {
    put(file, text);
    const Ran ran = run("generate " + asks + out, true);
    INFO(text, "\n", ran.out);
    CHECK(ran.status != 0);
    CHECK(ran.out.find(part) != std::string::npos);
  }
  put(file, "{\"prompt\": \"a\"}\n");
  put(folder.path / "part.part", "");
  check_refused(
      {{asks + out + " --system s", 2, "are no conversations"},
       {asks + " --out " + quoted(folder.path / "nowhere" / "o"), 2, "there is no folder"},
       {asks + " --out " + quoted(folder.path / "part"), 2, "did not come to its end"},
       {asks + out + " --stop-text 'a<|end|>'", 2, "is a special token"},
       {asks, 2, "--out says which"},
       {asks + out + " --prompt b", 2, "--prompt and --prompts"},
       {asks + out + " --json", 2, "JSON already"},
       {asks + " --out " + quoted(file), 2, "is already there"},
       {quoted(folder.model) + " --prompt a --batch 2", 2, "--batch is of --prompts"},
       {quoted(folder.model) + " --prompts " + quoted(folder.path / "none") + out, 2, "none"}});
}

}  // namespace chat_test
