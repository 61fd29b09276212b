#include "engine/train/run/lines_of_ranks.h"

#include <algorithm>

#include "engine/launch/rendezvous/notices.h"
#include "engine/train/step/gather.h"

namespace meshwright::train {
namespace {

struct Line {
  std::string text;
  std::vector<int64_t> ranks;
};

}  // namespace

std::vector<std::string> lines_of_all_ranks(World& world, const std::vector<std::string>& mine) {
  std::vector<Line> lines;
  const std::vector<std::vector<std::string>> told = gather(world, mine);
  for (size_t rank = 0; rank < told.size(); ++rank)
    for (const std::string& text : told[rank]) {
      auto known = std::find_if(lines.begin(), lines.end(),
                                [&](const Line& line) { return line.text == text; });
      if (known == lines.end()) known = lines.insert(lines.end(), {text, {}});
      known->ranks.push_back(static_cast<int64_t>(rank));
    }
  std::vector<std::string> out;
  for (const Line& line : lines)
    out.push_back(line.ranks[0] == 0 ? line.text
                                     : rendezvous::named_ranks(line.ranks) + ": " + line.text);
  return out;
}

}  // namespace meshwright::train
