// Data sets of every kind, tokens that are written for them, and the order in which samples are
// read.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "engine/data/read_ahead.h"
#include "engine/data/tests/fixtures.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::data;

TEST_CASE("text is the bytes of the files in the order of their names") {
  Folder folder;
  folder.put("b.txt", "defg");
  folder.put("a.txt", "abc");
  folder.put("empty.txt", "");
  for (const std::string& path : {(folder.path / "*.txt").string(), folder.path.string()}) {
    auto data = open_dataset({.kind = "text", .path = path, .seq_len = 2});
    CHECK(data->tokens() == 7);
    CHECK(data->samples() == 3);
    CHECK(sample(*data, 0) == std::vector<int64_t>{'a', 'b', 'c'});
    CHECK(sample(*data, 1) == std::vector<int64_t>{'c', 'd', 'e'});
    CHECK(sample(*data, 2) == std::vector<int64_t>{'e', 'f', 'g'});
  }
  CHECK(failure({.kind = "text", .path = (folder.path / "*.md").string(), .seq_len = 2})
            .find("no file") != std::string::npos);
  CHECK(failure({.kind = "text", .path = folder.path.string(), .seq_len = 7}).find("7 tokens") !=
        std::string::npos);
  CHECK(failure({.kind = "text", .path = folder.path.string(), .seq_len = 2, .vocab_size = 100}, 1)
            .find("b.txt: the token at byte 1 is 101") != std::string::npos);
  auto one =
      open_dataset({.kind = "text", .path = folder.path.string(), .seq_len = 2})->fingerprint();
  folder.put("a.txt", "abd");
  CHECK(open_dataset({.kind = "text", .path = folder.path.string(), .seq_len = 2})->fingerprint() !=
        one);
}

TEST_CASE("token files with and without a header") {
  Folder folder;
  std::string raw = folder.put("raw.bin", pack<uint16_t>({1, 2, 3, 4, 5})),
              wide = folder.put("wide.bin", pack<uint32_t>({70000, 2, 3}));
  auto data = open_dataset(
      {.kind = "tokens", .path = raw, .dtype = "uint16", .seq_len = 2, .vocab_size = 6});
  CHECK(data->samples() == 2);
  CHECK(sample(*data, 1) == std::vector<int64_t>{3, 4, 5});
  CHECK(sample(*open_dataset({.kind = "tokens",
                              .path = wide,
                              .dtype = "uint32",
                              .seq_len = 2,
                              .vocab_size = 70001}),
               0)[0] == 70000);
  std::string gpt2 =
      folder.put("gpt2.bin", llm_header(20240520, 1, 4) + pack<uint16_t>({9, 8, 7, 6}));
  std::string llama =
      folder.put("llama.bin", llm_header(20240801, 7, 3) + pack<uint32_t>({100000, 8, 7}));
  CHECK(sample(*open_dataset({.kind = "tokens", .path = gpt2, .seq_len = 3, .vocab_size = 10}),
               0) == std::vector<int64_t>{9, 8, 7, 6});
  CHECK(sample(*open_dataset({.kind = "tokens", .path = llama, .seq_len = 2, .vocab_size = 100001}),
               0)[0] == 100000);
}

TEST_CASE("megatron files are read as one stream, and every truncation of the index is noticed") {
  Folder folder;
  std::vector<int32_t> lengths = {2, 0, 3};
  std::string index = index_file(lengths, 8, 2);
  folder.put("m.bin", pack<uint16_t>({5, 6, 7, 8, 9}));
  folder.put("m.idx", index);
  std::string stem = folder.path.string() + "/m";
  for (const std::string& path : {stem, stem + ".bin", stem + ".idx"})
    CHECK(sample(*open_dataset({.kind = "megatron", .path = path, .seq_len = 4, .vocab_size = 10}),
                 0) == std::vector<int64_t>{5, 6, 7, 8, 9});
  for (size_t cut = 0; cut < index.size(); ++cut) {
    folder.put("m.idx", index.substr(0, cut));
    // The list of documents is not needed to read the stream, but its count is checked.
    CHECK(failure({.kind = "megatron", .path = stem, .seq_len = 2}) != "");
  }
  for (size_t at = 0; at < 34 + lengths.size() * 12; ++at) {
    std::string damaged = index;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    folder.put("m.idx", damaged);
    CHECK(failure({.kind = "megatron", .path = stem, .seq_len = 2}) != "");
  }
}

