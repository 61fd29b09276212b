// tokenize as a user runs it: the ids of the reference library in a file that training reads.
#include <cstring>

#include "ran.h"
#include "tests/contents.h"

namespace tokenize_test {

namespace {

const std::string kTokenizers = MESHWRIGHT_SOURCE_DIR "/tests/data/tokenizers/";

std::vector<int64_t> tokens_of(const fs::path& path) {
  std::string bytes = contents(path);
  REQUIRE(bytes.size() >= 1024);
  int32_t head[3];
  std::memcpy(head, bytes.data(), sizeof head);
  CHECK(head[0] == 20240520);
  std::vector<int64_t> out;
  for (size_t at = 1024; at + 2 <= bytes.size(); at += 2) {
    uint16_t token = 0;
    std::memcpy(&token, bytes.data() + at, 2);
    out.push_back(token);
  }
  CHECK(static_cast<size_t>(head[2]) == out.size());
  return out;
}

struct Texts : Folder {
  Texts() { Folder::put("model/tokenizer.json", contents(kTokenizers + "llama3.json")); }
  // Returns its name for the shell.
  std::string put(const std::string& name, const std::string& bytes) const {
    return ::quoted(Folder::put(name, bytes));
  }
  Ran tokenize(const std::string& files, const std::string& more = "",
               const std::string& redirect = "2>&1") const {
    return run("tokenize " + files + " --tokenizer " + quoted("model") + " --out " +
                   quoted("out.bin") + " " + more,
               redirect);
  }
};

}  // namespace

TEST_CASE(
    "tokenize writes the ids of the reference library, of patterns and files in order, with any "
    "number of threads") {
  const Texts folder;
  json::value golden = json::parse(contents(kTokenizers + "llama3.golden.json"));
  std::vector<int64_t> expected;
  int files = 0;
  for (const json::value& row : golden.at("texts").as_array()) {
    std::string text(row.at("text").as_string());
    if (text.empty() || files == 90) continue;
    folder.put("t" + std::to_string(10 + files++) + ".txt", text);
    for (const json::value& id : row.at("ids").as_array()) expected.push_back(id.as_int64());
    expected.push_back(3);
  }
  for (const char* threads : {"1", "3"}) {
    Ran ran = folder.tokenize(folder.quoted("t*.txt"),
                              std::string("--document-end 3 --force --json --threads ") + threads,
                              "2>/dev/null");
    REQUIRE_MESSAGE(ran.status == 0, ran.out);
    json::object said = json::parse(ran.out).as_object();
    CHECK(said.at("tokens").as_int64() == static_cast<int64_t>(expected.size()));
    CHECK(said.at("files").as_int64() == files);
    CHECK(said.at("documents").as_int64() == files);
    CHECK(said.at("dtype").as_string() == "uint16");
    CHECK(tokens_of(folder.path / "out.bin") == expected);
  }
  CHECK_FALSE(fs::exists(folder.path / ".out.bin.tmp"));
  // A run trains on it.
  std::string config = contents(MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json");
  size_t at = config.find("256");
  REQUIRE(at != std::string::npos);
  folder.put("config.json", config.replace(at, 3, "1300"));
  Ran trained = run(
      "train configs/first_fsdp2_cpu.toml --nproc 1 --set run.name=t --set 'run.dir=" +
          folder.path.string() +
          "' --set dataset.kind=tokens --set 'dataset.path=" + (folder.path / "out.bin").string() +
          "' --set 'model.config=" + (folder.path / "config.json").string() +
          "' --set dataset.seq_len=8 --set step_scheduler.max_steps=1 --set "
          "step_scheduler.local_batch_size=1"
          " --set step_scheduler.global_batch_size=1 --set lr_scheduler.lr_warmup_steps=0",
      "2>&1");
  CHECK_MESSAGE(trained.status == 0, trained.out);
}

TEST_CASE(
    "tokenize finds the end-of-text token by name, by id and by what lies beside the tokenizer") {
  const Texts folder;
  std::string text = folder.put("a.txt", "The quick brown fox");
  REQUIRE(folder.tokenize(text).status == 0);
  std::vector<int64_t> plain = tokens_of(folder.path / "out.bin");
  json::array added =
      json::parse(contents(kTokenizers + "llama3.json")).at("added_tokens").as_array();
  REQUIRE(added.size() >= 2);
  int64_t id = added[1].at("id").as_int64();
  std::string name(added[1].at("content").as_string());
  auto ends = [&](const std::string& wanted) {
    Ran ran = folder.tokenize(text, "--force --document-end '" + wanted + "'");
    INFO(ran.out);
    REQUIRE(ran.status == 0);
    std::vector<int64_t> tokens = tokens_of(folder.path / "out.bin");
    REQUIRE(tokens.size() == plain.size() + 1);
    return tokens.back();
  };
  CHECK(ends(name) == id);
  CHECK(ends(std::to_string(id)) == id);
  Ran none = folder.tokenize(text, "--force --document-end eos");
  CHECK(none.status == 2);
  CHECK(none.says("no eos_token in tokenizer_config.json"));
  folder.put("model/generation_config.json", "{\"eos_token_id\": [7, 8]}");
  CHECK(ends("eos") == 7);
  folder.put("model/tokenizer_config.json", "{\"eos_token\": {\"content\": \"" + name + "\"}}");
  CHECK(ends("eos") == id);
  REQUIRE(folder.tokenize(text, "--force --no-special").status == 0);
  CHECK(tokens_of(folder.path / "out.bin").size() <
        plain.size());  // without the beginning-of-text token of the template
}

TEST_CASE("tokenize refuses with the file, the place and what to do, and leaves nothing behind") {
  const Texts folder;
  std::string good = folder.put("good.txt", "text"), bad = folder.put("bad.txt", "ab\xff"),
              empty = folder.put("empty.txt", ""), blank = folder.put("blank.txt", "\n \n"),
              rows = folder.put("rows.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\"}\n");
  struct Row {
    std::string files, more;
    int status;
    const char* part;
  };
  for (const Row& row :
       {Row{bad, "", 7, "bad.txt: the text is not UTF-8 at byte 2"},
        Row{good + " " + bad, "--threads 3", 7, "bad.txt: the text is not UTF-8 at byte 2"},
        Row{empty, "", 7, "empty.txt"}, Row{blank, "--documents line", 7, "no text"},
        Row{folder.quoted("none*.txt"), "", 7, "no file with contents matches"},
        Row{rows, "--documents json", 7, "rows.jsonl: line 2 has no string \"text\" at byte 14"},
        Row{rows, "--documents rows", 2, "--documents json"},
        Row{good, "--text-key body", 2, "--documents json"},
        Row{good, "--document-end nobody", 2, "the tokenizer has no such token"},
        Row{good, "--document-end 9999999", 2, "its ids are 0 to"},
        Row{good, "--threads 0", 2, "E0101"}, Row{"", "", 2, "wants FILES"}}) {
    Ran ran = folder.tokenize(row.files, row.more);
    INFO(ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.says(row.part));
    CHECK_FALSE(fs::exists(folder.path / "out.bin"));
    CHECK_FALSE(fs::exists(folder.path / ".out.bin.tmp"));
  }
  REQUIRE(folder.tokenize(good).status == 0);
  std::string before = contents(folder.path / "out.bin");
  Ran again = folder.tokenize(rows);
  CHECK(again.status == 2);
  CHECK(again.says("is already there"));
  CHECK(folder.tokenize(bad, "--force").status == 7);
  CHECK(contents(folder.path / "out.bin") == before);  // a failure takes nothing away
  CHECK(
      folder.tokenize(folder.quoted("out.bin"), "--force").says("is one of the files to tokenize"));
  Ran help = run("tokenize -h");
  CHECK(help.status == 0);
  CHECK(help.says("meshwright tokenize FILES... [flags]"));
  CHECK(run("tokenize " + good + " --out x.bin", "2>&1").says("wants --tokenizer"));
  CHECK(run("tokenize " + good + " --tokenizer nowhere --out x.bin", "2>&1").status == 7);
}

}  // namespace tokenize_test
