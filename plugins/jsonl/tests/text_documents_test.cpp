// Files divided into documents are the same however they are read.
#include "plugins/jsonl/text_documents.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "given.h"
#include "meshwright/error.h"
#include "sdk/base/unpack/tests/packed.h"

namespace text_documents_test {

using jsonl_test::TemporaryFolder;
using jsonl_test::thrown;
using jsonl_test::write;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::jsonl::Divide;
using meshwright::jsonl::DocumentPart;
using meshwright::jsonl::DocumentRules;
using meshwright::jsonl::each_document;
using meshwright::jsonl::is_rows_name;
using meshwright::jsonl::TextPiece;
using meshwright::jsonl::TextPieces;
using meshwright::tokenizer::Cuts;

struct Read {
  std::vector<std::string> documents;
  std::vector<uint64_t> offsets;
  std::vector<int64_t> lines;
  size_t pieces = 0;
};

Read read(const std::vector<std::string>& files, const DocumentRules& rules,
          size_t piece = size_t{1} << 20, Cuts cuts = {true, true}, size_t most = 1 << 20) {
  Read out;
  TextPieces pieces(files, rules, cuts, piece, most);
  bool open = false;
  while (const auto one = pieces.next()) {
    ++out.pieces;
    each_document(*one, rules, files[one->file], [&](const DocumentPart& part) {
      CHECK(part.begins == !open);
      if (part.begins) {
        out.documents.emplace_back();
        out.offsets.push_back(part.offset);
        out.lines.push_back(part.line);
      }
      out.documents.back() += part.text;
      open = !part.ends;
    });
  }
  CHECK_FALSE(open);
  return out;
}

using Texts = std::vector<std::string>;

TEST_CASE("what divides a file into documents") {
  const TemporaryFolder folder;
  const std::string file = folder / "a.txt";
  auto of = [&](const DocumentRules& rules, const std::string& text) {
    write(file, text);
    return read({file}, rules).documents;
  };
  CHECK(of({}, "one\n\ntwo\n") == Texts{"one\n\ntwo\n"});
  CHECK(of({}, "\xEF\xBB\xBFone") == Texts{"one"});
  CHECK(of({}, " \n\t\n").empty());
  CHECK(of({.divide = Divide::line}, "one\r\n\n  \ntwo\nthree") == Texts{"one", "two", "three"});
  CHECK(of({.divide = Divide::blank_line}, "\n\none\nmore\n\n \t\r\ntwo\r\n\r\nthree") ==
        Texts{"one\nmore", "two", "three"});
  const DocumentRules end{.divide = Divide::separator, .separator = "<|end|>"};
  CHECK(of(end, "one\n<|end|>\ntwo<|end|><|end|>\n\nthree\n") == Texts{"one", "two", "\nthree\n"});
  CHECK(of(end, "<|end|>") == Texts{});
  CHECK(of(end, "none") == Texts{"none"});
}

TEST_CASE("rows give one of their fields") {
  const TemporaryFolder folder;
  const std::string file = folder / "a.jsonl", packed = folder / "b.jsonl.gz";
  write(file, "{\"text\": \"one\\n\"}\n\n{\"id\": 3, \"text\": \"\"}\n{\"text\": \"two\"}");
  write(packed, packed_files::gzip("{\"text\": \"three\"}\n"));
  const Read found = read({file, packed}, {.divide = Divide::line});
  CHECK(found.documents == Texts{"one\n", "two", "three"});
  CHECK(found.lines == std::vector<int64_t>{1, 4, 1});
  CHECK(found.offsets == std::vector<uint64_t>{0, 41, 56});
  auto refused = [&](const std::string& row) {
    write(file, "{\"text\": \"one\"}\n" + row + "\n");
    return thrown([&] { read({file}, {}); });
  };
  const Error other = refused(R"({"body": "x"})");
  CHECK(other.code() == ErrorCode::bad_dataset);
  CHECK(other.message() == file + ":2: the row has no string \"text\"");
  CHECK(other.key() == "dataset.text.text_field");
  CHECK(other.helps().size() == 2);
  CHECK(refused(R"({"text": 3})").message() == file + ":2: the row has no string \"text\"");
  CHECK(refused(R"(["text"])").message() == file + ":2: the row has no string \"text\"");
  CHECK(refused(R"({"text": "x)").message().starts_with(file + ":2:"));
  write(file, R"({"body": {"x": 1}, "said": "it"})");
  CHECK(read({file}, {.text_field = "said"}).documents == Texts{"it"});
  for (const char* name : {"a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"})
    CHECK(is_rows_name(name));
  for (const char* name : {"a.txt", "a.jsonl.txt", "jsonl", "a.md.gz"})
    CHECK_FALSE(is_rows_name(name));
}

// Words, lines, blank lines and separators in an order that a seed says.
std::string mixed(uint32_t seed, size_t size) {
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"word",  " ",    " ",       "\n",        "\n",
                                          "\n\n",  "\r\n", "<|end|>", "<|end|>\n", "<|en",
                                          "über ", "3 ",   "\t\n",    "a b c d e", "日本",
                                          ". ",    " \n",  "END",     "x<|end|>y", "\n<|end|>"};
  std::string out;
  while (out.size() < size) out += parts[random() % parts.size()];
  return out;
}

TEST_CASE("documents do not depend on the pieces that they are read in") {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string (*)(std::string_view)>> kinds = {
      {"a.txt", [](std::string_view text) { return std::string(text); }},
      {"a.txt.gz", packed_files::gzip},
      {"a.txt.zst", packed_files::zstd}};
  const std::vector<DocumentRules> rules = {{},
                                            {.divide = Divide::line},
                                            {.divide = Divide::blank_line},
                                            {.divide = Divide::separator, .separator = "<|end|>"},
                                            {.divide = Divide::separator, .separator = "END"}};
  size_t cut = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const std::string text = mixed(seed, 1500), other = mixed(seed + 1000, 700);
    const auto& [name, pack] = kinds[seed % kinds.size()];
    write(folder / name, pack(text));
    write(folder / "b.txt", other);
    const std::vector<std::string> files = {folder / name, folder / "b.txt"};
    for (const DocumentRules& rule : rules) {
      CAPTURE(static_cast<int>(rule.divide));
      const Read whole = read(files, rule);
      for (const size_t piece : {size_t{20}, size_t{37}, size_t{64}, size_t{333}, size_t{1000}}) {
        CAPTURE(piece);
        const Read found = read(files, rule, piece);
        CHECK(found.documents == whole.documents);
        CHECK(found.offsets == whole.offsets);
        CHECK(found.lines == whole.lines);
        cut += found.pieces;
      }
    }
  }
  CHECK(cut > 40 * 5 * 5 * 2);
}

