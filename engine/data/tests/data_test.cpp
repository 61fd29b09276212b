// Data sets of every kind, and what damage they notice when they are opened.
#include <sys/stat.h>

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

  struct Case {
    DatasetConfig config;
    std::string part;
    int64_t read = -1;
  };
  for (const Case& c : std::vector<Case>{
           {{.kind = "tokens", .path = raw, .seq_len = 2}, "no llm.c header"},
           {{.kind = "tokens", .path = raw, .dtype = "uint16", .seq_len = 2, .vocab_size = 4},
            "byte 8 is 5",
            1},
           {{.kind = "tokens", .path = raw, .dtype = "uint32", .seq_len = 2}, "byte 8"},
           {{.kind = "tokens", .path = gpt2, .dtype = "uint32", .seq_len = 2}, "dtype says uint32"},
           {{.kind = "tokens",
             .path = folder.put("short.bin", llm_header(20240520, 1, 4) + "abc"),
             .seq_len = 2},
            "byte 8"},
           {{.kind = "tokens",
             .path = folder.put("old.bin", llm_header(20240520, 3, 4) + "abcdabcd"),
             .seq_len = 2},
            "version 3"},
           {{.kind = "tokens", .path = folder.path.string() + "/none.bin", .seq_len = 2},
            "no file"},
       }) {
    std::string found = failure(c.config, c.read);
    INFO(found);
    CHECK(found.find(c.part) != std::string::npos);
  }
  std::string pipe = folder.path.string() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(failure({.kind = "tokens", .path = pipe, .dtype = "uint16", .seq_len = 2})
            .find("not a regular file") != std::string::npos);
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
