// The public layout and the epoch change together: sdk/abi.lock holds both, and this test holds
// them to it.
//
// No layout and no virtual table changes (CONTRIBUTING says what to do instead, and tests/abi
// notices one that did). After any other change of the headers refresh the lock with
//   MESHWRIGHT_WRITE_ABI_LOCK=1 build/bin/test_sdk -tc='*ABI lock*'
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "meshwright/abi.h"
#include "sdk/base/files/hash.h"

namespace {

namespace fs = std::filesystem;
namespace base = meshwright::base;

// The text without comments and white space: what the compiler lays out. Quoted text stays as it
// is.
std::string essence(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (text.compare(i, 2, "/*") == 0) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
    } else if (text[i] == '"') {
      size_t begin = i++;
      for (; i < text.size() && text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
      out += text.substr(begin, i + 1 - begin);
    } else if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      out += text[i];
    }
  }
  return out;
}

// Over all public headers but abi.h, whose numbers the lock holds as such.
std::string header_hash() {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(MESHWRIGHT_SOURCE_DIR "/sdk/include/meshwright"))
    if (entry.path().extension() == ".h" && entry.path().filename() != "abi.h")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  base::Hash hash;
  for (const fs::path& file : files) {
    std::ifstream in(file);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    hash.add(file.filename().string() + essence(text));
  }
  return base::to_hex(hash.value());
}

}  // namespace

TEST_CASE(
    "comments and white space do not count as a change of the headers, everything else does") {
  const std::string text =
      "struct S {  // one\n\tint a; /* two\n */ const char* b = \"x // y \\\" z\";\r\n};\n";
  CHECK(essence(text) == "structS{inta;constchar*b=\"x // y \\\" z\";};");
  CHECK(essence("int a; // the end") == "inta;");
  CHECK(essence("\"open") == "\"open");
  CHECK(essence("struct S { int b; };") != essence("struct S { int a; };"));
}

TEST_CASE("the ABI lock names this epoch and these headers") {
  const fs::path lock = MESHWRIGHT_SOURCE_DIR "/sdk/abi.lock";
  std::string now = "epoch " + std::to_string(MESHWRIGHT_CXX_EPOCH) + " headers " + header_hash();
  if (std::getenv("MESHWRIGHT_WRITE_ABI_LOCK") != nullptr) std::ofstream(lock) << now << "\n";
  std::ifstream in(lock);
  std::string found;
  std::getline(in, found);
  CHECK_MESSAGE(
      found == now,
      "the public headers changed. If a layout or virtual table did, undo that: the interface is "
      "frozen, and grows by functions, `later` and extension(). Else run "
      "MESHWRIGHT_WRITE_ABI_LOCK=1 build/bin/test_sdk -tc='*ABI lock*' and commit sdk/abi.lock");
}
