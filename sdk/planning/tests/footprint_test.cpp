// Costs of rows, by hand-made figures. Long because each figure is derived beside its check.
#include <doctest/doctest.h>

#include <map>

#include "footprint_job.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;
using namespace meshwright::testing;

namespace {

// Rows rank `index` of `count` would own when rows are dealt one at a time to the rank their block
// belongs to.
int64_t dealt_rows(int64_t rows, int64_t count, int64_t index) {
  int64_t block = 1;
  while (block * count < rows) ++block;
  int64_t mine = 0;
  for (int64_t row = 0; row < rows; ++row) mine += row / block == index ? 1 : 0;
  return mine;
}

// Bytes each of n ranks sends in a ring: every shard visits every other rank once.
int64_t ring_bytes(int64_t shard_bytes, int64_t n) {
  int64_t sent = 0;
  for (int64_t step = 1; step < n; ++step) sent += shard_bytes;
  return sent;
}

}  // namespace

TEST_CASE("rows are cut by ceil chunks, the last ranks get fewer or none") {
  ModelOutline outline;
  outline.modules = {{"", ModuleKind::other, "Bare"}};
  outline.parameters = {
      {"a", {10, 3}, DType::float32}, {"b", {5}, DType::float32}, {"c", {1, 7}, DType::float32}};
  Job job{.outline = outline, .world = 4};
  job.plan();
  const int64_t rows[4][3] = {{3, 2, 1}, {3, 2, 0}, {3, 1, 0}, {1, 0, 0}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    Footprint f = job.rows({}, rank);
    for (size_t p = 0; p < 3; ++p) CHECK(f.parameters[p].local_shape[0] == rows[rank][p]);
    CHECK(f.parameters[2].local_shape == std::vector<int64_t>{rows[rank][2], 7});
    CHECK(f.parameters[0].global_shape == std::vector<int64_t>{10, 3});
    CHECK(f.bytes.weights == 4 * (rows[rank][0] * 3 + rows[rank][1] + rows[rank][2] * 7));
    // Padded: 12 rows of 3, 8, 4 rows of 7.
    REQUIRE(f.units.size() == 1);
    CHECK(f.units[0].name == "root");
    CHECK(f.units[0].parameters == 30 + 5 + 7);
    CHECK(f.units[0].padded_bytes == 4 * (36 + 8 + 28));
    check_row(f, "dp_shard", "all_gather", 1, 4 * 72 / 4 * 3);
  }
  outline.parameters = {{"scalar", {}, DType::float32}};
  Job bad{.outline = outline, .world = 4};
  bad.plan();
  const Error error =
      refused(ErrorCode::model_does_not_fit,
              "scalar has no dimension to cut over the 4 ranks of dp_shard", [&] { bad.rows(); });
  CHECK(error.helps() == std::vector<std::string>{"give the parameter the shape [1]"});
  // One rank cuts nothing.
  Job alone{.outline = outline};
  Footprint whole = alone.plan().rows();
  CHECK(whole.parameters[0].local_shape.empty());
  CHECK(whole.parameters[0].region == Region::whole({}));
  CHECK(whole.bytes.weights == 4);
  CHECK(whole.units[0].parameters == 1);
}

