// What is found out about data before the first step: tokens of another vocabulary, files of
// another kind.
#include <chrono>

#include "engine/data/tests/fixtures.h"

using namespace meshwright;
using namespace meshwright::data;

namespace {

std::string looked(const DatasetConfig& config, int64_t budget = kTokensLookedAt) {
  const Error error = thrown([&] { open_dataset(config)->check_tokens(budget); });
  if (error.message() == "nothing") return "";
  CHECK(exit_status(error.code()) == 7);
  return code_string(error.code()) + " " + error.message();
}

DatasetConfig tokens_at(const std::string& path, int64_t vocab_size) {
  return {
      .kind = "tokens", .path = path, .dtype = "uint16", .seq_len = 8, .vocab_size = vocab_size};
}

// A header of numpy.save() in version 1.0, padded as numpy pads it.
std::string numpy_header(const std::string& type, size_t count) {
  std::string dict = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" +
                     std::to_string(count) + ",), }";
  while ((10 + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  auto length = static_cast<uint16_t>(dict.size());
  return std::string("\x93NUMPY\x01\x00", 8) + pack<uint16_t>({length}) + dict;
}

}  // namespace

TEST_CASE("a token outside of the vocabulary is found before the first step, wherever it lies") {
  Folder folder;
  std::vector<uint16_t> tokens(3'000'000, 7);
  for (size_t at :
       {size_t{0}, size_t{524'287}, size_t{524'288}, size_t{2'000'001}, size_t{2'999'999}}) {
    CAPTURE(at);
    tokens[at] = 50'000;
    std::string path = folder.put("t.bin", pack(tokens));
    DatasetConfig config = tokens_at(path, 50'000);
    CHECK(looked(config) == "E0702 " + path + ": the token at byte " + std::to_string(at * 2) +
                                " is 50000, but the model's vocabulary has 50000 entries");
    config.vocab_size = 50'001;
    CHECK(looked(config) == "");
    tokens[at] = 7;
  }
  // Of several in one block the largest is told, of several blocks the first is, whichever thread
  // saw one.
  tokens[2'900'000] = tokens[1'500'000] = tokens[1'500'001] = 60'000;
  std::string path = folder.put("t.bin", pack(tokens));
  for (int i = 0; i < 5; ++i)
    CHECK(looked(tokens_at(path, 50'000)).find("byte 3000000 is") != std::string::npos);
  tokens[1'499'990] = 50'000;
  tokens[1'500'100] = 50'300;
  tokens[2'900'000] = 65'000;
  path = folder.put("t.bin", pack(tokens));
  const DatasetConfig config = tokens_at(path, 50'000);
  for (int i = 0; i < 5; ++i)
    CHECK(looked(config) == "E0702 " + path +
                                ": the token at byte 3000000 is 60000, but the model's vocabulary "
                                "has 50000 entries");
  // So is the largest of a sample that is read.
  CHECK(failure(config, 1'499'984 / 8).find("byte 2999980 is 50000") != std::string::npos);
  CHECK(failure(config, 1'499'992 / 8).find("byte 3000000 is 60000") != std::string::npos);
}

TEST_CASE("every type of tokens is looked at, behind headers and over several files") {
  Folder folder;
  const DatasetConfig megatron{
      .kind = "megatron", .path = folder.path.string() + "/m", .seq_len = 2, .vocab_size = 10};
  folder.put("m.bin", pack<int32_t>({5, 6, -1, 8, 9}));
  folder.put("m.idx", index_file({2, 3}, 4, 4));
  CHECK(looked(megatron).find("byte 8 is -1") != std::string::npos);
  // A token that the vocabulary could have is told rather than one that none has.
  folder.put("m.bin", pack<int32_t>({5, -1, 10, -2, 12}));
  CHECK(looked(megatron).find("byte 16 is 12") != std::string::npos);
  std::string header =
      folder.put("h.bin", llm_header(20240801, 7, 3) + pack<uint32_t>({1, 2, 4'000'000'000}));
  CHECK(looked({.kind = "tokens", .path = header, .seq_len = 2, .vocab_size = 100})
            .find("byte 1032 is 4000000000") != std::string::npos);
  folder.put("a.txt", "abc");
  folder.put("b.txt", "ab\xffz");
  DatasetConfig text{
      .kind = "text", .path = folder.path.string() + "/*.txt", .seq_len = 2, .vocab_size = 200};
  CHECK(looked(text).find("b.txt: the token at byte 2 is 255") != std::string::npos);
  text.vocab_size = 256;
  CHECK(looked(text) == "");
  CHECK(looked({.kind = "mock", .seq_len = 2, .vocab_size = 200}) == "");
}

TEST_CASE(
    "of data above the budget blocks are looked at that reach from its first to its last token") {
  Folder folder;
  std::vector<uint16_t> tokens(8 << 20, 1);  // 16 MiB
  const DatasetConfig config = tokens_at(folder.path.string() + "/t.bin", 100);
  for (size_t at : {size_t{0}, tokens.size() - 1}) {
    tokens[at] = 100;
    folder.put("t.bin", pack(tokens));
    CHECK(looked(config, int64_t{4} << 20).find("is 100") != std::string::npos);
    tokens[at] = 1;
  }
  // A block of a MiB in every four: what is wrong in a whole stretch shows, a single token between
  // two blocks is left to read().
  for (size_t i = 0; i < tokens.size() / 4; ++i) tokens[tokens.size() / 2 + i] = 100;
  folder.put("t.bin", pack(tokens));
  CHECK(looked(config, int64_t{4} << 20).find("is 100") != std::string::npos);
  std::fill(tokens.begin(), tokens.end(), uint16_t{1});
  tokens[1 << 20] = 100;
  folder.put("t.bin", pack(tokens));
  CHECK(looked(config, int64_t{4} << 20) == "");
  CHECK(looked(config, int64_t{16} << 20).find("byte 2097152 is 100") != std::string::npos);
}

TEST_CASE("bytes of Parquet are refused, and a text that begins so is not") {
  Folder folder;
  CHECK(failure({.kind = "text", .path = folder.put("a", "PAR1....PAR1"), .seq_len = 2})
            .find("byte 0: it is Parquet") != std::string::npos);
  const std::string gene = folder.put("gene.txt", "PAR1 is a gene of a plant.");
  CHECK(sample(*open_dataset({.kind = "text", .path = gene, .seq_len = 3}), 0) ==
        std::vector<int64_t>{'P', 'A', 'R', '1'});
}

TEST_CASE("a .npy file is no token file and no text, and the help says how to make one of it") {
  Folder folder;
  struct Row {
    const char* type;
    std::string numbers;
    const char* help;
    const char* dtype;
  };
  for (const Row& row :
       {Row{"<u2", pack<uint16_t>({1, 2, 3, 4}), "tail -c +129 ", "uint16"},
        Row{"<i4", pack<int32_t>({1, 2, 3, 4}), "tail -c +129 ", "uint32"},
        Row{"<i8", pack<int64_t>({1, 2, 3, 4}), "astype(\"uint32\").tofile(", "uint32"}}) {
    CAPTURE(row.type);
    std::string path = folder.put("t.npy", numpy_header(row.type, 4) + row.numbers);
    for (const char* kind : {"tokens", "text"}) {
      const Error error = thrown(
          [&] { open_dataset({.kind = kind, .path = path, .dtype = "uint16", .seq_len = 2}); });
      CHECK(error.code() == ErrorCode::bad_dataset);
      CHECK(error.message().find(path + ": byte 0: this is a .npy file of type '" + row.type +
                                 "'") == 0);
      REQUIRE(error.helps().size() == 2);
      CHECK(error.helps()[0].find(row.help) != std::string::npos);
      CHECK(error.helps()[1].find("dtype = \"" + std::string(row.dtype) + "\"") !=
            std::string::npos);
      // The command does what it says.
      if (error.helps()[0].starts_with("cut the header off: ")) {
        std::string command = "cd '" + folder.path.string() + "' && " + error.helps()[0].substr(20);
        REQUIRE(std::system(command.c_str()) == 0);
        auto data = open_dataset({.kind = "tokens",
                                  .path = folder.path.string() + "/tokens.bin",
                                  .dtype = row.dtype,
                                  .seq_len = 3,
                                  .vocab_size = 5});
        CHECK(sample(*data, 0) == std::vector<int64_t>{1, 2, 3, 4});
      }
    }
  }
  // A header that is cut off, of a version to come, or of an object array is refused as well.
  for (const std::string& bytes :
       {std::string("\x93NUMPY"), std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12),
        numpy_header("|O", 1)})
    CHECK(failure({.kind = "tokens",
                   .path = folder.put("odd.npy", bytes),
                   .dtype = "uint16",
                   .seq_len = 1})
              .find(".npy file") != std::string::npos);
}
