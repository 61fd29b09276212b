// plan --machine and plan --search as a user meets them.
#include <cmath>

#include "ran.h"

namespace machine_test {

namespace {

const std::string kJob = "configs/pipeline_64.toml --world-size 64 ";

// The settings of a layout as a command line has them.
std::string use(const json::value& layout) {
  return std::string(layout.as_object().at("use").as_string());
}

}  // namespace

TEST_CASE("plan predicts nothing unless a machine is named") {
  CHECK(!answer("plan " + kJob).contains("time"));
  CHECK_FALSE(run("plan " + kJob).says("Predicted"));
}

TEST_CASE("plan --machine gives time and memory, in parts that add up") {
  for (const char* file : {"hsdp_tp.toml", "pipeline_64.toml", "megatron_fsdp_zero1.toml",
                           "megatron_fsdp_zero3.toml", "moe_ep.toml"}) {
    CAPTURE(file);
    const std::string job = std::string("plan configs/") + file + " --world-size 64 ";
    const json::object plan = answer(job + "--machine h100x8");
    const json::object& time = plan.at("time").as_object();
    double sum = 0;
    for (const auto& part : time.at("parts").as_object()) sum += number(part.value());
    CHECK(sum == doctest::Approx(number(time.at("seconds"))));
    CHECK(number(time.at("mfu")) > 0.02);
    CHECK(number(time.at("mfu")) < 0.8);
    double bytes = 0;
    for (const auto& part : plan.at("bytes").as_object()) bytes += number(part.value());
    // The plan is of rank 0, which need not be the fullest of a pipeline.
    const json::object& memory = time.at("memory").as_object();
    CHECK(number(memory.at("bytes")) >= bytes * (1 - 1e-12));
    if (number(memory.at("fullest").as_object().at("rank")) == 0)
      CHECK(number(memory.at("bytes")) == doctest::Approx(bytes));
    // A machine of half the network is not faster.
    const Ran text = run(job + "--machine h100x8");
    CHECK(text.says("tokens a second and device"));
    CHECK(text.says("bound by"));
  }
}

TEST_CASE("--rank shows another rank's plan and changes nothing in what is predicted") {
  const json::object first = answer("plan " + kJob + "--machine h100x8 --rank 0"),
                     last = answer("plan " + kJob + "--machine h100x8 --rank 63");
  CHECK(first.at("rank") != last.at("rank"));
  CHECK(first.at("bytes") != last.at("bytes"));
  CHECK(json::serialize(first.at("time")) == json::serialize(last.at("time")));
}

TEST_CASE("what rests on a guess says so") {
  const json::object plan = answer("plan " + kJob + "--machine b200");
  const json::object& time = plan.at("time").as_object();
  CHECK(!time.at("rough").as_array().empty());
  CHECK(!time.at("machine").as_object().at("guessed").as_array().empty());
  CHECK(run("plan " + kJob + "--machine b200").says("guessed figures"));
}

TEST_CASE("a job that does not fit is planned with a warning") {
  const Ran ran = run("plan configs/pipeline_64.toml --world-size 64 --machine a100-40", "2>&1");
  CHECK(ran.status == 0);
  CHECK(ran.says("warning: the job does not fit on NVIDIA A100 SXM 40 GB"));
}

TEST_CASE("options of a strategy's own table are searched, and what a file sets of them stays") {
  auto uses = [](const std::string& job) {
    std::string out;
    const json::object found = answer(job);
    for (const json::value& layout : found.at("layouts").as_array()) out += use(layout) + "\n";
    return out;
  };
  const std::string rest = " --world-size 4 --machine cpu --search --top 64";
  // The file says which level.
  CHECK(uses("plan configs/megatron_fsdp_cpu.toml" + rest).find("zero_dp_strategy") ==
        std::string::npos);
  const std::string open = uses("plan configs/first_fsdp2_cpu.toml" + rest);
  CAPTURE(open);
  CHECK(open.find("distributed.megatron_fsdp.zero_dp_strategy=1") != std::string::npos);
  CHECK(open.find("distributed.megatron_fsdp.zero_dp_strategy=2") != std::string::npos);
  CHECK(open.find("distributed.fsdp2.reshard_after_forward=false") != std::string::npos);
  // Nothing that changes the numbers of training, nor where things lie.
  for (const char* never : {"grad_reduce_in_fp32", "preserve_fp32_weights", "offload_policy"})
    CHECK(open.find(never) == std::string::npos);
}

TEST_CASE("mistakes around machines and the search are answered with what works") {
  check_said("plan ",
             {{kJob + "--machine h1000", 2, "E0205", "a100-80"},
              {kJob + "--machine /nowhere.toml", 2, "E0209", "/nowhere.toml"},
              {kJob + "--search", 2, "E0101", "--machine h100x8"},
              {kJob + "--fix tp_size=2", 2, "E0101", "--search"},
              {kJob + "--machine h100 --search --fix tpsize=2", 2, "E0101", "tp_size"},
              {kJob + "--machine h100 --search --max-memory 0", 2, "E0101", "--max-memory 70"},
              {"configs/pipeline_64.toml --world-size 8 --machine a100-40 --search", 3, "E0319",
               "the smallest needs"},
              {kJob + "--machine a100-80 --set model.float8_linear=true", 2, "E0206", "peak.fp8"},
              {kJob + "--machine a100-80 --search --set model.float8_linear=true", 2, "E0206",
               "peak.fp8"}});
  // That ddp has nothing to cut along the sequence is no reason against a search, and not told
  // beside one that is.
  const Ran ran = run("plan " + kJob +
                          "--machine h100x8 --search --set distributed.strategy=ddp --set "
                          "distributed.tp_sise=2 --set distributed.sequence_parallel=true",
                      "2>&1");
  CHECK(ran.status == 2);
  CHECK(ran.says("distributed.tp_sise"));
  CHECK_FALSE(ran.says("E0212"));
}

}  // namespace machine_test
