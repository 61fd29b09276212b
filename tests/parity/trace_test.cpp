// What `train --trace` writes: a Chrome trace a rank, and in it gathers, reductions and messages
// that run beside computation.
#include <algorithm>
#include <map>

#include "curves.h"

using namespace meshwright::parity;

namespace {

struct Bar {
  std::string lane, name;
  double begin, end;
};

std::vector<Bar> read_trace(const fs::path& path) {
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const char* lanes[] = {"compute", "gather", "reduce", "other"};
  std::vector<Bar> out;
  const json::value parsed = json::parse(text);
  for (const json::value& value : parsed.as_array()) {
    const json::object& event = value.as_object();
    if (event.at("ph") != "X") continue;
    double begin = event.at("ts").to_number<double>();
    out.push_back({lanes[event.at("tid").to_number<int>()],
                   std::string(event.at("name").as_string()), begin,
                   begin + event.at("dur").to_number<double>()});
  }
  return out;
}

// The share of bars of `lane` that run while a layer (another, by nature) computes.
double share_beside_computation(const std::vector<Bar>& bars, const std::string& lane) {
  int all = 0, beside = 0;
  for (const Bar& bar : bars) {
    if (bar.lane != lane) continue;
    ++all;
    bool found = false;
    for (const Bar& other : bars)
      found =
          found || (other.lane == "compute" && other.name.find("layers.") != std::string::npos &&
                    other.begin < bar.end && bar.begin < other.end);
    beside += found;
  }
  REQUIRE(all > 0);
  return static_cast<double>(beside) / all;
}

// Of each call of attention over cp, block by block: how many messages were posted before a block
// was computed and waited for after it, "1 1 0"; where calls differ, one after the other.
struct Beside {
  std::string forward, backward;
  int64_t calls = 0, messages = 0;  // of all
};

// `forward`, `backward`: blocks of a call.
Beside beside_blocks(std::vector<Bar> bars, size_t forward, size_t backward) {
  std::sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.begin < b.begin; });
  std::vector<Bar> messages;
  std::map<std::string, std::vector<Bar>> of_core;  // blocks of each core and direction
  for (const Bar& bar : bars) {
    if (bar.name == "cp send_receive") messages.push_back(bar);
    if (bar.name.find("block of attention of ") != std::string::npos)
      of_core[bar.name].push_back(bar);
  }
  Beside out;
  out.messages = static_cast<int64_t>(messages.size());
  for (const auto& [name, all] : of_core) {
    const size_t blocks = name.starts_with("forward") ? forward : backward;
    REQUIRE(all.size() % blocks == 0);
    for (size_t first = 0; first < all.size(); first += blocks) {
      std::string counts;
      for (size_t i = first; i < first + blocks; ++i) {
        const auto count = std::count_if(messages.begin(), messages.end(), [&](const Bar& m) {
          return m.begin <= all[i].begin && m.end >= all[i].end;
        });
        counts += (i == first ? "" : " ") + std::to_string(count);
      }
      std::string& said = name.starts_with("forward") ? out.forward : out.backward;
      if (said.empty())
        said = counts;
      else if (said != counts && said.size() < 200)
        said += ", " + counts;
      ++out.calls;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("gathers and reductions run beside the computation of layers") {
  Folder folder;
  for (const std::string shared : {"0", "1"}) {
    CAPTURE(shared);
    ::setenv("MESHWRIGHT_SHARED_MEMORY", shared.c_str(), 1);
    train(folder, "llama", 2, 1, {"distributed.fsdp2.reshard_after_forward=true"}, "--trace");
    ::unsetenv("MESHWRIGHT_SHARED_MEMORY");
    for (int rank : {0, 1}) {
      std::vector<Bar> bars =
          read_trace(folder.path / "parity" / "trace" / ("rank_" + std::to_string(rank) + ".json"));
      double gathers = share_beside_computation(bars, "gather"),
             reductions = share_beside_computation(bars, "reduce");
      double bars_of = 0, waits_of = 0;
      for (const Bar& bar : bars) {
        if (bar.name == "dp_shard reduce_scatter") bars_of += bar.end - bar.begin;
        if (bar.name == "wait for dp_shard reduce_scatter") waits_of += bar.end - bar.begin;
      }
      MESSAGE(std::string("beside computation: gathers "), gathers, std::string(", reductions "),
              reductions, std::string("; of the time of reductions waited for: "),
              waits_of / bars_of);
      CHECK(waits_of < 0.9 * bars_of);
      // The root's own have nothing to run beside; the rest mostly do, as far as two busy cores let
      // them.
      CHECK(gathers > 0.3);
      CHECK(reductions > 0.3);
      for (const char* name : {"forward", "backward", "optimizer"}) {
        int count = 0;
        for (const Bar& bar : bars) count += bar.name == name;
        CHECK(count == 20);
      }
    }
  }
}

TEST_CASE("asynchronous tensor parallelism computes while the sequence is gathered and scattered") {
  Folder folder;
  for (const std::string shared : {"0", "1"})
    for (bool pieces : {false, true}) {
      CAPTURE(shared);
      CAPTURE(pieces);
      ::setenv("MESHWRIGHT_SHARED_MEMORY", shared.c_str(), 1);
      std::vector<Row> curve = train(
          folder, "llama", 2, 1,
          {"distributed.tp_size=2", "step_scheduler.local_batch_size=12",
           "distributed.sequence_parallel=true",
           std::string("distributed.enable_async_tensor_parallel=") + (pieces ? "true" : "false")},
          "--trace");
      ::unsetenv("MESHWRIGHT_SHARED_MEMORY");
      REQUIRE(curve.size() == 20);
      for (int rank : {0, 1}) {
        std::vector<Bar> bars = read_trace(folder.path / "parity" / "trace" /
                                           ("rank_" + std::to_string(rank) + ".json"));
        std::erase_if(bars, [](const Bar& bar) {
          return bar.lane != "compute" && !bar.name.starts_with("tp ");
        });
        double gathers = share_beside_computation(bars, "gather"),
               reductions = share_beside_computation(bars, "reduce");
        MESSAGE(std::string(pieces ? "in pieces: " : "at once: "),
                std::string("beside computation: gathers "), gathers, std::string(", reductions "),
                reductions);
        if (pieces) {
          // But for the final gather of a step's odd ones (embedding, sums of gradients), each has
          // its product.
          CHECK(gathers > 0.4);
          CHECK(reductions > 0.5);
        } else {
          CHECK(gathers == 0);
          CHECK(reductions == 0);
        }
      }
    }
}

TEST_CASE(
    "keys travel while the block before them is computed, posted before and waited for after") {
  struct Row {
    const char* model;
    int ranks;
    int64_t layers, messages;                // of a layer and step
    std::vector<int64_t> forward, backward;  // messages beside each block
  };
  auto text = [](const std::vector<int64_t>& counts) {
    std::string out;
    for (int64_t count : counts) out += (out.empty() ? "" : " ") + std::to_string(count);
    return out;
  };
  for (const Row& row : {
           Row{"llama", 2, 3, 1 + 2, {1, 0}, {1, 0}},
           // Gradients of a block travel beside the next one; the last go home when all is done.
           Row{"llama", 4, 3, 3 + 6, {1, 1, 1, 0}, {1, 1, 2, 1}},
           // Of a window: forward is one block, of all keys.
           Row{"mistral", 2, 2, 1 + 2, {0}, {1, 0}},
       }) {
    CAPTURE(std::string(row.model));
    CAPTURE(row.ranks);
    Folder folder;
    train(folder, row.model, row.ranks, 1,
          {"distributed.cp_size=" + std::to_string(row.ranks), "step_scheduler.local_batch_size=12",
           "distributed.context.method=\"ring\""},
          "--trace");
    for (int rank = 0; rank < row.ranks; ++rank) {
      const Beside found = beside_blocks(
          read_trace(folder.path / "parity" / "trace" / ("rank_" + std::to_string(rank) + ".json")),
          row.forward.size(), row.backward.size());
      CHECK(found.forward == text(row.forward));
      CHECK(found.backward == text(row.backward));
      CHECK(found.calls == 20 * row.layers * 2);
      CHECK(found.messages == 20 * row.layers * row.messages);
    }
  }
}
