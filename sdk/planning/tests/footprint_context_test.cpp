// What attention over the ranks of cp sends and holds, by hand.
#include "footprint_job.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;
using namespace meshwright::testing;

namespace {

// Two layers of 4 query and 2 key-value heads of 2 elements: keys and values are 8 elements a
// token, queries as many.
Job context_job(int64_t ranks, int64_t length, ContextMethod method) {
  Job job{.outline = llama_outline({}), .sizes = {.dp = {}, .cp = ranks}, .world = ranks};
  job.work = {.local_batch = 1, .seq_len = length};
  job.plan();
  job.config.shared().context.method = method;
  return job;
}

// Bytes of a token on a rank of what one layer's exchange holds.
int64_t held(const Job& job, int64_t rank = 0) {
  const ShardingRequest request = job.request(rank);
  const int64_t tokens =
      ContextSplit(job.work.seq_len, job.sizes.cp, context_balance(job.config.shared().context))
          .rows();
  for (const ContextCost& cost : context_costs(request))
    if (cost.chosen) return cost.transient / tokens;
  return -1;
}

}  // namespace

TEST_CASE("attention over cp holds buffers, gradients of others' keys, and room for gathers") {
  struct Row {
    int64_t ranks, ulysses;
    ContextMethod method;
    int64_t floats, halves;  // a token, with float32 and bfloat16
  };
  for (const Row& row : {
           // Others' gradients, in float32; twice the own keys and twice what goes to the others.
           Row{2, 1, ContextMethod::all_gather, 32 + 2 * 32 + 2 * 32, 32 + 2 * 16 + 2 * 16},
           Row{4, 1, ContextMethod::all_gather, 3 * 32 + 8 * 32, 3 * 32 + 8 * 16},
           // One buffer of keys and two of gradients; from three ranks on two and three.
           Row{2, 1, ContextMethod::ring, 32 + 2 * 32, 16 + 2 * 32},
           Row{4, 1, ContextMethod::ring, 2 * 32 + 3 * 32, 2 * 16 + 3 * 32},
           Row{2, 2, ContextMethod::ulysses, 32, 16},
           Row{4, 4, ContextMethod::ulysses, 64, 32},  // four ranks have two heads twice
           Row{4, 2, ContextMethod::ring, 32 + 2 * 32, 16 + 2 * 32},
           Row{4, 2, ContextMethod::all_gather, 32 + 32 + 4 * 32, 16 + 32 + 4 * 16},
       }) {
    CAPTURE(row.ranks);
    CAPTURE(row.ulysses);
    Job job = context_job(row.ranks, 32, row.method);
    if (row.ulysses != row.ranks) job.config.shared().context.ulysses_size = row.ulysses;
    CHECK(held(job) == row.floats);
    job.config.shared().mp.param = DType::bfloat16;
    CHECK(held(job) == row.halves);
  }
}

TEST_CASE(
    "activations grow by the room that stays, and by attention's backward where that is fullest") {
  auto bytes = [](const Job& job) { return job.rows().bytes.activations; };
  Job alone = context_job(1, 16, ContextMethod::ring);
  alone.work.accumulation = 2;  // whose gradients are there, as theirs
  Job gather = context_job(2, 32, ContextMethod::all_gather),
      ring = context_job(2, 32, ContextMethod::ring);
  // 16 tokens each; the logits are more than what attention's backward holds.
  CHECK(bytes(ring) == bytes(alone));
  CHECK(bytes(gather) == bytes(alone) + 16 * (2 * 32 + 2 * 32));
  // A layer keeps 32 of norms and inputs, 24 of attention and 12 of a small mlp. Of that the mlp
  // has nothing any more when attention has its 24 gradients and what is exchanged.
  for (Job* job : {&gather, &ring}) job->outline = llama_outline({.ffn = 4, .vocab = 2});
  const int64_t layers = 2 * (32 + 24 + 12);
  CHECK(bytes(ring) == 16 * 4 * (layers + 24 - 12 + 8 + 2 * 8));
  // The head's: 16 of norm and input, 2 logits and the gradient of its input; room for 4 x 8.
  CHECK(bytes(gather) == 16 * 4 * (layers + 16 + 2 + 8 + 4 * 8));
}

TEST_CASE("layers with windows hold the chunks that their windows reach, and need no room") {
  for (ContextMethod method : {ContextMethod::all_gather, ContextMethod::ring}) {
    Job job = context_job(2, 16, method);  // rank 0: chunks 0 and 3 of 4 tokens
    const int64_t whole = held(job);
    job.outline.windows = {3, 3};
    // Half of a rank's tokens come with their gradients, and as many gradients come back.
    for (int64_t rank : {0, 1}) CHECK(held(job, rank) == (32 + 32 + 32) / 2);
    // The room of one layer, and the most that any holds.
    job.outline.windows = {0, 3};
    CHECK(held(job) == (method == ContextMethod::ring ? whole : whole - 32 + 48));
    job.outline.windows = {3, 3};
    job.config.shared().mp.param = DType::bfloat16;
    CHECK(held(job) == (32 + 16 + 16 + 16) / 2);  // those that go are rounded first
  }
}

