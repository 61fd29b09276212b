// What each rank of a pipeline sends in a step is what its plan says, to the byte. Before doctest:
// LibTorch has a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"

#include <doctest/doctest.h>

#include "engine/train/run/tests/traffic.h"
#include "engine/train/step/tests/causal_loss.h"
#include "sdk/base/shared_schemas.h"

namespace pipeline_wire_test {

using namespace meshwright;

namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

// What lies beside the stages.
struct Beside {
  const char* name;
  int64_t ranks = 1;    // of a stage
  int64_t sharing = 1;  // of these, those that have the same samples
  Keys keys = {};
};

const std::vector<const char*> kSchedules = {
    "GPipe",         "1F1B",     "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble",
    "ZBVZeroBubble", "DualPipeV"};

const std::pair<std::string, std::string> kReshard{"distributed.fsdp2.reshard_after_forward",
                                                   "true"},
    kEvery{"distributed.fsdp2.defer_fsdp_grad_sync", "false"}, kTp{"distributed.tp_size", "2"},
    kSp{"distributed.sequence_parallel", "true"}, kReplicas{"distributed.dp_replicate_size", "2"};

// How parameters and gradients are held; so many runs a step.
struct Held {
  const char* name;
  Keys keys = {};
  int64_t runs = 1;
};
const std::vector<Held> kHeld = {{"held"},
                                 {"resharded", {kReshard}},
                                 {"reduced each", {kEvery}},
                                 {"two runs", {}, 2},
                                 {"two runs, resharded and reduced each", {kReshard, kEvery}, 2}};

// What is gathered ahead stays within the stage.
const Held kAhead{"gathered ahead",
                  {kReshard, {"distributed.fsdp2.enable_fsdp2_prefetch", "true"}}};

const Keys kFloat32{}, kBFloat16{{"distributed.mp_policy.param_dtype", "\"bfloat16\""},
                                 {"distributed.mp_policy.output_dtype", "\"bfloat16\""}};

const Beside kBesides[] = {{"alone"}, {"dp 2", 2}, {"replicas", 4, 1, {kReplicas}}},
             kCutSequence{"tp, sequence parallel", 2, 2, {kTp, kSp}};

void check_wire(const std::string& model, int64_t pp, const char* schedule, const Held& held,
                const Beside& beside, const Keys& more, int64_t micro_batches = 0) {
  if (micro_batches == 0) micro_batches = 2 * pp;
  Case c{beside.name, pp * beside.ranks, 1, {}, model};
  c.keys = {{"distributed.pp_size", std::to_string(pp)},
            {"distributed.pipeline.pp_schedule", "\"" + std::string(schedule) + "\""},
            {"distributed.pipeline.pp_batch_size", std::to_string(micro_batches)},
            {"step_scheduler.local_batch_size", "1"},
            {"step_scheduler.global_batch_size",
             std::to_string(micro_batches * held.runs * beside.ranks / beside.sharing)}};
  for (const Keys* keys : {&held.keys, &beside.keys, &more})
    c.keys.insert(c.keys.end(), keys->begin(), keys->end());
  std::mutex mutex;
  run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
    WireRank rank(c, world, 16);
    Trainer& trainer = rank.trainer;
    INFO("pp " << pp << ", " << std::string(schedule) << ", " << std::string(held.name) << ", "
               << std::string(beside.name) << (more.empty() ? "" : ", " + more.front().second)
               << ", rank " << world->rank());
    check_traffic(
        *world, trainer,
        [&](int64_t, const at::Tensor& hidden) {
          at::Tensor ids = at::empty({trainer.local_batch(), 17}, at::kLong).fill_(3);
          return train::loss_of(trainer, rank.net, ids, hidden);
        },
        mutex);
  });
}

const SmallModel kDeep{"deep",  "LlamaForCausalLM",
                       "llama", 32,
                       4,       2,
                       64,      R"(, "num_hidden_layers": 8, "tie_word_embeddings": false)"};

}  // namespace

// Beside every other axis and option: layouts_test.cpp.
TEST_CASE("pipeline wire: every schedule, several runs a step") {
  TestFolder folder("pipeline_wire");
  const std::string model = write_model(folder.path, kDeep);
  for (const char* schedule : kSchedules) {
    check_wire(model, 2, schedule, kHeld[3], kBesides[1], kBFloat16);
    check_wire(model, 2, schedule, kAhead, kBesides[1], kFloat32);
    check_wire(model, 4, schedule, kHeld[4], kBesides[0], kFloat32);
  }
}

