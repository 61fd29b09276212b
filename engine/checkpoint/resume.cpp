#include "engine/checkpoint/resume.h"

#include <cstdlib>

#include "meshwright/error.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

bool restarted() {
  for (const char* name : {"MESHWRIGHT_RESTART", "TORCHELASTIC_RESTART_COUNT"})
    if (const char* text = std::getenv(name); text != nullptr && std::atoll(text) > 0) return true;
  return false;
}

Start choose_start(const std::string& resume, const fs::path& own, bool again) {
  if (resume == "auto" || again)
    if (std::optional<Found> found = newest(own)) return {found->path, true};
  if (resume == "auto" || resume == "none") return {};
  fs::path from;
  try {
    from = resolve(resume);
  } catch (const Error& error) {
    throw Error(error).key("checkpoint.resume");
  }
  std::error_code failed;
  return {from, fs::equivalent(from.parent_path(), own, failed)};
}

std::string make_way(const Start& start, const fs::path& own) {
  std::string aside =
      set_aside(own, start.own ? step_of(start.from.filename().string()).value_or(-1) : -1);
  tidy(own);
  return aside;
}

}  // namespace meshwright::checkpoint
