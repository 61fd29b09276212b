#include "handed_files.h"

#include <utility>

namespace meshwright::base {

namespace {

std::map<std::string, std::string> g_files;

}  // namespace

void hand_files(std::map<std::string, std::string> files) { g_files = std::move(files); }

const std::string* handed_file(const std::filesystem::path& file) {
  const auto found = g_files.find(file.string());
  return found != g_files.end() ? &found->second : nullptr;
}

}  // namespace meshwright::base
