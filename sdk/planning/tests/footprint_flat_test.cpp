#include <doctest/doctest.h>

#include <map>
#include <tuple>

#include "footprint_job.h"

using namespace meshwright;
using namespace meshwright::testing;

TEST_CASE("replicas all-reduce the gradients in torch's buckets") {
  Job job{.outline = llama_outline({}), .world = 4};
  job.plan_ddp();
  Footprint f = job.copies({}, 3);
  CHECK(f.bytes.weights == 1896 * 4);
  CHECK(f.bytes.optimizer == 2 * 1896 * 4);
  CHECK(f.bytes.transient == 0);
  CHECK(f.units.empty());
  check_row(f, "dp", "all_reduce", 1, 2 * 1896 * 4 * 3 / 4);
  CHECK(placement(f, "lm_head.weight").placement == Placement{{"dp", "replicate"}});
  CHECK(placement(f, "lm_head.weight").local_shape == std::vector<int64_t>{32, 8});
  job.work.accumulation = 8;  // only the last micro-batch synchronises
  check_row(job.copies(), "dp", "all_reduce", 1, 2 * 1896 * 4 * 3 / 4);
  CHECK(refusal([&] { job.copies({}, 4); })->code() == ErrorCode::rank_out_of_range);

  SUBCASE("a bucket is closed by the parameter that reaches its limit") {
    // In reverse: 256, 256, 512, 128, 128, 600 elements of 4 bytes.
    ModelOutline outline;
    outline.modules = {{"", ModuleKind::other, "Bare"}};
    for (int64_t size : {600, 128, 128, 512, 256, 256})
      outline.parameters.push_back(
          {"p" + std::to_string(outline.parameters.size()), {size}, DType::float32});
    Job bare{.outline = outline, .world = 2};
    bare.plan_ddp();
    struct Row {
      int64_t first, rest, count;
    };
    const Row rows[] = {
        {1024, 2048, 3},  // 256 | 256 512 | 128 128 600
        {1024, 1024, 5},  // 256 | 256 | 512 | 128 128 | 600
        {4096, 1024, 5},  // the first bucket is never above the cap
        {1, 1, 6},        //
        {1 << 20, 25 << 20, 1},
        {7520, 7520, 1},
        {5120, 1 << 20, 2},  // 256 256 512 128 128 | 600
    };
    for (const Row& row : rows) {
      CAPTURE(row.first);
      check_row(bare.copies({row.first, row.rest}), "dp", "all_reduce", row.count, 1880 * 4);
    }
  }
  SUBCASE("a second copy of the gradients, or a cast one of the weights, is transient") {
    CHECK(job.copies({.gradient_as_bucket_view = false}).bytes.transient == 1896 * 4);
    job.mp.param = DType::bfloat16;
    CHECK(job.plan_ddp().copies().bytes.transient == 1896 * 2);
    job.mp.reduce = DType::bfloat16;
    Footprint half = job.plan_ddp().copies();
    CHECK(half.bytes.transient == 1896 * 2 * 2);
    check_row(half, "dp", "all_reduce", 1, 1896 * 2 * 2 * 3 / 4);
  }
  SUBCASE("under a mesh every data-parallel rank takes part") {
    Job meshed{.outline = llama_outline({}),
               .sizes = {.dp = {}, .dp_replicate = 2, .tp = 2, .cp = 2},
               .world = 16};
    f = meshed.plan().copies();
    // tp halves all but the norms: 5 of them with 8 elements.
    int64_t mine = (1896 - 40) / 2 + 40;
    check_row(f, "dp_cp", "all_reduce", 1, 2 * mine * 4 / 8 * 7);
    CHECK(f.bytes.weights == mine * 4);
    CHECK(placement(f, "lm_head.weight").placement == Placement{{"dp_replicate", "replicate"},
                                                                {"dp_shard_cp", "replicate"},
                                                                {"tp", "shard(0)"}});
  }
  SUBCASE("the plan names an axis that the mesh has and that holds all replicas") {
    auto axis_of = [&](std::vector<MeshAxis> axes, int64_t dp) {
      Job own{.outline = llama_outline({})};
      own.mesh.device_mesh.emplace(std::move(axes));
      own.mesh.dp = dp;
      return replicated_plan(own.request()).replication.axis;
    };
    CHECK(axis_of({{"dp_replicate", 4}, {"tp", 2}}, 4) == "dp_replicate");
    CHECK(axis_of({{"dp_shard", 4}}, 4) == "dp_shard");
    CHECK(axis_of({{"dp", 4}, {"cp", 1}}, 4) == "dp");
    CHECK(axis_of({{"cp", 2}}, 1) == "cp");
    CHECK(axis_of({{"tp", 2}}, 1) == "dp");  // alone: of no axis
    // The mesh has 4 data-parallel ranks, or no axis over all 4, or over their parts of samples.
    for (const auto& [axes, dp] : {std::pair<std::vector<MeshAxis>, int64_t>{{{"dp", 4}}, 1},
                                   {{{"dp", 4}}, 8},
                                   {{{"dp_replicate", 2}, {"dp_shard", 2}}, 4},
                                   {{{"dp", 2}, {"cp", 2}}, 2}}) {
      CAPTURE(axes.size());
      const Error error = refused(ErrorCode::no_such_axis, "", [&] { axis_of(axes, dp); });
      CHECK(error.helps().size() == 2);
    }
  }
  SUBCASE("alone, nothing is sent") {
    job.world = 1;
    CHECK(job.plan_ddp().copies().wire.empty());
  }
}

