// The checkpoints of a run: found, published, thinned out. Names: step_00000050, and `latest` and
// `best`, links to some of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/meta.h"
#include "meshwright/error.h"

namespace meshwright::checkpoint {

std::string step_name(int64_t step);                           // "step_00000050"
std::optional<int64_t> step_of(const std::string& file_name);  // of such a name

struct Found {
  std::filesystem::path path;
  int64_t step = 0;     // as its name says
  std::string problem;  // why it cannot be used; empty: it is complete, as far as meta.json and the
                        // files' sizes tell
  std::optional<int64_t> holds = std::nullopt;  // the step of one that is whole, but misnamed
};

// A folder whose name says another step than its meta.json: nobody may count its steps by the name.
std::optional<Error> misnamed(const std::filesystem::path& folder, const Meta& meta);

// What an error helps with: a run's settings, or what a command that reads can be given.
enum class For : uint8_t { resuming, reading };
// All published checkpoints of a folder, by step. An absent folder has none. Throws
// Error(no_checkpoint) when it cannot be listed.
std::vector<Found> find_all(const std::filesystem::path& checkpoints, For use = For::resuming);
// The checkpoint that `latest` points to, when it is there.
std::optional<std::filesystem::path> latest_of(const std::filesystem::path& checkpoints);
// The same of `best`.
std::optional<std::filesystem::path> best_of(const std::filesystem::path& checkpoints);
// What to continue: the one of the highest step. nullopt when there is none at all. Throws
// Error(bad_checkpoint) when it is damaged, naming the newest one that is whole: nobody should lose
// steps without having decided so. One that is misnamed is passed over, which `tell` hears, unless
// it holds more steps than the others: then that is thrown.
std::optional<Found> newest(const std::filesystem::path& checkpoints, For use = For::resuming,
                            const std::function<void(const std::string&)>& tell = {});
// From where a run goes on that is started again: "step_00000050", or "the start".
std::string next_start(const std::filesystem::path& checkpoints);
// The checkpoint a user means by a path: a checkpoint's folder, or one that holds checkpoints (its
// `latest`, else the newest), or a run's folder. Throws Error(no_checkpoint | bad_checkpoint).
std::filesystem::path resolve(const std::filesystem::path& path);

// Does what a save that was cut off could not: removes what it left and points `latest` to the
// newest. Throws Error(output_unwritable).
void tidy(const std::filesystem::path& checkpoints);

// Which checkpoints stay once a newer one is there: the newest `newest`, and all of steps that are
// multiples of `every` (0: no others). What `best` points to stays, too.
struct Retention {
  int64_t newest = 2, every = 0;
};

// Writing one, by the rank that leads. Every function throws Error(output_unwritable).
class Publication {
 public:
  // Makes the checkpoints' folder when absent, removes what cut-off saves have left, and makes the
  // temporary folder of this one.
  Publication(std::filesystem::path checkpoints, int64_t step);
  // Removes the temporary folder unless published.
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
  const std::filesystem::path& temporary() const { return temporary_; }
  // Once all files are written and synced: writes meta.json, syncs, renames, moves `latest` and
  // `best`, and then removes the older ones that `keep` does not name. A checkpoint of the same
  // step is replaced. When an error leaves here, either the old state or the new one holds.
  std::filesystem::path publish(const Meta& meta, Retention keep);

 private:
  std::filesystem::path checkpoints_, temporary_;
  int64_t step_;
  bool published_ = false;
};

// The path of the temporary folder, for the ranks that do not lead.
std::filesystem::path temporary_folder(const std::filesystem::path& checkpoints, int64_t step);
// Moves the checkpoints of steps above `step` (-1: all) out of the way, to <folder>.1, .2 ...;
// returns that folder, or "" when there are none.
std::string set_aside(const std::filesystem::path& checkpoints, int64_t step);

}  // namespace meshwright::checkpoint