TEST_CASE("a small Llama over four ranks costs what the hand computes") {
  // A layer holds 688 elements, embedding, head and final norm 520; everything divides by 4.
  Job job{.outline = llama_outline({}), .world = 4};
  job.plan();
  REQUIRE(total_elements(job.outline) == 2 * 688 + 520);
  Footprint f = job.rows();
  constexpr int64_t layer = 688 * 4, root = 520 * 4;
  REQUIRE(f.units.size() == 3);
  CHECK(f.units[0].name == "model.layers.0");
  CHECK(f.units[0].reshards);
  CHECK(!f.units[1].reshards);
  CHECK(!f.units[2].reshards);
  CHECK(f.units[0].padded_bytes == layer);
  CHECK(f.units[2].padded_bytes == root);
  CHECK(f.bytes.weights == 1896);
  CHECK(f.bytes.gradients == 1896);
  CHECK(f.bytes.optimizer == 2 * 1896);
  // Gathered: root, the last layer, and the one other layer. Gradients: root's and two layers'.
  CHECK(f.bytes.transient == (root + layer + layer) + (root + 2 * layer));
  CHECK(f.wire.size() == 2);
  check_row(f, "dp_shard", "all_gather", 4, (2 * layer + layer + root) / 4 * 3);
  check_row(f, "dp_shard", "reduce_scatter", 3, (2 * layer + root) / 4 * 3);
  CHECK(placement(f, "model.layers.1.mlp.down_proj.weight").placement ==
        Placement{{"dp_shard", "shard(0)"}});
  CHECK(placement(f, "model.layers.1.mlp.down_proj.weight").local_shape ==
        std::vector<int64_t>{2, 20});

  SUBCASE("the override wins over the position in the list") {
    check_row(job.rows({.reshard_after_forward = true}), "dp_shard", "all_gather", 5,
              (4 * layer + root) / 4 * 3);
    Footprint kept = job.rows({.reshard_after_forward = false});
    check_row(kept, "dp_shard", "all_gather", 3, (2 * layer + root) / 4 * 3);
    CHECK(kept.bytes.transient == (root + 2 * layer) * 2);
  }
  SUBCASE("accumulation gathers every time and reduces once, or every time") {
    job.work.accumulation = 3;
    Footprint deferred = job.rows();
    check_row(deferred, "dp_shard", "all_gather", 12, 3 * ((3 * layer + root) / 4 * 3));
    check_row(deferred, "dp_shard", "reduce_scatter", 3, (2 * layer + root) / 4 * 3);
    CHECK(deferred.bytes.transient ==
          (root + 2 * layer) *
              2);  // here a full gradient equals the peak of two layers and the root
    Footprint eager = job.rows({.reduction = {.every_micro_batch = true}});
    check_row(eager, "dp_shard", "reduce_scatter", 9, 3 * ((2 * layer + root) / 4 * 3));
  }
  SUBCASE("gathers use the parameter dtype, reductions their own, storage the third") {
    job.mp = {DType::bfloat16, DType::float32, DType::bfloat16, true};
    job.plan();
    Footprint mixed = job.rows();
    check_row(mixed, "dp_shard", "all_gather", 4, (3 * layer + root) / 4 * 3 / 2);
    check_row(mixed, "dp_shard", "reduce_scatter", 3, (2 * layer + root) / 4 * 3);
    CHECK(mixed.bytes.weights == 1896);
    CHECK(mixed.bytes.transient == (root + 2 * layer) / 2 + (root + 2 * layer));
    // Sums of micro-batches that are each reduced stay in the reduce dtype.
    job.work.storage = DType::bfloat16;
    const int64_t once = job.rows().bytes.gradients;
    CHECK(job.rows({.reduction = {.every_micro_batch = true}}).bytes.gradients == 2 * once);
  }
  SUBCASE("hybrid sharding adds an all-reduce of the shards") {
    job.world = 8;
    job.sizes.dp_replicate = 2;
    job.plan();
    Footprint hybrid = job.rows({}, 5);
    check_row(hybrid, "dp_shard", "reduce_scatter", 3, (2 * layer + root) / 4 * 3);
    check_row(hybrid, "dp_replicate", "all_reduce", 3, 2 * ((2 * layer + root) / 4) / 2);
    CHECK(placement(hybrid, "lm_head.weight").placement ==
          Placement{{"dp_replicate", "replicate"}, {"dp_shard", "shard(0)"}});
    CHECK(hybrid.bytes.weights == 1896);
  }
  SUBCASE("context parallelism shards over dp_shard_cp") {
    job.sizes.cp = 2;
    job.plan();
    Footprint context = job.rows();
    check_row(context, "dp_shard_cp", "all_gather", 4, (3 * layer + root) / 4 * 3);
    CHECK(placement(context, "lm_head.weight").placement == Placement{{"dp_shard_cp", "shard(0)"}});
  }
  SUBCASE("a rank alone sends nothing and holds nothing twice") {
    Job alone{.outline = llama_outline({})};
    Footprint one = alone.plan().rows();
    CHECK(one.wire.empty());
    CHECK(one.bytes.transient == 0);
    CHECK(one.bytes.weights == 1896 * 4);
    CHECK(placement(one, "lm_head.weight").placement.empty());
    alone.mp.param = DType::bfloat16;  // the computation needs cast copies
    CHECK(alone.plan().rows().bytes.transient == 1896 * 2);
  }
  SUBCASE("a rank outside the mesh is refused") {
    CHECK(refusal([&] { job.rows({}, 4); })->code() == ErrorCode::rank_out_of_range);
    CHECK(refusal([&] { job.rows({}, -1); })->code() == ErrorCode::rank_out_of_range);
  }
}

TEST_CASE("deferred synchronisation keeps a full gradient") {
  Job job{.outline = llama_outline({.layers = 6}), .world = 2};
  job.plan();
  constexpr int64_t layer = 688 * 4, root = 520 * 4;
  // The root, and a layer in use beside one that is fetched: which of them is the last one stays.
  int64_t gathered = root + 2 * layer;
  CHECK(job.rows().bytes.transient == gathered + root + 2 * layer);
  CHECK(job.rows({.prefetch = {.chains = true, .forward = 3, .backward = 3}}).bytes.transient ==
        gathered + 2 * layer + root + 2 * layer);
  job.work.accumulation = 4;
  CHECK(job.rows().bytes.transient == gathered + root + 6 * layer);
  CHECK(job.rows({.reduction = {.every_micro_batch = true}}).bytes.transient ==
        gathered + root + 2 * layer);
}

