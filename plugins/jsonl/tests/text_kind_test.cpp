// Texts as the engine asks for them: tokens of documents, samples, the cache.
#include "plugins/jsonl/text_kind.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "given.h"
#include "meshwright/error.h"
#include "plugins/jsonl/text_options.h"
#include "sdk/base/unpack/tests/packed.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace text_kind_test {

namespace fs = std::filesystem;
using jsonl_test::TemporaryFolder;
using jsonl_test::thrown;
using jsonl_test::write;
using meshwright::DatasetRequest;
using meshwright::Diagnostics;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::kNoTarget;
using meshwright::SampleSource;
using meshwright::SampleView;
using meshwright::jsonl::TextKind;
using meshwright::tokenizer::Tokenizer;

using Ids = std::vector<int64_t>;

// A folder with a tokenizer whose texts can be cut, and an end of texts.
class Place {
 public:
  explicit Place(const std::string& tokenizer = "qwen2") {
    fs::create_directories(folder_ / "model");
    fs::copy_file(MESHWRIGHT_SOURCE_DIR "/tests/data/tokenizers/" + tokenizer + ".json",
                  model() + "/tokenizer.json");
    write(model() + "/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
    fs::create_directories(folder_ / "data");
  }
  std::string model() const { return folder_ / "model"; }
  std::string data() const { return folder_ / "data"; }
  std::string cache() const { return folder_ / "cache"; }
  std::string put(const std::string& name, std::string_view contents) const {
    write(data() + "/" + name, contents);
    return data() + "/" + name;
  }
  DatasetRequest request(const std::string& path, int64_t seq_len = 16) const {
    DatasetRequest out;
    out.options = meshwright::Options(
        meshwright::make_schema("dataset.text", "text", meshwright::jsonl::kTextOptions));
    out.path = path;
    out.seq_len = seq_len;
    out.seed = 1;
    out.pretrained = model();
    out.options.set("cache", cache());
    return out;
  }
  // Of a document as it stands, with its end.
  Ids plain(const std::string& text) const {
    Ids out = tokenizer_().encode(text);
    out.push_back(*tokenizer_().id_of("<|endoftext|>"));
    return out;
  }

 private:
  const Tokenizer& tokenizer_() const {
    if (!loaded_) loaded_.emplace(Tokenizer::load(model() + "/tokenizer.json"));
    return *loaded_;
  }
  TemporaryFolder folder_;
  mutable std::optional<Tokenizer> loaded_;
};

struct Sample {
  Ids tokens, targets;
  std::vector<int32_t> documents;
};

Sample sample_of(const SampleSource& source, int64_t number, size_t length) {
  Sample out{Ids(length), Ids(length), std::vector<int32_t>(source.has_documents() ? length : 0)};
  source.read(number, SampleView{out.tokens, out.targets, out.documents, {}});
  return out;
}

// The stream that samples were cut from, as far as they go.
Ids stream_of(const SampleSource& source, size_t length) {
  Ids out;
  for (int64_t i = 0; i < source.samples(); ++i) {
    const Sample one = sample_of(source, i, length);
    CHECK(std::equal(one.tokens.begin() + 1, one.tokens.end(), one.targets.begin()));
    out.insert(out.end(), one.tokens.begin(), one.tokens.end());
    if (i + 1 == source.samples()) out.push_back(one.targets.back());
  }
  return out;
}

Ids joined(const std::vector<Ids>& all) {
  Ids out;
  for (const Ids& one : all) out.insert(out.end(), one.begin(), one.end());
  return out;
}

Ids cut_to(Ids all, size_t size) {
  REQUIRE(all.size() >= size);
  all.resize(size);
  return all;
}

std::string words(uint32_t seed, size_t size) {
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"the ", "a house ", "of cards, ", "123 ",  "fiel",
                                          "d",    "\n",       "über ",      "日本 ", ". The"};
  std::string out;
  while (out.size() < size) out += parts[random() % parts.size()];
  return out;
}

// Of all documents of a request, in order.
Ids all_tokens(const DatasetRequest& request) {
  return stream_of(*TextKind().open(request), static_cast<size_t>(request.seq_len));
}

