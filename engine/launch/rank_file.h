// comm_traces/rank_N.json: the last collectives of a rank whose run ended in an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/collective_log.h"

namespace meshwright::postmortem {

inline constexpr std::string_view kFolder = "comm_traces";  // in the run's

struct RankFile {
  int64_t rank = 0, world = 1;
  std::string host;
  int64_t process = 0, attempt = 0;
  std::string why;     // what ended the rank: a line of its error, or who told it to end
  bool error = false;  // it was an error of its own
  detail::CollectiveRecord record;
};

std::string file_name(int64_t rank);
std::string to_text(const RankFile& file);
// Throws Error(file_unreadable), which says what is wrong with the text.
RankFile parse(std::string_view text);

// The files of a folder, by rank, and what is wrong with others, a sentence each. A folder that is
// not there has none. Of several attempts only the newest counts.
struct Folder {
  std::vector<RankFile> files;
  std::vector<int64_t> stopped;  // by a signal or a debugger, as the launcher saw
  std::vector<std::string> problems;
};
Folder read_folder(const std::filesystem::path& folder);
// What the launcher saw, beside the ranks' files. Throws Error(output_unwritable).
void write_stopped(const std::filesystem::path& folder, const std::vector<int64_t>& ranks);

}  // namespace meshwright::postmortem
