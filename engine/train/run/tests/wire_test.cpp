// What a step sends equals the closed form of the plan: operation, count and bytes on every axis;
// and what a rank holds is its share.
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>

#include "engine/train/run/tests/small_models.h"
#include "engine/train/run/tests/traffic.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/parallel/testing.h"

namespace wire_test {

using namespace meshwright;

// Steps of random ids send what the plan says.
static void check_steps(World& world, Trainer& trainer, modules::CausalLM& net, std::mutex& mutex) {
  auto forward = [&](int64_t) {
    return train::loss_of(trainer, net, at::randint(net->outline().vocab_size, {2, 17}, at::kLong));
  };
  check_traffic(world, trainer, forward, mutex);
}

// Beside every other axis and option: layouts_test.cpp.
TEST_CASE("the collectives of a step are those of the plan, for every strategy and mesh") {
  const std::pair<std::string, std::string> ddp{"distributed.strategy", "\"ddp\""},
      sequence{"distributed.sequence_parallel", "true"},
      pieces{"distributed.enable_async_tensor_parallel", "true"},
      full{"distributed.activation_checkpointing", "\"full\""},
      selective{"distributed.activation_checkpointing", "\"selective\""};
  const std::pair<std::string, std::string> frozen{
      "optimizer.group",
      R"([{pattern = "*embed*", frozen = true}, {pattern = "*.0.*", frozen = true}])"},
      middle{"optimizer.group", R"([{pattern = "*.1.*", frozen = true}])"},
      layers{"optimizer.group", R"([{pattern = "model.layers.*", frozen = true}])"},
      lora{"lora.r", "3"}, whole{"lora.base_sharding", "\"replicate\""},
      rows{"lora.r", "4"};  // of which two ranks have as many
  TestFolder folder("wire_test");
  const std::string biases =
      write_model(folder.path, {"biases", "LlamaForCausalLM", "llama", 32, 4, 4, 64,
                                R"(, "attention_bias": true, "mlp_bias": true)"});
  const std::pair<std::string, std::string> ep{"distributed.ep_size", "2"},
      gather{"distributed.moe.dispatcher", "\"all_gather\""};
  auto reshard = [](const char* value) {
    return std::pair<std::string, std::string>("distributed.fsdp2.reshard_after_forward", value);
  };
  for (const Case& c : std::vector<Case>{
           Case("fsdp2", 2, 1, {}),
           Case("fsdp2 on three", 3, 1, {}),
           Case("fsdp2, accumulation", 2, 3, {}),
           Case("hybrid", 4, 1, {{"distributed.dp_replicate_size", "2"}}),
           Case("a frozen beginning", 2, 3, {frozen}),
           Case("a frozen beginning, freed after forward, recomputed", 2, 1,
                {frozen, reshard("true"), full}),
           Case("a frozen middle, freed after forward", 2, 1, {middle, reshard("true"), full}),
           Case("all layers frozen", 2, 2, {layers, reshard("true")}),
           Case("ddp", 2, 1, {ddp}),
           Case("ddp, small buckets", 2, 1, {ddp, {"distributed.ddp.bucket_cap_mb", "0.05"}}),
           Case("alone", 1, 2, {}),
           Case("tp", 2, 1, {}, "llama-tiny", 2),
           Case("tp and shards", 4, 2, {}, "llama-tiny", 2),
           Case("tp, a frozen beginning", 2, 1, {frozen}, "llama-tiny", 2),
           Case("tp, a frozen beginning, recomputed", 2, 1, {frozen, full}, "llama-tiny", 2),
           Case("sequence parallel, a frozen beginning, mlps recomputed", 2, 2,
                {frozen, sequence, selective}, "llama-tiny", 2),
           Case("sequence parallel, a frozen middle, recomputed", 2, 1, {middle, sequence, full},
                "llama-tiny", 2),
           Case("sequence parallel and shards", 4, 1, {sequence}, "llama-tiny", 2),
           Case("Llama with biases, sequence parallel", 4, 1, {sequence, full}, biases, 2),
           Case("tied weights of an odd vocabulary", 2, 1, {sequence}, "llama_tied_257", 2),
           Case("Gemma 3", 2, 1, {}, "gemma3", 2),
           Case("Phi3, fused", 2, 1, {}, "phi3", 2),
           Case("adapters", 2, 1, {lora}),
           Case("adapters, accumulation", 2, 3, {lora}),
           Case("adapters, freed after forward, recomputed", 2, 2, {lora, reshard("true"), full}),
           Case("adapters, hybrid", 4, 1, {lora, {"distributed.dp_replicate_size", "2"}}),
           Case("adapters beside a whole base", 2, 2, {rows, whole}),
           Case("adapters beside a whole base, tp", 4, 1, {rows, whole}, "llama-tiny", 2),
           Case("adapters, ddp", 2, 2, {lora, ddp}),
           Case("adapters beside experts", 4, 1, {lora, ep, gather}, "mixtral-tiny"),
           Case("adapters, tp", 2, 2, {lora}, "llama-tiny", 2),
           Case("adapters, sequence parallel, shards", 4, 1, {lora, sequence}, "llama-tiny", 2),
           Case("adapters, sequence parallel in pieces, recomputed", 2, 1,
                {lora, sequence, pieces, full}, "llama-tiny", 2),
           Case("adapters of fused rows, sequence parallel", 2, 2, {lora, sequence}, "phi3", 2),
           Case("experts and shards of them", 4, 1, {ep, gather, full}, "mixtral-tiny"),
       }) {
    INFO(c.name);
    std::mutex mutex;
    run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
      WireRank rank(c, world, 32);
      Trainer& trainer = rank.trainer;
      check_steps(*world, trainer, rank.net, mutex);
      // Optimizer, gradients and weights of a rank: what the plan says, padding included.
      int64_t weights = 0, gradients = 0, state = 0;
      for (const FlatParameterGroup& group : trainer.model().update_groups()) {
        weights += static_cast<int64_t>(group.values.nbytes());
        gradients += static_cast<int64_t>(group.grads.nbytes());
      }
      for (const train::Optimizer::State& s : train::optimizer_of(trainer).state())
        for (const at::Tensor& t : s.tensors) state += static_cast<int64_t>(t.nbytes());
      std::lock_guard lock(mutex);
      // Rows are shared out in chunks of ceil(rows / n); what the last chunk lacks is padding.
      const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
      int64_t n = mesh ? mesh->size("dp_shard") : 1, padded = 0;
      for (const ParameterOutline& p : trainer.outline().parameters) {
        if (!p.trainable) continue;
        std::vector<int64_t> shape = p.shape;
        std::optional<int64_t> cut =
            c.tp > 1 ? tp_shard_dim(trainer.plan().tp, trainer.outline(), p.name) : std::nullopt;
        if (cut) {
          Chunk part = ceil_chunk(shape.at(static_cast<size_t>(*cut)), c.tp,
                                  mesh->coordinate(world->rank(), "tp"));
          shape[static_cast<size_t>(*cut)] = part.end - part.begin;
        }
        // Experts are cut over ep, and over ep_shard evenly.
        if (const std::optional<Mesh>& moe = trainer.plan().mesh.moe_mesh;
            moe && p.name.find(".experts.") != std::string::npos)
          padded += element_count(shape) / moe->size("ep") / moe->size("ep_shard");
        else
          padded += (shape[0] + n - 1) / n * (element_count(shape) / shape[0]);
      }
      CHECK(weights == padded * 4);
      CHECK(gradients == padded * 4);
      CHECK(state == padded * 8);
    });
  }
}

