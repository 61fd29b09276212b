#include "engine/train/run/shared_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "engine/launch/rendezvous/error_text.h"
#include "engine/train/step/rank_agreement.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/read_file.h"
#include "sdk/base/wait.h"

namespace meshwright::train {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kPrefix = ".probe-";
// Network file systems remember for some seconds that a name was not there.
constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(10);

// What a run that was killed in the middle of this has left.
void sweep(const fs::path& folder) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (entry.path().filename().string().find(kPrefix) != std::string::npos)
      base::remove_tree(entry.path());
}

// Rank 0's file, which goes when the ranks have looked.
class Probe {
 public:
  explicit Probe(const fs::path& folder) : folder_(folder) {
    base::make_folders(folder);
    sweep(folder);
    std::random_device random;
    char name[32];
    std::snprintf(name, sizeof name, "%08x%08x", random(), random());
    name_ = name;
    base::write_durably(folder / (kPrefix + name_), name_);
  }
  ~Probe() { base::remove_tree(folder_ / (kPrefix + name_)); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  const std::string& name() const { return name_; }

 private:
  fs::path folder_;
  std::string name_;
};

bool sees(const fs::path& folder, const std::string& name, std::chrono::milliseconds patience) {
  return base::wait_until(Clock::now() + patience, std::chrono::milliseconds(50), [&] {
    // Opening a folder makes NFS ask its server again, which looking a name up does not.
    std::error_code failed;
    for (const fs::path& opened : {folder.parent_path(), folder})
      fs::directory_iterator(opened.empty() ? "." : opened, failed);
    return base::read_file(folder / (kPrefix + name)) == name;
  });
}

}  // namespace

std::string full_path(const fs::path& path) {
  std::error_code failed;
  fs::path out = fs::absolute(path, failed);
  return (failed ? path : out.lexically_normal()).string();
}

void check_shared(World& world, const fs::path& folder) {
  if (world.size() == 1) return;
  std::unique_ptr<Probe> probe;
  std::string name = agree_or_throw(world, outcome_of([&] {
                                      if (world.rank() == 0)
                                        probe = std::make_unique<Probe>(folder);
                                      return probe ? probe->name() : std::string();
                                    }))[0];
  // A rank that looks for long must not let the others run into the limit of a collective.
  bool found = world.rank() == 0 || sees(folder, name, std::min(kPatience, world.timeout() / 2));
  std::string here = rendezvous::name_here(world.rank());
  std::vector<std::string> ranks =
      gather_texts(world, (found ? "+" : "-") + here + "\n" + full_path(folder));
  constexpr size_t kNamed = 4;
  size_t blind = 0;
  std::string who;
  for (const std::string& text : ranks) {
    if (text[0] == '+') continue;
    size_t line = text.find('\n');
    if (++blind <= kNamed)
      who += (blind > 1 ? ", " : "") + text.substr(1, line - 1) + " at " + text.substr(line + 1);
  }
  if (blind == 0) return;
  if (blind > kNamed) who += " and " + std::to_string(blind - kNamed) + " more";
  size_t line = ranks[0].find('\n');
  throw Error(ErrorCode::run_folder_not_shared,
              "the run folder of " + ranks[0].substr(1, line - 1) + " is " +
                  ranks[0].substr(line + 1) + "; what it writes there is not seen by " + who)
      .key("run.dir")
      .help(
          "set run.dir to a folder on a file system that every host mounts (NFS, Lustre, ...): "
          "every rank saves its part of a checkpoint "
          "there")
      .help(fs::path(folder).is_absolute()
                ? "check with ls on each host that the folder is the same one"
                : "or start every rank in the same folder: a relative run.dir begins where the "
                  "rank was started");
}

}  // namespace meshwright::train
