#include "engine/plugins/elf.h"

#include <elf.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::loader {
namespace {

constexpr size_t kMaxSections = 4096, kMaxSymbols = size_t{1} << 22,
                 kMaxMarkerBytes = size_t{1} << 16, kMaxMarkers = 16, kMaxName = 128;

class Reader {
 public:
  Reader(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  ElfMarkers read() {
    if (bytes_.size() < SELFMAG || std::memcmp(bytes_.data(), ELFMAG, SELFMAG) != 0)
      throw Error(ErrorCode::plugin_not_elf,
                  name_ + " is not a shared library: it does not start with the ELF magic");
    auto header = at<Elf64_Ehdr>(0, "the file header");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_type != ET_DYN)
      throw Error(ErrorCode::plugin_not_elf,
                  name_ + " is an ELF file, but not a 64-bit little-endian shared library");
    // Loadable segments must lie inside the file, or the dynamic linker would fault on it.
    if (header.e_phentsize != sizeof(Elf64_Phdr))
      throw damaged("the program headers have an odd size");
    for (size_t i = 0; i < header.e_phnum; ++i) {
      auto segment =
          at<Elf64_Phdr>(offset(header.e_phoff, i, sizeof(Elf64_Phdr)), "a program header");
      if (segment.p_type != PT_NULL && segment.p_type != PT_GNU_STACK)
        range(segment.p_offset, segment.p_filesz, "a segment");
    }
    if (header.e_shnum == 0 || header.e_shnum > kMaxSections ||
        header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
      throw damaged("the section headers make no sense");
    std::vector<Elf64_Shdr> sections;
    for (size_t i = 0; i < header.e_shnum; ++i)
      sections.push_back(
          at<Elf64_Shdr>(offset(header.e_shoff, i, sizeof(Elf64_Shdr)), "a section header"));
    for (const Elf64_Shdr& s : sections)
      if (s.sh_type != SHT_NOBITS && s.sh_type != SHT_NULL)
        range(s.sh_offset, s.sh_size, "a section");

    ElfMarkers out;
    size_t marker_section = sections.size();
    for (size_t i = 0; i < sections.size(); ++i)
      if (string(sections[header.e_shstrndx], sections[i].sh_name) == "meshwright_abi")
        marker_section = i;
    out.has_section =
        marker_section < sections.size() && sections[marker_section].sh_type == SHT_PROGBITS;
    bool have_symbols = false;
    for (const Elf64_Shdr& s : sections) {
      if (s.sh_type != SHT_DYNSYM || s.sh_link >= sections.size()) continue;
      // One each, as the format has it: thousands over the same bytes would only cost time.
      if (std::exchange(have_symbols, true)) throw damaged("it has two tables of dynamic symbols");
      size_t count = s.sh_size / sizeof(Elf64_Sym);
      if (count > kMaxSymbols) throw damaged("it has too many symbols");
      for (size_t i = 0; i < count; ++i) {
        auto symbol = at<Elf64_Sym>(offset(s.sh_offset, i, sizeof(Elf64_Sym)), "a symbol");
        if (symbol.st_shndx == SHN_UNDEF) continue;
        std::string_view name = string(sections[s.sh_link], symbol.st_name);
        if (name == "meshwright_plugin_v1") out.has_descriptor = true;
        if (out.has_section && symbol.st_shndx == marker_section &&
            name.starts_with("meshwright_abi_"))
          add(out, symbol, sections[marker_section], name);
      }
    }
    return out;
  }

 private:
  Error damaged(const std::string& what) const {
    return Error(ErrorCode::plugin_truncated, name_ + " is damaged or cut off: " + what);
  }

  uint64_t offset(uint64_t base, uint64_t index, uint64_t size) const {
    uint64_t out = 0;
    if (__builtin_add_overflow(base, index * size, &out)) throw damaged("an offset overflows");
    return out;
  }
  void range(uint64_t begin, uint64_t size, const char* what) const {
    if (begin > bytes_.size() || size > bytes_.size() - begin)
      throw damaged(std::string(what) + " ends outside of the file");
  }
  template <class T>
  T at(uint64_t begin, const char* what) const {
    range(begin, sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + begin, sizeof(T));
    return value;
  }
  // A NUL-terminated string of a string table; "" when it does not lie in it or is longer than any
  // name looked for.
  std::string_view string(const Elf64_Shdr& table, uint64_t index) const {
    if (table.sh_type != SHT_STRTAB || index >= table.sh_size) return {};
    std::string_view rest = bytes_.substr(table.sh_offset, table.sh_size).substr(index, kMaxName);
    size_t end = rest.find('\0');
    return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
  }
  void add(ElfMarkers& out, const Elf64_Sym& symbol, const Elf64_Shdr& section,
           std::string_view name) const {
    if (out.markers.size() == kMaxMarkers) throw damaged("it has too many markers");
    if (symbol.st_value < section.sh_addr || symbol.st_size > kMaxMarkerBytes ||
        symbol.st_value - section.sh_addr > section.sh_size ||
        symbol.st_size > section.sh_size - (symbol.st_value - section.sh_addr))
      throw damaged("the marker lies outside of its section");
    std::string bytes(
        bytes_.substr(section.sh_offset + (symbol.st_value - section.sh_addr), symbol.st_size));
    while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
    out.markers.push_back({std::string(name), std::move(bytes)});
  }

  std::string_view bytes_;
  std::string name_;
};

// A read-only mapping of a whole file.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file) {
    const base::ForeignFile opened(file);
    if (opened.reason() != 0)
      throw Error(ErrorCode::plugin_unreadable,
                  "cannot open " + file.string() + ": " + std::strerror(opened.reason()));
    bool ok = opened.is_open();
    if (ok && opened.size() > 0) {
      size_ = static_cast<size_t>(opened.size());
      void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, opened.fd(), 0);
      data_ = p == MAP_FAILED ? nullptr : p;
      ok = data_ != nullptr;
    }
    if (!ok) throw Error(ErrorCode::plugin_unreadable, "cannot read " + file.string());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

ElfMarkers read_elf_markers(const std::filesystem::path& file) {
  Mapping mapping(file);
  return Reader(mapping.bytes(), file.string()).read();
}

ElfMarkers parse_elf_markers(const std::string& bytes, const std::string& name) {
  return Reader(bytes, name).read();
}

}  // namespace meshwright::loader
