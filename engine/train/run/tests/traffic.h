// Small jobs of one step, and what such a step sends beside the plan's closed form.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/plan.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"
#include "sdk/comm/tests/sampled.h"

namespace meshwright {

struct Case {
  const char* name;
  int64_t ranks;
  int64_t accumulation;
  std::vector<std::pair<std::string, std::string>> keys;
  std::string model = "llama-tiny";
  int64_t tp = 1;
};

using Rows = std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>;

// A path, or the name of a ready or a reference model.
inline std::string model_of(const Case& c) {
  if (c.model.starts_with('/')) return c.model;
  std::filesystem::path ready =
      std::string(MESHWRIGHT_SOURCE_DIR "/configs/models/") + c.model + ".json";
  if (std::filesystem::exists(ready)) return ready.string();
  return std::string(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/") + c.model + "/config.json";
}

inline Job job_of(const Case& c) {
  Job job = Job::from_text("schema = 1\n[model]\nconfig = \"" + model_of(c) +
                           "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
                           "\"float32\"\n[dataset]\nkind = \"mock\"\nseq_len = 16\n");
  job.set("step_scheduler.local_batch_size", "2");
  job.set("step_scheduler.global_batch_size", std::to_string(2 * c.ranks / c.tp * c.accumulation));
  job.set("distributed.tp_size", std::to_string(c.tp));
  for (const auto& [key, value] : c.keys) job.set(key, value);
  return job;
}

// Such a job on a rank, with first values that all ranks know. `targets`: of a micro-batch, as the
// trainer is told.
struct WireRank {
  Job job;
  modules::CausalLM net;
  Trainer trainer;
  WireRank(const Case& c, const std::shared_ptr<World>& world, int64_t targets,
           DType storage = DType::float32)
      : job(job_of(c)),
        net(modules::build_model(model_of(c), storage, at::kMeta)),
        trainer(job, world, net.ptr(), net->outline(), targets) {
    for (const ParallelParameter& p : trainer.model().parameters()) modules::initialize(*net, p, 1);
    trainer.model().after_optimizer_step();
  }
};

inline Rows sent_rows(World& world) {
  Rows out;
  for (const TrafficCounter::Row& row : world.traffic().rows())
    if (row.axis != "control") out[{row.axis, row.op}] = {row.count, row.bytes};
  return out;
}

inline Rows rows_of(const std::vector<WireRow>& wire) {
  Rows out;
  for (const WireRow& row : wire)
    if (row.count > 0 && row.bytes > 0) out[{row.axis, row.op}] = {row.count, row.bytes};
  return out;
}
inline Rows planned_rows(Trainer& trainer) { return rows_of(trainer.plan().footprint->wire); }

// What a step sent beside its plan: operation, count and bytes on every axis; nothing where they
// are equal. `routed`: without the bytes of the rows that a router sends to experts, which the plan
// takes to be even.
inline std::string unplanned(World& world, const Rows& planned, bool routed = false) {
  Rows sent = sent_rows(world);
  // The program counts each message in whole bytes, the plan their sum.
  for (const auto& [key, row] : planned)
    if (auto mine = sent.find(key);
        mine != sent.end() &&
        (std::abs(mine->second.second - row.second) < row.first ||
         (routed && key == std::pair<std::string, std::string>("ep", "all_to_all"))))
      mine->second.second = row.second;
  auto text = [](const Rows& rows) {
    std::string out;
    for (const auto& [key, value] : rows)
      out += key.first + " " + key.second + " " + std::to_string(value.first) + " x, " +
             std::to_string(value.second) + " bytes; ";
    return out;
  };
  return sent == planned ? "" : "sent " + text(sent) + "planned " + text(planned);
}

// The first step and one that finds what that left (three with MESHWRIGHT_ALL_LAYOUTS=1).
// `forward`: as step() takes it.
template <class Forward>
void check_traffic(World& world, Trainer& trainer, const Forward& forward, std::mutex& mutex,
                   const std::optional<Rows>& as_planned = std::nullopt) {
  for (int step = 0; step < steps_of(2, 3); ++step) {
    world.traffic().clear();
    trainer.step(forward);
    const std::string wrong = unplanned(world, as_planned ? *as_planned : planned_rows(trainer));
    std::lock_guard lock(mutex);  // doctest's messages
    CHECK(wrong == "");
  }
}

}  // namespace meshwright
