// How far down backward goes beside adapters. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/pipeline_layouts.h"

#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include <array>

#include "meshwright/nn/module.h"

namespace adapters_backward_test {

using namespace meshwright;

namespace {

constexpr size_t kLayers = 4;  // of kStaged

// Nodes of autograd that run in this thread while it lives: on the CPU, all of a backward here.
class CountNodes {
 public:
  CountNodes()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(look).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
    ran_here() = 0;
  }
  ~CountNodes() { at::removeCallback(handle_); }
  CountNodes(const CountNodes&) = delete;
  CountNodes& operator=(const CountNodes&) = delete;
  int64_t ran() const { return ran_here(); }

 private:
  static int64_t& ran_here() {
    thread_local int64_t ran = 0;
    return ran;
  }
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction&) {
    ++ran_here();
    return nullptr;
  }
  at::CallbackHandle handle_;
};

// Of rank 0 in one step.
struct Seen {
  std::array<bool, kLayers> entered = {};  // by something that asks for a gradient
  int64_t nodes = 0;
  double norm = 0;
};

Seen seen_of(const Layout& layout) {
  Seen out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Seen mine;
    Rank rank(layout, world);
    rank.initialize();
    const auto all = rank.net->named_modules("", /*include_self=*/false);
    for (size_t i = 0; i < kLayers; ++i)
      HookHost::of(*all["model.layers." + std::to_string(i)])
          ->before_forward.emplace_back([&mine, i](torch::nn::Module&, TensorRefs& inputs) {
            for (const at::Tensor* input : inputs)
              if (input->defined() && input->requires_grad()) mine.entered[i] = true;
          });
    const CountNodes nodes;
    mine.norm = rank.step().grad_norm;
    mine.nodes = nodes.ran();
    if (world->rank() == 0) out = mine;
  });
  return out;
}

struct Where {
  const char* strategy;
  OnMesh mesh;
  std::vector<std::string> more = {};
};

}  // namespace

TEST_CASE("backward ends at the lowest adapter, under every strategy") {
  TestFolder folder("adapters_backward");
  const std::string model = write_model(folder.path, kStaged),
                    again = "distributed.activation_checkpointing=\"full\"";
  for (const Where& where :
       std::vector<Where>{{"ddp", kAlone},
                          {"ddp", kAlone, {again}},
                          {"fsdp2", {2, {}}},
                          {"fsdp2", {2, {}}, {again}},
                          {"fsdp2", {2, {}}, {"lora.base_sharding=\"replicate\""}},
                          {"fsdp2", {2, {kTp2}}, {kSequence}},
                          {"megatron_fsdp", {2, {}}, {flat_level(3)}}}) {
    std::array<int64_t, kLayers> nodes = {};
    for (const size_t lowest : std::array<size_t, 3>{0, 1, 3}) {
      const std::string layer = "model.layers." + std::to_string(lowest);
      std::vector<std::string> sets{"lora.r=4", "lora.target_modules=[\"" + layer +
                                                    ".self_attn.[qv]_proj\", \"" + layer +
                                                    ".mlp.down_proj\"]"};
      sets.insert(sets.end(), where.more.begin(), where.more.end());
      Layout layout = calm_layout(model, where.mesh, sets);
      layout.strategy = where.strategy;
      INFO(layout.text());
      const Seen seen = seen_of(layout);
      CHECK(seen.norm > 0);
      for (size_t i = 0; i < kLayers; ++i) {
        CAPTURE(i);
        CHECK(seen.entered[i] == (i > lowest));
      }
      nodes[lowest] = seen.nodes;
    }
    INFO(where.strategy);
    // A node at least for each of the seven Linears of every layer that is left out.
    CHECK(nodes[1] + 7 <= nodes[0]);
    CHECK(nodes[3] + 2 * 7 <= nodes[1]);
    CHECK(nodes[3] > 0);
  }
}

}  // namespace adapters_backward_test
