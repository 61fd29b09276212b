// The sum over what is loaded of a plugin's file, which the build writes into the file and the
// loader holds it to before anything of it runs. Needs nothing but the C++ library: the build
// compiles it for the program that writes the sum, seal.cpp.
//
// In the sum are instructions, constants, the first values of variables, and relocations, each at
// the address where it will lie. Not in it is what may change after the build: section headers and
// whatever is not loaded (strip, debug information), the names and needs of the dynamic linker
// (RPATH), and notes (build ids).
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace meshwright::detail {

// Section meshwright_sum: these bytes and the sum, which is 0 until it is known.
inline constexpr std::string_view kCodeSumSection = "meshwright_sum", kCodeSumMagic = "mwsum01\n";

struct CodeSum {
  uint64_t recorded = 0, found = 0;
  uint64_t record_offset = 0;  // of `recorded`, in the file
};

class CodeSumReader {
 public:
  explicit CodeSumReader(std::string_view bytes) : bytes_(bytes) {}

  // nullopt: the file has no such section, or is no library that could be read.
  std::optional<CodeSum> read() const {
    Elf64_Ehdr header;
    if (!take(0, header) || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_phentsize != sizeof(Elf64_Phdr))
      return std::nullopt;
    Elf64_Shdr names;
    if (!take(entry(header.e_shoff, header.e_shstrndx, sizeof names), names)) return std::nullopt;
    CodeSum out;
    bool known = false;
    for (uint64_t i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      if (!take(entry(header.e_shoff, i, sizeof section), section)) return std::nullopt;
      if ((section.sh_flags & SHF_ALLOC) == 0 || !is_kept(section.sh_type)) continue;
      if (name_of(names, section.sh_name) != kCodeSumSection) {
        out.found += sum_of(header, section);
        continue;
      }
      const std::string_view record = range(section.sh_offset, section.sh_size);
      if (record.size() < kCodeSumMagic.size() + sizeof out.recorded ||
          !record.starts_with(kCodeSumMagic))
        return std::nullopt;
      known = true;
      out.record_offset = section.sh_offset + kCodeSumMagic.size();
      std::memcpy(&out.recorded, bytes_.data() + out.record_offset, sizeof out.recorded);
    }
    if (out.found == 0) out.found = 1;
    return known ? std::optional(out) : std::nullopt;
  }

 private:
  static bool is_kept(uint32_t type) {
    constexpr uint32_t kUnwind = 0x70000001, kPackedRelocations = 19;
    return type == SHT_PROGBITS || type == SHT_RELA || type == kPackedRelocations ||
           type == SHT_INIT_ARRAY || type == SHT_FINI_ARRAY || type == kUnwind;
  }
  static uint64_t entry(uint64_t base, uint64_t index, uint64_t size) {
    return base + index * size;  // what overflows is out of the file all the same
  }
  std::string_view range(uint64_t begin, uint64_t size) const {
    if (begin > bytes_.size() || size > bytes_.size() - begin) return {};
    return bytes_.substr(begin, size);
  }
  template <class T>
  bool take(uint64_t begin, T& out) const {
    const std::string_view there = range(begin, sizeof out);
    if (there.empty()) return false;
    std::memcpy(&out, there.data(), sizeof out);
    return true;
  }
  std::string_view name_of(const Elf64_Shdr& table, uint64_t index) const {
    std::string_view names = range(table.sh_offset, table.sh_size);
    if (index >= names.size()) return {};
    names = names.substr(index, 64);
    return names.substr(0, names.find('\0'));
  }
  // The bytes as they will lie at the section's address, which the program headers say.
  std::string_view loaded(const Elf64_Ehdr& header, const Elf64_Shdr& section) const {
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr part;
      if (!take(entry(header.e_phoff, i, sizeof part), part)) return {};
      if (part.p_type != PT_LOAD || section.sh_addr < part.p_vaddr) continue;
      const uint64_t into = section.sh_addr - part.p_vaddr;
      if (into <= part.p_filesz && section.sh_size <= part.p_filesz - into)
        return range(part.p_offset + into, section.sh_size);
    }
    return {};
  }
  // Any change of eight bytes changes it: each step can be undone.
  uint64_t sum_of(const Elf64_Ehdr& header, const Elf64_Shdr& section) const {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
    uint64_t sum = section.sh_addr * kFactor ^ section.sh_size;
    auto add = [&](uint64_t word) {
      sum = (sum ^ word) * kFactor;
      sum ^= sum >> 32;
    };
    std::string_view rest = loaded(header, section);
    for (; rest.size() >= sizeof(uint64_t); rest.remove_prefix(sizeof(uint64_t))) {
      uint64_t word;
      std::memcpy(&word, rest.data(), sizeof word);
      add(word);
    }
    uint64_t last = rest.size();
    for (const char c : rest) last = last << 8 | static_cast<unsigned char>(c);
    add(last);
    return sum;
  }

  std::string_view bytes_;
};

}  // namespace meshwright::detail
