// Each wait of these is left out on purpose, one at a time, in all ranks: the device's log must
// tell of a race, and of each job at least one must show as wrong numbers, or an error, under
// delays. Places are found by the functions that wait there, in the list that a whole run makes.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "jobs.h"
#include "sdk/comm/tests/sampled.h"

using namespace fake_device_jobs;

namespace waits_test {

// CUDA's call, and functions on the way to it, inner ones first. `tells`: whose memory the race is
// on.
struct Wait {
  std::string what;
  Strings callers;
  std::string tells = {};
};
struct Job {
  Row row;
  std::vector<Wait> waits;
};

const std::string kEvent = "cudaStreamWaitEvent", kStream = "cudaStreamSynchronize";
// A collective waits for what was launched before; the program waits for the collective.
const std::string kBefore = "syncStream", kAfter = "WorkNCCL::wait";

const std::string kFirst = "first_fsdp2_cpu";
const std::vector<Job> kBroken{
    {{"fsdp2", kFirst, 2, {}},
     {{kEvent, {kBefore, "all_gather", "UnshardedParameters::unshard"}},
      {kEvent,
       {kAfter, "UnshardedParameters::wait"},
       " of the gathered parameters of model.layers.0; stream "},
      {kEvent,
       {kBefore, "reduce_scatter", "GradientReducer::start"},
       " of the gradients to be summed of model.layers.1; stream "},
      {kEvent, {kAfter, "GradientReducer::finish"}},
      {kEvent, {kBefore, "all_reduce", "Trainer::totals"}},
      {kEvent, {kAfter, "Trainer::totals"}},
      {kEvent, {kAfter, "clip_or_leave"}},
      {kStream,
       {"_local_scalar_dense_cuda < libmeshwright_runtime.so.1: "
        "meshwright::detail::clip_or_leave"}}}},
    {{"offload", kFirst, 2, {"distributed.fsdp2.offload_policy=cpu"}},
     {{kEvent, {"block < libmeshwright_runtime.so.1: meshwright::detail::HostCopies::add"}},
      {kEvent, {"HostCopies::order"}}}},
    {{"ddp", kFirst, 2, {"distributed.strategy=ddp"}},
     {{kEvent, {kBefore, "all_reduce", "ReplicatedModel::launch"}},
      {kEvent, {kAfter, "ReplicatedModel::end_step"}}}},
    {{"megatron_fsdp 3", "megatron_fsdp_cpu", 2, {}},
     {{kEvent, {kBefore, "all_gather", "UnshardedParameters::"}},
      {kEvent, {kAfter, "GradientReducer::finish"}}}},
    {{"sequence parallel",
      kFirst,
      2,
      {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
     {{kEvent, {kBefore, "reduce_scatter", "scattered"}},
      {kEvent, {kAfter, "scattered"}},
      {kEvent, {kBefore, "all_gather", "PartsGather::PartsGather"}},
      {kEvent, {kAfter, "PartsGather::whole"}},
      {kEvent, {kBefore, "TensorParallel::sum_partial_gradients"}},
      {kEvent, {kAfter, "TensorParallel::sum_partial_gradients"}}}},
    {{"asynchronous tensor parallel",
      kFirst,
      2,
      {"distributed.tp_size=2", "distributed.sequence_parallel=true",
       "distributed.enable_async_tensor_parallel=true"}},
     {{kEvent, {kAfter, "PartsSum::add_up"}}}},
    {{"experts",
      "experts_cpu",
      2,
      {"distributed.strategy=moe_ep", "distributed.ep_size=2",
       "distributed.moe.dispatcher=all_to_all"}},
     {{kEvent, {kBefore, "all_to_all", "RowRoute::start_back"}},
      {kEvent, {kAfter, "RowRoute::receive"}}}},
    {{"ring", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ring_size=2"}},
     {{kEvent, {kAfter, "RingKeys::forward"}}}},
    {{"ulysses", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ulysses_size=2"}},
     {{kEvent, {kBefore, "HeadExchange::to_heads"}}, {kEvent, {kAfter, "HeadExchange::moved"}}}},
    {{"1F1B",
      kFirst,
      2,
      {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1F1B",
       "distributed.pipeline.pp_microbatch_size=2"}},
     {{kEvent, {kBefore, "PipelineRunner::receive"}},
      {kEvent, {kBefore, "PipelineRunner::send"}},
      {kEvent, {kAfter, "PipelineRunner::wait_for_input"}}}},
};

// The places of a list whose line has these parts in this order.
Strings places_of(const Strings& logs, const Wait& wait) {
  Strings out;
  for (const std::string& log : logs) {
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      size_t at = line.find("fake device: wait ");
      if (at == std::string::npos) continue;
      const std::string place = line.substr(at + 18, 8);
      at = line.find(": " + wait.what + ",", at);
      for (const std::string& caller : wait.callers)
        if (at != std::string::npos) at = line.find(caller, at + 1);
      if (at != std::string::npos && std::find(out.begin(), out.end(), place) == out.end())
        out.push_back(place);
    }
  }
  return out;
}

}  // namespace waits_test

using namespace waits_test;

TEST_CASE(
    "a wait that is left out on purpose is a race on memory with a name, and under delays wrong "
    "numbers") {
  for (const Job& job : kBroken) {
    // Its parts are those of fsdp2.
    if (job.row.name == "megatron_fsdp 3" && !meshwright::all_layouts()) continue;
    DOCTEST_SUBCASE(job.row.name.c_str()) {
      Row row = job.row;
      CAPTURE(row.name);
      row.steps = 2;
      const Ended whole = train(row, On::device, {"FAKE_DEVICE_WAITS=1", "FAKE_DEVICE_DELAYS=1"});
      REQUIRE_MESSAGE(whole.code == 0, whole.said);
      check_logs(whole);
      // Of long lists half: of a collective the wait behind it, of the next one that before it.
      const bool all = meshwright::all_layouts() || job.waits.size() < 6;
      int wrong = 0;
      for (size_t i = 0; i < job.waits.size(); ++i) {
        const Wait& wait = job.waits[i];
        CAPTURE(wait.what);
        CAPTURE(wait.callers.back());
        const Strings places = places_of(whole.logs, wait);
        REQUIRE(!places.empty());  // or the program does not wait there any more
        if (!all && i % 4 != 1 && i % 4 != 2) continue;
        std::string told;
        for (const std::string& place : places) {  // ranks may come there on other ways
          const Ended ended = train(row, On::device,
                                    {"FAKE_DEVICE_DROP_WAIT=" + place, "FAKE_DEVICE_DELAYS=1",
                                     "FAKE_DEVICE_STACKS=0"});  // nobody reads them
          CHECK(races(ended) >= 1);
          if (ended.code != 0 || ended.losses != whole.losses || ended.norms != whole.norms)
            ++wrong;
          for (const std::string& log : ended.logs)
            for (const std::string& line : wrong_lines(log)) told += line + "\n";
        }
        CHECK_MESSAGE(told.find(wait.tells) != std::string::npos, told);
      }
      CHECK((wrong >= 1 || !all));
    }
  }
}