TEST_CASE("a tied head is counted once") {
  Job job{.outline = llama_outline({.tied = true}), .world = 4};
  Footprint f = job.plan().rows();
  CHECK(f.units.back().parameters == 520 - 256);
  CHECK(f.bytes.weights == 1896 - 256);
}

TEST_CASE("shards of all ranks together are the model, on any mesh") {
  // Odd sizes, so that nothing divides: 7 heads of 3, vocabulary 29.
  LlamaSizes odd{.layers = 3,
                 .hidden = 24,
                 .ffn = 37,
                 .heads = 8,
                 .kv_heads = 4,
                 .vocab = 29,
                 .head_norms = true};
  struct Row {
    int64_t world;
    ParallelSizes sizes;
  };
  const Row rows[] = {
      {1, {}},
      {3, {}},
      {5, {}},
      {64, {}},
      {4, {.dp = {}, .tp = 2}},
      {12, {.dp = {}, .tp = 4}},
      {6, {.dp = {}, .dp_replicate = 2}},
      {24, {.dp = {}, .dp_replicate = 2, .tp = 4}},
      {12, {.dp = {}, .tp = 2, .cp = 3}},
      {36, {.dp = {}, .dp_replicate = 3, .tp = 2, .cp = 2}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.world);
    Job job{.outline = llama_outline(odd), .sizes = row.sizes, .world = row.world};
    job.work.accumulation = 3;
    job.plan();
    const Mesh& mesh = *job.mesh.device_mesh;
    std::string axis = job.mesh.fsdp_axes.back();
    int64_t n = mesh.size(axis), m = mesh.size("dp_replicate"), t = mesh.size("tp");
    std::map<std::string, int64_t> elements;
    int64_t all_reduces = 0, weights = 0;
    std::map<std::string, int64_t> sent, expected;
    for (int64_t rank = 0; rank < row.world; ++rank) {
      Footprint f = job.rows({}, rank);
      int64_t mine = 0;
      for (size_t i = 0; i < f.parameters.size(); ++i) {
        const ParameterPlacement& p = f.parameters[i];
        int64_t dim = t > 1 ? tp_shard_dim(job.tp, job.outline, p.name).value_or(-1) : -1;
        std::vector<int64_t> shape = p.global_shape;
        if (dim >= 0)
          shape[static_cast<size_t>(dim)] =
              dealt_rows(shape[static_cast<size_t>(dim)], t, mesh.coordinate(rank, "tp"));
        shape[0] = dealt_rows(shape[0], n, mesh.coordinate(rank, axis));
        REQUIRE(p.local_shape == shape);
        Placement wanted;
        if (m > 1) wanted.emplace_back("dp_replicate", "replicate");
        if (n > 1) wanted.emplace_back(axis, "shard(0)");
        if (t > 1)
          wanted.emplace_back("tp", dim >= 0 ? "shard(" + std::to_string(dim) + ")" : "replicate");
        REQUIRE(p.placement == wanted);
        elements[p.name] += element_count(p.local_shape) * (dim >= 0 ? t : 1);
        mine += element_count(p.local_shape);
      }
      REQUIRE(f.bytes.weights == mine * 4);
      weights += f.bytes.weights;
      for (const WireRow& wire : f.wire) {
        sent[wire.axis + " " + wire.op] += wire.bytes;
        if (wire.op == "all_reduce") all_reduces += wire.count;
      }

      // One step, collective by collective.
      for (const UnitCost& unit : f.units) {
        REQUIRE(unit.padded_bytes % n == 0);
        int64_t shard = unit.padded_bytes / n;
        for (int pass = 0; pass < 3; ++pass) {
          expected[axis + " all_gather"] += ring_bytes(shard, n);  // before forward
          if (unit.reshards)
            expected[axis + " all_gather"] += ring_bytes(shard, n);  // before backward
        }
        expected[axis + " reduce_scatter"] += ring_bytes(shard, n);
        // A ring all-reduce is a reduce-scatter and an all-gather of m pieces; summed over the
        // ranks the pieces are the shard.
        if (m > 1 && mesh.coordinate(rank, "dp_replicate") == 0)
          expected["dp_replicate all_reduce"] += 2 * (m - 1) * shard;
      }
    }
    for (const auto& [name, count] : elements) {
      CAPTURE(name);
      CHECK(count == element_count(job.outline.find_parameter(name)->shape) * m * t);
    }
    if (t == 1) CHECK(weights == total_elements(job.outline) * 4 * m);
    for (const auto& [key, bytes] : expected) {
      CAPTURE(key);
      if (bytes == 0) continue;
      // Each all-reduce of each rank is rounded down.
      CHECK(sent[key] <= bytes);
      CHECK(sent[key] > bytes - (key == "dp_replicate all_reduce" ? all_reduces : 1));
    }
    for (const auto& [key, bytes] : sent) CHECK((key.starts_with("tp ") || expected[key] > 0));
  }
}

