// tokenizer train as a user runs it: a folder that other verbs read, and what is refused.
#include "ran.h"
#include "tests/contents.h"

namespace tokenizer_train_test {

namespace {

struct Corpus : Folder {
  Corpus() {
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += "the " + std::string(i % 3 == 0 ? "quick" : "slow") + " brown fox " +
               std::to_string(i) + " jumps\n";
    put("texts/a.txt", lines);
    put("texts/sub/b.txt", "over the lazy dog, the lazy dog\n");
  }
  Ran train(const std::string& more, const std::string& out = "model",
            const std::string& redirect = "2>&1") const {
    return run("tokenizer train " + quoted("texts") + " --out " + quoted(out) + " " + more,
               redirect, "COLUMNS=400");
  }
  std::string saved(const std::string& out) const {
    return contents(path / out / "tokenizer.json");
  }
};

}  // namespace

TEST_CASE(
    "tokenizer train makes a folder that tokenize reads, the same with any number of threads") {
  const Corpus folder;
  const Ran ran = folder.train("--vocab-size 280 --special '<|im_end|>'");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.says("280 (vocab_size)"));
  CHECK(ran.says("0 <|im_end|>, 1 <|endoftext|> eos"));
  CHECK(ran.says("2 files"));
  CHECK(ran.says("vocab_size = 280 and eos_token_id = 1"));
  const json::object config =
      json::parse(contents(folder.path / "model/tokenizer_config.json")).as_object();
  CHECK(config.at("eos_token").as_string() == "<|endoftext|>");
  for (const char* threads : {"1", "3"}) {
    const std::string out = std::string("model") + threads;
    REQUIRE(
        folder
            .train("--special '<|im_end|>' --vocab-size 280 --threads " + std::string(threads), out)
            .status == 0);
    CHECK(folder.saved(out) == folder.saved("model"));
  }
  const json::object made = answer("tokenizer train " + folder.quoted("texts") + " --out " +
                                   folder.quoted("other") + " --vocab-size 280 --eos '<e>'");
  CHECK(made.at("vocab_size").as_int64() == 280);
  CHECK(made.at("merges").as_int64() == 280 - 257);
  CHECK(made.at("files").as_int64() == 2);
  CHECK(made.at("bytes_per_token").to_number<double>() > 1.5);
  const json::object tokens =
      answer("tokenize " + folder.quoted("texts") + " --tokenizer " + folder.quoted("other") +
             " --out " + folder.quoted("t.bin") + " --document-end eos");
  CHECK(tokens.at("tokens").as_int64() == made.at("tokens").as_int64() + 2);
  CHECK(tokens.at("document_end").as_int64() == 0);
}

TEST_CASE("tokenizer train says when the text gives fewer tokens, or bytes that are lost") {
  const Corpus folder;
  CHECK(folder.train("--vocab-size 5000 --min-frequency 3")
            .says("fewer than --vocab-size 5000: no pair is left that is there 3 times"));
  const Ran lost = folder.train("--vocab-size 40 --limit-alphabet 10", "few");
  CHECK(lost.status == 0);
  CHECK(lost.says("that --limit-alphabet leaves"));
}

TEST_CASE("tokenizer train refuses what cannot be, and leaves nothing behind") {
  const Corpus folder;
  const std::string bad = folder.put("bad.txt", "ab\xff"), blank = folder.put("blank.txt", "\n \n");
  folder.put("spm/tokenizer.model", "x");
  struct Row {
    std::string arguments;
    int status;
    const char* part;
  };
  const std::string texts = folder.quoted("texts"), out = " --out " + folder.quoted("none") + " ";
  for (const Row& row : {
           Row{texts + out, 2, "wants --vocab-size"},
           Row{texts + " --vocab-size 280", 2, "wants --out"},
           Row{texts + out + "--vocab-size 256", 2,
               "256 bytes and 1 special token are 257 tokens before the first merge"},
           Row{texts + out + "--vocab-size 999999999", 2, "is more than"},
           Row{texts + out + "--vocab-size 280 --special a --special a", 2, "is given twice"},
           Row{texts + out + "--vocab-size 280 --special ''", 2, "a special token is empty"},
           Row{texts + out + "--vocab-size 280 --special $(printf '\\377')", 2, "is not UTF-8"},
           Row{texts + out + "--vocab-size 280 --pattern gpt3", 2, "gpt2"},
           Row{texts + out + "--vocab-size 280 --documents rows", 2, "--documents json"},
           Row{folder.quoted("none*.txt") + out + "--vocab-size 280", 7,
               "nothing to train on: no file with contents matches"},
           Row{::quoted(bad) + out + "--vocab-size 280", 7,
               "bad.txt: the text is not UTF-8 at byte 2"},
           Row{::quoted(blank) + out + "--vocab-size 280 --documents line", 7,
               "the files hold no text"},
           Row{texts + " --vocab-size 280 --out " + folder.quoted("bad.txt"), 2, "is a file"},
           Row{texts + " --vocab-size 280 --force --out " + folder.quoted("spm"), 2,
               "has the tokenizer.model of another tokenizer"},
       }) {
    const Ran ran = run("tokenizer train " + row.arguments, "2>&1", "COLUMNS=400");
    INFO(row.arguments, "\n", ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.says(row.part));
    CHECK_FALSE(fs::exists(folder.path / "none"));
  }
  REQUIRE(folder.train("--vocab-size 280").status == 0);
  const std::string before = folder.saved("model");
  const Ran again = folder.train("--vocab-size 310");
  CHECK(again.status == 2);
  CHECK(again.says("has a tokenizer.json already"));
  CHECK(folder.saved("model") == before);
  REQUIRE(folder.train("--vocab-size 310 --force").status == 0);
  CHECK(folder.saved("model") != before);
}

}  // namespace tokenizer_train_test
