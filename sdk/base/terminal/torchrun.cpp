#include "sdk/base/terminal/torchrun.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "sdk/base/terminal/report.h"

namespace meshwright::report {

void tell_torchrun(const Error& error, const Variables& variables) {
  std::optional<std::string> path = variables("TORCHELASTIC_ERROR_FILE");
  std::error_code failed;
  if (!path || path->empty() || std::filesystem::exists(*path, failed)) return;
  boost::json::object out;
  out["message"] = format_error(Style{.colour = false}, error);
  out["timestamp"] = static_cast<int64_t>(std::time(nullptr));
  // Written aside, since torchrun takes a file that it cannot parse for an error of its own.
  std::string aside = *path + ".part";
  {
    std::ofstream file(aside);
    file << boost::json::serialize(out);
    if (!file.flush()) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) std::filesystem::rename(aside, *path, failed);
  if (failed) std::filesystem::remove(aside, failed);
}

std::string vain_retries(int exit_status, const Variables& variables) {
  // As train --max-restarts: a lost host or a busy port (4, 6) and what is not understood (1) may
  // be gone at the next attempt.
  if (exit_status != 2 && exit_status != 3 && exit_status != 5 && exit_status != 7) return "";
  auto number = [&](const char* name) { return std::atoll(variables(name).value_or("0").c_str()); };
  long long left = number("TORCHELASTIC_MAX_RESTARTS") - number("TORCHELASTIC_RESTART_COUNT");
  if (!variables("TORCHELASTIC_RUN_ID") || variables("LOCAL_RANK").value_or("0") != "0" ||
      left <= 0)
    return "";
  return "torchrun starts the ranks again whatever the exit status, " + std::to_string(left) +
         (left == 1 ? " more time" : " more times") +
         ", and this will come again: end torchrun, or start it without --max-restarts";
}

std::string last_words_for_torchrun(const Error& error) {
  Variables process = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  tell_torchrun(error, process);
  return vain_retries(exit_status(error.code()), process);
}

}  // namespace meshwright::report
