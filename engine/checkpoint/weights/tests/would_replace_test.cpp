// Whether an export would take away what somebody still needs.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/checkpoint/weights/export.h"

namespace would_replace_test {

namespace fs = std::filesystem;
using meshwright::weights::would_replace;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_replace_" + std::to_string(::getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  void put(const fs::path& name, const std::string& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
  }
};

}  // namespace

TEST_CASE("an export would replace a folder by whatever name, and what lies or leads in it") {
  Folder folder;
  const fs::path base = folder.path / "models/base", out = folder.path / "out";
  folder.put("models/base/model.safetensors", "x");
  fs::create_directories(base / "adapter");
  folder.put("linked/config.json", "{}");
  fs::create_directory_symlink(base, folder.path / "link");
  fs::create_symlink(base / "model.safetensors", folder.path / "linked/model.safetensors");
  const std::vector<fs::path> same{base,
                                   base / "",
                                   base / "adapter" / "..",
                                   folder.path / "link",
                                   folder.path / "link" / "",
                                   folder.path / "nowhere/../models/base",
                                   fs::relative(base)};
  for (const fs::path& target : same)
    for (const fs::path& kept : same) {
      CAPTURE(target.string());
      CAPTURE(kept.string());
      // A name through a folder that is not there names nothing yet.
      CHECK(would_replace(target, kept) == fs::exists(kept));
    }
  CHECK(would_replace(folder.path / "models", base));
  CHECK(would_replace(folder.path / "models", folder.path / "link"));
  CHECK(would_replace(base, base / "model.safetensors"));
  CHECK(would_replace(base, folder.path / "linked"));  // its weights are there
  CHECK_FALSE(would_replace(base / "adapter", base));  // below it nothing of it goes
  CHECK_FALSE(would_replace(folder.path / "models/bas", base));
  CHECK_FALSE(would_replace(folder.path / "linked", base));
  CHECK_FALSE(would_replace(out, base));
  CHECK_FALSE(would_replace(out, out));  // nothing is there
}

}  // namespace would_replace_test