TEST_CASE("tensor parallelism cuts rows by ceil chunks, empty pieces included") {
  Job job{.outline = llama_outline({.vocab = 5}), .sizes = {.dp = {}, .tp = 2}, .world = 2};
  job.plan();
  CHECK(placement(job.rows({}, 0), "model.embed_tokens.weight").local_shape ==
        std::vector<int64_t>{3, 8});
  CHECK(placement(job.rows({}, 1), "model.embed_tokens.weight").local_shape ==
        std::vector<int64_t>{2, 8});
  Footprint f = job.rows({}, 1);
  CHECK(placement(f, "model.layers.0.self_attn.o_proj.weight").local_shape ==
        std::vector<int64_t>{8, 4});
  CHECK(placement(f, "model.layers.0.self_attn.o_proj.weight").placement ==
        Placement{{"tp", "shard(1)"}});
  CHECK(placement(f, "model.norm.weight").placement == Placement{{"tp", "replicate"}});
}

TEST_CASE("tensor-parallel traffic of a small Llama by hand") {
  // 32 tokens of 8 floats: 1,024 bytes an activation; the loss adds up one and two floats a token,
  // 384 bytes. Over 2 ranks an all-reduce sends as much, a gather half.
  Job job{.outline = llama_outline({}), .sizes = {.dp = {}, .tp = 2}, .world = 2};
  job.work = {.local_batch = 2, .seq_len = 16};
  SUBCASE("without sequence parallel") {
    Footprint f = job.plan().rows();
    // A layer: input gradients of q, k and v together and of gate and up together; outputs of o and
    // down. Besides: the embedding, the head's input gradient, the loss.
    check_row(f, "tp", "all_reduce", 10 + 2, 10 * 1024 + 384);
    CHECK(f.wire.size() == 1);
  }
  SUBCASE("with sequence parallel") {
    job.sequence_parallel = true;
    Footprint f = job.plan().rows();
    // Forward: two norms a layer and the head gather; o, down and the embedding reduce-scatter.
    // Backward mirrors it.
    check_row(f, "tp", "all_gather", 10, 10 * 512);
    check_row(f, "tp", "reduce_scatter", 10, 10 * 512);
    check_row(f, "tp", "all_reduce", 1 + 2,
              5 * 8 * 4 + 384);  // the norms' gradients together; the loss
  }
  SUBCASE("every pass costs the same, gradients of norms are summed once a step") {
    job.sequence_parallel = true;
    job.work.accumulation = 4;
    Footprint f = job.plan().rows();
    check_row(f, "tp", "reduce_scatter", 40, 40 * 512);
    check_row(f, "tp", "all_reduce", 1 + 4 * 2, 5 * 8 * 4 + 4 * 384);
  }
  SUBCASE(
      "of gradients that are sums a rank sends its shard, in the reduce dtype, whatever they are "
      "stored in") {
    job.sequence_parallel = true;
    job.world = 8;
    job.work.seq_len = 0;
    job.work.storage = DType::bfloat16;
    for (DType reduce : {DType::float32, DType::bfloat16, DType::float64}) {
      job.mp.reduce = reduce;
      check_row(job.plan().rows(), "tp", "all_reduce", 1, 5 * 2 * dtype_size(reduce));
      check_row(job.copies(), "tp", "all_reduce", 1, 5 * 8 * dtype_size(reduce));
    }
  }
  SUBCASE("checkpointing runs forward collectives again") {
    auto again = [&](ActivationCheckpointing mode) {
      job.config.shared().activation_checkpointing = mode;
      return job.rows();
    };
    job.plan();
    check_row(again(ActivationCheckpointing::full), "tp", "all_reduce", 10 + 4 + 2,
              14 * 1024 + 384);
    check_row(again(ActivationCheckpointing::selective), "tp", "all_reduce", 10 + 2 + 2,
              12 * 1024 + 384);
    job.sequence_parallel = true;
    job.plan();
    Footprint f = again(ActivationCheckpointing::full);
    check_row(f, "tp", "all_gather", 10 + 4, 14 * 512);
    check_row(f, "tp", "reduce_scatter", 10 + 4, 14 * 512);
    f = again(ActivationCheckpointing::selective);  // a norm is computed again alone, not what
                                                    // gathers its output
    check_row(f, "tp", "all_gather", 10, 10 * 512);
    check_row(f, "tp", "reduce_scatter", 10 + 2, 12 * 512);
    job.config.shared().enable_async_tensor_parallel = true;  // gate and up gather for themselves
    f = again(ActivationCheckpointing::selective);
    check_row(f, "tp", "all_gather", 10 + 2, 12 * 512);
    check_row(f, "tp", "reduce_scatter", 10 + 2, 12 * 512);
  }
  SUBCASE("norms of attention heads see cut heads: their gradients are summed too") {
    job.outline = llama_outline({.head_norms = true});
    job.outline.architecture = "Qwen3ForCausalLM";
    check_row(job.plan().rows(), "tp", "all_reduce", 10 + 2 + 1, 10 * 1024 + 384 + 4 * 2 * 4);
  }
  SUBCASE("without a sequence length only gradients are counted") {
    job.work.seq_len = 0;
    CHECK(job.plan().rows().wire.empty());
    job.sequence_parallel = true;
    Footprint f = job.plan().rows();
    CHECK(f.wire.size() == 1);
    check_row(f, "tp", "all_reduce", 1, 5 * 8 * 4);
  }
  SUBCASE("under the base plan columns gather, once for a block, and the logits are put together") {
    job.outline.architecture = "MistralForCausalLM";
    Footprint f = job.plan().rows();
    REQUIRE(job.tp.source == "base plan");
    check_row(f, "tp", "all_reduce", 10, 10 * 1024);
    check_row(f, "tp", "all_gather", 1, 2048);
    job.sequence_parallel = true;
    f = job.plan().rows();
    // A layer: two blocks forward, o and down backward; the embedding backward, the head forward,
    // its logits.
    check_row(f, "tp", "all_gather", 2 * 4 + 3, (2 * 4 + 2) * 512 + 2048);
    check_row(f, "tp", "reduce_scatter", 2 * 4 + 2, (2 * 4 + 2) * 512);
    check_row(f, "tp", "all_reduce", 1, 5 * 8 * 4);
  }
  SUBCASE("what does not divide is sent with its padding") {
    job.outline = llama_outline({.vocab = 33});
    job.outline.architecture = "MistralForCausalLM";
    check_row(job.plan().rows(), "tp", "all_gather", 1, 32 * 17 * 4);
  }
}