TEST_CASE(
    "a rank of tp sends its heads: what the patterns match counts, not how they are written") {
  struct Row {
    StringMap patterns;
    int64_t heads;  // key-value heads of a rank
  };
  const std::string attention = "model.layers.*.self_attn.", mlp = "model.layers.*.mlp.";
  for (const Row& row : {
           Row{{{attention + "q_proj", "colwise"},
                {attention + "k_proj", "colwise"},
                {attention + "v_proj", "colwise"},
                {attention + "o_proj", "rowwise"}},
               1},
           Row{{{attention + "[qkv]_proj", "colwise"}, {attention + "o_proj", "rowwise"}}, 1},
           Row{{{"*.*.?.*_attn.[!o]*", "colwise"}, {"*.*.?.*_attn.o*", "rowwise"}}, 1},
           // Put together again before attention sees them.
           Row{{{attention + "[qkv]_proj", "colwise_rep"}}, 2},
           Row{{{mlp + "[gu]*_proj", "colwise"}, {mlp + "down_proj", "rowwise"}}, 2},
           Row{{{"lm_head", "colwise_rep"}}, 2},
       }) {
    CAPTURE(row.patterns.front().first);
    Job job = context_job(2, 32, ContextMethod::ring);  // 16 tokens a rank
    job.sizes.tp = 2, job.world = 4;
    job.plan();
    job.tp =
        select_tp_plan(job.outline, {2, false, {TpPlanChoice::Kind::custom, "", row.patterns}});
    // Of two layers: keys and values twice, and their gradients.
    check_row(job.rows(), "cp", "send", 2 * 3, 2 * 3 * 16 * row.heads * 4 * 4);
  }
}

TEST_CASE("attention over cp sends and holds what autocast makes of queries, keys and values") {
  for (ContextMethod method :
       {ContextMethod::all_gather, ContextMethod::ring, ContextMethod::ulysses}) {
    Job cast = context_job(2, 32, method), half = cast;
    cast.config.shared().autocast_dtype = half.config.shared().mp.param = DType::bfloat16;
    auto wire = [](const Job& job) {
      std::string out;
      for (const WireRow& row : job.rows().wire)
        if (row.axis == "cp") out += row.op + " " + std::to_string(row.bytes) + "; ";
      return out;
    };
    CHECK(wire(cast) == wire(half));
    CHECK(wire(cast) != wire(context_job(2, 32, method)));
    CHECK(held(cast) == held(half));
  }
}

TEST_CASE("heads for tokens: the gradient of the output brings a float for each row and head") {
  Job job = context_job(2, 12, ContextMethod::ulysses);  // 6 tokens a rank
  const int64_t queries = 6 * 8 * 4, keys = 6 * 4 * 4, sums = 6 * 4 * 4;
  check_row(job.rows(), "cp", "all_to_all", 2 * 8, 2 * (4 * queries + 4 * keys + sums) / 2);
}

TEST_CASE("auto compares what the methods send for the layers, windows and recomputing counted") {
  constexpr int64_t kLength = 32768, kWindow = 4096, kLayers = 3;
  const std::string heads = " would, with 32 query and 8 key-value heads";
  struct Row {
    std::vector<int64_t> windows;
    ActivationCheckpointing recomputed;
    const char *method, *sends;
  };
  // Of n = 4096 tokens of a chunk, a layer and rank, in elements of a head: all_gather 288 n,
  // ulysses 240 n and a float for each row and head; with windows of one chunk 96 n at most.
  for (const Row& row :
       {Row{{}, ActivationCheckpointing::none, "ulysses", "84% of what all_gather"},
        Row{{kWindow, kWindow, kWindow},
            ActivationCheckpointing::none,
            "all_gather",
            "40% of what ulysses"},
        Row{{kWindow, kWindow, 0},
            ActivationCheckpointing::none,
            "all_gather",
            "66% of what ulysses"},
        Row{{kLength, kLength, kLength},
            ActivationCheckpointing::none,
            "ulysses",
            "84% of what all_gather"},
        // 384 n and 360 n.
        Row{{}, ActivationCheckpointing::full, "ulysses", "94% of what all_gather"}}) {
    CAPTURE(row.sends);
    Job job{.outline =
                llama_outline({.layers = kLayers, .hidden = 32 * 128, .heads = 32, .kv_heads = 8}),
            .sizes = {.dp = {}, .cp = 4},
            .world = 4};
    job.work = {.local_batch = 1, .seq_len = kLength};
    job.mp.param = DType::bfloat16;
    job.plan();
    job.outline.windows = row.windows;
    job.config.shared().activation_checkpointing = row.recomputed;
    // Alike on all ranks, though they send unlike.
    for (int64_t rank = 0; rank < 4; ++rank) {
      const std::optional<ContextPlan> plan = plan_context(job.request(rank));
      REQUIRE(plan);
      CHECK(context_method_name(*plan) == row.method);
      CHECK(plan->why == "it sends " + std::string(row.sends) + heads);
    }
    // What the engine writes into the options comes to the same.
    Job written = job;
    written.config.shared().context.method = plan_context(job.request())->method;
    CHECK(context_method_name(*plan_context(written.request())) == row.method);
    // A model whose length is not known goes by its heads.
    job.work.seq_len = 0;
    CHECK(plan_context(job.request())->why == "it sends 83% of what all_gather" + heads);
  }
}
