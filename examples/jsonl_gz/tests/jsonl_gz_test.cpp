// Rows from anywhere in compressed files, packed into samples; and files that are not whole.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gzip_index.h"
#include "meshwright/components.h"
#include "meshwright/data/dataset_kind.h"

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

namespace fs = std::filesystem;
using namespace meshwright;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("jsonl_gz_test_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  // Each of `members` compressed by itself, behind each other.
  std::string put(const std::string& name, const std::vector<std::string>& members) const {
    const std::string file = (path / name).string();
    fs::remove(file);
    for (const std::string& text : members) {
      gzFile out = ::gzopen(file.c_str(), "ab6");
      REQUIRE(::gzwrite(out, text.data(), static_cast<unsigned>(text.size())) ==
              static_cast<int>(text.size()));
      ::gzclose(out);
    }
    return file;
  }
};

std::string bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// As the engine finds it.
const meshwright_component& component() {
  const meshwright_extension* block = meshwright_plugin_v1.extensions;
  while (block->id != MESHWRIGHT_DATASETS) block = block->next;
  return *reinterpret_cast<const meshwright_components*>(block)->components;
}

std::shared_ptr<DatasetKind> kind() {
  return {static_cast<DatasetKind*>(component().create(nullptr)),
          [](DatasetKind* made) { component().destroy(made); }};
}

DatasetRequest request(const std::string& path, int64_t seq_len, int64_t vocabulary = 256) {
  DatasetRequest out;
  out.options = Options(
      make_schema("dataset.jsonl_gz", "jsonl_gz", {component().options, component().option_count}));
  out.path = path;
  out.seq_len = seq_len;
  out.vocab_size = vocabulary;
  return out;
}

std::unique_ptr<SampleSource> open(const DatasetRequest& wanted) { return kind()->open(wanted); }

struct Sample {
  std::vector<int64_t> tokens, targets;
  std::vector<int32_t> documents;
  std::vector<float> weights;
};

Sample read(const SampleSource& source, int64_t sample, int64_t seq_len) {
  const auto size = static_cast<size_t>(seq_len);
  Sample out{std::vector<int64_t>(size), std::vector<int64_t>(size), std::vector<int32_t>(size),
             std::vector<float>(source.has_weights() ? size : 0)};
  source.read(sample, {out.tokens, out.targets, out.documents, out.weights});
  return out;
}

std::string refusal(const DatasetRequest& wanted) {
  try {
    open(wanted);
  } catch (const Error& error) {
    CHECK(exit_status(error.code()) == 7);
    return error.message();
  }
  return "";
}

// Text that does not compress to nothing, in blocks of a few KiB.
std::string noise(size_t size, uint64_t state) {
  std::string out;
  while (out.size() < size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out += static_cast<char>('a' + (state >> 33) % 20);
  }
  return out;
}

}  // namespace

TEST_CASE("contents are read from anywhere, in files of one member and of several") {
  const Folder folder;
  const std::string a = noise(900000, 1), b = noise(500000, 2), c = "the end";
  for (const auto& members : std::vector<std::vector<std::string>>{{a + b + c}, {a, b, "", c}}) {
    const std::string file = folder.put("noise.gz", members), all = a + b + c;
    std::string whole;
    const jsonl_gz::GzipIndex index(file, 65536, [&](std::span<const char> piece) {
      whole.append(piece.data(), piece.size());
    });
    CHECK((whole == all));
    CHECK(index.bytes() == static_cast<int64_t>(all.size()));
    CHECK(index.places() > 8);
    for (size_t begin = 0; begin < all.size(); begin += 31337)
      for (size_t count : {size_t{1}, size_t{5000}, size_t{200000}}) {
        std::string part;
        index.read(static_cast<int64_t>(begin), [&](std::span<const char> piece) {
          part.append(piece.data(), piece.size());
          return part.size() < count;
        });
        CHECK((part.substr(0, count) == all.substr(begin, count)));
      }
  }
}

TEST_CASE("rows are packed into samples: documents, targets within them, weights") {
  const Folder folder;
  const std::string file = folder.put(
      "rows.jsonl.gz", {"{\"tokens\": [1, 2, 3]}\n\n{\"text\": \"AB\", \"share\": 0.5}\r\n",
                        "{\"tokens\": []}\n{\"tokens\": [7, 8, 9, 10, 11], \"share\": 2}"});
  DatasetRequest wanted = request(file, 4);
  wanted.options.set("end_token", OptionValue(int64_t{0}));
  wanted.options.set("weight_key", OptionValue(std::string("share")));
  const auto source = open(wanted);
  // 1 2 3 0 | A B 0 | 0 | 7 8 9 10 11 0, in samples of four.
  REQUIRE(source->samples() == 3);
  Sample sample = read(*source, 0, 4);
  CHECK((sample.tokens == std::vector<int64_t>{1, 2, 3, 0}));
  CHECK((sample.targets == std::vector<int64_t>{2, 3, 0, kNoTarget}));
  CHECK((sample.documents == std::vector<int32_t>{0, 0, 0, 0}));
  sample = read(*source, 1, 4);
  CHECK((sample.tokens == std::vector<int64_t>{'A', 'B', 0, 0}));
  CHECK((sample.targets == std::vector<int64_t>{'B', 0, kNoTarget, kNoTarget}));
  CHECK((sample.documents == std::vector<int32_t>{0, 0, 0, 1}));
  CHECK((sample.weights == std::vector<float>{0.5F, 0.5F, 0.5F, 1}));
  sample = read(*source, 2, 4);
  CHECK((sample.tokens == std::vector<int64_t>{7, 8, 9, 10}));
  CHECK((sample.targets == std::vector<int64_t>{8, 9, 10, 11}));
  CHECK((sample.weights == std::vector<float>{2, 2, 2, 2}));
  CHECK(source->describe().find("4 rows, 14 tokens") != std::string::npos);
  CHECK(source->files() == std::vector<std::string>{file});
}

