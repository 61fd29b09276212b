// Jobs of the real program on the fake device and on the CPU: the same losses and gradient norms,
// and nothing wrong in the device's log. README.md says what the device checks.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "jobs.h"
#include "sdk/comm/tests/sampled.h"

using namespace fake_device_jobs;

namespace fake_device_test {

const std::string kFirst = "first_fsdp2_cpu", kMegatron = "megatron_fsdp_cpu",
                  kExperts = "experts_cpu";

const std::vector<Row> kRows{
    {"fsdp2", kFirst, 2, {}},
    {"bfloat16",
     kFirst,
     2,
     {"distributed.mp_policy.param_dtype=bfloat16", "distributed.mp_policy.output_dtype=bfloat16"},
     kHalf},
    {"gathered once", kFirst, 2, {"distributed.fsdp2.reshard_after_forward=false"}},
    {"offload", kFirst, 2, {"distributed.fsdp2.offload_policy=cpu"}},
    // By SGD, which shows a factor that AdamW hardly does: the optimizer multiplies with it.
    {"clipped",
     kFirst,
     2,
     {"optimizer.name=sgd", "optimizer.lr=0.5", "optimizer.max_grad_norm=0.01"}},
    {"clipped, ddp",
     kFirst,
     2,
     {"distributed.strategy=ddp", "optimizer.name=sgd", "optimizer.lr=0.5",
      "optimizer.max_grad_norm=0.01"}},
    {"recomputation", kFirst, 2, {"distributed.activation_checkpointing=full"}},
    {"hybrid", kFirst, 4, {"distributed.dp_replicate_size=2"}},
    {"tensor parallel", kFirst, 2, {"distributed.tp_size=2"}},
    {"sequence parallel",
     kFirst,
     2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"ddp", kFirst, 2, {"distributed.strategy=ddp"}},
    {"megatron_fsdp 1",
     kMegatron,
     2,
     {"distributed.megatron_fsdp.zero_dp_strategy=1",
      "distributed.megatron_fsdp.init_fsdp_with_meta_device=false"}},
    {"megatron_fsdp 3", kMegatron, 2, {}},
    {"asynchronous tensor parallel",
     kFirst,
     2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true",
      "distributed.enable_async_tensor_parallel=true"}},
    {"tensor parallel, shards, recomputation, offload",
     kFirst,
     4,
     {"distributed.tp_size=2", "distributed.activation_checkpointing=full",
      "distributed.fsdp2.offload_policy=cpu"}},
    {"experts", kExperts, 2, {}},
    {"experts, bfloat16",
     kExperts,
     2,
     {"distributed.mp_policy.param_dtype=bfloat16", "distributed.mp_policy.output_dtype=bfloat16"},
     2e-4},  // routing weights are rounded after other operators than on the CPU
    {"experts, all to all", kExperts, 2, {"distributed.strategy=moe_ep", "distributed.ep_size=2"}},
    {"experts, all gather",
     kExperts,
     2,
     {"distributed.strategy=moe_ep", "distributed.ep_size=2",
      "distributed.moe.dispatcher=all_gather"}},
    {"1F1B",
     kFirst,
     2,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1F1B",
      "distributed.pipeline.pp_microbatch_size=2"}},
    {"ZBV",
     kFirst,
     2,
     {"model.config=configs/models/llama-quickstart.json", "distributed.pp_size=2",
      "distributed.pipeline.pp_schedule=ZBVZeroBubble",
      "distributed.pipeline.pp_microbatch_size=2"}},
    {"ring", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ring_size=2"}},
    {"ulysses", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ulysses_size=2"}},
};

// What these do, others do beside more.
const std::set<std::string> kWithin{"recomputation", "tensor parallel", "sequence parallel"};

// How often a host waits in a step beside once for its sums and once for its norm. Both jobs have
// two micro-batches, of experts two layers. Bounds of experts stay on the device, in float32 as
// well, and all ranks are known to bring equally many tokens.
const std::map<std::string, int64_t> kMoreWaits{
    {"offload", 3},  // gradients of a unit
    {"tensor parallel, shards, recomputation, offload", 3},
    {"experts, all to all", 2 * 2},  // sizes of the messages
};

int64_t calls_of(const boost::json::object& step, const char* name) {
  const boost::json::value* found = step.at("operators").as_object().if_contains(name);
  return found != nullptr ? found->at("calls").to_number<int64_t>() : 0;
}
// Of the host in a step. Targets are checked with a wait of their own, which is not counted here.
int64_t waits_of(const boost::json::object& step) {
  return step.at("host_waits").to_number<int64_t>() - calls_of(step, "aten::any");
}

}  // namespace fake_device_test

