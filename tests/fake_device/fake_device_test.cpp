// Jobs of the real program on the fake device and on the CPU: the same losses and gradient norms,
// and nothing wrong in the device's log. README.md says what the device checks. Long because all
// cases share how jobs are run and what their logs hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "jobs.h"
#include "sdk/comm/tests/sampled.h"

using namespace fake_device_jobs;

namespace fake_device_test {

const std::string kFirst = "first_fsdp2_cpu", kExperts = "experts_cpu";
const std::string kFloat8Linear = "model.float8_linear=true",
                  kBf16 = "distributed.mp_policy.param_dtype=bfloat16",
                  kBf16Out = "distributed.mp_policy.output_dtype=bfloat16";

// On the CPU these compute the numbers of fsdp2 in the same order: what they ask for is for
// devices, or says when something is gathered or computed again. One run there is for all of them.
const std::set<std::string> kSameOnHost{
    "fsdp2, gathered once",          "fsdp2, offload",     "fsdp2, offload, not pinned",
    "fsdp2, recomputation",          "segments that grow", "saved every step",
    "saved every step, asynchronous"};

// Products of 8-bit floats in a step of a rank: three of each Linear of two layers in each
// micro-batch. Of seven Linears; under tp the 176 columns of an mlp are 88 a rank, which is no
// multiple of 16, so of the four of attention.
const std::map<std::string, int64_t> kFloat8Products{{"fsdp2, bfloat16, float8", 3 * 7 * 2 * 2},
                                                     {"tp, bfloat16, float8", 3 * 4 * 2 * 4}};

int64_t calls_of(const boost::json::object& step, const char* name) {
  const boost::json::value* found = step.at("operators").as_object().if_contains(name);
  return found != nullptr ? found->at("calls").to_number<int64_t>() : 0;
}
int64_t waits_of(const boost::json::object& step) {  // of the host
  return step.at("host_waits").to_number<int64_t>();
}

// A race is told without the functions that came there: nobody reads them, and finding their names
// takes long where everything races.
const std::string kNoStacks = "FAKE_DEVICE_STACKS=0";

}  // namespace fake_device_test

using namespace fake_device_test;

TEST_CASE("what runs on the fake device gives what the CPU gives, and in order") {
  for (const Row& known : kJobs) {
    if (!known.sample && !(known.within && meshwright::all_layouts())) continue;
    DOCTEST_SUBCASE(known.name.c_str()) {
      Row row = known;
      row.steps = kWatchedSteps + row.resume_after;
      CAPTURE(row.name);
      // What is written late must not show either.
      Strings variables{"FAKE_DEVICE_DELAYS=1"};
      // The first capability that has such products.
      if (row.name == "fsdp2, bfloat16, float8") variables.push_back("FAKE_DEVICE_CAPABILITY=8.9");
      const Ended device = train(row, On::device, variables);
      Row same = row;
      if (kSameOnHost.contains(row.name)) same.sets.clear();
      const Ended& host = trained(same, On::host);
      REQUIRE_MESSAGE(device.code == 0, device.said);
      REQUIRE_MESSAGE(host.code == 0, host.said);
      check_like(device, host, row);
      // The table of waits says no more than there are.
      CHECK(check_steps(device, row).waits == most_waits(row.name, row.ranks));
      if (const auto of = kFloat8Products.find(row.name); of != kFloat8Products.end())
        for (const boost::json::object& rank : device.counters)
          CHECK(calls_of(rank.at("steps").as_array().at(1).as_object(), "aten::_scaled_mm") ==
                of->second);
      // What events say of waiting, in each step, and of the ranks' work, from the third one of a
      // run on.
      REQUIRE(device.rows.size() == row.steps);
      for (const boost::json::object& one : device.rows)
        CHECK(one.at("exposed_comm_ms").to_number<double>() >= 0);
      CHECK(device.rows[row.resume_after + 1].at("slowest_rank").is_null());
      const boost::json::object& third = device.rows[row.resume_after + 2];
      CHECK(third.at("slowest_rank").as_int64() < row.ranks);
      CHECK(third.at("slowest_ms").to_number<double>() >= 0);
      CHECK(third.at("rank_work_ms_least").to_number<double>() > 0);
      CHECK(third.at("rank_work_ms_most").to_number<double>() >=
            third.at("rank_work_ms_least").to_number<double>());
      check_logs(device);
      for (const std::string& log : device.logs) {
        if (counted(log, "operations") <= 0) continue;
        CHECK(counted(log, "stray kernels") == 0);
        CHECK(counted(log, "races") == 0);
      }
    }
  }
}