TEST_CASE("experts are cut over ep and ep_shard, the rest over the data ranks") {
  // 8 ranks, ep 4: ep_shard 2. Experts [8, 40, 24] and [8, 24, 20].
  Job job{.outline = llama_outline({.layers = 2,
                                    .hidden = 24,
                                    .ffn = 20,
                                    .heads = 4,
                                    .kv_heads = 4,
                                    .vocab = 64,
                                    .experts = 8,
                                    .active = 2}),
          .sizes = {.dp = {}, .ep = 4},
          .world = 8};
  job.work = {.local_batch = 1, .seq_len = 32};
  job.plan();
  ShardingPolicy kept{.reshard_after_forward = false};
  std::map<std::string, int64_t> elements;
  for (int64_t rank = 0; rank < 8; ++rank) {
    Footprint f = job.rows(kept, rank);
    for (const ParameterPlacement& p : f.parameters)
      elements[p.name] += element_count(p.local_shape);
  }
  for (const ParameterOutline& p : job.outline.parameters)
    CHECK(elements[p.name] == element_count(p.shape));

  Footprint f = job.rows(kept);
  const ParameterPlacement& up = placement(f, "model.layers.1.mlp.experts.gate_up_proj");
  CHECK(up.local_shape == std::vector<int64_t>{2, 20, 24});
  CHECK(up.placement == Placement{{"ep_shard", "shard(1)"}, {"ep", "shard(0)"}});
  std::vector<std::string> names;
  for (const UnitCost& unit : f.units) names.push_back(unit.name);
  CHECK(names == std::vector<std::string>{"model.layers.0.mlp.experts", "model.layers.0",
                                          "model.layers.1.mlp.experts", "model.layers.1",
                                          "model.embed_tokens", "lm_head", "root"});
  int64_t experts = 2 * (40 * 24 + 24 * 20) * 4;  // of two experts, gathered over ep_shard
  CHECK(f.units[0].padded_bytes == experts);
  check_row(f, "ep_shard", "all_gather", 2, 2 * experts / 2);
  check_row(f, "ep_shard", "reduce_scatter", 2, 2 * experts / 2);
  // 32 tokens to 2 experts each, 24 floats: dispatch and combine, forward and backward, in 2
  // layers; with a weight on the way to the experts and its gradient on the way back.
  check_row(f, "ep", "all_to_all", 8, (8 * 24 + 4) * 32 * 2 * 4 / 4 * 3);
  const int64_t counted = 2 * 4 * 8 * 8 / 4 * 3;  // rows for each of 8 experts
  check_row(f, "ep", "all_gather", 2, counted);
  // Layers that are computed again ask for them only where they choose again.
  job.config.shared().activation_checkpointing = ActivationCheckpointing::full;
  check_row(job.rows(kept), "ep", "all_gather", 2, counted);
  job.config.shared().moe.ignore_router_for_ac = false;
  check_row(job.rows(kept), "ep", "all_gather", 4, 2 * counted);
  job.config.shared().moe.ignore_router_for_ac = true;
  job.config.shared().activation_checkpointing = ActivationCheckpointing::none;
  job.config.shared().moe.dispatcher = TokenDispatcher::all_gather;
  Footprint all = job.rows(kept);
  CHECK(find_row(all.wire, "ep", "all_to_all") == nullptr);
  // Forward: the number of tokens, rows, weights and choices; backward: the rows' gradients. Sums:
  // rows; rows and weights.
  int64_t rows = 4 * 32 * 24 * 4, weights = 4 * 32 * 2 * 4;
  check_row(all, "ep", "all_gather", 2 * 5, 2 * (4 * 8 + 2 * rows + 3 * weights) / 4 * 3);
  check_row(all, "ep", "reduce_scatter", 2 * 3, 2 * (2 * rows + weights) / 4 * 3);
  job.config.shared().moe.dispatcher = TokenDispatcher::all_to_all;
  CHECK(f.bytes.weights * 8 == total_elements(job.outline) * 4);
  // Nothing is freed after forward and nothing is cut twice: one gather of each unit.
  CHECK(find_row(f.wire, "dp_shard", "all_gather")->count == 5);
  CHECK(find_row(job.rows({.reshard_after_forward = true}).wire, "dp_shard", "all_gather")->count ==
        5 + 4);

  SUBCASE("an fp32 head gathers and reduces in float32") {
    job.mp = {DType::bfloat16, DType::bfloat16, DType::bfloat16, true};
    job.plan();
    job.config.shared().moe.lm_head_precision = DType::float32;
    Footprint head = job.rows(kept);
    CHECK(head.units[5].padded_bytes == 64 * 24 * 4);
    CHECK(head.units[4].padded_bytes == 64 * 24 * 2);
    job.config.shared().moe.mp_policy =
        MixedPrecision{DType::float32, DType::float32, DType::float32, true};
    CHECK(job.rows(kept).units[4].padded_bytes == 64 * 24 * 4);
  }
  SUBCASE("with ep_shard 1 experts are no unit: nothing gathers or reduces them") {
    job.sizes.ep = 8;
    Footprint alone = job.plan().rows(kept);
    CHECK(alone.units.size() == 5);
    CHECK(find_row(alone.wire, "ep_shard", "all_gather") == nullptr);
    CHECK(placement(alone, "model.layers.0.mlp.experts.down_proj").placement ==
          Placement{{"ep", "shard(0)"}});
    CHECK(placement(alone, "model.layers.0.mlp.experts.down_proj").local_shape ==
          std::vector<int64_t>{1, 24, 20});
  }
  SUBCASE("sizes that do not divide are refused with sizes that do") {
    LlamaSizes sizes{.hidden = 24, .ffn = 20, .experts = 6, .active = 2};
    for (auto [world, ep, size_of] : {std::tuple(int64_t{8}, int64_t{4}, int64_t{6}),
                                      std::tuple(int64_t{14}, int64_t{2}, int64_t{40})}) {
      Job bad{.outline = llama_outline(sizes), .sizes = {.dp = {}, .ep = ep}, .world = world};
      bad.plan();
      const Error error = refused(ErrorCode::model_does_not_fit, "", [&] { bad.rows(kept); });
      CHECK(error.key() == "distributed.ep_size");
      CHECK(error.message().find(std::to_string(size_of)) != std::string::npos);
      REQUIRE(!error.helps().empty());
      for (const std::string& help : error.helps()) {
        CAPTURE(help);
        bad.sizes.ep = std::stoll(help.substr(help.find("= ") + 2));
        CHECK_NOTHROW(bad.plan().rows(kept));
      }
    }
    Job dense{.outline = llama_outline({}), .sizes = {.dp = {}, .ep = 2}, .world = 2};
    CHECK(refusal([&] { dense.plan().rows(kept); })->code() == ErrorCode::model_does_not_fit);
  }
}