using namespace fake_device_test;

TEST_CASE("what runs on the fake device gives what the CPU gives, and in order") {
  for (const Row& row : kRows) {
    if (kWithin.contains(row.name) && !meshwright::all_layouts()) continue;
    DOCTEST_SUBCASE(row.name.c_str()) {
      CAPTURE(row.name);
      // What is written late must not show either.
      const Ended device = train(row, On::device, {"FAKE_DEVICE_DELAYS=1"}),
                  host = train(row, On::host);
      REQUIRE_MESSAGE(device.code == 0, device.said);
      REQUIRE_MESSAGE(host.code == 0, host.said);
      check_close("loss", device.losses, host.losses, row);
      check_close("norm", device.norms, host.norms, row);
      CHECK(static_cast<int>(device.counters.size()) == row.ranks);  // each of them used a device
      // What events say of waiting, in each step, and of the ranks' work, from the third one on.
      REQUIRE(device.rows.size() == 3);
      for (const boost::json::object& one : device.rows)
        CHECK(one.at("exposed_comm_ms").to_number<double>() >= 0);
      CHECK(device.rows[1].at("slowest_rank").is_null());
      const boost::json::object& last = device.rows[2];
      CHECK(last.at("slowest_rank").as_int64() < row.ranks);
      CHECK(last.at("slowest_ms").to_number<double>() >= 0);
      CHECK(last.at("rank_work_ms_least").to_number<double>() > 0);
      CHECK(last.at("rank_work_ms_most").to_number<double>() >=
            last.at("rank_work_ms_least").to_number<double>());
      for (const boost::json::object& rank : device.counters) {
        const boost::json::array& steps = rank.at("steps").as_array();
        REQUIRE(steps.size() == row.steps);
        auto peak = [&](size_t step) {
          return steps[step].as_object().at("peak_bytes").to_number<double>();
        };
        CHECK(peak(row.steps - 1) <= 1.05 * peak(1));  // nothing is left of a step
        const auto more = kMoreWaits.find(row.name);
        CHECK(waits_of(steps[1].as_object()) <= 2 + (more != kMoreWaits.end() ? more->second : 0));
      }
      for (const std::string& log : device.logs) {
        for (const std::string& line : wrong_lines(log)) CHECK_MESSAGE(false, line);
        if (counted(log, "operations") <= 0) continue;
        CHECK(counted(log, "stray kernels") == 0);
        CHECK(counted(log, "races") == 0);
      }
    }
  }
}

TEST_CASE(
    "experts of several ranks in bfloat16 wait for the sizes of messages, where they need any") {
  for (const auto& [dispatcher, more] : {std::pair{"all_to_all", 2 * 2}, {"all_gather", 0}})
    for (const char* recomputed : {"none", "full"}) {
      CAPTURE(dispatcher);
      CAPTURE(recomputed);
      const Ended ended = train({"",
                                 kExperts,
                                 2,
                                 {"distributed.strategy=moe_ep", "distributed.ep_size=2",
                                  std::string("distributed.moe.dispatcher=") + dispatcher,
                                  std::string("distributed.activation_checkpointing=") + recomputed,
                                  "distributed.mp_policy.param_dtype=bfloat16",
                                  "distributed.mp_policy.output_dtype=bfloat16"}},
                                On::device);
      REQUIRE_MESSAGE(ended.code == 0, ended.said);
      CHECK(races(ended) == 0);
      REQUIRE(ended.counters.size() == 2);
      for (const boost::json::object& rank : ended.counters)
        CHECK(waits_of(rank.at("steps").as_array()[1].as_object()) == 2 + more);
    }
}