TEST_CASE(
    "experts of several ranks in bfloat16 wait for the sizes of messages, where they need any") {
  // Recomputed layers know them already.
  for (const auto& [dispatcher, recomputed, more] :
       {std::tuple{"all_to_all", "full", 2 * 2}, {"all_gather", "none", 0}}) {
    CAPTURE(dispatcher);
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
                "distributed.moe.dispatcher=all_to_all", "model.config=" + model.string(),
                "distributed.mp_policy.param_dtype=bfloat16",
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

TEST_CASE("without kernels of our own the host waits for each check of targets, and only so") {
  const Ended ended = train(job_called("fsdp2"), On::device, {"FAKE_DEVICE_NVRTC=0"});
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  REQUIRE(ended.counters.size() == 2);
  for (const boost::json::object& rank : ended.counters) {
    const boost::json::object& step = rank.at("steps").as_array().at(1).as_object();
    CHECK(calls_of(step, "aten::any") == 2);  // of two micro-batches
    CHECK(waits_of(step) == 2 + 2);
  }
}

// Kernels of our own are compiled for what the device is, and LibTorch chooses attention by it.
TEST_CASE("devices of other capabilities train with the CPU's numbers and kernels of our own") {
  Row row = job_called("experts, fsdp2, bfloat16");
  row.steps = kWatchedSteps;
  const Ended& host = trained(row, On::host);
  REQUIRE_MESSAGE(host.code == 0, host.said);
  for (const char* capability : {"8.0", "10.0"}) {
    if (*capability == '1' && !meshwright::all_layouts()) break;
    CAPTURE(capability);
    const Ended device =
        train(row, On::device, {std::string("FAKE_DEVICE_CAPABILITY=") + capability});
    REQUIRE_MESSAGE(device.code == 0, device.said);
    check_like(device, host, row);
    check_logs(device);
    REQUIRE(device.counters.size() == 2);
    for (const boost::json::object& rank : device.counters) {
      const boost::json::object& operators =
          rank.at("steps").as_array().at(1).as_object().at("operators").as_object();
      CHECK(std::any_of(operators.begin(), operators.end(), [](const auto& one) {
        return std::string(one.key()).starts_with("rms_norm_bfloat16");
      }));
    }
  }
}

TEST_CASE("products of 8-bit floats are refused at the start where the device has none") {
  const Ended ended = train({"", kFirst, 1, {kFloat8Linear, kBf16, kBf16Out}}, On::device,
                            {"FAKE_DEVICE_CAPABILITY=8.6"});
  CHECK(ended.code != 0);
  CHECK(ended.losses.empty());
  for (const char* part :
       {"error[E0504]: model.float8_linear: cuda:0 has no products of 8-bit "
        "floats: torch._scaled_mm is only supported on CUDA devices with",
        "set model.float8_linear = false", "use a device of capability 8.9 or above"})
    CHECK_MESSAGE(ended.said.find(part) != std::string::npos, ended.said);
  CHECK(races(ended) == 0);
}

// The checks see something: what LibTorch orders is no longer ordered.
TEST_CASE("streams that do not wait for events are races") {
  const Ended ended =
      train(job_called("fsdp2"), On::device, {"FAKE_DEVICE_IGNORE_WAITS=1", kNoStacks});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
  CHECK(ended.code == 0);  // everything runs at once, so the numbers are right all the same
  // Under delays already what ranks tell each other at the beginning is wrong.
  const Ended delayed = train(job_called("fsdp2"), On::device,
                              {"FAKE_DEVICE_IGNORE_WAITS=1", "FAKE_DEVICE_DELAYS=1", kNoStacks});
  CHECK((delayed.code != 0 || delayed.losses != ended.losses));
}
TEST_CASE("a host that does not wait for its copies is a race") {
  const Ended ended =
      train(job_called("fsdp2, offload"), On::device, {"FAKE_DEVICE_IGNORE_SYNCS=1", kNoStacks});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
}

TEST_CASE("the counters of a step know what it launches, moves and waits for") {
  const Ended& ended = trained(job_called("fsdp2"), On::device);
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  REQUIRE(ended.counters.size() == 2);
  for (const boost::json::object& rank : ended.counters) {
    const boost::json::array& steps = rank.at("steps").as_array();
    REQUIRE(steps.size() == job_called("fsdp2").steps);
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
    Row row = job_called("fsdp2");
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

TEST_CASE("products of float32 ask for TF32 where the file says high, and all of them do") {
  // Calls of the second step by operator; those that ask for TF32 apart.
  struct Calls {
    std::map<std::string, int64_t> plain, tf32;
  };
  auto calls_in = [](const Ended& ended) {
    REQUIRE_MESSAGE(ended.code == 0, ended.said);
    REQUIRE(ended.counters.size() == 2);
    CHECK(ended.said.find("has no effect") == std::string::npos);
    Calls out;
    const boost::json::object& step =
        ended.counters[1].at("steps").as_array()[1].as_object().at("operators").as_object();
    for (const auto& one : step) {
      const std::string name(one.key());
      const size_t end = name.find(", TF32");
      (end == std::string::npos ? out.plain : out.tf32)[name.substr(0, end)] =
          one.value().at("calls").to_number<int64_t>();
    }
    return out;
  };
  Row row = job_called("fsdp2");
  row.sets.emplace_back("run.float32_matmul_precision=high");
  const Ended &plain = trained(job_called("fsdp2"), On::device), &asks = trained(row, On::device);
  const Calls highest = calls_in(plain), high = calls_in(asks);
  CHECK(asks.losses == plain.losses);  // the numbers are the CPU's
  CHECK(highest.tf32.empty());
  CHECK_FALSE(high.tf32.empty());
  for (const auto& [name, calls] : high.tf32) {
    CAPTURE(name);
    CHECK_FALSE(high.plain.contains(name));
    CHECK((highest.plain.contains(name) && highest.plain.at(name) == calls));
  }
  CHECK(high.plain.size() + high.tf32.size() == highest.plain.size());
}

// What bench/device_counts.py takes host time from: the program runs the same way.
TEST_CASE("without arithmetic a step launches, moves and waits for what it does with it") {
  for (const Row& row : {job_called("fsdp2"), job_called("tp")}) {
    if (row.name == "tp" && !meshwright::all_layouts()) break;
    CAPTURE(row.name);
    const Ended& with = trained(row, On::device);
    const Ended without = train(row, On::device, {"FAKE_DEVICE_ARITHMETIC=0"});
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
    check_logs(without);
  }
}