TEST_CASE("levels 0 to 3 hold the bytes a parameter of the table") {
  // bfloat16 weights and gradients, float32 main weights and Adam, 4 ranks.
  Job job{.outline = llama_outline({}), .world = 4};
  job.work.storage = DType::bfloat16;
  job.mp = {DType::bfloat16, DType::bfloat16, DType::bfloat16, true};
  job.plan_flat();
  constexpr int64_t P = 1896;
  const int64_t table[4][3] = {{2 * P, 2 * P, 12 * P},
                               {2 * P, 2 * P, 12 * P / 4},
                               {2 * P, 2 * P / 4, 12 * P / 4},
                               {2 * P / 4, 2 * P / 4, 12 * P / 4}};
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    Footprint f = job.flat({.level = level, .precision = {.main_weights = DType::float32}});
    CHECK(f.bytes.weights == table[level][0]);
    CHECK(f.bytes.gradients == table[level][1]);
    CHECK(f.bytes.optimizer == table[level][2]);
  }
  CHECK(job.flat({.level = 0}).bytes.optimizer == 4 * P);  // Adam in the model's dtype
  CHECK(job.flat({.level = 0, .precision = {.main_gradients = DType::float32}}).bytes.gradients ==
        4 * P);
  job.work.storage = DType::float32;  // float32 weights are their own main weights
  CHECK(job.flat({.level = 0, .precision = {.main_weights = DType::float32}}).bytes.optimizer ==
        8 * P);
  CHECK(refusal([&] { job.flat({.level = 4}); })->code() == ErrorCode::out_of_range);
}

TEST_CASE("what has no dimension is refused by name: flat buffers hold parts of dimensions") {
  ModelOutline outline = llama_outline({.layers = 1});
  outline.parameters.push_back({"temperature", {}, DType::float32});
  for (int64_t world : {1, 2}) {
    CAPTURE(world);
    Job job{.outline = outline, .world = world};
    job.plan_flat();
    const Error error = refused(ErrorCode::model_does_not_fit, "temperature has no dimension",
                                [&] { flat_plan(job.request()); });
    CHECK(error.helps() == std::vector<std::string>{"give the parameter the shape [1]"});
  }
}