TEST_CASE("the stream is each document's tokens with its end, one behind the other") {
  const Place place;
  const std::string one = words(1, 300), two = words(2, 50), three = "a short one";
  place.put("a.txt", one);
  place.put("b.md", two);
  place.put("c.jsonl", "{\"text\": \"" + three + "\"}\n{\"text\": \"another\"}\n");
  place.put("empty.txt", "");
  place.put(".hidden", "\xFF");
  const DatasetRequest request = place.request(place.data());
  const Ids expected =
      joined({place.plain(one), place.plain(two), place.plain(three), place.plain("another")});
  const auto source = TextKind().open(request);
  CHECK(source->samples() == static_cast<int64_t>(expected.size() - 1) / 16);
  const Ids found = stream_of(*source, 16);
  CHECK(found == cut_to(expected, found.size()));
  CHECK_FALSE(source->has_documents());
  CHECK(source->describe() ==
        "3 files, 4 documents, " + std::to_string(expected.size()) + " tokens");
  const std::vector<std::string> report = source->report();
  REQUIRE(report.size() >= 2);
  CHECK(report[0].find(place.cache()) != std::string::npos);
  CHECK(report[1] == "1 hidden file left out: " + place.data() + "/.hidden");
  // The data and how it is tokenized.
  CHECK(source->files().size() == 5);
}

TEST_CASE("a long document, cut into parts for threads, has the tokens of the whole") {
  for (const char* tokenizer : {"qwen2", "gpt2", "llama3"}) {
    CAPTURE(tokenizer);
    const Place place(tokenizer);
    if (tokenizer == std::string("llama3"))
      write(place.model() + "/tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");
    const std::string text = words(3, 3'000'000);
    const std::string path = place.put("a.txt", text);
    DatasetRequest request = place.request(path, 1024);
    const Tokenizer plain = Tokenizer::load(place.model() + "/tokenizer.json");
    Ids expected = plain.encode(text);
    if (const auto end = plain.id_of("<|endoftext|>")) expected.push_back(*end);
    for (const int64_t threads : {int64_t{1}, int64_t{3}, int64_t{40}}) {
      request.options.set("threads", threads);
      request.options.set("cache", "none");
      const Ids found = all_tokens(request);
      CHECK(found == cut_to(expected, found.size()));
    }
  }
}