TEST_CASE("a pipeline keeps weights gathered and sends hidden states between stages") {
  ModelOutline whole = llama_outline({.layers = 4});
  Job job{.outline = whole, .sizes = {.dp = {}, .pp = 4}, .world = 8};
  job.work = {.local_batch = 4, .seq_len = 16};
  job.plan();
  job.config.shared().pipeline.schedule = "1F1B";
  job.config.shared().pipeline.batch_size = 4;
  job.config.shared().pipeline.microbatch_size = 1;
  PipelinePlan plan = plan_pipeline(whole, 4, job.config.shared().pipeline);
  int64_t hidden = 16 * 8 * 4, weights = 0;
  for (int64_t stage = 0; stage < 4; ++stage) {
    job.outline = stage_outline(whole, plan, stage);
    Footprint f = job.rows({}, stage * 2);
    weights += f.bytes.weights + job.rows({}, stage * 2 + 1).bytes.weights;
    // Four micro-batches: to the next stage, and gradients to the one before.
    int64_t neighbours = stage == 0 || stage == 3 ? 1 : 2;
    check_row(wire_of(pipeline_schedule(job.request(stage * 2), plan)), "pp", "send",
              4 * neighbours, 4 * neighbours * hidden);
    for (const UnitCost& unit : f.units) CHECK(!unit.reshards);
    int64_t units = stage == 0 || stage == 3 ? 2 : 1;
    CHECK(find_row(f.wire, "dp_shard", "all_gather")->count == units);
    CHECK(find_row(f.wire, "dp_shard", "reduce_scatter")->count == units);
    Footprint freed = job.rows(
        {.reshard_after_forward = true, .reduction = {.every_micro_batch = true}}, stage * 2);
    CHECK(find_row(freed.wire, "dp_shard", "all_gather")->count == 2 * 4 + (units - 1));
    CHECK(find_row(freed.wire, "dp_shard", "reduce_scatter")->count == 4 * units);
    CHECK(placement(f, "model.layers." + std::to_string(stage) + ".mlp.up_proj.weight").placement ==
          Placement{{"dp_shard", "shard(0)"}});
  }
  CHECK(weights == total_elements(whole) * 4);
  SUBCASE("a schedule run takes pp_batch_size samples") {
    job.outline = stage_outline(whole, plan, 1);
    job.work.local_batch = 6;  // three runs of four micro-batches
    job.work.accumulation = 2;
    Footprint f = job.rows({}, 2);
    check_row(wire_of(pipeline_schedule(job.request(2), plan)), "pp", "send", 3 * 4 * 2,
              3 * 4 * 2 * hidden);
    CHECK(find_row(f.wire, "dp_shard", "all_gather")->count ==
          3);  // weights stay gathered within a run
    CHECK(find_row(f.wire, "dp_shard", "reduce_scatter")->count == 1);
  }
  SUBCASE("behind a frozen beginning no gradients go back") {
    for (ParameterOutline& p : whole.parameters)
      p.trainable = !p.name.starts_with("model.embed") && !p.name.starts_with("model.layers.0.") &&
                    !p.name.starts_with("model.layers.1.");
    plan = plan_pipeline(whole, 4, job.config.shared().pipeline);
    // Stages 1 and 2 send to the next alone, stage 3 a gradient to the one before.
    for (int64_t stage = 0; stage < 4; ++stage) {
      job.outline = stage_outline(whole, plan, stage);
      CHECK(plan.stages[static_cast<size_t>(stage)].sends_gradient == (stage == 3));
      check_row(wire_of(pipeline_schedule(job.request(stage * 2), plan)), "pp", "send", 4,
                4 * hidden);
    }
  }
  SUBCASE("activations of the micro-batches in flight are held") {
    job.outline = stage_outline(whole, plan, 1);
    int64_t three = job.rows({}, 2).bytes.activations;  // 1F1B: stages behind this one, and itself
    job.config.shared().pipeline.schedule = "GPipe";
    int64_t four = job.rows({}, 2).bytes.activations;
    job.outline = stage_outline(whole, plan, 2);
    job.config.shared().pipeline.schedule = "1F1B";
    int64_t two = job.rows({}, 4).bytes.activations;
    CHECK(three > two);
    CHECK(four > three);
    CHECK(four - three < three - two);  // GPipe's is before there are gradients
  }
  SUBCASE("at the turn of a v the stages share a rank") {
    job.config.shared().pipeline.schedule = "ZBVZeroBubble";
    Job two = job;
    two.sizes.pp = 2;
    two.world = 2;
    two.plan();
    two.config.shared().pipeline = job.config.shared().pipeline;
    PipelinePlan v = plan_pipeline(whole, 2, two.config.shared().pipeline);
    two.outline =
        stage_outline(whole, v, 1);  // stages 1 and 2: one boundary to each side, none between
    check_row(wire_of(pipeline_schedule(two.request(1), v)), "pp", "send", 8, 8 * hidden);
  }
  SUBCASE("of several stages each has its own root") {
    auto roots = [&](const ModelOutline& model, const char* schedule, int64_t rank) {
      Job two{.outline = model, .sizes = {.dp = {}, .pp = 2}, .world = 2};
      two.plan();
      two.config.shared().pipeline = job.config.shared().pipeline;
      two.config.shared().pipeline.schedule = schedule;
      two.outline =
          stage_outline(model, plan_pipeline(model, 2, two.config.shared().pipeline), rank);
      const ShardingPlan units = fully_sharded_plan(two.request(rank), {});
      std::vector<std::vector<std::string>> out;
      for (const PlannedUnit& unit : units.units) {
        if (!unit.root) continue;
        out.push_back({unit.name});
        for (size_t p : unit.parameters) out.back().push_back(units.parameters[p].name);
      }
      return out;
    };
    using Roots = std::vector<std::vector<std::string>>;
    const std::string embedding = "model.embed_tokens.weight", norm = "model.norm.weight";
    for (const char* v : {"ZBVZeroBubble", "DualPipeV"}) {
      CHECK(roots(whole, v, 0) ==
            Roots{{"root of stage 0", embedding}, {"root of stage 3", norm, "lm_head.weight"}});
      CHECK(roots(whole, v, 1) == Roots{{"root"}});
    }
    CHECK(roots(whole, "Interleaved1F1B", 0) == Roots{{"root of stage 0", embedding}});
    CHECK(roots(whole, "1F1B", 0) == Roots{{"root", embedding}});
    const ModelOutline tied = llama_outline({.layers = 4, .tied = true});
    CHECK(roots(tied, "ZBVZeroBubble", 0) == Roots{{"root", embedding, norm}});
  }
}

