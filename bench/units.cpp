// Host time that sharding costs a unit: tiny blocks, so that computation is nothing, and a back end
// that moves no bytes. Prints the time of a step and unit with and without units, and the
// difference.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "sdk/base/transport.h"

using namespace meshwright;

namespace {

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

class FakeBackend final : public c10d::Backend {
 public:
  FakeBackend(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "fake"; }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return done();
  }

 private:
  static c10::intrusive_ptr<c10d::Work> done() { return c10::make_intrusive<DoneWork>(); }
};

constexpr int64_t kLayers = 64;

double step_ms(bool sharded) {
  std::string path = "/tmp/meshwright_bench_units.json";
  std::ofstream(path)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32,
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": )"
      << kLayers << R"(, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6})";
  modules::CausalLM net = modules::build_model(path, DType::float32, at::kMeta);
  auto world = make_world(0, 2, at::kCPU, std::chrono::seconds(10),
                          [](const std::string&, const std::vector<int64_t>& ranks) {
                            return transport_over(
                                c10::make_intrusive<FakeBackend>(0, static_cast<int>(ranks.size())),
                                at::kCPU);
                          });
  MixedPrecision mp{DType::float32, DType::float32, DType::float32, true};
  std::unique_ptr<ParallelModel> model;
  if (sharded) {
    ShardingPolicy policy;
    ShardGroups shards;
    shards.shard = world->everyone();
    shards.shard_axis = "dp_shard";
    policy.precision.mp = mp;
    model = shard_model(net.ptr(), bind_units(*net, net->outline(), plan_units(net->outline())),
                        policy, shards, world);
  } else {
    ReplicatedPolicy policy;
    policy.mp = mp;
    model = replicate_model(net.ptr(), policy, World::single()->everyone(), World::single());
  }
  for (const ParallelParameter& p : model->parameters()) modules::initialize(*net, p, 1);
  at::Tensor ids = at::randint(0, 32, {1, 9}, at::kLong);
  std::vector<double> times;
  for (int i = 0; i < 60; ++i) {
    auto begin = std::chrono::steady_clock::now();
    model->begin_step();
    model->begin_micro_batch(GradientSync::reduce);
    at::Tensor logits = net(ids.narrow(1, 0, 8));
    at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 8).flatten()).backward();
    model->end_step();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  at::set_num_threads(1);
  double plain = step_ms(false), sharded = step_ms(true);
  std::printf("step of %lld tiny layers: %.2f ms without units, %.2f ms with\n",
              static_cast<long long>(kLayers), plain, sharded);
  std::printf("host time of one unit: %.3f ms\n",
              (sharded - plain) / static_cast<double>(kLayers + 1));
}
