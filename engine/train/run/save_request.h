// The request of somebody outside that a run save now: a file in the run's folder.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace meshwright::train {

// Of the rank that leads. `touch runs/first/checkpoint_now` or `meshwright checkpoint now` make the
// file; it is gone once the run has begun to save.
class SaveRequest {
 public:
  explicit SaveRequest(const std::filesystem::path& run);
  // Looks at most twice a second: the folder may lie on a network's file system.
  bool asked();
  // The request is being granted. A file that cannot be removed is not looked at again, or every
  // step would save: `warn` hears of it.
  void grant(const std::function<void(const std::string&)>& warn);

 private:
  std::filesystem::path file_;
  std::chrono::steady_clock::time_point looked_{};
  bool ignored_ = false;
};

}  // namespace meshwright::train