TEST_CASE("attention over a cut sequence gathers keys and values") {
  Job job{.outline = llama_outline({}), .sizes = {.dp = {}, .cp = 2}, .world = 2};
  job.work = {.local_batch = 1, .seq_len = 10};  // padded to 12: 6 tokens a rank
  Footprint f = job.plan().rows();
  int64_t kv = 12 * 2 * 2 * 2 * 4;  // 12 tokens, keys and values, 2 heads of 2, floats
  check_row(f, "cp", "all_gather", 4, 4 * kv / 2);
  check_row(f, "cp", "reduce_scatter", 2, 2 * kv / 2);
}

TEST_CASE("absurd workloads end at the largest number") {
  constexpr int64_t huge = int64_t{1} << 62;
  for (int64_t tp : {1, 2})
    for (int64_t cp : {1, 2}) {
      Job job{.outline = llama_outline({.layers = 4}),
              .sizes = {.dp = {}, .tp = tp, .cp = cp},
              .world = 8};
      job.work = {.local_batch = huge,
                  .seq_len = huge,
                  .accumulation = huge,
                  .storage = DType::float64,
                  .optimizer_states = huge};
      job.sequence_parallel = true;
      Footprint f =
          job.plan().rows({.prefetch = {.chains = true, .forward = huge, .backward = huge},
                           .reduction = {.every_micro_batch = true}});
      CHECK(f.bytes.optimizer == INT64_MAX);
      CHECK(f.bytes.activations == INT64_MAX);
      for (const WireRow& row : f.wire) CHECK(row.bytes > 0);
      for (const WireRow& row : job.copies().wire) CHECK(row.bytes > 0);
      if (cp == 1)
        for (int level = 0; level <= 3; ++level)
          CHECK(job.flat({.level = level,
                          .prefetch = {.chains = true, .forward = huge, .backward = huge}})
                    .bytes.optimizer > huge);
    }
}

