// Reads what is needed of a shared library's file without loading it. Bounded: no byte outside the
// file is touched, whatever it holds.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sdk/base/code_sum.h"

namespace meshwright::loader {

// The markers in section meshwright_abi of a 64-bit little-endian ELF shared object.
struct ElfMarkers {
  struct Marker {
    std::string symbol;  // meshwright_abi_<hash16>
    std::string bytes;   // without the final NUL
  };
  std::vector<Marker> markers;
  bool has_section = false;
  bool has_descriptor = false;  // exports meshwright_plugin_v1
};

// Throws Error(plugin_unreadable | plugin_not_elf | plugin_truncated).
ElfMarkers read_elf_markers(const std::filesystem::path& file);
// The same over bytes in memory; `name` is used in messages.
ElfMarkers parse_elf_markers(const std::string& bytes, const std::string& name);
// The sum over what is loaded of the file, beside the one that its build recorded; nullopt where
// another build system recorded none. Throws Error(plugin_unreadable).
std::optional<detail::CodeSum> read_code_sum(const std::filesystem::path& file);

}  // namespace meshwright::loader
