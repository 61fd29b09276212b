// What `train --trace` writes: a Chrome trace a rank, and in it gathers and reductions that run
// beside computation.
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