TEST_CASE(
    "of adapters a step has one gather and one sum, of their base two gathers a micro-batch") {
  constexpr int64_t kLayers = 2, kMicroBatches = 2;
  for (const bool flat : {false, true}) {
    CAPTURE(flat);
    Case c{"adapters", 2, kMicroBatches, {{"lora.r", "4"}}};
    if (flat)
      c.keys.emplace_back("distributed.strategy", "\"megatron_fsdp\"");
    else
      c.keys.emplace_back("distributed.fsdp2.reshard_after_forward", "true");
    std::mutex mutex;
    run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
      WireRank rank(c, world, 32);
      Trainer& trainer = rank.trainer;
      check_steps(*world, trainer, rank.net, mutex);
      const Rows sent = sent_rows(*world);  // of the last step
      std::lock_guard lock(mutex);
      const std::string axis = flat ? "dp" : "dp_shard";
      CHECK(sent.at({axis, "all_gather"}).first == kMicroBatches * (1 + 2 * kLayers) + kLayers);
      CHECK(sent.at({axis, "reduce_scatter"}).first == (flat ? kMicroBatches : 1) * kLayers);
      int64_t once = 0, reduced = 0;
      for (const UnitCost& unit : trainer.plan().footprint->units) {
        once += unit.once_a_step;
        reduced += unit.updated > 0;
      }
      CHECK(once == kLayers);
      CHECK(reduced == kLayers);
    });
  }
}