TEST_CASE("packed files are what they were") {
  const Place place;
  const std::string text = words(4, 200'000);
  const std::string plain = place.put("a.txt", text),
                    gzip = place.put("b.txt.gz", packed_files::gzip(text.substr(0, 90'000)) +
                                                     packed_files::gzip(text.substr(90'000))),
                    zstd = place.put("c.txt.zst", packed_files::zstd(text));
  const Ids expected = all_tokens(place.request(plain));
  CHECK(expected.size() > 10'000);
  CHECK(all_tokens(place.request(gzip)) == expected);
  CHECK(all_tokens(place.request(zstd)) == expected);
  const std::string early = place.put("d.txt.gz", packed_files::gzip(text).substr(0, 5000));
  const Error error = thrown([&] { TextKind().open(place.request(early)); });
  CHECK(error.code() == ErrorCode::bad_dataset);
  CHECK(error.message() ==
        early + ": the file ends in the middle of its packed data, at byte 5000");
}

TEST_CASE("what ends a document") {
  const Place place;
  const Tokenizer tokenizer = Tokenizer::load(place.model() + "/tokenizer.json");
  const int64_t end = *tokenizer.id_of("<|endoftext|>");
  const std::string path = place.put("a.jsonl",
                                     "{\"text\": \"one two\"}\n"
                                     "{\"text\": \"three<|endoftext|>\"}\n"
                                     "{\"text\": \"four five six seven\"}\n");
  DatasetRequest request = place.request(path, 1);
  // One that ends with it has it once.
  CHECK(all_tokens(request) == joined({tokenizer.encode("one two"),
                                       {end},
                                       tokenizer.encode("three"),
                                       {end},
                                       tokenizer.encode("four five six seven"),
                                       {end}}));
  request.options.set("document_end", "none");
  CHECK(all_tokens(request) == joined({tokenizer.encode("one two"),
                                       tokenizer.encode("three"),
                                       {end},
                                       tokenizer.encode("four five six seven")}));
  const auto unended = TextKind().open(request)->report();
  CHECK(std::any_of(unended.begin(), unended.end(), [](const std::string& line) {
    return line.starts_with("no end token is put behind 3 documents");
  }));
  request.options.set("document_end", "<|im_end|>");
  CHECK(all_tokens(request).size() == tokenizer.encode("one two").size() + 2 +
                                          tokenizer.encode("three").size() + 1 +
                                          tokenizer.encode("four five six seven").size() + 1);
  request.options.set("document_end", "<|none such|>");
  const Error error = thrown([&] { TextKind().open(request); });
  CHECK(error.code() == ErrorCode::bad_tokenizer);
  CHECK(error.key() == "dataset.text.document_end");
}

TEST_CASE("attention within documents: numbers, and no document predicts the next") {
  const Place place;
  const std::string path = place.put("a.txt", "one two three\nfour\nfive six seven eight\nnine\n");
  DatasetRequest request = place.request(path, 5);
  request.options.set("documents", "line");
  request.options.set("attention", "document");
  const auto apart = TextKind().open(request);
  REQUIRE(apart->has_documents());
  request.options.set("attention", "sample");
  const auto joint = TextKind().open(request);
  CHECK(apart->fingerprint() != joint->fingerprint());
  const int64_t end = place.plain("x").back();
  REQUIRE(apart->samples() == joint->samples());
  for (int64_t i = 0; i < apart->samples(); ++i) {
    const Sample one = sample_of(*apart, i, 5), other = sample_of(*joint, i, 5);
    CHECK(one.tokens == other.tokens);
    int32_t number = 0;
    for (size_t k = 0; k < 5; ++k) {
      CHECK(one.documents[k] == number);
      const bool last = one.tokens[k] == end;
      CHECK(one.targets[k] == (last ? kNoTarget : other.targets[k]));
      number += last ? 1 : 0;
    }
  }
}

TEST_CASE("packed otherwise, every token behind a document's first is learnt once") {
  const Place place;
  std::string lines;
  std::vector<Ids> expected;
  for (uint32_t i = 0; i < 60; ++i) {
    std::string line = words(i, 5 + i * 4);
    std::replace(line.begin(), line.end(), '\n', ' ');
    lines += line + "\n";
    expected.push_back(place.plain(line));
  }
  const std::string path = place.put("a.txt", lines);
  Ids wanted;
  for (const Ids& one : expected) wanted.insert(wanted.end(), one.begin() + 1, one.end());
  std::sort(wanted.begin(), wanted.end());
  for (const char* packing : {"bfd", "sequential", "none"}) {
    CAPTURE(packing);
    DatasetRequest request = place.request(path, 24);
    request.options.set("documents", "line");
    request.options.set("packing", packing);
    const auto source = TextKind().open(request);
    Ids found;
    for (int64_t i = 0; i < source->samples(); ++i)
      for (const int64_t id : sample_of(*source, i, 24).targets)
        if (id != kNoTarget) found.push_back(id);
    std::sort(found.begin(), found.end());
    CHECK(found == wanted);
    CHECK(source->report()[0].find("in parts of 25 tokens") != std::string::npos);
  }
}

TEST_CASE("tokens are made once, and anew where something else comes of it") {
  const Place place;
  const std::string path = place.put("a.txt", words(5, 5000));
  const DatasetRequest request = place.request(path);
  auto stores = [&] {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(place.cache()))
      out.insert(entry.path().filename().string());
    return out;
  };
  const uint64_t first = TextKind().open(request)->fingerprint();
  const std::set<std::string> one = stores();
  REQUIRE(one.size() == 1);
  CHECK(one.begin()->ends_with(".mwtokens"));
  const auto made = fs::last_write_time(place.cache() + "/" + *one.begin());
  CHECK(TextKind().open(request)->fingerprint() == first);
  CHECK(fs::last_write_time(place.cache() + "/" + *one.begin()) == made);
  // Another number of threads, and another length of samples, need no other tokens.
  DatasetRequest other = request;
  other.options.set("threads", int64_t{2});
  CHECK(TextKind().open(other)->fingerprint() == first);
  other.seq_len = 8;
  CHECK(TextKind().open(other)->fingerprint() != first);
  CHECK(stores() == one);
  // A process knows its own: what a run reads does not change under it.
  std::ofstream(path, std::ios::app) << "more";
  CHECK(TextKind().open(request)->fingerprint() != first);
  CHECK(stores().size() == 2);
  other = request;
  other.options.set("documents", "line");
  TextKind().prepare(other);
  CHECK(stores().size() == 3);
  write(place.model() + "/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  TextKind().prepare(request);
  CHECK(stores().size() == 4);
}

// `body` in a process of its own; how it ended.
pid_t in_process(const std::function<void()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int status = 1;
    try {
      body();
      status = 0;
    } catch (...) {
    }
    ::_exit(status);
  }
  return child;
}

TEST_CASE("two processes make one store, and one that is killed over it leaves nothing") {
  const Place place;
  const std::string path = place.put("a.txt", words(6, 4'000'000));
  DatasetRequest request = place.request(path, 64);
  request.options.set("threads", int64_t{1});
  const pid_t killed = in_process([&] { TextKind().prepare(request); });
  auto begun = [&] {
    std::error_code failed;
    for (const auto& entry : fs::directory_iterator(place.cache(), failed))
      if (entry.path().extension() == ".tmp") return true;
    return false;
  };
  while (!begun()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(killed, SIGKILL);
  int status = 0;
  CHECK(::waitpid(killed, &status, 0) == killed);
  REQUIRE(WIFSIGNALED(status));
  const pid_t one = in_process([&] { TextKind().prepare(request); }),
              two = in_process([&] { TextKind().prepare(request); });
  for (const pid_t child : {one, two}) {
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(place.cache())) {
    CHECK(entry.path().extension() == ".mwtokens");
    ++files;
  }
  CHECK(files == 1);
}

TEST_CASE("what is wrong is told with file, place and key") {
  const Place place;
  const std::string good = place.put("good.txt", words(7, 500));
  auto refused = [&](const DatasetRequest& request) {
    return thrown([&] { TextKind().open(request); });
  };
  const std::string broken = place.put("broken.txt", "one\ntwo \xC3( three");
  CHECK(refused(place.request(broken)).message() == broken + ":2: the text is not UTF-8 at byte 8");
  const Error blank = refused(place.request(place.put("blank.txt", " \n \n")));
  CHECK(blank.code() == ErrorCode::bad_dataset);
  CHECK(blank.message().starts_with(place.data() + "/blank.txt holds no text"));
  CHECK(blank.key() == "dataset.path");
  CHECK(refused(place.request(place.data() + "/none*.txt")).key() == "dataset.path");
  // Whether there is what reads it or not: tests/parquet has more where there is.
  const Error parquet = refused(place.request(place.put("x.parquet", "PAR1")));
  CHECK(parquet.message().find("Parquet") != std::string::npos);
  CHECK_FALSE(parquet.helps().empty());
  const Error few = refused(place.request(good, 100'000));
  CHECK(few.message().find("one sample takes seq_len + 1 = 100001") != std::string::npos);
  CHECK(few.helps().at(0).starts_with("set dataset.seq_len = "));
  DatasetRequest small = place.request(good);
  small.vocab_size = 100;
  CHECK(refused(small).code() == ErrorCode::bad_token);
  DatasetRequest none = place.request(good);
  none.pretrained = place.data();
  CHECK(refused(none).key() == "dataset.tokenizer");
  DatasetRequest both = place.request(good);
  both.options.set("documents", "line");
  both.options.set("separator", "---");
  CHECK(refused(both).key() == "dataset.text.separator");
  DatasetRequest locked = place.request(good);
  locked.options.set("cache", good);
  const Error unwritable = refused(locked);
  CHECK(unwritable.code() == ErrorCode::output_unwritable);
  CHECK(unwritable.key() == "dataset.text.cache");

  Diagnostics found;
  DatasetRequest bare = place.request("");
  bare.pretrained = "";
  bare.options.set("attention", "sample");
  bare.options.set("packing", "bfd");
  TextKind().validate(bare, found);
  std::set<std::string> keys;
  for (const Error& error : found.errors()) keys.insert(error.key());
  CHECK(keys ==
        std::set<std::string>{"dataset.path", "dataset.tokenizer", "dataset.text.attention"});
}

TEST_CASE("a disk that is full names the folder and how much is needed") {
  // A file system of 1 MiB, where this may mount one.
  const Place place;
  const std::string path = place.put("a.txt", words(8, 8'000'000));
  fs::create_directories(place.cache());
  if (std::system(
          ("mount -t tmpfs -o size=1m tmpfs '" + place.cache() + "' 2>/dev/null").c_str()) != 0)
    return;
  const Error error = thrown([&] { TextKind().open(place.request(path)); });
  CHECK(error.code() == ErrorCode::output_unwritable);
  CHECK(error.message().find("No space left on device") != std::string::npos);
  CHECK(error.message().find("; the tokens of these files need about ") != std::string::npos);
  CHECK(error.message().find(" in " + place.cache() + ", where ") != std::string::npos);
  CHECK(error.key() == "dataset.text.cache");
  CHECK(fs::is_empty(place.cache()));
  CHECK(std::system(("umount '" + place.cache() + "'").c_str()) == 0);
}

TEST_CASE("documents are shown as they are learnt, and counted") {
  const Place place;
  const std::string path = place.put("a.txt", "one two\nthree four five\n\nsix\n");
  DatasetRequest request = place.request(path, 4);
  request.options.set("documents", "line");
  const TextKind kind;
  CHECK(kind.rows(request) == 3);
  const meshwright::DatasetRow row = kind.row(request, 1);
  CHECK(row.place == path + ":2");
  CHECK(row.text == "three four five");
  Ids ids;
  for (const auto& token : row.tokens) {
    ids.push_back(token.id);
    CHECK(token.target);
  }
  CHECK(ids == place.plain("three four five"));
  CHECK(thrown([&] { kind.row(request, 3); }).code() == ErrorCode::usage);
  const auto numbers = kind.numbers(request);
  CHECK(numbers.at(0) == std::pair<std::string, int64_t>{"documents", 3});
  request.options.set("packing", "bfd");
  CHECK(kind.numbers(request).size() > numbers.size());
  // What goes with a model that learnt so.
  const auto language = kind.language(request);
  REQUIRE(language.size() == 2);
  CHECK(language[0].name == "tokenizer.json");
  CHECK(language[0].path == place.model() + "/tokenizer.json");
}

TEST_CASE("of a long document the beginning is shown as it is learnt") {
  const Place place("llama3");
  const DatasetRequest request = place.request(place.put("a.txt", words(5, 3'000'000)));
  const meshwright::DatasetRow row = TextKind().row(request, 0);
  CHECK(row.place.ends_with(", its beginning"));
  const Ids learnt = all_tokens(request);
  REQUIRE(row.tokens.size() > 100'000);
  // It begins with what the tokenizer puts before a text.
  const Tokenizer tokenizer = Tokenizer::load(place.model() + "/tokenizer.json");
  CHECK(row.tokens[0].id == *tokenizer.id_of("<|begin_of_text|>"));
  CHECK(row.tokens[0].begin == row.tokens[0].end);
  bool same = true;
  for (size_t i = 0; i < row.tokens.size(); ++i) same = same && row.tokens[i].id == learnt[i];
  CHECK(same);
}

TEST_CASE("a cache that cannot be written is not named as if it were there") {
  const Place place;
  DatasetRequest request = place.request(place.put("a.txt", words(7, 1000)), 8);
  write(place.data() + "/file", "x");
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", (place.data() + "/file").c_str(), 1);
  request.options.set("cache", "auto");
  const auto source = TextKind().open(request);
  before == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  CHECK(source->report()[0].ends_with(", in memory"));
}

TEST_CASE("what a tokenizer's file says and nobody does is told once, where tokens are made") {
  const Place place;
  const std::string file = place.model() + "/tokenizer.json";
  std::ifstream in(file);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t at = text.find("\"truncation\"");
  REQUIRE(at != std::string::npos);
  const size_t null = text.find("null", at);
  REQUIRE(null < at + 20);
  text.replace(
      null, 4,
      R"({"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0})");
  write(file, text);
  const auto options =
      meshwright::jsonl::TextOptions::read(place.request(place.put("a.txt", words(9, 1000))));
  std::vector<std::string> told;
  for (int i = 0; i < 2; ++i)
    meshwright::jsonl::text_store(options, [&](const std::string& line) { told.push_back(line); });
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("truncat") != std::string::npos);
}

}  // namespace text_kind_test