TEST_CASE("each level sends what its row of the table says") {
  Job job{.outline = llama_outline({}), .world = 4};
  job.work.accumulation = 2;
  job.plan_flat();
  constexpr int64_t layer = 688 * 4, root = 520 * 4, all = 2 * layer + root;
  Footprint f = job.flat({.level = 0});
  CHECK(f.wire.size() == 1);
  check_row(f, "dp", "all_reduce", 3, 2 * all / 4 * 3);
  CHECK(placement(f, "lm_head.weight").placement == Placement{{"dp", "replicate"}});
  CHECK(!placement(f, "lm_head.weight").local_range);
  f = job.flat({.level = 1});
  check_row(f, "dp", "reduce_scatter", 3, all / 4 * 3);
  check_row(f, "dp", "all_gather", 3, all / 4 * 3);
  f = job.flat({.level = 2});
  check_row(f, "dp", "reduce_scatter", 6, 2 * (all / 4 * 3));
  check_row(f, "dp", "all_gather", 3, all / 4 * 3);
  f = job.flat({.level = 3});
  check_row(f, "dp", "reduce_scatter", 6, 2 * (all / 4 * 3));
  check_row(f, "dp", "all_gather", 10, 2 * ((4 * layer + root) / 4 * 3));
  CHECK(placement(f, "lm_head.weight").placement == Placement{{"dp", "flat"}});
  CHECK(f.bytes.transient == (root + 2 * layer) + (root + 2 * layer));
}

TEST_CASE("flat buffers are cut evenly, with the padding at the end") {
  // 7 ranks cut a layer of 688 into 99 each and 94 for the last; tp on top.
  for (auto [world, tp, vocab] :
       {std::tuple(7, 1, 32), std::tuple(3, 1, 29), std::tuple(14, 2, 31), std::tuple(64, 2, 32)}) {
    CAPTURE(world);
    Job job{
        .outline = llama_outline({.vocab = vocab}), .sizes = {.dp = {}, .tp = tp}, .world = world};
    job.plan_flat();
    int64_t n = world / tp, weights = 0;
    std::map<std::string, int64_t> padded;
    std::map<std::pair<std::string, int64_t>, Chunk> whole;  // ranges of what tp does not cut
    for (int64_t column = 0; column < tp; ++column) {
      std::map<std::string, int64_t> reached;
      for (int64_t row = 0; row < n; ++row) {
        Footprint f = job.flat({}, row * tp + column);
        int64_t mine = 0;
        for (const ParameterPlacement& p : f.parameters) {
          REQUIRE(p.local_range.has_value());
          REQUIRE(p.local_range->begin ==
                  reached[p.name]);  // each range starts where the rank before stopped
          REQUIRE(p.local_range->end >= p.local_range->begin);
          reached[p.name] = p.local_range->end;
          if (!tp_shard_dim(job.tp, job.outline, p.name)) {
            Chunk first = whole.emplace(std::pair(p.name, row), *p.local_range).first->second;
            REQUIRE((p.local_range->begin == first.begin && p.local_range->end == first.end));
          }
          REQUIRE(p.local_shape == std::vector<int64_t>{p.local_range->end - p.local_range->begin});
          mine += p.local_shape[0];
        }
        int64_t most = 0;
        for (const UnitCost& unit : f.units) {
          // Where tp cuts unevenly, all cut as the first rank does, which has the most.
          int64_t& first =
              padded.emplace(unit.name, (unit.parameters + n - 1) / n * n * 4).first->second;
          CHECK(unit.padded_bytes == first);
          most += unit.padded_bytes / n;
        }
        CHECK(mine * 4 == f.bytes.weights);
        CHECK(f.bytes.weights <= most);
        weights += f.bytes.weights;
      }
      for (const ParameterOutline& p : job.outline.parameters)
        if (tp == 1 || !tp_shard_dim(job.tp, job.outline, p.name))
          CHECK(reached[p.name] == element_count(p.shape));
    }
    if (tp == 1) CHECK(weights == total_elements(job.outline) * 4);
  }
  Job job{.outline = llama_outline({}), .world = 7};
  job.plan_flat();
  Footprint last = job.flat({}, 6);
  CHECK(last.units[0].padded_bytes == 99 * 7 * 4);
  // The last rank's slice of layer 0 starts at 594: inside down_proj (512 to 672).
  auto range = *placement(last, "model.layers.0.mlp.down_proj.weight").local_range;
  CHECK(range.begin == 594 - 512);
  CHECK(range.end == 160);
  CHECK(placement(last, "model.layers.0.self_attn.q_proj.weight").local_shape ==
        std::vector<int64_t>{0});
}

