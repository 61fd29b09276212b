#include "engine/train/run/save_request.h"

#include <system_error>

#include "engine/launch/save_request_file.h"

namespace meshwright::train {

SaveRequest::SaveRequest(const std::filesystem::path& run) : file_(run / base::kSaveRequestFile) {}

bool SaveRequest::asked() {
  constexpr std::chrono::milliseconds kBetween(500);
  const auto now = std::chrono::steady_clock::now();
  if (ignored_ || now - looked_ < kBetween) return false;
  looked_ = now;
  std::error_code failed;
  return std::filesystem::exists(file_, failed);
}

void SaveRequest::grant(const std::function<void(const std::string&)>& warn) {
  std::error_code failed;
  std::filesystem::remove(file_, failed);
  if (!failed) return;
  ignored_ = true;
  warn("warning: " + file_.string() + " cannot be removed (" + failed.message() +
       "); this run saves for it once, and asks no more");
}

}  // namespace meshwright::train