TEST_CASE("what all-to-all launches does not grow with the number of experts") {
  // Copies and what takes, picks and adds up rows.
  auto launches = [](int experts) {
    const Folder folder;
    const fs::path model = folder.path / "model.json";
    std::ofstream(model) << R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
      "vocab_size": 256, "hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
      "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "num_experts_per_tok": 2,
      "num_local_experts": )"
                         << experts << "}";
    const Ended ended =
        train({"",
               kExperts,
               2,
               {"distributed.strategy=moe_ep", "distributed.ep_size=2",
                "model.config=" + model.string(), "distributed.mp_policy.param_dtype=bfloat16",
                "distributed.mp_policy.output_dtype=bfloat16"}},
              On::device);
    REQUIRE_MESSAGE(ended.code == 0, ended.said);
    int64_t out = 0;
    const boost::json::object& step = ended.counters.at(0).at("steps").as_array()[1].as_object();
    for (const auto& [name, one] : step.at("operators").as_object()) {
      const std::string of(name);
      for (const char* part : {"copy", "take_rows", "combine_rows", "index", "cat", "fill"})
        if (of.find(part) != std::string::npos) {
          out += one.at("kernels").to_number<int64_t>();
          break;
        }
    }
    return out;
  };
  const int64_t few = launches(4);
  CHECK(few > 0);
  CHECK(launches(32) <= few + 8);  // larger parameters may take a copy more
}

// The checks see something: what LibTorch orders is no longer ordered.
TEST_CASE("streams that do not wait for events are races") {
  const Ended ended = train(kRows[0], On::device, {"FAKE_DEVICE_IGNORE_WAITS=1"});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
  CHECK(ended.code == 0);  // everything runs at once, so the numbers are right all the same
  // Under delays already what ranks tell each other at the beginning is wrong.
  const Ended delayed =
      train(kRows[0], On::device, {"FAKE_DEVICE_IGNORE_WAITS=1", "FAKE_DEVICE_DELAYS=1"});
  CHECK((delayed.code != 0 || delayed.losses != ended.losses));
}
TEST_CASE("a host that does not wait for its copies is a race") {
  const Row& row = kRows[3];
  REQUIRE(row.name == "offload");
  const Ended ended = train(row, On::device, {"FAKE_DEVICE_IGNORE_SYNCS=1"});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
}

TEST_CASE("the counters of a step know what it launches, moves and waits for") {
  const Ended ended = train(kRows[0], On::device);
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  REQUIRE(ended.counters.size() == 2);
  for (const boost::json::object& rank : ended.counters) {
    const boost::json::array& steps = rank.at("steps").as_array();
    REQUIRE(steps.size() == kRows[0].steps);
    const boost::json::object& step = steps[1].as_object();  // neither a beginning nor an end
    auto of = [](const boost::json::object& where, const char* key) {
      return where.at(key).to_number<int64_t>();
    };
    auto operation = [&](const char* name) -> const boost::json::object& {
      return step.at("operators").as_object().at(name).as_object();
    };
    // 16 samples of 128 tokens and their targets in micro-batches of 4: two of them are this
    // rank's.
    const boost::json::object& batch = step.at("copies").at("copy to the device").as_object();
    // Then what the step adds up over the ranks: loss, targets, their weights, tokens, places of
    // tokens, four votes, and what
    // each of the two has worked.
    CHECK(of(batch, "calls") == 2 + 1);
    CHECK(of(batch, "bytes") == 2 * 2 * 4 * 128 * 8 + (9 + 2) * 8);
    CHECK(step.at("copies").as_object().size() == 2);  // none is pageable; the other way back
    // Rows of 64 float32 for 4 x 128 tokens of each.
    CHECK(of(operation("aten::index_select"), "calls") == 2);
    CHECK(of(operation("aten::index_select"), "written") == 2 * 4 * 128 * 64 * 4);
    CHECK(of(operation("aten::_fused_adamw_"), "calls") == 1);
    // Gradients of all parameters, 62,624 of float32 a rank, in one pass over each unit.
    CHECK(of(operation("nccl reduce_scatter"), "written") == 62624 * 4);
    // Autograd's gradients go out from where they lie, and the first sum straight to where it
    // stays; so do the gathers.
    CHECK_FALSE(step.at("operators").as_object().contains("aten::_foreach_copy_"));
    CHECK_FALSE(step.at("operators").as_object().contains("aten::zero_"));
    CHECK(waits_of(step) == 2);       // for the step's sums and for its norm
    CHECK(of(step, "streams") == 3);  // of the program, all-gathers and reductions
    CHECK(of(step, "peak_bytes") > 0);
    int64_t launches = 0;
    for (const auto& phase : step.at("phases").as_object())
      for (const auto& one : phase.value().as_object())
        launches += of(one.value().as_object(), "kernels");
    CHECK(of(step, "kernels") == launches);
    const boost::json::object& phases = step.at("phases").as_object();
    CHECK(phases.at("forward").as_object().contains("aten::index_select"));
    CHECK(phases.at("backward").as_object().contains("nccl reduce_scatter"));
    CHECK(phases.at("rest").as_object().contains("aten::_fused_adamw_"));
    CHECK(of(step, "kernels") ==
          of(ended.counters[0].at("steps").as_array()[1].as_object(), "kernels"));
  }
}