// Two copies of the weight, whose gradients are added up, or one where a v turns.
TEST_CASE("pipeline wire: a head that shares the embedding's weight") {
  TestFolder folder("pipeline_wire_tied");
  SmallModel tied = kDeep;
  tied.more = R"(, "num_hidden_layers": 8, "tie_word_embeddings": true)";
  const std::string model = write_model(folder.path, tied);
  size_t number = 0;
  for (const char* schedule : {"1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
    const size_t of_schedule = number++;
    for (size_t beside : {size_t{0}, size_t{1}, size_t{2}})
      for (int64_t pp : {2, 4})
        if (sampled(of_schedule + beside + static_cast<size_t>(pp / 2), 2))
          check_wire(model, pp, schedule, kHeld[0], kBesides[beside], kFloat32);
  }
}

TEST_CASE("pipeline wire: uneven stages, messages of another dtype, experts") {
  TestFolder folder("pipeline_wire_more");
  const std::string model = write_model(folder.path, kDeep);
  const Beside &shards = kBesides[1], &sequence = kCutSequence;
  const std::string table = "distributed.pipeline.";
  for (const Keys& keys : std::vector<Keys>{
           {{table + "first_stage_less_layers", "1"}, {table + "last_stage_less_layers", "1"}},
           {{table + "dtype", "\"bfloat16\""}},
           {{table + "module_fqns_per_model_part",
             "[[\"model.embed_tokens\", \"model.layers.0\"], [\"model.layers.1\", "
             "\"model.layers.2\", \"model.layers.3\", \"model.layers.4\", "
             "\"model.layers.5\", \"model.layers.6\", \"model.layers.7\", \"model.norm\", "
             "\"lm_head\"]]"}}}) {
    check_wire(model, 2, "1F1B", kHeld[0], shards, keys);
    check_wire(model, 2, "GPipe", kHeld[3], sequence, keys);
  }
  const std::string experts = write_model(
      folder.path, {"experts", "MixtralForCausalLM", "mixtral", 32, 4, 2, 64,
                    R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24,
"sliding_window": null, "num_hidden_layers": 4, "tie_word_embeddings": false)"});
  const std::pair<std::string, std::string> ep{"distributed.ep_size", "2"},
      turns{"distributed.moe.fake_balanced_gate", "true"},
      policy{"distributed.moe.mp_policy.output_dtype", "\"bfloat16\""},
      gather{"distributed.moe.dispatcher", "\"all_gather\""};
  size_t turn = 0;  // a third: every pair of schedule, way of holding and kind of experts
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    size_t place = turn++;
    for (const Held& held : {kHeld[0], kHeld[1], kHeld[4]}) {
      size_t third = place++;
      for (const Beside& of_experts : {Beside{"experts", 2, 1, {ep, turns}},
                                       Beside{"experts of a policy", 2, 1, {ep, turns, policy}},
                                       Beside{"shards of experts", 4, 1, {ep, turns, gather}}})
        if (sampled(third++, 3)) check_wire(experts, 2, schedule, held, of_experts, kFloat32);
    }
  }
}

TEST_CASE("pipeline wire: adapters alone reduce") {
  TestFolder folder("pipeline_wire_adapters");
  const std::string model = write_model(folder.path, kDeep);
  const Keys lora{{"lora.r", "4"}}, whole{{"lora.r", "4"}, {"lora.base_sharding", "\"replicate\""}};
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
    check_wire(model, 2, schedule, kHeld[0], kBesides[1], lora);
    check_wire(model, 2, schedule, kHeld[4], kBesides[1], lora);
    check_wire(model, 2, schedule, kHeld[0], kCutSequence, lora);
    check_wire(model, 2, schedule, kHeld[0], kBesides[1], whole);
  }
}

// The plan of a model of which a part is frozen: that of the configuration knows of none.
TEST_CASE("pipeline wire: behind a frozen beginning no gradients go back") {
  TestFolder folder("pipeline_wire_frozen");
  const std::string model = write_model(folder.path, kDeep);
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"})
    // Some of the first stage's layers, all of the first two's, and all but the head.
    for (int64_t frozen : {1, 5, 8}) {
      Case c{"frozen", 8, 1, {}, model};
      c.keys = {{"distributed.pp_size", "4"},
                {"distributed.pipeline.pp_schedule", "\"" + std::string(schedule) + "\""},
                {"step_scheduler.local_batch_size", "1"},
                {"step_scheduler.global_batch_size", "16"}};
      std::mutex mutex;
      run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
        Job job = job_of(c);
        modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
        ModelOutline whole = net->outline();
        auto is_frozen = [&](const std::string& name) {
          if (name.starts_with("model.embed_tokens")) return true;
          const std::string layers = "model.layers.";
          return name.starts_with(layers) && name[layers.size()] - '0' < frozen;
        };
        for (auto& item : net->named_parameters())
          if (is_frozen(item.key())) item.value().set_requires_grad(false);
        for (ParameterOutline& p : whole.parameters) p.trainable = !is_frozen(p.name);
        Trainer trainer(job, world, net.ptr(), net->outline(), 16);
        for (const ParallelParameter& p : trainer.model().parameters())
          modules::initialize(*net, p, 1);
        trainer.model().after_optimizer_step();
        const plan::JobPlan& plan = trainer.plan();
        StrategyConfig config = job.impl().config.strategy_config(job.impl().schemas.front());
        config.shared() = plan.shared;
        const PipelinePlan stages = plan_pipeline(whole, 4, config.shared().pipeline);
        const ModelOutline part =
            stage_outline(whole, stages, plan.mesh.device_mesh->coordinate(world->rank(), "pp"));
        const ShardingRequest request{part,   plan.mesh,     plan.tp,
                                      config, plan.workload, world->rank()};
        Rows rows =
            rows_of(footprint_of(request, plan.strategy.strategy->plan_sharding(request)).wire);
        rows.merge(rows_of(wire_of(pipeline_schedule(request, stages))));
        INFO(std::string(schedule) << ", frozen " << frozen << ", rank " << world->rank());
        check_traffic(
            *world, trainer,
            [&](int64_t, const at::Tensor& hidden) {
              at::Tensor ids = at::empty({trainer.local_batch(), 17}, at::kLong).fill_(3);
              return train::loss_of(trainer, net, ids, hidden);
            },
            mutex, rows);
      });
    }
}

}  // namespace pipeline_wire_test