TEST_CASE("a sample begins within a row, and goes on in the next file") {
  const Folder folder;
  std::string a, b;
  std::vector<int64_t> all;
  auto row = [&](std::string& to, int64_t size) {
    to += "{\"tokens\":[";
    for (int64_t i = 0; i < size; ++i) {
      all.push_back((static_cast<int64_t>(all.size()) * 37) % 251);
      to += (i > 0 ? "," : "") + std::to_string(all.back());
    }
    to += "]}\n";
  };
  for (int64_t i = 0; i < 3000; ++i) row(a, 1 + i * 7 % 90);
  for (int64_t i = 0; i < 200; ++i) row(b, 1 + i * 13 % 50);
  folder.put("a.jsonl.gz", {a});
  folder.put("b.jsonl.gz", {b});
  DatasetRequest wanted = request(folder.path.string(), 33);
  wanted.options.set("spacing_kib", OptionValue(int64_t{64}));
  const auto source = open(wanted);
  REQUIRE(source->samples() == static_cast<int64_t>(all.size()) / 33);
  for (int64_t i = 0; i < source->samples(); ++i) {
    const Sample sample = read(*source, i, 33);
    for (int64_t at = 0; at < 33; ++at) {
      const auto here = static_cast<size_t>(at), place = static_cast<size_t>(i * 33 + at);
      REQUIRE(sample.tokens[here] == all[place]);
      if (sample.targets[here] != kNoTarget) REQUIRE(sample.targets[here] == all[place + 1]);
      // A document ends where a target is missing.
      if (at + 1 < 33)
        REQUIRE((sample.documents[here + 1] != sample.documents[here]) ==
                (sample.targets[here] == kNoTarget));
    }
  }
}

TEST_CASE("the fingerprint is that of the tokens and weights, whatever the compression") {
  const Folder folder;
  const std::string rows = "{\"tokens\": [1, 2, 3, 4, 5]}\n{\"tokens\": [6, 7]}\n";
  auto of = [&](const std::vector<std::string>& members) {
    return open(request(folder.put("rows.jsonl.gz", members), 2))->fingerprint();
  };
  const uint64_t truth = of({rows});
  CHECK(of({rows.substr(0, 20), rows.substr(20)}) == truth);
  CHECK(of({"{\"tokens\": [1, 2, 3, 4, 5, 6]}\n{\"tokens\": [7]}\n"}) != truth);
  CHECK(of({"{\"tokens\": [1, 2, 3, 4, 5]}\n{\"tokens\": [6, 8]}\n"}) != truth);
}

TEST_CASE("what cannot be used is told with file and line, or file and byte") {
  const Folder folder;
  struct Case {
    const char* rows;
    const char* said;
  };
  const std::string good = "{\"tokens\": [1, 2, 3, 4]}\n";
  for (const Case& one : std::vector<Case>{
           {"{\"tokens\": [1, 2\n", ":2: no JSON: "},
           {"[1, 2]\n", ":2: a row is an object, {...}"},
           {"\n\n{\"words\": 1}", ":4: the row has neither \"tokens\" nor \"text\""},
           {"{\"tokens\": 5}", ":2: \"tokens\" is no list of token ids"},
           {"{\"tokens\": [1, \"2\"]}", ":2: \"tokens\" holds \"2\", which is no token id"},
           {"{\"tokens\": [1.5]}", "which is no token id"},
           {"{\"text\": 5}", ":2: \"text\" is no text"},
           {"{\"tokens\": [256]}",
            ":2: the token 256 lies outside of the model's vocabulary of 256"},
           {"{\"tokens\": [-1]}", ":2: the token -1 lies outside"}}) {
    INFO(one.said);
    const std::string file = folder.put("bad.jsonl.gz", {good + one.rows});
    const std::string found = refusal(request(file, 2));
    CHECK(found.find(file) == 0);
    CHECK(found.find(one.said) != std::string::npos);
  }
  // Cut off at every byte that is left out, damaged in the middle, of another kind, or not there.
  const std::string whole = folder.put("whole.jsonl.gz", {noise(3000, 3)}), bytes = bytes_of(whole);
  const std::string file = (folder.path / "cut.jsonl.gz").string();
  for (size_t keep = 1; keep < bytes.size(); keep += bytes.size() / 40) {
    std::ofstream(file, std::ios::binary) << bytes.substr(0, keep);
    CHECK(refusal(request(file, 2))
              .find(": byte " + std::to_string(keep) + ": the compressed data end early") !=
          std::string::npos);
  }
  std::string damaged = bytes;
  for (size_t i = damaged.size() / 2; i < damaged.size() / 2 + 8; ++i) damaged[i] ^= 0x55;
  std::ofstream(file, std::ios::binary) << damaged;
  CHECK(refusal(request(file, 2)).find(file) == 0);
  std::ofstream(file, std::ios::binary) << good;
  CHECK(refusal(request(file, 2)).find("this is no gzip file") != std::string::npos);
  CHECK(refusal(request("/no/such/*.jsonl.gz", 2)).find("no such file") != std::string::npos);
  CHECK(refusal(request(folder.put("few.jsonl.gz", {good}), 5)).find("holds 4 tokens") !=
        std::string::npos);
}