TEST_CASE("clipping is no pass over gradients of its own: the optimizer multiplies") {
  auto operators = [](const std::string& limit) {
    Row row = kRows[0];
    row.sets.push_back("optimizer.max_grad_norm=" + limit);
    const Ended ended = train(row, On::device);
    REQUIRE_MESSAGE(ended.code == 0, ended.said);
    return ended.counters.at(0).at("steps").as_array()[1].as_object().at("operators").as_object();
  };
  const boost::json::object clipped = operators("0.001"), plain = operators("\"none\"");
  auto written = [](const boost::json::object& all) {
    return all.at("aten::_fused_adamw_").as_object().at("written").to_number<int64_t>();
  };
  // Values and two averages, and then the gradients, which are the clipped ones from there on.
  CHECK(written(plain) > 0);
  CHECK(3 * written(clipped) == 4 * written(plain));
  for (const boost::json::object* all : {&clipped, &plain})
    for (const auto& one : *all)
      CHECK_FALSE(std::string(one.key()).starts_with("aten::_foreach_mul_"));
}

// What bench/device_counts.py takes host time from: the program runs the same way.
TEST_CASE("without arithmetic a step launches, moves and waits for what it does with it") {
  for (const Row& row : {kRows[0], kRows[1], Row{"ddp", kFirst, 2, {"distributed.strategy=ddp"}},
                         Row{"tensor parallel", kFirst, 2, {"distributed.tp_size=2"}}}) {
    CAPTURE(row.name);
    const Ended with = train(row, On::device),
                without = train(row, On::device, {"FAKE_DEVICE_ARITHMETIC=0"});
    REQUIRE_MESSAGE(with.code == 0, with.said);
    REQUIRE_MESSAGE(without.code == 0, without.said);
    REQUIRE(with.counters.size() == without.counters.size());
    for (size_t rank = 0; rank < with.counters.size(); ++rank) {
      const boost::json::array &steps = with.counters[rank].at("steps").as_array(),
                               &bare = without.counters[rank].at("steps").as_array();
      REQUIRE(steps.size() == bare.size());
      for (const char* key : {"kernels", "read", "written", "host_waits", "copies", "operators"}) {
        CAPTURE(key);
        CHECK((steps[1].as_object().at(key) == bare[1].as_object().at(key)));
      }
    }
    // No logits are computed, so the loss is not the mean of real ones.
    REQUIRE(without.losses.size() == with.losses.size());
    for (size_t i = 0; i < with.losses.size(); ++i) {
      CHECK(std::isfinite(without.losses[i]));
      CHECK(without.losses[i] != with.losses[i]);
    }
    for (const std::string& log : without.logs)
      for (const std::string& line : wrong_lines(log)) CHECK_MESSAGE(false, line);
  }
}
