// What context parallelism meets at its edges: validation of other lengths, samples that leave a
// rank padding alone, targets that do not count, bfloat16, and text. Before doctest: LibTorch has a
// CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"
#include "engine/train/run/tests/packed.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include "engine/train/step/sample.h"
#include "engine/train/step/tests/causal_loss.h"

namespace context_edges_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kEnd = 1;
const std::vector<std::string> kMethods = {kGather, kRing, kUlysses};
const std::string kEp2 = "distributed.ep_size=2";

// The rows of a micro-batch that this rank has.
Tensor my_samples(Rank& rank, int64_t step, int64_t length) {
  const int64_t rows = rank.trainer.local_batch();
  return samples_of(step * kBatch + rank.trainer.data_parallel_rank() * rows, rows, length,
                    rank.net->outline().vocab_size);
}

// Validation losses of every length, after each of three steps.
std::vector<double> validated(const Layout& layout, const std::vector<int64_t>& lengths) {
  std::vector<double> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    std::vector<double> mine;
    for (int step = 0; step < 3; ++step) {
      rank.step();
      for (int64_t length : lengths)
        mine.push_back(rank.trainer.evaluate(2, [&](int64_t micro) {
          return train::loss_of(rank.trainer, rank.net, my_samples(rank, 100 + micro, length));
        }));
    }
    if (world->rank() == 0) out = std::move(mine);
  });
  return out;
}

// Steps whose micro-batches are those of `batch(rank, step)`.
using Batch = std::function<MicroBatchLoss(Rank& rank, int64_t step, int64_t micro)>;
Curve trained(const Layout& layout, int steps, const Batch& batch) {
  return curve_of(layout, steps, steps, [&](Rank& rank, int step) {
    return rank.trainer.step([&](int64_t micro) { return batch(rank, step, micro); });
  });
}

}  // namespace

TEST_CASE("context edges: validation has the losses of one process, whatever its length") {
  TestFolder folder("context_validation");
  size_t turn = 0;
  // Eight tokens are trained on. Three leave the last of four ranks padding alone, and one the last
  // of two; seven and thirteen are padded.
  const std::vector<int64_t> lengths = {8, 7, 13, 3, 1, 32};
  for (const SmallModel& m : {kGrouped, kMistral, kGemma3, kLongRope, kBalanced}) {
    const std::string model = write_model(folder.path, m);
    const bool experts = std::string(m.name) == kBalanced.name;
    const std::vector<double> truth = validated(context_layout(model, kAlone), lengths);
    REQUIRE(truth.size() == 3 * lengths.size());
    std::vector<OnMesh> meshes = {{2, {kCp2}}, {4, {kCp4}}};
    if (!experts) meshes.push_back({4, {kCp2}});  // two shards
    if (!experts) meshes.push_back({4, {kCp2, kTp2}});
    for (const OnMesh& mesh : meshes)
      for (const std::string& method : kMethods) {
        if (mesh.sets.back() == kTp2 && method == kUlysses && m.kv_heads == 2) continue;
        if (!sampled(turn++, 4)) continue;
        std::vector<std::string> more = {method};
        if (experts && mesh.ranks == 2) more.push_back(kEp2);
        const Layout layout = context_layout(model, mesh, more);
        INFO(m.name << ": " << layout.text());
        CHECK(farthest(validated(layout, lengths), truth) < 1e-6);
      }
  }
}

TEST_CASE("context edges: a rank that has padding alone adds nothing, and no 0/0") {
  TestFolder folder("context_padding");
  const int steps = steps_of(4, 10);
  for (const SmallModel& m : {kGrouped, kMistral, kBalanced}) {
    const std::string model = write_model(folder.path, m);
    for (const auto& [length, mesh] :
         std::vector<std::pair<int64_t, OnMesh>>{{1, {2, {kCp2}}}, {3, {4, {kCp4}}}}) {
      auto batch = [length = length](Rank& rank, int64_t step, int64_t) {
        MicroBatchLoss loss =
            train::loss_of(rank.trainer, rank.net, my_samples(rank, step, length));
        // The last rank of cp.
        if (rank.trainer.world().rank() == rank.trainer.world().size() - 1 &&
            rank.trainer.world().size() > 1) {
          CHECK(loss.count == 0);
          CHECK(loss.sum.item<double>() == 0);
        }
        return loss;
      };
      const Curve truth = trained(context_layout(model, kAlone), steps, batch);
      for (const std::string& method : kMethods) {
        const Layout layout = context_layout(model, mesh, {method});
        INFO(m.name << ", " << length << " tokens: " << layout.text());
        CHECK(strays(trained(layout, steps, batch), truth) == "");
      }
    }
  }
}