TEST_CASE("unit classes and buckets follow the policy") {
  Job job{.outline = llama_outline({.layers = 3}), .world = 2};
  job.plan_flat();
  auto names = [&](const FlatBufferPolicy& policy) {
    std::vector<std::string> out;
    for (const UnitCost& unit : job.flat({.flat = policy}).units) out.push_back(unit.name);
    return out;
  };
  CHECK(names({}) == Names{"model.layers.0", "model.layers.1", "model.layers.2", "root"});
  CHECK(names({.unit_classes = {"LlamaDecoderLayer"}}) == names({}));
  CHECK(names({.unit_classes = {"transformers.models.llama.modeling_llama.LlamaDecoderLayer"}}) ==
        names({}));
  CHECK(names({.unit_classes = {"LlamaAttention"}}) == Names{"model.layers.0.self_attn",
                                                             "model.layers.1.self_attn",
                                                             "model.layers.2.self_attn", "root"});
  CHECK(names({.unit_classes = {"LlamaAttention", "LlamaDecoderLayer"}}) ==
        names({}));  // a module inside a unit belongs to it
  CHECK(names({.unit_classes = {"LlamaForCausalLM"}}) == Names{"LlamaForCausalLM"});
  // embedding 256, norm 8, head 256
  CHECK(names({.bucket_elements = 270}) ==
        Names{"model.layers.0", "model.layers.1", "model.layers.2", "root[0]", "root[1]"});
  CHECK(names({.bucket_elements = 1}).size() == 6);
  CHECK(names({.bucket_elements = 0}) == names({}));
  std::optional<Error> error =
      refusal([&] { names({.unit_classes = {"LlamaDecoderLayer", "GemmaLayer"}}); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::unit_class_missing);
  CHECK(error->message().find("GemmaLayer") != std::string::npos);
  CHECK(error->helps().size() >= 2);
  CHECK(error->helps()[0].find("LlamaDecoderLayer") != std::string::npos);
  // The option that says so, where a strategy names it.
  error = refusal([&] {
    flat_plan(job.request(), {.level = 3,
                              .flat = {.unit_classes = {"GemmaLayer"}},
                              .options = {{"flat.unit_classes", "distributed.mine.units"}}});
  });
  REQUIRE(error.has_value());
  CHECK(error->helps()[0] == "set distributed.mine.units = [\"LlamaDecoderLayer\"]");
  // A tied weight has a bucket of its own.
  job.outline = llama_outline({.layers = 1, .tied = true});
  CHECK(names({}) == Names{"model.layers.0", "root[0]", "root[1]"});
  // Also when a unit is around it: the head uses it outside. A unit of nothing else is refused.
  job.outline.modules[1].class_name = "LlamaModel";
  job.outline.modules[2].class_name = "Embedding";
  CHECK(names({.unit_classes = {"LlamaModel"}}) == Names{"model", "root"});
  CHECK(names({.unit_classes = {"LlamaForCausalLM"}}) == Names{"LlamaForCausalLM"});
  error = refusal([&] { names({.unit_classes = {"Embedding"}}); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::unit_class_missing);
  CHECK(error->message().find("model.embed_tokens") != std::string::npos);
  CHECK(error->helps().size() >= 1);
}
