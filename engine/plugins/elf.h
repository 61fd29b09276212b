// Reads what is needed of a shared library's file without loading it. Bounded: no byte outside the
// file is touched, whatever it holds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace meshwright::loader
