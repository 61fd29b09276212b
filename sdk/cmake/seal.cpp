// Writes the sum over what is loaded of a plugin into its file, once it is linked: seal LIBRARY
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "code_sum.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
    return 2;
  }
  std::fstream file(argv[1], std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  file.clear();
  const auto sum = meshwright::detail::CodeSumReader(bytes).read();
  if (!sum) {
    std::fprintf(stderr, "%s: %s has no place for the sum of its code\n", argv[0], argv[1]);
    return 1;
  }
  file.seekp(static_cast<std::streamoff>(sum->record_offset));
  file.write(reinterpret_cast<const char*>(&sum->found), sizeof sum->found);
  file.close();
  if (!file) std::fprintf(stderr, "%s: cannot write %s\n", argv[0], argv[1]);
  return file ? 0 : 1;
}
