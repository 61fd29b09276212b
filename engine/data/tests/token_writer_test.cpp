// What is written as tokens is read as the same tokens.
#include <doctest/doctest.h>

#include <cstring>

#include "engine/data/read_ahead.h"
#include "fixtures.h"

using namespace meshwright;
using namespace meshwright::data;
namespace fs = std::filesystem;

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
  try {
    TokenWriter writer(folder.path / "nowhere/out.bin", 100);
    FAIL("it was opened");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::output_unwritable);
  }
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