TEST_CASE("synthetic tokens stay in the vocabulary and can be learnt") {
  auto data = open_dataset({.kind = "mock", .seq_len = 16, .vocab_size = 50, .seed = 7});
  for (int64_t token : sample(*data, 65535)) CHECK((token >= 0 && token < 50));
  CHECK(sample(*data, 3) ==
        sample(*open_dataset({.kind = "mock", .seq_len = 16, .vocab_size = 50, .seed = 7}), 3));
  CHECK_THROWS_AS(sample(*data, 65536), Error);
}

TEST_CASE(
    "tokens come back as they were written, two bytes wide where the vocabulary fits and four "
    "where not") {
  Folder folder;
  struct Row {
    int64_t vocabulary;
    std::vector<int64_t> tokens;
    const char* type;
    size_t width;
  };
  for (const Row& row :
       {Row{300, {0, 1, 299, 7}, "uint16", 2}, Row{65536, {65535, 0, 40000}, "uint16", 2},
        Row{65537, {65536, 0, 1}, "uint32", 4},
        Row{int64_t{1} << 31, {(int64_t{1} << 31) - 1, 5, 6}, "uint32", 4}}) {
    CAPTURE(row.vocabulary);
    fs::path out = folder.path / "out.bin";
    TokenWriter writer(out, row.vocabulary);
    writer.append(std::span(row.tokens).first(1));
    writer.append({});
    writer.append(std::span(row.tokens).subspan(1));
    CHECK(writer.tokens() == static_cast<int64_t>(row.tokens.size()));
    CHECK(std::string(writer.type_name()) == row.type);
    writer.finish();
    CHECK(fs::file_size(out) == 1024 + row.width * row.tokens.size());
    auto data = open_dataset(
        {.kind = "tokens", .path = out.string(), .seq_len = 1, .vocab_size = row.vocabulary});
    CHECK(data->tokens() == static_cast<int64_t>(row.tokens.size()));
    for (size_t i = 0; i + 1 < row.tokens.size(); ++i)
      CHECK(sample(*data, static_cast<int64_t>(i)) ==
            std::vector<int64_t>{row.tokens[i], row.tokens[i + 1]});
  }
}

TEST_CASE("a file of tokens is there whole or not at all") {
  Folder folder;
  fs::path out = folder.path / "out.bin";
  folder.put("out.bin", "the older one");
  {
    TokenWriter writer(out, 100);
    writer.append(std::vector<int64_t>{1, 2, 3});
    for (int64_t wrong : {int64_t{-1}, int64_t{100}})
      CHECK_THROWS_AS(writer.append(std::vector<int64_t>{wrong}), Error);
  }
  CHECK(fs::file_size(out) == 13);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) ==
        1);  // nothing beside it is left
  CHECK(thrown([&] { TokenWriter(folder.path / "nowhere/out.bin", 100); }).code() ==
        ErrorCode::output_unwritable);
}

TEST_CASE("more tokens than an int32 counts are read by their own header") {
  Folder folder;
  int64_t tokens = (int64_t{1} << 31) + 5;
  std::string head = llm_header(20240520, 1, INT32_MIN);
  std::memcpy(head.data() + 12, &tokens, sizeof tokens);
  std::string large = folder.put("large.bin", head);
  fs::resize_file(
      large, static_cast<uintmax_t>(1024 + 2 * tokens));  // takes no room: nothing is written there
  auto data = open_dataset({.kind = "tokens", .path = large, .seq_len = 4, .vocab_size = 10});
  CHECK(data->tokens() == tokens);
  CHECK(sample(*data, data->samples() - 1) == std::vector<int64_t>(5, 0));
  fs::resize_file(large, static_cast<uintmax_t>(1024 + 2 * tokens - 2));
  CHECK(failure({.kind = "tokens", .path = large, .seq_len = 4})
            .find("byte 8: the header counts 2147483653 tokens") != std::string::npos);
}