TEST_CASE("what is no text is told with its place") {
  const TemporaryFolder folder;
  const std::string file = folder / "a.txt";
  auto refused = [&](const std::string& text, const DocumentRules& rules = {}, size_t piece = 64) {
    write(file, text);
    return thrown([&] { read({file}, rules, piece, {true, true}, 4096); });
  };
  const Error error = refused("one two\nthree \xFF four");
  CHECK(error.code() == ErrorCode::bad_dataset);
  CHECK(error.message() == file + ":2: the text is not UTF-8 at byte 14");
  CHECK(error.origin().line == 2);
  CHECK(error.helps().size() == 1);
  // Far behind the first piece; packed, the byte is that of the text.
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "line of text\n";
  CHECK(refused(lines + "x\xC0").message() ==
        file + ":101: the text is not UTF-8 at byte " + std::to_string(lines.size() + 1));
  CHECK(refused(packed_files::gzip(lines + "x\xC0")).message() ==
        file + ":101: the text is not UTF-8 at byte " + std::to_string(lines.size() + 1));
  // Packed twice.
  const Error twice = refused(packed_files::gzip(packed_files::zstd(lines)));
  CHECK(twice.message() == file + ": the file is packed, and what comes out is zstd");
  CHECK(twice.helps().size() == 1);
  CHECK(refused(packed_files::gzip("PAR1\x15\xFF")).message() ==
        file + ": the file is packed, and what comes out is Parquet");
  // A large file that is no text at all does not wait for its end.
  CHECK(refused(std::string(100'000, '\xFE')).message() ==
        file + ":1: the text is not UTF-8 at byte 0");
  CHECK(refused(std::string("\xFF\xFE"
                            "a\0b\0",
                            6))
            .helps()
            .at(0)
            .find("iconv") != std::string::npos);
  // Where nothing can be cut there is a limit.
  const Error large = refused(std::string(10'000, 'x'));
  CHECK(large.message().starts_with(file + ":1: a document of more than "));
  CHECK(large.helps().at(0).find("dataset.text.documents") != std::string::npos);
}

}  // namespace text_documents_test
