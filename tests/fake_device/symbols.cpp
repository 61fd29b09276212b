#include "symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace fake_device {

namespace {

struct Function {
  uint64_t begin = 0, end = 0;
  const char* name = "";  // in the mapped file
};

// For good, and not read: files of LibTorch have hundreds of MB, and their symbols a tenth of that.
std::string_view mapped(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  struct stat known{};
  void* begin = MAP_FAILED;
  if (fstat(file, &known) == 0 && known.st_size > 0)
    begin = mmap(nullptr, static_cast<size_t>(known.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (begin == MAP_FAILED) return {};
  return {static_cast<const char*>(begin), static_cast<size_t>(known.st_size)};
}

template <class T>
const T* at(std::string_view file, uint64_t offset) {
  return reinterpret_cast<const T*>(file.data() + offset);
}

std::vector<Function> read_functions(const char* path) {
  const std::string_view file = mapped(path);
  std::vector<Function> out;
  if (file.size() < sizeof(Elf64_Ehdr)) return out;
  const auto* head = at<Elf64_Ehdr>(file, 0);
  const auto* sections = at<Elf64_Shdr>(file, head->e_shoff);
  for (size_t i = 0; i < head->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM) continue;
    const auto* names = at<char>(file, sections[sections[i].sh_link].sh_offset);
    const auto* symbols = at<Elf64_Sym>(file, sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s)
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && symbols[s].st_value != 0)
        out.push_back({symbols[s].st_value, symbols[s].st_value + symbols[s].st_size,
                       names + symbols[s].st_name});
  }
  std::sort(out.begin(), out.end(),
            [](const Function& a, const Function& b) { return a.begin < b.begin; });
  return out;
}

const std::vector<Function>& functions_of(const std::string& path) {
  static std::map<std::string, std::vector<Function>> all;
  auto it = all.find(path);
  if (it == all.end()) it = all.emplace(path, read_functions(path.c_str())).first;
  return it->second;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &free);
  // Only the name: without what is in brackets (arguments, or a page of templates) and the type
  // before it.
  std::string out;
  int depth = 0;
  for (const char c : std::string(text != nullptr ? text.get() : name)) {
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (depth == 0) out += c;
    if (c == '>' || c == ')' || c == '}') --depth;
  }
  if (const size_t clone = out.find(" ["); clone != std::string::npos) out.resize(clone);
  if (out.ends_with(" const")) out.resize(out.size() - 6);
  out = out.substr(out.rfind(' ') + 1);
  for (size_t empty = out.find("::::"); empty != std::string::npos; empty = out.find("::::"))
    out.erase(empty, 2);  // an unnamed namespace
  return out;
}

}  // namespace

Place place_of_code(const void* address) {
  static const std::string fake = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&place_of_code), &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/') + 1);
  }();
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string_view path = info.dli_fname;
  Place out;
  out.offset = static_cast<size_t>(static_cast<const char*>(address) -
                                   static_cast<const char*>(info.dli_fbase));
  if (path.starts_with(fake))
    out.owner = Owner::fake;
  else if (path.substr(path.rfind('/') + 1).find("meshwright") != std::string_view::npos)
    out.owner = Owner::program;
  return out;
}

std::string name_of_code(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const std::string path = info.dli_fname, library = path.substr(path.rfind('/') + 1);
  const size_t offset = place_of_code(address).offset;
  const std::vector<Function>& functions = functions_of(path);
  auto it = std::upper_bound(functions.begin(), functions.end(), offset,
                             [](size_t wanted, const Function& f) { return wanted < f.begin; });
  if (it != functions.begin() && offset <= std::prev(it)->end)
    return library + ": " + demangled(std::prev(it)->name);
  char number[32];
  snprintf(number, sizeof number, "+%#zx", offset);
  return library + number;
}

}  // namespace fake_device
