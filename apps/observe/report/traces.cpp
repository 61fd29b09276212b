// trace/rank_N.json: where the time of a rank went.
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <charconv>

#include "apps/observe/report/run_record.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

enum What : uint8_t { kCompute, kMessage, kWait, kWhats };

struct Edge {
  int64_t at;
  What what;
  int by;  // +1: one more begins, -1: it ends
};

// The lanes of Trace::json().
struct Bar {
  int64_t lane = 0, begin = 0, length = 0;
  std::string name;
};

std::optional<Bar> bar_of(const std::string& line) {
  boost::system::error_code failed;
  const size_t begin = line.find('{'), end = line.rfind('}');
  if (begin == line.npos || end == line.npos || end < begin) return std::nullopt;
  const json::value parsed =
      json::parse(std::string_view(line).substr(begin, end + 1 - begin), failed);
  const json::object* event = failed ? nullptr : parsed.if_object();
  if (event == nullptr) return std::nullopt;
  const json::value *lane = event->if_contains("tid"), *ts = event->if_contains("ts"),
                    *length = event->if_contains("dur"), *name = event->if_contains("name");
  if (lane == nullptr || ts == nullptr || length == nullptr || name == nullptr ||
      !lane->is_int64() || !ts->is_int64() || !length->is_int64() || !name->is_string())
    return std::nullopt;
  return Bar{lane->as_int64(), ts->as_int64(), std::max<int64_t>(length->as_int64(), 0),
             std::string(name->as_string())};
}

// Which part a moment belongs to: a rank that waits does nothing else, whatever bars of computation
// are around it; messages under way beside computation cost nothing.
RankTimes times_of(int64_t rank, std::vector<Edge> edges, int64_t steps) {
  RankTimes out;
  out.rank = rank;
  out.steps = steps;
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  int open[kWhats] = {};
  for (size_t i = 0; i < edges.size(); ++i) {
    if (i > 0) {
      const int64_t length = edges[i].at - edges[i - 1].at;
      if (open[kMessage] > 0) out.communicating += length;
      if (open[kWait] > 0)
        out.waiting += length;
      else if (open[kCompute] > 0)
        (open[kMessage] > 0 ? out.overlapped : out.computing) += length;
      else
        out.rest += length;
    }
    open[edges[i].what] += edges[i].by;
  }
  return out;
}

RankTimes read_trace(const std::string& text, int64_t rank) {
  constexpr int64_t kWaits = 3;
  std::vector<Edge> edges;
  int64_t steps = 0;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::optional<Bar> bar = bar_of(text.substr(at, end - at));
    if (!bar) continue;
    const What what = bar->lane == 0                                              ? kCompute
                      : bar->lane == kWaits && bar->name.starts_with("wait for ") ? kWait
                                                                                  : kMessage;
    if (what == kCompute && bar->name == "optimizer") ++steps;
    edges.push_back({bar->begin, what, +1});
    edges.push_back({bar->begin + bar->length, what, -1});
  }
  return times_of(rank, std::move(edges), steps);
}

}  // namespace

std::vector<RankTimes> read_traces(const fs::path& folder, std::vector<std::string>& problems) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".json";
  std::vector<RankTimes> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    int64_t rank = -1;
    const char* last = name.data() + name.size() - kEnd.size();
    if (std::from_chars(name.data() + kBegin.size(), last, rank).ptr != last || rank < 0) continue;
    base::ForeignFile file(at->path());
    const std::string text = file.read(base::kLargeFile);
    if (!file.problem().empty()) {
      problems.push_back(at->path().string() + " " + file.problem());
      continue;
    }
    RankTimes times = read_trace(text, rank);
    if (times.total() > 0)
      out.push_back(times);
    else
      problems.push_back(at->path().string() + " has no bars of a trace");
  }
  std::sort(out.begin(), out.end(),
            [](const RankTimes& a, const RankTimes& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace meshwright::runs
