// What the counters say of CUDA graphs: a launch each time, with the bytes of all that is in it;
// and jobs with dist_env.cuda_graphs, beside the same without.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "jobs.h"
#include "sdk/comm/tests/sampled.h"

using namespace fake_device_jobs;

TEST_CASE("layers launched as graphs train as ever, in order, with fewer launches") {
  const std::string ddp = "distributed.strategy=ddp", first = "first_fsdp2_cpu",
                    megatron = "distributed.strategy=megatron_fsdp",
                    level = "distributed.megatron_fsdp.zero_dp_strategy=";
  std::vector<Row> rows{
      // Autograd's gradients of weights are rounded, which go to their place in float32 otherwise.
      {"bfloat16",
       first,
       2,
       {ddp, "distributed.mp_policy.param_dtype=bfloat16",
        "distributed.mp_policy.output_dtype=bfloat16"},
       1e-3,
       4},
      // Copies under another name, and units whose parameters stay.
      {"fsdp2, one rank", first, 1, {}, 1e-5, 4},
      {"zero 2, bfloat16, main weights",
       first,
       2,
       {megatron, level + "2", "distributed.mp_policy.param_dtype=bfloat16",
        "distributed.mp_policy.output_dtype=bfloat16",
        "distributed.megatron_fsdp.preserve_fp32_weights=true",
        "distributed.megatron_fsdp.grad_reduce_in_fp32=true"},
       1e-3,
       4}};
  if (meshwright::all_layouts()) {
    rows.push_back({"two ranks", first, 2, {ddp}, 1e-5, 4});
    rows.push_back({"one rank", first, 1, {ddp}, 1e-5, 4});
    rows.push_back({"zero 3, one rank", first, 1, {megatron, level + "3"}, 1e-5, 4});
    rows.push_back({"zero 0", first, 2, {megatron, level + "0"}, 1e-5, 4});
    rows.push_back({"zero 1", first, 2, {megatron, level + "1"}, 1e-5, 4});
  }
  for (const Row& row : rows) {
    CAPTURE(row.name);
    Row with = row;
    with.sets.emplace_back("dist_env.cuda_graphs=true");
    const Ended &plain = trained(row, On::device),
                &graphs = trained(with, On::device, {"FAKE_DEVICE_DELAYS=1"});
    REQUIRE_MESSAGE(plain.code == 0, plain.said);
    REQUIRE_MESSAGE(graphs.code == 0, graphs.said);
    check_close("loss", graphs.losses, plain.losses, row);
    check_close("norm", graphs.norms, plain.norms, row);
    check_logs(graphs);
    REQUIRE(static_cast<int>(graphs.counters.size()) == row.ranks);
    auto third = [](const Ended& ended, size_t rank) -> const boost::json::object& {
      return ended.counters[rank].at("steps").as_array().at(2).as_object();
    };
    for (size_t rank = 0; rank < graphs.counters.size(); ++rank) {
      const boost::json::object& step = third(graphs, rank);
      // Two layers, forward and backward, for 16 samples by 4 on each rank.
      CHECK(step.at("operators")
                .as_object()
                .at("cudaGraphLaunch")
                .as_object()
                .at("calls")
                .to_number<int>() == 2 * 2 * 4 / row.ranks);
      CHECK(step.at("kernels").to_number<int64_t>() <
            third(plain, rank).at("kernels").to_number<int64_t>());
    }
  }
}

TEST_CASE("layers that are frozen run as ever beside those that are launched") {
  const Row row{"frozen",
                "first_fsdp2_cpu",
                1,
                {"distributed.strategy=ddp",
                 R"(optimizer.group=[{pattern="model.embed_tokens.*", frozen=true}, )"
                 R"({pattern="model.layers.0.*", frozen=true}])"},
                1e-5,
                4};
  Row with = row;
  with.sets.emplace_back("dist_env.cuda_graphs=true");
  const Ended plain = train(row, On::device),
              graphs = train(with, On::device, {"FAKE_DEVICE_DELAYS=1"});
  REQUIRE_MESSAGE(plain.code == 0, plain.said);
  REQUIRE_MESSAGE(graphs.code == 0, graphs.said);
  check_close("loss", graphs.losses, plain.losses, row);
  check_close("norm", graphs.norms, plain.norms, row);
  for (const Ended* ended : {&plain, &graphs}) check_logs(*ended);
  REQUIRE(graphs.counters.size() == 1);
  const boost::json::object& third =
      graphs.counters[0].at("steps").as_array().at(2).as_object().at("operators").as_object();
  // One layer of two, forward and backward, for 16 samples by 4.
  CHECK(third.at("cudaGraphLaunch").as_object().at("calls").to_number<int>() == 2 * 4);
}

TEST_CASE("a run with graphs goes on as if it had not ended, to the bit") {
  Row row{"bfloat16",
          "first_fsdp2_cpu",
          2,
          {"distributed.strategy=ddp", "distributed.mp_policy.param_dtype=bfloat16",
           "distributed.mp_policy.output_dtype=bfloat16", "dist_env.cuda_graphs=true"},
          0,
          4};
  // The job of the case above, with its delays.
  const Strings delays{"FAKE_DEVICE_DELAYS=1"};
  const Ended& unbroken = trained(row, On::device, delays);
  row.resume_after = 2;
  const Ended continued = train(row, On::device, delays);
  REQUIRE_MESSAGE(unbroken.code == 0, unbroken.said);
  REQUIRE_MESSAGE(continued.code == 0, continued.said);
  REQUIRE(unbroken.losses.size() == 4);
  CHECK(continued.losses == unbroken.losses);
  CHECK(continued.norms == unbroken.norms);
  check_logs(continued);
}

TEST_CASE("a launch of a graph counts once, and what is in it only by its bytes") {
  const Folder folder;
  const Ended ended = run_ranks(
      folder.path,
      {MESHWRIGHT_BUILD_DIR "/bin/fake_device_graphs", "--no-skip", "--test-case=counted: *"}, 1,
      On::device);
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  REQUIRE(ended.counters.size() == 1);
  const boost::json::object& operators =
      ended.counters[0].at("steps").as_array().at(0).as_object().at("operators").as_object();
  CHECK_FALSE(operators.contains("aten::add_.Tensor"));
  CHECK_FALSE(operators.contains("aten::mul_.Tensor"));
  const boost::json::object& launched = operators.at("cudaGraphLaunch").as_object();
  auto of = [&](const char* key) { return launched.at(key).to_number<int64_t>(); };
  CHECK(of("calls") == 3);
  CHECK(of("kernels") == 3);
  // Two operators on 1,000 numbers of float32, in place.
  CHECK(of("read") == 3 * 2 * 4000);
  CHECK(of("written") == 3 * 2 * 4000);
}