TEST_CASE("context edges: documents of one token leave targets to some ranks alone, or to none") {
  TestFolder folder("context_targets");
  const std::string model = write_model(folder.path, kGrouped);
  for (bool all : {false, true}) {
    INFO((all ? "all ranks" : "one rank") << std::string(" without targets"));
    auto batch = [all](Rank& rank, int64_t step, int64_t) {
      Tensor ids = my_samples(rank, step, 16);
      ids.masked_fill_(ids.eq(kEnd), kEnd + 1);
      // Of sixteen tokens the second of two ranks has the middle half. A token that ends a document
      // has no target.
      if (!all) ids.narrow(1, 4, 8).fill_(kEnd);
      if (all && step == 1) ids.fill_(kEnd);
      MicroBatchLoss loss = train::loss_of(rank.trainer, rank.net, packed(ids, kEnd));
      if (!all && rank.trainer.world().rank() == 1) CHECK(loss.count == 0);
      return loss;
    };
    const Curve truth = trained(context_layout(model, kAlone), 4, batch);
    for (const std::string& method : kMethods) {
      const Layout layout = context_layout(model, {2, {kCp2}}, {method});
      INFO(layout.text());
      const Curve found = trained(layout, 4, batch);
      if (all) CHECK(found.losses[1] == 0);
      // Relative to the first step: the loss of no target is 0.
      for (size_t step = 0; step < truth.losses.size(); ++step) {
        CHECK(std::abs(found.losses[step] - truth.losses[step]) < 1e-6 * truth.losses[0]);
        CHECK(std::abs(found.norms[step] - truth.norms[step]) < 1e-6 * truth.norms[0]);
      }
      for (const auto& [name, tensor] : truth.parameters)
        CHECK(farthest(found.parameters.at(name), tensor) < 5e-6);
    }
  }
}

TEST_CASE("context edges: in bfloat16, context parallelism is as near to float32 as one process") {
  TestFolder folder("context_bfloat16");
  const std::vector<std::string> narrow{"distributed.mp_policy.param_dtype=bfloat16",
                                        "distributed.mp_policy.output_dtype=bfloat16"};
  size_t number = 0;  // half: every method on each mesh, with the one model or the other
  for (const SmallModel& m : {kGrouped, kMistral}) {
    size_t of_mesh = number++;
    const std::string model = write_model(folder.path, m);
    const Curve exact = curve_of(context_layout(model, kAlone), 12),
                one = curve_of(context_layout(model, kAlone, narrow), 12);
    const double loss = farthest(one.losses, exact.losses), norm = farthest(one.norms, exact.norms);
    CHECK(loss > 1e-6);  // there is rounding to speak of
    for (const OnMesh& mesh : {OnMesh{2, {kCp2}}, {4, {kCp4}}, {4, {kCp2}}}) {
      size_t turn = of_mesh++;
      for (const std::string& method : kMethods) {
        if (!sampled(turn++, 2)) continue;
        Layout layout = context_layout(model, mesh, narrow);
        layout.sets.push_back(method);
        INFO(m.name << ": " << layout.text());
        const Curve curve = curve_of(layout, 12);
        CHECK(farthest(curve.losses, exact.losses) < 3 * loss);
        CHECK(farthest(curve.norms, exact.norms) < 3 * norm);
      }
    }
  }
}

TEST_CASE("context edges: float16 on CPUs is refused before the first step, with what works") {
  TestFolder folder("context_float16");
  const std::string model = write_model(folder.path, kGrouped);
  for (const char* key : {"distributed.mp_policy.param_dtype", "distributed.autocast_dtype"}) {
    const std::string half = std::string(key) + "=float16",
                      help = std::string("set ") + key + " = \"bfloat16\"";
    std::mutex mutex;
    int refused = 0;
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      try {
        Rank rank(context_layout(model, {2, {kCp2}}, {half}), world);
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        refused += error.code() == ErrorCode::not_in_release && error.helps().at(1) == help;
      }
    });
    CHECK(refused == 2);
    const Layout works = context_layout(model, {2, {kCp2}}, {std::string(key) + "=bfloat16"});
    CHECK(std::isfinite(curve_of(works, 1).losses.at(0)));
  }
}

TEST_CASE("context edges: text is that of one process, and somebody says who computes it") {
  TestFolder folder("context_text");
  for (const SmallModel& small : {kGrouped, kMistral, kLongRope}) {
    SmallModel m = small;
    m.vocab = 256;
    const std::string model = write_model(folder.path, m);
    auto text_on = [&](const Layout& layout) {
      std::string text, notice;
      run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        rank.step();
        modules::RunningCausalLM net(rank.net);
        std::string mine = generate::write_sample(rank.trainer, net, {"ab", 20, 0.7, 5}, kLength);
        if (world->rank() != world->size() - 1) return;
        text = mine;
        notice = train::whole_text_notice(rank.trainer);
      });
      return std::pair(text, notice);
    };
    const auto [truth, silence] = text_on(context_layout(model, kAlone));
    CHECK(truth.size() == 22);
    CHECK(silence == "");
    for (const std::string& method : kMethods) {
      const Layout layout = context_layout(model, {2, {kCp2}}, {method});
      INFO(m.name << ": " << layout.text());
      const auto [text, notice] = text_on(layout);
      CHECK(text == truth);
      CHECK(notice ==
            "a text is not divided over the ranks of cp: each of the 2 computes all of it");
    }
  }
}

}  // namespace context_edges_test
