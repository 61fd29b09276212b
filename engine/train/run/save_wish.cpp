#include "engine/train/run/save_wish.h"

#include <system_error>

#include "engine/launch/save_wish_name.h"

namespace meshwright::train {

SaveWish::SaveWish(const std::filesystem::path& run) : file_(run / base::kSaveWishName) {}

bool SaveWish::asked() {
  constexpr std::chrono::milliseconds kBetween(500);
  const auto now = std::chrono::steady_clock::now();
  if (ignored_ || now - looked_ < kBetween) return false;
  looked_ = now;
  std::error_code failed;
  return std::filesystem::exists(file_, failed);
}

void SaveWish::grant(const std::function<void(const std::string&)>& warn) {
  std::error_code failed;
  std::filesystem::remove(file_, failed);
  if (!failed) return;
  ignored_ = true;
  warn("warning: " + file_.string() + " cannot be removed (" + failed.message() +
       "); this run saves for it once, and asks no more");
}

}  // namespace meshwright::train