TEST_CASE("the order of samples") {
  Sampler plain(10, false, 1);
  for (int64_t i = 0; i < 25; ++i) CHECK(plain.at(i) == i % 10);
  for (int64_t samples : {1, 2, 3, 10, 64, 1000}) {
    Sampler shuffled(samples, true, 42);
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      epochs.emplace_back();
      for (int64_t i = 0; i < samples; ++i) {
        int64_t at = shuffled.at(epoch * samples + i);
        CHECK(at >= 0);
        CHECK(at < samples);
        seen.insert(at);
        epochs.back().push_back(at);
      }
      CHECK(seen.size() == static_cast<size_t>(samples));
    }
    if (samples < 10) continue;
    CHECK(epochs[0] != epochs[1]);
    CHECK(Sampler(samples, true, 42).at(5) == shuffled.at(5));
    std::vector<int64_t> other;
    for (int64_t i = 0; i < samples; ++i) other.push_back(Sampler(samples, true, 43).at(i));
    CHECK(other != epochs[0]);
  }
}

TEST_CASE("every permutation of few samples comes up, about equally often") {
  std::map<std::vector<int64_t>, int> seen;
  Sampler sampler(4, true, 9);
  constexpr int kEpochs = 24000;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 4; ++i) order.push_back(sampler.at(epoch * 4 + i));
    ++seen[order];
  }
  CHECK(seen.size() == 24);
  for (const auto& [order, count] : seen) {
    CAPTURE(count);  // 1000 expected, standard deviation 31
    CHECK(count > 840);
    CHECK(count < 1160);
  }
}

TEST_CASE("a step reads the same samples however it is split over ranks and micro-batches") {
  constexpr int64_t kBatch = 24,
                    kSteps = 12;  // 288 positions over 100 samples: almost three epochs
  for (bool shuffle : {false, true}) {
    Sampler sampler(100, shuffle, 5);
    std::vector<std::set<int64_t>> reference;
    for (auto [dp, accum, micro_batch] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 24}, {2, 1, 12}, {2, 3, 4}, {3, 4, 2}, {4, 6, 1}, {24, 1, 1}}) {
      CAPTURE(dp);
      std::vector<std::set<int64_t>> steps;
      for (int64_t s = 0; s < kSteps; ++s) {
        std::vector<int64_t> read;
        for (int64_t r = 0; r < dp; ++r)
          for (int64_t a = 0; a < accum; ++a)
            for (int64_t b = 0; b < micro_batch; ++b)
              read.push_back(sampler.at(((s * accum + a) * dp + r) * micro_batch + b));
        REQUIRE(read.size() == kBatch);
        steps.emplace_back(read.begin(), read.end());
        if (!shuffle)
          for (int64_t i = 0; i < kBatch; ++i) CHECK(steps.back().contains((s * kBatch + i) % 100));
      }
      if (reference.empty()) reference = steps;
      CHECK(steps == reference);
    }
  }
}

TEST_CASE("the order at far positions and of many samples needs no memory and stays in range") {
  Sampler sampler(int64_t{1} << 40, true, 3);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    int64_t at = sampler.at((int64_t{1} << 61) + i);
    CHECK(at >= 0);
    CHECK(at < int64_t{1} << 40);
    seen.insert(at);
  }
  CHECK(seen.size() == 1000);
  CHECK_THROWS_AS(Sampler(0, true, 1), Error);
  CHECK_THROWS_AS(sampler.at(-1), Error);
}
