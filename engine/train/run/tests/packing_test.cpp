// Samples that hold several documents are as good as their documents one by one. Before doctest:
// LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "engine/train/run/tests/packed.h"
#include "engine/train/step/tests/causal_loss.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
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
template <class Net>
MicroBatchLoss one_by_one(Net& net, const Tensor& ids) {
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

// Packed as it should be, or with one thing forgotten.
enum class How : uint8_t {
  alone,
  packed,
  one_document,
  other_positions,
  ends_learnt,
  mean_of_means
};

train::MicroBatch batch_of(const Tensor& ids, How how) {
  train::MicroBatch out = packed(ids, kEnd);
  if (how == How::one_document) out.documents = at::zeros(out.tokens.sizes(), at::kInt);
  if (how == How::other_positions)
    out.positions = at::arange(kTokens, at::kLong).expand({out.rows(), kTokens}).contiguous();
  if (how == How::ends_learnt) {
    out.targets = ids.narrow(1, 1, kTokens).contiguous();
    out.host_targets = nullptr;
  }
  return out;
}

// The loss of a micro-batch of `trainer`, whose model is `net`, and `running` to the loop.
template <class Net, class Running>
MicroBatchLoss loss_of(Trainer& trainer, Net& net, Running& running, const Tensor& ids, How how) {
  if (how == How::alone) return one_by_one(net, ids.contiguous());
  MicroBatchLoss out = train::loss_of(trainer, running, batch_of(ids, how));
  if (how == How::mean_of_means) {
    out.sum = out.sum / out.weight.value();
    out.weight = 1;
  }
  return out;
}

Curve steps_of(const Layout& layout, How how) {
  return curve_of(layout, 6, 6, [how](Rank& rank, int step) {
    return rank.trainer.step([&](int64_t) {
      const int64_t rows = rank.trainer.local_batch();
      const Tensor ids = samples(step, rank.net->outline().vocab_size)
                             .narrow(0, rank.trainer.data_parallel_rank() * rows, rows);
      return loss_of(rank.trainer, rank.net, rank.net, ids, how);
    });
  });
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
  for (const SmallModel& m : {grouped, windows, kGemma3, kMixtral}) {
    const std::string model = write_model(folder.path, m);
    const Curve truth = steps_of(layout_of(model, 1, kRows), How::alone);
    const bool experts = m.name == kMixtral.name;
    for (const Layout& layout :
         {layout_of(model, 1, kRows), layout_of(model, 2, 2),
          layout_of(model, 2, 2, {"distributed.ep_size=2"}),
          layout_of(model, 2, kRows, {"distributed.tp_size=2"}),
          layout_of(model, 2, kRows, {"distributed.cp_size=2", "distributed.context.method=ring"}),
          layout_of(model, 2, kRows,
                    {"distributed.cp_size=2", "distributed.context.method=all_gather",
                     "distributed.activation_checkpointing=\"full\""}),
          layout_of(model, 3, kRows, {"distributed.cp_size=3", "distributed.context.method=ring"}),
          layout_of(model, 4, kRows,
                    {"distributed.cp_size=4", "distributed.context.method=ulysses"})}) {
      const bool of_experts = layout.text().find("ep_size") != std::string::npos;
      if (of_experts ? !experts : experts && layout.text().find("tp_size") != std::string::npos)
        continue;
      INFO(m.name << ": " << layout.text());
      CHECK(strays(steps_of(layout, How::packed), truth) == "");
    }
    // Each alone is seen: documents that see each other, ends that learn what the next document
    // begins with, and ranks that count alike however many targets they have.
    for (How how : {How::one_document, How::ends_learnt, How::mean_of_means}) {
      INFO(m.name << ": " << static_cast<int>(how));
      CHECK(strays(steps_of(layout_of(model, 2, 2), how), truth) != "");
    }
  }
}

namespace {

constexpr int64_t kWidth = 8, kWords = 13;

// Two heads of four.
struct AttendingImpl : torch::nn::Module {
  AttendingImpl() {
    in = register_module("in", Linear(torch::nn::LinearOptions(kWidth, 3 * kWidth)));
    core = register_module("core", AttentionCore(AttentionOptions{.scale = 0.5}));
  }
  Tensor forward(const Tensor& x) {
    const Tensor parts = in(x).view({x.size(0), x.size(1), 6, kWidth / 2});
    return x + core(parts.narrow(2, 0, 2), parts.narrow(2, 2, 2), parts.narrow(2, 4, 2)).flatten(2);
  }
  Linear in{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Attending);

// Rotary embedding sees differences of positions alone; this learns a vector for each position.
struct PlacedImpl : torch::nn::Module {
  PlacedImpl() {
    words = register_module("words", Embedding(kWords, kWidth));
    places = register_module("places", Embedding(kTokens, kWidth));
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) layers->push_back(Attending());
    head = register_module("head", Linear(torch::nn::LinearOptions(kWidth, kWords)));
    c10::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (Tensor& p : parameters())
      p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.4);
  }
  Tensor forward(const Tensor& ids) {
    const auto sequence = current_sequence();
    const Tensor positions = sequence && sequence->positions.defined()
                                 ? sequence->positions
                                 : at::arange(ids.size(1), at::kLong).unsqueeze(0);
    Tensor x = words(ids) + places(positions);
    for (auto& layer : *layers) x = layer->as<Attending>()->forward(x);
    return head(x);
  }
  Embedding words{nullptr}, places{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Placed);

class RunningPlaced final : public RunningModel {
 public:
  explicit RunningPlaced(Placed net) : net_(std::move(net)) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override { return net_(input); }

 private:
  Placed net_;
};

Curve placed_steps_of(int64_t ranks, How how, const std::string& method = "") {
  const int64_t cp = method.empty() ? 1 : 2;
  Curve out;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Job job;
    for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
             {"distributed.strategy", "\"fsdp2\""},
             {"distributed.mp_policy.param_dtype", "\"float32\""},
             {"distributed.mp_policy.output_dtype", "\"float32\""},
             {"optimizer.eps", "1e-5"},
             {"step_scheduler.global_batch_size", std::to_string(kRows)},
             {"step_scheduler.local_batch_size", std::to_string(kRows * cp / ranks)},
             {"distributed.cp_size", std::to_string(cp)}})
      job.set(key, value);
    if (!method.empty()) job.set("distributed.context.method", "\"" + method + "\"");
    Placed net;
    RunningPlaced running(net);
    Trainer trainer(job, world, net.ptr(), {}, kRows * kTokens);
    Curve mine;
    for (int64_t step = 0; step < 6; ++step) {
      const StepResult result = trainer.step([&](int64_t) {
        const int64_t rows = trainer.local_batch();
        const Tensor ids =
            samples(step, kWords).narrow(0, trainer.data_parallel_rank() * rows, rows);
        return loss_of(trainer, net, running, ids, how);
      });
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : trainer.model().parameters())
      mine.parameters[p.name] = trainer.model().full_tensor(p.name).clone();
    if (world->rank() == 0) out = std::move(mine);
  });
  return out;
}

}  // namespace

TEST_CASE("packing: positions begin anew in each document where a model learns each one's vector") {
  const Curve truth = placed_steps_of(1, How::alone);
  CHECK(strays(placed_steps_of(1, How::packed), truth) == "");
  CHECK(strays(placed_steps_of(2, How::packed), truth) == "");
  for (const char* method : {"ring", "all_gather", "ulysses"}) {
    CAPTURE(method);
    CHECK(strays(placed_steps_of(2, How::packed, method), truth) == "");
  }
  // Each alone is seen, here positions, too.
  for (How how : {How::one_document, How::other_positions, How::ends_learnt, How::mean_of_means}) {
    CAPTURE(static_cast<int>(how));
    CHECK(strays(placed_steps_of(2, how), truth) != "");
  }
}

}  // namespace packing_test
