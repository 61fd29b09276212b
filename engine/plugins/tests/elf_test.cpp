// The reader of ELF files and of build facts, against every kind of bytes; and what the bundled
// libraries export.
#include <elf.h>

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <vector>

#include "engine/plugins/tests/fixtures.h"
#include "engine/plugins/verify_library.h"

using namespace meshwright;
using namespace meshwright::loader;
using namespace meshwright::loader::test;

namespace {

struct Random {
  uint64_t state = 5;
  size_t below(size_t n) {
    return (state = state * 6364136223846793005u + 1442695040888963407u, state >> 33) % n;
  }
};

// A few bytes changed, most of them where the numbers are: in headers and tables.
std::string mutant(const std::string& whole, Random& random) {
  std::string bytes = whole;
  for (size_t k = random.below(8) + 1; k > 0; --k) {
    size_t where = random.below(3);
    size_t at = where == 0   ? random.below(bytes.size())
                : where == 1 ? random.below(800)
                             : bytes.size() - 1 - random.below(2500);
    bytes[at] = static_cast<char>(random.below(256));
  }
  if (random.below(5) == 0) bytes.resize(random.below(bytes.size()));
  return bytes;
}

}  // namespace

TEST_CASE("a bundled library exports what it is looked up by and its facts, nothing else") {
  for (const char* name : {"libmeshwright_ddp", "libmeshwright_fsdp2",
                           "libmeshwright_megatron_fsdp", "libmeshwright_moe_ep"}) {
    const fs::path file = kBundled / (std::string(name) + ".so");
    CAPTURE(file.string());
    std::FILE* pipe =
        ::popen(("nm -D --defined-only --format=posix '" + file.string() + "'").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    REQUIRE(::pclose(pipe) == 0);
    std::vector<std::string> symbols;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      symbols.push_back(line.substr(0, line.find(' ')));
    CHECK(symbols == std::vector<std::string>{"meshwright_abi_" + facts_hash(engine_facts()),
                                              "meshwright_plugin_v1"});
  }
}

TEST_CASE("a library's facts are read, and cut off at any length it is refused") {
  Folder folder("cut");
  const fs::path file = folder.copy(fixture("good"), "cut.so");
  const VerifiedLibrary said = read_facts(file);
  CHECK(said.strategies == std::vector<std::string>{"fixture_good"});
  CHECK(said.hash == facts_hash(engine_facts()));
  size_t wrong = 0;
  // Every length near the head and near the tables at the end; of a library with debug information
  // a sample in between.
  const size_t whole = fs::file_size(file);
  auto next = [&](size_t length) {
    return length > 20000 && length + 20000 < whole && length > 97 ? length - 97 : length - 1;
  };
  for (size_t length = whole; length > 0;) {
    length = next(length);
    fs::resize_file(file, length);
    ErrorCode code = ErrorCode::internal;
    try {
      read_facts(file);
    } catch (const Error& error) {
      code = error.code();
    }
    if (code != (length < 4 ? ErrorCode::plugin_not_elf : ErrorCode::plugin_truncated)) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("no bytes make the ELF reader crash") {
  const std::string whole = read(kBundled / "libmeshwright_moe_ep.so");
  REQUIRE(whole.size() > 2500);
  Random random;
  int refused = 0;
  Folder folder("mutants");
  for (int i = 0; i < 4000; ++i) try {
      write(folder.path / "mutant.so", mutant(whole, random));
      verify_library(folder.path / "mutant.so");
    } catch (const Error& error) {
      CHECK(static_cast<int>(error.code()) / 100 == 4);
      ++refused;
    }
  CHECK(refused > 100);
  CHECK(refused < 4000);
}

TEST_CASE("a library of another kind is refused") {
  Folder folder("kinds");
  const std::string bytes = read(fixture("good"));
  auto refused = [&](size_t at, char value) {
    std::string changed = bytes;
    changed[at] = value;
    write(folder.path / "changed.so", changed);
    return error_of([&] { read_facts(folder.path / "changed.so"); }).code();
  };
  CHECK(refused(EI_CLASS, ELFCLASS32) == ErrorCode::plugin_not_elf);
  CHECK(refused(EI_DATA, ELFDATA2MSB) == ErrorCode::plugin_not_elf);
  CHECK(refused(offsetof(Elf64_Ehdr, e_type), ET_REL) == ErrorCode::plugin_not_elf);
}

TEST_CASE(
    "build facts are sorted lines of key=value, and their hash leaves out what is only reported") {
  for (const char* text : {"", "a", "a=1", "=1\n", "\n", "b=1\na=1\n", "a=1\na=2\n", "a=1\nb\n"}) {
    CAPTURE(text);
    CHECK(error_of([&] { parse_facts(text, "test"); }).code() == ErrorCode::plugin_bad_marker);
  }
  Facts facts = parse_facts("a=1\nb=x=y\nc=\n", "test");
  CHECK(facts == Facts{{"a", "1"}, {"b", "x=y"}, {"c", ""}});
  Facts more = facts;
  more["info.compiler"] = "other";
  CHECK(facts_hash(more) == facts_hash(facts));
  more["d"] = "1";
  CHECK(facts_hash(more) != facts_hash(facts));
}
