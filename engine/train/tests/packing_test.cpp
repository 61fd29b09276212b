// Samples that hold several documents are as good as their documents one by one. Before doctest:
// LibTorch has a CHECK of its own.
#include "engine/train/tests/curves.h"
#include "engine/train/tests/packed.h"
#include "engine/trainer/tests/causal_loss.h"

#include <doctest/doctest.h>

#include "meshwright/nn/loss.h"

namespace packing_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kEnd = 1, kTokens = 24, kRows = 4;

// Rows of documents of many lengths, also of one token, also without an end.
Tensor samples(int64_t step, int64_t vocabulary) {
  Tensor ids = at::empty({kRows, kTokens + 1}, at::kLong);
  auto* out = ids.mutable_data_ptr<int64_t>();
  uint64_t state = static_cast<uint64_t>(step) * 77 + 5;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto drawn = static_cast<int64_t>(state >> 33);
    out[i] = drawn % 6 == 0 ? kEnd : 2 + drawn % (vocabulary - 2);
  }
  return ids;
}

// Every document by itself, at positions of its own.
MicroBatchLoss one_by_one(modules::CausalLM& net, const Tensor& ids) {
  MicroBatchLoss loss{at::zeros({}), 0};
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const auto* token = ids.const_data_ptr<int64_t>() + row * ids.size(1);
    for (int64_t begin = 0; begin < kTokens;) {
      int64_t end = begin;
      while (end < kTokens && token[end] != kEnd) ++end;
      // The last token is a target where there is one behind it in the document.
      const int64_t length = end - begin;
      if (length > 0) {
        Tensor document = ids.narrow(0, row, 1).narrow(1, begin, length + 1);
        loss.sum = loss.sum + cross_entropy_sum(net(document.narrow(1, 0, length)),
                                                document.narrow(1, 1, length));
        loss.count += length;
      }
      begin = end + 1;
    }
  }
  return loss;
}

enum class How : uint8_t { alone, packed, mixed };

Curve steps_of(const Layout& layout, How how) {
  Curve out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    Curve mine;
    for (int64_t step = 0; step < 6; ++step) {
      StepResult result = rank.trainer.step([&](int64_t) {
        const int64_t rows = rank.trainer.local_batch();
        Tensor ids = samples(step, rank.net->outline().vocab_size)
                         .narrow(0, rank.trainer.data_parallel_rank() * rows, rows);
        if (how == How::alone) return one_by_one(rank.net, ids.contiguous());
        return train::loss_of(rank.trainer, rank.net,
                              how == How::packed ? packed(ids, kEnd) : train::next_tokens(ids));
      });
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : rank.trainer.model().parameters())
      mine.parameters[p.name] = rank.trainer.model().full_tensor(p.name).clone();
    if (world->rank() == 0) out = std::move(mine);
  });
  return out;
}

Layout layout_of(const std::string& model, int64_t ranks, int64_t rows,
                 std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"optimizer.eps=1e-5", "dataset.seq_len=24",
                             "step_scheduler.local_batch_size=" + std::to_string(rows)});
  return {"fsdp2", ranks, more, model, kRows};
}

}  // namespace

TEST_CASE("packing: documents of a sample train as if each were alone, on every layout") {
  TestFolder folder("packing");
  const SmallModel grouped{"grouped", "LlamaForCausalLM", "llama", 32, 4, 2, 64, ""},
      windows{"windows", "MistralForCausalLM", "mistral", 32, 4, 2, 64, R"(, "sliding_window": 3)"};
  for (const SmallModel& m : {grouped, windows, kGemma3}) {
    const std::string model = write_model(folder.path, m);
    const Curve truth = steps_of(layout_of(model, 1, kRows), How::alone);
    for (const Layout& layout :
         {layout_of(model, 1, kRows), layout_of(model, 2, 2),
          layout_of(model, 2, kRows, {"distributed.tp_size=2"}),
          layout_of(model, 2, kRows, {"distributed.cp_size=2", "distributed.context.method=ring"}),
          layout_of(model, 2, kRows,
                    {"distributed.cp_size=2", "distributed.context.method=all_gather",
                     "distributed.activation_checkpointing=\"full\""}),
          layout_of(model, 3, kRows, {"distributed.cp_size=3", "distributed.context.method=ring"}),
          layout_of(model, 4, kRows,
                    {"distributed.cp_size=4", "distributed.context.method=ulysses"})}) {
      INFO(m.name << ": " << layout.text());
      CHECK(strays(steps_of(layout, How::packed), truth) == "");
    }
    // Without it documents see each other.
    CHECK(strays(steps_of(layout_of(model, 1, kRows), How::mixed), truth) != "");
  }
}

}  // namespace packing_test
