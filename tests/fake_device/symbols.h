// Names of the functions of a program that has no debug information, hidden ones too: what the
// symbol table of its file says.
#pragma once

#include <string>

namespace fake_device {

// "LIBRARY: function", without arguments; with an offset where there is no function.
std::string name_of_code(const void* address);
// Where the address lies in its library's file, and whether that library is one of these:
enum class Owner { fake, program, other };
struct Place {
  Owner owner = Owner::other;
  size_t offset = 0;
};
Place place_of_code(const void* address);

}  // namespace fake_device
