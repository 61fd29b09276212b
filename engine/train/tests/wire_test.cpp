// What a step sends equals the closed form of the plan: operation, count and bytes on every axis; and what a rank holds is its share.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "engine/nets/causal_lm.h"
#include "engine/nets/initialize.h"
#include "engine/plan/plan.h"
#include "engine/train/memory.h"
#include "engine/train/optimizer.h"
#include "meshwright/testing.h"
#include "meshwright/trainer.h"

using namespace meshwright;

namespace {

struct Case {
  const char* name;
  int64_t ranks;
  int64_t accumulation;
  std::vector<std::pair<std::string, std::string>> keys;
};

using Rows = std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>;

const std::string kModel = MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json";

Job job_of(const Case& c) {
  Job job = Job::from_text(
      "schema = 1\n[model]\nconfig = \"" + kModel +
      "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n[dataset]\nkind = \"mock\"\nseq_len = 16\n");
  job.set("step_scheduler.local_batch_size", "2");
  job.set("step_scheduler.global_batch_size", std::to_string(2 * c.ranks * c.accumulation));
  for (const auto& [key, value] : c.keys) job.set(key, value);
  return job;
}

}  // namespace

TEST_CASE("the collectives of a step are those of the plan, for every strategy and mesh") {
  const std::pair<std::string, std::string> ddp{"distributed.strategy", "\"ddp\""},
      every{"distributed.fsdp2.defer_fsdp_grad_sync", "false"};
  auto reshard = [](const char* value) { return std::pair<std::string, std::string>("distributed.fsdp2.reshard_after_forward", value); };
  for (const Case& c : std::vector<Case>{
           {"fsdp2", 2, 1, {}},
           {"fsdp2 on three", 3, 1, {}},
           {"fsdp2, accumulation", 2, 3, {}},
           {"fsdp2, each micro-batch reduced", 2, 3, {every}},
           {"reshard always", 2, 2, {reshard("true")}},
           {"reshard never", 2, 2, {reshard("false")}},
           {"hybrid", 4, 1, {{"distributed.dp_replicate_size", "2"}}},
           {"hybrid, each micro-batch reduced", 4, 2, {{"distributed.dp_replicate_size", "2"}, every}},
           {"explicit prefetch", 2, 1, {{"distributed.fsdp2.enable_fsdp2_prefetch", "true"}}},
           {"checkpointing", 2, 1, {{"distributed.activation_checkpointing", "\"full\""}}},
           {"bfloat16 gathers",
            2,
            1,
            {{"distributed.mp_policy.param_dtype", "\"bfloat16\""}, {"distributed.mp_policy.output_dtype", "\"bfloat16\""}}},
           {"ddp", 2, 1, {ddp}},
           {"ddp, accumulation", 3, 2, {ddp}},
           {"ddp, small buckets", 2, 1, {ddp, {"distributed.ddp.bucket_cap_mb", "0.05"}}},
           {"alone", 1, 2, {}},
       }) {
    INFO(c.name);
    std::mutex mutex;
    run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
      Job job = job_of(c);
      nets::CausalLM net = nets::build_model(kModel, DType::float32, at::kMeta);
      Trainer trainer(job, world, net.ptr(), net->outline(), 32);
      for (const ParallelParameter& p : trainer.model().parameters()) nets::initialize(*net, p, 1);
      trainer.model().values_changed();
      auto forward = [&](int64_t) {
        at::Tensor ids = at::randint(0, 256, {2, 17}, at::kLong);
        at::Tensor logits = net(ids.narrow(1, 0, 16));
        return MicroLoss{
            at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), ids.narrow(1, 1, 16).flatten(), {}, at::Reduction::Sum), 32};
      };
      for (int step = 0; step < 3; ++step) {
        world->wire().clear();
        trainer.step(forward);
        Rows sent, planned;
        for (const Wire::Row& row : world->wire().rows())
          if (row.axis != "control") sent[{row.axis, row.op}] = {row.count, row.bytes};
        for (const WireRow& row : trainer.plan().footprint->wire)
          if (row.count > 0 && row.bytes > 0) planned[{row.axis, row.op}] = {row.count, row.bytes};
        std::lock_guard lock(mutex);  // doctest's messages
        auto text = [](const Rows& rows) {
          std::string out;
          for (const auto& [key, value] : rows)
            out += key.first + " " + key.second + " " + std::to_string(value.first) + " x, " + std::to_string(value.second) + " bytes; ";
          return out;
        };
        CHECK(text(sent) == text(planned));
      }
      // Optimizer, gradients and weights of a rank: what the plan says, padding included.
      int64_t weights = 0, gradients = 0, state = 0;
      for (const UpdateGroup& group : trainer.model().update_groups()) {
        weights += static_cast<int64_t>(group.values.nbytes());
        gradients += static_cast<int64_t>(group.grads.nbytes());
      }
      for (const train::Optimizer::State& s : trainer.optimizer().state())
        for (const at::Tensor& t : s.tensors) state += static_cast<int64_t>(t.nbytes());
      std::lock_guard lock(mutex);
      // Rows are shared out in chunks of ceil(rows / n); what the last chunk lacks is padding.
      const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
      int64_t n = mesh ? mesh->size("dp_shard") : 1, padded = 0;
      for (const ParameterOutline& p : net->outline().parameters)
        padded += (p.shape[0] + n - 1) / n * (element_count(p.shape) / p.shape[0]);
      CHECK(weights == padded * 4);
      CHECK(gradients == padded * 4);
      CHECK(state == padded * 8);
    });
  }
}
