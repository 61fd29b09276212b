// What is loaded of a library is held to the sum that its build wrote into it.
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/loader/elf.h"
#include "engine/loader/tests/fixtures.h"
#include "engine/loader/verify_library.h"

using namespace meshwright;
using namespace meshwright::loader;
using namespace meshwright::loader::test;

namespace {

const fs::path kSealed = kBundled / "libmeshwright_moe_ep.so";

struct Section {
  std::string name;
  Elf64_Shdr header;
};

std::vector<Section> sections_of(const std::string& bytes) {
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::vector<Section> out(header.e_shnum);
  for (size_t i = 0; i < out.size(); ++i)
    std::memcpy(&out[i].header, bytes.data() + header.e_shoff + i * sizeof(Elf64_Shdr),
                sizeof(Elf64_Shdr));
  const Elf64_Shdr names = out[header.e_shstrndx].header;
  for (Section& section : out)
    section.name = bytes.c_str() + names.sh_offset + section.header.sh_name;
  return out;
}

ErrorCode judged(const fs::path& file) {
  try {
    verify_library(file);
    return ErrorCode::internal;
  } catch (const Error& error) {
    return error.code();
  }
}

void run(const std::string& command) {
  CAPTURE(command);
  REQUIRE(std::system((command + " >/dev/null 2>&1").c_str()) == 0);
}

}  // namespace

TEST_CASE("every bit of what is loaded counts, and nothing of it runs when one is wrong") {
  Folder folder("bits");
  const std::string whole = read(kSealed);
  CHECK(check_code(folder.copy(kSealed, "whole.so")));
  int64_t tried = 0;
  for (const char* name : {".text", ".rodata", ".data.rel.ro", ".eh_frame", ".init_array",
                           ".rela.dyn", "meshwright_sum"})
    for (const Section& section : sections_of(whole)) {
      if (section.name != name) continue;
      CAPTURE(name);
      const size_t begin = section.header.sh_offset, size = section.header.sh_size;
      for (const size_t at : {size - 1, size / 2, std::min<size_t>(size - 1, 9)})
        for (const int bit : {0, 7}) {
          std::string bytes = whole;
          bytes[begin + at] = static_cast<char>(bytes[begin + at] ^ (1 << bit));
          write(folder.path / "damaged.so", bytes);
          CHECK(judged(folder.path / "damaged.so") == ErrorCode::plugin_truncated);
          ++tried;
        }
    }
  CHECK(tried >= 36);

  std::string bytes = whole;
  for (const Section& section : sections_of(whole))
    if (section.name == ".text") bytes[section.header.sh_offset] ^= 1;
  write(folder.path / "damaged.so", bytes);
  const Error error = refusal(folder.path / "damaged.so");
  CHECK(error.code() == ErrorCode::plugin_truncated);
  CHECK(error.message().find("damaged.so has the sum ") != std::string::npos);
  CHECK(error.message().find("nothing of it was run") != std::string::npos);
}

TEST_CASE("a segment that would be loaded from another place of the file is noticed") {
  Folder folder("segments");
  std::string bytes = read(kSealed);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  bool moved = false;
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    char* at = bytes.data() + header.e_phoff + i * sizeof part;
    std::memcpy(&part, at, sizeof part);
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    part.p_offset -= 0x1000;
    std::memcpy(at, &part, sizeof part);
    moved = true;
  }
  CHECK(moved);
  write(folder.path / "moved.so", bytes);
  CHECK(judged(folder.path / "moved.so") == ErrorCode::plugin_truncated);
}

TEST_CASE("what is done to a library after its build, without touching its code, is accepted") {
  Folder folder("handled");
  const std::string place = folder.path.string() + "/";
  const fs::path debug = folder.path / "debug";
  for (const std::string& how :
       {std::string("strip "), std::string("strip --strip-debug "),
        "objcopy --only-keep-debug " + kSealed.string() + " " + debug.string() +
            " && objcopy --add-gnu-debuglink=" + debug.string() + " "}) {
    const fs::path file = folder.copy(kSealed, "handled.so");
    run(how + file.string());
    CHECK(read(file) != read(kSealed));
    CHECK(check_code(file));
    fs::remove(file);
  }
  // As `cmake --install` does.
  const fs::path file = folder.copy(kSealed, "installed.so");
  write(folder.path / "install.cmake",
        "file(READ_ELF " + file.string() +
            " RUNPATH found)\nstring(REPLACE \";\" \":\" found \"${found}\")\n"
            "file(RPATH_CHANGE FILE " +
            file.string() + " OLD_RPATH \"${found}\" NEW_RPATH \"$ORIGIN\")\n");
  run("cmake -P " + place + "install.cmake");
  CHECK(read(file) != read(kSealed));
  CHECK(check_code(file));
  write(folder.path / "remove.cmake", "file(RPATH_REMOVE FILE " + file.string() + ")\n");
  run("cmake -P " + place + "remove.cmake");
  CHECK(check_code(file));
  Registry registry(nowhere());
  CHECK(registry.load(file, "test").name == "moe_ep");
}

TEST_CASE("a library of a build that records no sum is accepted, and not said to be checked") {
  CHECK(!check_code(fixture("good")));
  Registry registry(nowhere());
  CHECK(registry.load(fixture("good"), "test").name == "fixture_good");
}

TEST_CASE("a running half is held to its sum, too") {
  Folder folder("half");
  const fs::path plans = folder.copy(fixture("two_halves"), "libmeshwright_fixture_two_halves.so"),
                 runs = folder.copy(kFixtures / "meshwright_fixture_two_halves_runtime.so",
                                    "meshwright_fixture_two_halves_runtime.so");
  const VerifiedLibrary planning = verify_library(plans);
  verify_runtime_half(runs, planning);
  std::string bytes = read(runs);
  for (const Section& section : sections_of(bytes))
    if (section.name == ".text") bytes[section.header.sh_offset + 8] ^= 4;
  write(runs, bytes);
  CHECK(error_of([&] { verify_runtime_half(runs, planning); }).code() ==
        ErrorCode::plugin_truncated);
}
