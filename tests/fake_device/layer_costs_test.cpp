// What a dense layer costs a device: launches, and the bytes that pass over memory beside its
// products. A layer's share is the difference between models of two depths.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jobs.h"

using namespace fake_device_jobs;

namespace layer_costs_test {

const Strings kBfloat16{"distributed.mp_policy.param_dtype=bfloat16",
                        "distributed.mp_policy.output_dtype=bfloat16"};

// A model of so many layers, and a step of it on rank 0 of two with so many samples of 128 tokens
// each: of fsdp2 in bfloat16, or with other settings.
boost::json::object step_of(int layers, const Strings& sets = kBfloat16, int samples = 2) {
  const Folder folder;
  const fs::path model = folder.path / "model.json";
  std::ofstream(model) << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
    "num_hidden_layers": )"
                       << layers << "}";
  Row row{"a layer",
          "first_fsdp2_cpu",
          2,
          {"step_scheduler.global_batch_size=" + std::to_string(2 * samples),
           "step_scheduler.local_batch_size=" + std::to_string(samples),
           "model.config=" + model.string()}};
  row.sets.insert(row.sets.end(), sets.begin(), sets.end());
  const Ended ended = train(row, On::device);
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  return ended.counters.at(0).at("steps").as_array()[1].as_object();
}

// The same in bfloat16, run once for all cases.
const boost::json::object& dense_step(int layers, int samples) {
  static std::map<std::pair<int, int>, boost::json::object> kept;
  boost::json::object& step = kept[{layers, samples}];
  if (step.empty()) step = step_of(layers, kBfloat16, samples);
  return step;
}

struct Costs {
  int64_t launches = 0, bytes = 0;
};
// Of a phase's operators without collectives, each layer's.
std::map<std::string, Costs> costs_of_layer(const boost::json::object& deep,
                                            const boost::json::object& shallow, int layers,
                                            const std::string& phase) {
  std::map<std::string, Costs> out;
  auto add = [&](const boost::json::object& step, int64_t sign) {
    for (const auto& [name, one] : step.at("phases").at(phase).as_object()) {
      if (name.starts_with("nccl ")) continue;
      auto of = [&](const char* key) { return sign * one.at(key).to_number<int64_t>(); };
      Costs& costs = out[std::string(name)];
      costs.launches += of("kernels"), costs.bytes += of("read") + of("written");
    }
  };
  add(deep, 1), add(shallow, -1);
  for (auto& [name, costs] : out) costs.launches /= layers, costs.bytes /= layers;
  std::erase_if(out,
                [](const auto& one) { return one.second.launches == 0 && one.second.bytes == 0; });
  return out;
}

// As bench/device_counts.py has it.
bool is_product(std::string_view name) {
  if (name.find("attention") != std::string_view::npos) return true;
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return false;
  name.remove_prefix(kAten.size());
  name = name.substr(0, name.find('.'));
  constexpr std::array<std::string_view, 3> kProducts{"mm", "addmm", "linear"};
  return std::find(kProducts.begin(), kProducts.end(), name) != kProducts.end();
}

// Bytes of a token's row of the stream, of its query and key heads, and of the MLP's; of a norm's
// weight, of the table of angles; and the parameters of a layer.
constexpr int64_t kRow = 256 * 2, kHeads = (8 + 4) * 32 * 2, kFfn = 704 * 2, kWeight = 256 * 2,
                  kAngles = 2 * 128 * 32 * 2, kParameters = 737792;
// Each 16 rows have a part of the gradient of a norm's weight, in float32.
constexpr int64_t kPart = 256 * 4 / 16;

struct Line {
  std::string name;
  int64_t launches, of_token, once;  // bytes
};
struct Phase {
  std::string name;
  int64_t most_launches, most_of_token;
  std::vector<Line> lines;
};
const std::vector<Phase> kPhases{
    {"forward",
     20,
     14000,
     // The first norm reads and writes rows; the second reads the stream and what attention adds,
     // and writes their sum and its norm. Each keeps a float of a row.
     {{"rms_norm_bfloat16_packs", 2, (2 + 4) * kRow + 2 * 4, 2 * kWeight},
      {"rotate_bfloat16_packs", 1, 2 * kHeads, kAngles},
      {"silu_times_bfloat16_packs", 1, 3 * kFfn, 0},
      {"aten::add.Tensor", 1, 3 * kRow, 0},  // the layer's end
      // This rank's half of the parameters from float32 into the gather.
      {"aten::_foreach_copy_", 1, 0, kParameters / 2 * (4 + 2)}}},
    {"backward",
     30,
     20000,
     // Each reads rows, their gradient and the stream's, and writes the sum of both.
     {{"rms_norm_backward_bfloat16_packs", 2, 2 * (4 * kRow + 4 + kPart), 2 * kWeight},
      {"sum_rows_bfloat16_packs", 2, 2 * kPart, 2 * kWeight},
      {"silu_times_backward_bfloat16_packs", 1, 5 * kFfn, 0},
      {"rotate_bfloat16_packs", 1, 2 * kHeads, kAngles},
      // The second gather, and the gradients of the norms' weights to float32.
      {"aten::_foreach_copy_", 2, 0, kParameters / 2 * (4 + 2) + 2 * 256 * (2 + 4)}}}};

}  // namespace layer_costs_test

using namespace layer_costs_test;

