// Files are cut at rows, with the line of each.
#include "plugins/jsonl/row_pieces.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "meshwright/error.h"

namespace row_pieces_test {

using meshwright::Error;
using meshwright::jsonl::Chunk;
using meshwright::jsonl::RowFile;
using meshwright::jsonl::RowPiece;

std::vector<std::string> all(std::string_view text, size_t size = 1 << 20) {
  const RowFile file(text, "f");
  std::vector<std::string> out;
  size_t expected = file.chunks(size).empty() ? 0 : file.chunks(size).front().begin;
  for (const Chunk& chunk : file.chunks(size)) {
    CHECK(chunk.begin == expected);
    CHECK(chunk.end > chunk.begin);
    expected = chunk.end;
    for (const RowPiece& piece : file.rows(chunk)) {
      CHECK(text.substr(piece.offset, piece.text.size()) == piece.text);
      out.push_back(std::to_string(piece.line) + ": " + std::string(piece.text));
    }
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST_CASE("an object on every line that is not blank") {
  CHECK(all("{\"a\":1}\n\n  {\"b\":2}  \r\n\t\n{\"c\":3}") ==
        Lines{"1: {\"a\":1}", "3: {\"b\":2}", "5: {\"c\":3}"});
  CHECK(all("\xEF\xBB\xBF{}\n{}\n") == Lines{"1: {}", "2: {}"});
  CHECK(all("").empty());
  CHECK(all("\n \n").empty());
}

TEST_CASE("one list") {
  CHECK(all("[{\"a\": [1, 2]},\n {\"b\": \"],{\\\"\"}\n,\n\n{}\n]\n") ==
        Lines{"1: {\"a\": [1, 2]}", "2: {\"b\": \"],{\\\"\"}", "5: {}"});
  CHECK(all("\n\n [ 1 , 2 ]") == Lines{"3: 1", "3: 2"});
  CHECK(all("[]").empty());
  CHECK(all("[ \n ]").empty());
  // What is missing is a row, and no JSON.
  CHECK(all("[1,,2]") == Lines{"1: 1", "1: ", "1: 2"});
  CHECK(all("[,1]") == Lines{"1: ", "1: 1"});
  CHECK_THROWS_WITH_AS(all("[1,\n2\n"),
                       "error[E0701]: f:2: the file begins with [ and does not end with ]", Error);
  CHECK_THROWS_AS(all("["), Error);
  try {
    all("\n[1,\n2\n");
  } catch (const Error& error) {
    CHECK(error.origin().file == "f");
    CHECK(error.origin().line == 3);
  }
}

TEST_CASE("a list that ends with a comma is told as that, at the comma") {
  struct Case {
    const char *text, *place;
    int line, column;
  };
  for (const Case& one : std::initializer_list<Case>{{"[1,]", "f:1:3", 1, 3},
                                                     {"[{\"a\": 1},]\n", "f:1:10", 1, 10},
                                                     {"\xEF\xBB\xBF[1,]", "f:1:3", 1, 3},
                                                     {"\n [1,\n  2 ,\n\n ]\n", "f:3:5", 3, 5},
                                                     {"[,]", "f:1:2", 1, 2}}) {
    CAPTURE(one.text);
    try {
      all(one.text);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == meshwright::ErrorCode::bad_dataset);
      CHECK(error.message() ==
            std::string(one.place) +
                ": not valid JSON: a comma stands before ], with nothing behind it");
      CHECK(error.helps() == std::vector<std::string>{"remove that comma"});
      CHECK(error.origin().file == "f");
      CHECK(error.origin().line == one.line);
      CHECK(error.origin().column == one.column);
    }
  }
  // One within a string is none.
  CHECK(all("[\"a,\"]") == Lines{"1: \"a,\""});
}

TEST_CASE("rows have the column at which they begin, whatever the size of chunks") {
  for (const std::string_view text :
       {" {\"a\":1}\n{}\n", "[{\"a\": [1, 2]}, {\"b\": 1}\n , {},3\n,\n\n 4 ]",
        "\xEF\xBB\xBF{}\n {}", "\n [1,,22,  3]"}) {
    CAPTURE(text);
    const RowFile file(text, "f");
    const size_t begin = text.starts_with("\xEF") ? 3 : 0;
    size_t rows = 0;
    for (const size_t size : {size_t{1}, size_t{9}, size_t{1000}})
      for (const Chunk& chunk : file.chunks(size))
        for (const RowPiece& piece : file.rows(chunk)) {
          const std::string_view before = text.substr(begin, piece.offset - begin);
          const size_t feed = before.rfind('\n');
          CHECK(piece.column == static_cast<int64_t>(feed == std::string_view::npos
                                                         ? before.size() + 1
                                                         : before.size() - feed));
          ++rows;
        }
    CHECK(rows >= 6);
  }
}

TEST_CASE("files that are no text in UTF-8 say what they are, and how they become that") {
  auto refused = [](std::string_view text) -> std::string {
    try {
      const RowFile file(text, "rows/a b.jsonl");
    } catch (const Error& error) {
      CHECK(error.code() == meshwright::ErrorCode::bad_dataset);
      REQUIRE(error.helps().size() == 1);
      CHECK(error.origin().file == "rows/a b.jsonl");
      return error.message() + "; " + error.helps()[0];
    }
    return "";
  };
  using namespace std::string_view_literals;
  const std::string file = "rows/a b.jsonl: the file is ",
                    utf16 = file +
                            "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 "
                            "'rows/a b.jsonl' > rows.jsonl";
  CHECK(refused("\xFF\xFE{\0}\0"sv) == utf16);
  CHECK(refused("\xFE\xFF\0{\0}"sv) == utf16);
  CHECK(refused("\xFF\xFE\0\0{\0\0\0"sv).starts_with(file + "UTF-32, not UTF-8; "));
  CHECK(refused("\0\0\xFE\xFF\0\0\0{"sv).starts_with(file + "UTF-32, not UTF-8; "));
  CHECK(refused("\x1F\x8B\b"sv) ==
        file + "compressed by gzip; unpack it: gunzip < 'rows/a b.jsonl' > rows.jsonl");
  const std::string rows = " 'rows/a b.jsonl' > rows.jsonl";
  CHECK(refused("\xFD\x37zXZ\0\0"sv) == file + "compressed by xz; unpack it: xz -dc <" + rows);
  CHECK(refused("\x28\xB5\x2F\xFD\x04"sv) ==
        file + "compressed by zstd; unpack it: zstd -dc <" + rows);
  CHECK(refused("BZh91AY&SY") == file + "compressed by bzip2; unpack it: bunzip2 <" + rows);
  CHECK(refused("PK\x03\x04\x14"sv) == file + "a zip archive; unpack it: unzip -p" + rows);
  CHECK(refused("PAR1\x15"sv) ==
        file + "Parquet, which is not read; convert it to JSON lines: an object on every line");
  // No mark says it, but nothing else begins so.
  CHECK(refused("{\0\"\0"sv) ==
        file + "UTF-16, not UTF-8; convert it: iconv -f UTF-16LE -t UTF-8" + rows);
  CHECK(refused("\0[\0{"sv) ==
        file + "UTF-16, not UTF-8; convert it: iconv -f UTF-16BE -t UTF-8" + rows);
  CHECK(refused("{\0\0\0\"\0\0\0"sv) ==
        file + "UTF-32, not UTF-8; convert it: iconv -f UTF-32LE -t UTF-8" + rows);
  CHECK(refused("\0\0\0{"sv) ==
        file + "UTF-32, not UTF-8; convert it: iconv -f UTF-32BE -t UTF-8" + rows);
  CHECK(refused("\xEF\xBB\xBF{}"sv).empty());
  CHECK(refused("{}").empty());
}

TEST_CASE("rows are the same for any size of chunk") {
  std::string lines, list = "[";
  for (int i = 0; i < 200; ++i) {
    const std::string row = "{\"n\": " + std::to_string(i) + ", \"t\": \"" +
                            std::string(static_cast<size_t>(i % 17), ',') + "\"}";
    lines += row + (i % 5 == 0 ? "\n\n" : "\n");
    list += row + (i == 199 ? "\n]" : i % 3 == 0 ? ",\n" : ",");
  }
  for (const std::string& text : {lines, list}) {
    const Lines whole = all(text);
    CHECK(whole.size() == 200);
    for (size_t size : {1, 7, 40, 100, 1000, 5000}) CHECK(all(text, size) == whole);
  }
}

}  // namespace row_pieces_test
