#include "engine/checkpoint/resume.h"

#include <cstdlib>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "meshwright/error.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

bool restarted() {
  for (const char* name : {"MESHWRIGHT_RESTART", "TORCHELASTIC_RESTART_COUNT"})
    if (const char* text = std::getenv(name); text != nullptr && std::atoll(text) > 0) return true;
  return false;
}

Start choose_start(const std::string& resume, const fs::path& own, bool again) {
  std::vector<std::string> told;
  auto tell = [&](const std::string& text) { told.push_back(text); };
  if (resume == "auto" || again)
    if (std::optional<Found> found = newest(own, For::resuming, tell))
      return {found->path, true, std::move(told)};
  if (resume == "auto" || resume == "none") return {};
  fs::path from;
  try {
    from = resolve(resume);
    if (std::optional<Error> wrong = misnamed(from, read_meta(from))) throw *wrong;
  } catch (const Error& error) {
    throw Error(error).key("checkpoint.resume");
  }
  std::error_code failed;
  return {from, fs::equivalent(from.parent_path(), own, failed)};
}

std::string set_aside(const Start& start, const fs::path& own) {
  std::string aside =
      set_aside(own, start.own ? step_of(start.from.filename().string()).value_or(-1) : -1);
  tidy(own);
  return aside;
}

}  // namespace meshwright::checkpoint