TEST_CASE("a dense layer in bfloat16 launches few kernels, and the host waits for none") {
  const boost::json::object &deep = dense_step(8, 2), &shallow = dense_step(4, 2);
  auto kernels = [](const boost::json::object& step) {
    return step.at("kernels").to_number<int64_t>();
  };
  // Of a layer: 21 products, 4 of attention, 10 of our own, the sum at its end, 3 collectives, and
  // 3 copies of units: two casts, and what of its gradients (those of norms) does not come in
  // float32. Gradients of what projections read together are added up by their products.
  CHECK(kernels(deep) - kernels(shallow) <= 4 * 42);
  CHECK(kernels(deep) <= 42 * 8 + 40);
  CHECK(deep.at("host_waits").to_number<int64_t>() <= 2);
  // A rank's half of a layer's 737,792 parameters and two averages in float32, and 2.4 MB for what
  // its backward needs: gradients come when activations go.
  auto peak = [](const boost::json::object& step) {
    return step.at("peak_bytes").to_number<double>();
  };
  CHECK(peak(deep) - peak(shallow) <= 4 * (737792.0 * 12 / 2 + 2.4e6));
  const boost::json::object& operators = deep.at("operators").as_object();
  const std::vector<std::pair<std::string, int64_t>> ours{
      {"rms_norm_bfloat16_packs", 17},
      {"rms_norm_backward_bfloat16_packs", 17},
      {"silu_times_bfloat16_packs", 8},
      {"silu_times_backward_bfloat16_packs", 8},
      {"rotate_bfloat16_packs", 16},
      {"cross_entropy_bfloat16_packs", 1},
      {"cross_entropy_backward_bfloat16_packs", 1}};
  for (const auto& [name, launches] : ours) {
    CAPTURE(name);
    REQUIRE(operators.contains(name));
    CHECK(operators.at(name).as_object().at("kernels").to_number<int64_t>() == launches);
  }
  // Gradients of weights are products in float32, and go out from where they were written.
  auto copied = [](const boost::json::object& step) {
    return step.at("operators")
        .as_object()
        .at("aten::_foreach_copy_")
        .as_object()
        .at("written")
        .to_number<int64_t>();
  };
  CHECK(copied(deep) - copied(shallow) == 4 * (2 * 737792 / 2 * 2 + 2 * 256 * 4));
  // The logits, 2 x 128 x 1024 of bfloat16, are read once forward and once backward, and the
  // gradient is written.
  auto moved = [&](const char* name, const char* way) {
    return operators.at(name).as_object().at(way).to_number<int64_t>();
  };
  const int64_t logits = 2 * 128 * 1024 * 2, rows = 2 * 128;
  CHECK(moved("cross_entropy_bfloat16_packs", "read") == logits + 8 * rows);
  CHECK(moved("cross_entropy_bfloat16_packs", "written") == (3 * 4 + 8) * rows);
  CHECK(moved("cross_entropy_backward_bfloat16_packs", "written") == logits);
}

// What grows with the tokens is asked to be at most 14 kB a token forward and 20 kB backward.
TEST_CASE("what a dense layer in bfloat16 launches, and moves beside its products") {
  constexpr int64_t kTokens = 2 * 128;
  for (const Phase& phase : kPhases) {
    CAPTURE(phase.name);
    const std::map<std::string, Costs> found = costs_of_layer(dense_step(8, 2), dense_step(4, 2), 4,
                                                              phase.name),
                                       twice = costs_of_layer(dense_step(4, 4), dense_step(2, 4), 2,
                                                              phase.name);
    for (const Line& line : phase.lines) {
      CAPTURE(line.name);
      REQUIRE(found.contains(line.name));
      REQUIRE(twice.contains(line.name));
      CHECK(found.at(line.name).launches == line.launches);
      CHECK(found.at(line.name).bytes == line.of_token * kTokens + line.once);
      CHECK(twice.at(line.name).bytes == line.of_token * 2 * kTokens + line.once);
    }
    // Nothing else but products.
    int64_t launches = 0, grown = 0;
    for (const auto& [name, costs] : twice) {
      CAPTURE(name);
      launches += costs.launches;
      if (is_product(name)) continue;
      const bool known = std::any_of(phase.lines.begin(), phase.lines.end(),
                                     [&](const Line& line) { return line.name == name; });
      CHECK(known);
      const auto before = found.find(name);
      grown += costs.bytes - (before != found.end() ? before->second.bytes : 0);
    }
    CHECK(launches <= phase.most_launches);
    CHECK(grown <= phase.most_of_token * kTokens);
  }
}

TEST_CASE("under autocast weights are cast a layer at once, and their gradients never") {
  struct Case {
    std::string strategy, samples;
    int64_t collectives;  // a layer
  };
  for (const auto& [strategy, samples, collectives] :
       {Case{"strategy=ddp", "4", 0}, Case{"tp_size=2", "2", 4}}) {
    CAPTURE(strategy);
    const Strings sets{"distributed." + strategy, "distributed.autocast_dtype=bfloat16",
                       "step_scheduler.global_batch_size=" + samples};
    const boost::json::object deep = step_of(4, sets), shallow = step_of(2, sets);
    auto of_layer = [&](const char* phase, const std::string& name) {
      auto all = [&](const boost::json::object& step) {
        int64_t out = 0;
        for (const auto& [found, one] : step.at("phases").at(phase).as_object())
          if (name.empty() ? !found.starts_with("nccl ") : found == name)
            out += one.at("kernels").to_number<int64_t>();
        return out;
      };
      return (all(deep) - all(shallow)) / 2;
    };
    CHECK(of_layer("forward", "") <= 20);
    CHECK(of_layer("backward", "") <= 30);
    CHECK(of_layer("forward", "aten::_foreach_copy_") == 1);
    CHECK(of_layer("backward", "aten::addmm") == 7);
    CHECK(of_layer("forward", "nccl all_reduce") + of_layer("backward", "nccl all_reduce") ==
          collectives);
  }
}