TEST_CASE("activations shrink with checkpointing and with sequence parallel") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  CHECK(job.plan().rows().bytes.activations == 0);
  job.work = {.local_batch = 2, .seq_len = 16};
  auto bytes = [&] { return job.rows().bytes.activations; };
  // A token and layer: inputs of two norms and two blocks (4 x 8), q, k, v and o's input (8 + 4 + 4
  // + 8), gate, up and down's input (3 x 20). Outside: the final norm's and the head's input (2 x
  // 8), logits (32) and their gradient (32).
  int64_t layer = 32 + 24 + 60, outside = 16 + 32 + 32;
  CHECK(bytes() == 32 * 4 * (4 * layer + outside));
  job.config.shared().activation_checkpointing = ActivationCheckpointing::full;
  // When the head is done: gradients of the two halves of an mlp, and of its output.
  int64_t turn = 2 * 20 + 8;
  CHECK(bytes() == 32 * 4 * (4 * 8 + layer + turn));
  job.config.shared().activation_checkpointing = ActivationCheckpointing::selective;
  CHECK(bytes() == 32 * 4 * (4 * (32 + 24) + 60 + turn));
  job.config.shared().activation_checkpointing = ActivationCheckpointing::none;
  // Beside another rank that holds shards: of one alone gradients come late.
  job.world = 4;
  job.sizes.tp = 2;
  job.plan();
  CHECK(bytes() == 32 * 4 * (4 * (32 + 12 + 30) + 16 + 32));  // logits are cut too
  job.sequence_parallel = true;
  job.plan();
  CHECK(bytes() == 32 * 4 * (4 * (8 + 16 + 12 + 30) + 12 + 32));
  job.config.shared().activation_checkpointing = ActivationCheckpointing::full;
  turn = 2 * 10 + 8;
  CHECK(bytes() == 32 * 4 * (4 * 4 + (8 + 16 + 12 + 30) + turn));
  job.mp = {DType::bfloat16, DType::float32, DType::float32, true};
  job.plan();
  CHECK(bytes() == 32 * 2 * (4 * 4 + (8 + 16 + 12 + 30) + turn));
}