TEST_CASE(
    "the collectives of megatron_fsdp are those of the plan at every level, and a rank holds what "
    "the table of levels says") {
  const std::pair<std::string, std::string> strategy{"distributed.strategy", "\"megatron_fsdp\""},
      full{"distributed.activation_checkpointing", "\"full\""},
      single{"distributed.megatron_fsdp.disable_bucketing", "true"},
      main{"distributed.megatron_fsdp.preserve_fp32_weights", "true"},
      wide{"distributed.megatron_fsdp.grad_reduce_in_fp32", "true"},
      narrow{"distributed.mp_policy.reduce_dtype", "\"bfloat16\""},
      half{"distributed.mp_policy.param_dtype", "\"bfloat16\""},
      stored{"model.torch_dtype", "\"bfloat16\""},
      late{"distributed.megatron_fsdp.overlap_param_gather", "false"}, lora{"lora.r", "4"},
      whole{"lora.base_sharding", "\"replicate\""};
  constexpr size_t kAtAllLevels = 3;  // the first cases
  size_t number = 0;
  for (const Case& c : std::vector<Case>{
           Case("two", 2, 1, {}),
           Case("three", 3, 1, {}),
           Case("four micro-batches", 2, 4, {}),
           Case("buckets of one", 2, 2, {single}),
           Case("recomputed", 2, 2, {full}),
           Case("gathered at once", 2, 1, {late}),
           Case("bfloat16 with main weights and gradients", 2, 2, {half, stored, main, wide}),
           Case("bfloat16 with main weights", 4, 1, {half, stored, main, narrow}),
           Case("bfloat16 alone", 2, 1, {half, stored, narrow}),
           Case("float32 weights, bfloat16 computation", 2, 1, {half}),
           Case("tp", 4, 2, {}, "llama-tiny", 2),
           Case("Qwen3, norms of heads", 4, 2, {}, "qwen3", 2),
           Case("adapters", 2, 2, {lora}),
           Case("adapters, gathered at once", 2, 1, {lora, late}),
           Case("adapters beside a whole base", 2, 2, {lora, whole}),
           Case("adapters, tp", 4, 1, {lora}, "llama-tiny", 2),
           Case("tied weights of an odd vocabulary", 4, 1, {}, "llama_tied_257", 2),
       }) {
    const size_t of_case = number++;
    for (int level = 0; level <= 3; ++level) {
      // Half of it: each case at two of the levels, and at all where these hold other things.
      if (of_case >= kAtAllLevels && !sampled(of_case + static_cast<size_t>(level), 2)) continue;
      INFO(c.name << ", level " << level);
      std::mutex mutex;
      run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
        Case at_level = c;
        at_level.keys.insert(
            at_level.keys.end(),
            {strategy, {"distributed.megatron_fsdp.zero_dp_strategy", std::to_string(level)}});
        Job job = job_of(at_level);
        bool is_half = std::find(c.keys.begin(), c.keys.end(), stored) != c.keys.end();
        modules::CausalLM net = modules::build_model(
            model_of(c), is_half ? DType::bfloat16 : DType::float32, at::kMeta);
        int64_t before = 0, after = 0;
        train::MemoryMeter meter(at::kCPU);
        before = meter.live();
        Trainer trainer(job, world, net.ptr(), net->outline(), 32);
        after = meter.live();
        for (const ParallelParameter& p : trainer.model().parameters())
          modules::initialize(*net, p, 1);
        trainer.model().after_optimizer_step();
        check_steps(*world, trainer, net, mutex);
        const Bytes& planned = trainer.plan().footprint->bytes;
        int64_t state = 0;
        for (const train::Optimizer::State& s : train::optimizer_of(trainer).state())
          for (const at::Tensor& t : s.tensors) state += static_cast<int64_t>(t.nbytes());
        auto held = static_cast<double>(after - before + state),
             wanted = static_cast<double>(planned.weights + planned.gradients + planned.optimizer);
        // Below level 3, computation in another dtype than that of the weights has a copy of all of
        // them, which the plan counts as transient.
        if (level < 3 && !is_half && c.keys == std::vector{half})
          wanted += static_cast<double>(planned.weights) / 2;
        std::lock_guard lock(mutex);
        MESSAGE(std::string(c.name), std::string(", level "), level,
                std::string(": held / planned = "), held / wanted);
        CHECK(held / wanted > 0.9);
        CHECK(held / wanted < 1.1);
      });
    }
  }
}

TEST_CASE(
    "what is gathered has the dtype of computation and what is summed the reduce dtype, whatever "
    "the weights are stored in") {
  const std::vector<std::string> dtypes = {"float32", "bfloat16", "float16", "float64"};
  const std::vector<DType> storages = {DType::float32, DType::bfloat16, DType::float16,
                                       DType::float64};
  TestFolder folder("wire_dtypes");
  std::string dense = write_model(folder.path, kQwen3),
              experts = write_model(folder.path, kMixtral);
  using Key = std::pair<std::string, std::string>;
  const Key ddp{"distributed.strategy", "\"ddp\""},
      flat{"distributed.strategy", "\"megatron_fsdp\""};
  auto level = [](int n) {
    return Key("distributed.megatron_fsdp.zero_dp_strategy", std::to_string(n));
  };
  const Key wide{"distributed.megatron_fsdp.grad_reduce_in_fp32", "true"},
      own{"distributed.megatron_fsdp.preserve_fp32_weights", "true"};
  const Key ep{"distributed.ep_size", "2"};
  std::vector<Case> cases = {
      {"replicas of shards", 4, 2, {{"distributed.dp_replicate_size", "2"}}},
      {"ddp", 2, 2, {ddp}},
      {"norms of heads over tp", 4, 1, {}, "", 2},
      {"norms of heads over tp alone", 2, 2, {}, "", 2},
      {"level 1", 2, 2, {flat, level(1)}},
      {"level 3 beside tp", 4, 1, {flat, level(3)}, "", 2},
      {"level 2 with float32 gradients, beside tp", 4, 1, {flat, level(2), wide, own}, "", 2},
      {"level 0", 2, 1, {flat, level(0)}},
      {"experts", 4, 1, {ep, {"distributed.moe.dispatcher", "\"all_gather\""}}, experts}};
  for (size_t c = 0; c < cases.size(); ++c)
    for (size_t storage = 0; storage < dtypes.size(); ++storage)
      for (size_t reduce = 0; reduce < dtypes.size(); ++reduce) {
        // Every pair of two of the three dtypes, with every layout; or five of sixteen: each dtype
        // in each of the three places with every layout, and every pair over all of them.
        const size_t apart = (reduce + 8 - storage - (c + c / 4) % 4) % 4;
        if (apart != (storage < 2 ? 0U : 1U) && (storage != 0 || apart != 2) && !all_layouts())
          continue;
        Case at = cases[c];
        std::string param = dtypes[(storage + reduce + c) % 4];
        if (at.model.empty() || at.model == "llama-tiny") at.model = dense;
        // The rows that experts exchange are float32 at most.
        if (at.model == experts && param == "float64") param = "float32";
        // Experts take their policy from their own table, which replaces the shared one.
        std::string table =
            at.model == experts ? "distributed.moe.mp_policy." : "distributed.mp_policy.";
        at.keys.insert(at.keys.end(),
                       {{table + "param_dtype", '"' + param + '"'},
                        {table + "reduce_dtype", '"' + dtypes[reduce] + '"'},
                        {table + "output_dtype", "\"float32\""},
                        {"model.torch_dtype", '"' + dtypes[storage] + '"'},
                        // AdamW's state in float16 is refused.
                        {"optimizer.name", dtypes[storage] == "float16" ? "\"sgd\"" : "\"adamw\""},
                        {"run.stop_on_nonfinite", "false"},
                        {"distributed.megatron_fsdp.check_for_nan_in_grad", "false"}});
        INFO(std::string(at.name), ", storage ", dtypes[storage], ", param ", param, ", reduce ",
             dtypes[reduce]);
        std::mutex mutex;
        run_ranks(at.ranks, [&](const std::shared_ptr<World>& world) {
          WireRank rank(at, world, 32, storages[storage]);
          check_steps(*world, rank.trainer, rank.net, mutex);
        });
      }
}

}  // namespace wire_test
