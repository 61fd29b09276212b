// Gradients are summed over ranks, replicas and micro-batches in the reduce dtype, whatever the
// dtype they are kept in: as torch's FSDP2 does, the sum is rounded to the gradients' dtype once,
// at its end.
//
// Gradients here are numbers of few bits within a few powers of two of each other, so that their
// sums are exact in the reduce dtype: the result must be the exact mean, rounded once, to the bit.
// ctest runs this over shared memory and, as runtime_sockets, over sockets.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "tiny_model.h"

namespace reduce_dtype_test {

using namespace meshwright;
using at::Tensor;

namespace {

// Parameters whose gradients are what a test says they are.
struct GivenImpl : torch::nn::Module {
  GivenImpl(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType storage) {
    for (size_t i = 0; i < shapes.size(); ++i)
      register_parameter("p" + std::to_string(i),
                         at::zeros(shapes[i], at::TensorOptions().dtype(storage)));
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = x;
    size_t i = 0;
    for (const Tensor& p : parameters())
      sum = sum + (p * gradients.at(i++).to(p.scalar_type())).sum();
    return sum;
  }
  std::vector<Tensor> gradients;
};
MESHWRIGHT_MODULE(Given);

const std::vector<std::vector<int64_t>> kShapes = {{10, 3}, {7}, {4, 2, 2}};

// Of a rank, a micro-batch and a parameter: 5 bits times a power of two from 1/8 to 8.
Tensor gradient(int64_t rank, int64_t micro, size_t parameter) {
  at::Generator generator = at::detail::createCPUGenerator(
      static_cast<uint64_t>(1000 * rank + 100 * micro) + parameter + 1);
  at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  return at::randint(-31, 32, kShapes[parameter], generator, options) *
         at::pow(2, at::randint(-3, 4, kShapes[parameter], generator, options));
}

enum class Kind : uint8_t {
  rows,
  own_group,
  flat,
  level_2,
  level_1,
  level_0,
  replicas,
  replicas_apart
};

struct Row {
  const char* name;
  Kind kind;
  int64_t ranks, replicas = 1, micro_batches = 1;
  bool every = false;
};

std::unique_ptr<ParallelModel> model_of(const Row& row, const MixedPrecision& mp, Given& net,
                                        const std::shared_ptr<World>& world,
                                        std::optional<DType> main_gradients) {
  if (row.kind == Kind::replicas || row.kind == Kind::replicas_apart) {
    ReplicatedPolicy policy;
    policy.mp = mp;
    policy.gradient_as_bucket_view = row.kind == Kind::replicas;
    policy.bucket_bytes = policy.first_bucket_bytes = 60;
    return replicate_model(net.ptr(), policy, world->everyone(), world);
  }
  ShardingPolicy policy;
  ShardGroups shards = tiny::groups_of(world, row.replicas);
  policy.precision.mp = mp;
  policy.reduction.every_micro_batch = row.every;
  policy.precision.main_gradients = main_gradients;
  if (row.kind != Kind::rows && row.kind != Kind::own_group) {
    policy.layout = ShardLayout::flat;
    policy.level = row.kind == Kind::flat      ? 3
                   : row.kind == Kind::level_1 ? 1
                   : row.kind == Kind::level_0 ? 0
                                               : 2;
    policy.reduction.average = ReductionPolicy::Average::before_sum;
    if (row.kind == Kind::level_0) {
      shards.replicate = std::exchange(shards.shard, world->group("alone", {world->rank()}));
      shards.replicate_axis = shards.shard_axis;
    }
  }
  UnitSpec root;
  root.name = "root";
  root.module = net.get();
  for (auto& item : net->named_parameters()) root.parameters.emplace_back(item.key(), item.value());
  if (row.kind == Kind::own_group)
    root.sharding = UnitSharding{world->everyone(), "ep_shard", 0, static_cast<double>(row.ranks)};
  return shard_model(net.ptr(), {root}, policy, shards, world);
}

// The gradients after a step, put together from all ranks.
std::map<std::string, Tensor> gradients_of(const Row& row, const MixedPrecision& mp, DType storage,
                                           std::optional<DType> main_gradients) {
  std::map<std::string, Tensor> out;
  std::mutex mutex;
  run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
    Given net(kShapes, scalar_type(storage));
    std::unique_ptr<ParallelModel> model = model_of(row, mp, net, world, main_gradients);
    model->begin_step();
    for (int64_t micro = 0; micro < row.micro_batches; ++micro) {
      model->begin_micro_batch(micro + 1 == row.micro_batches ? GradientSync::reduce
                                                              : GradientSync::accumulate);
      net->gradients.clear();
      for (size_t i = 0; i < kShapes.size(); ++i)
        net->gradients.push_back(gradient(world->rank(), micro, i));
      net(at::zeros({1}, at::kDouble)).sum().backward();
    }
    model->end_step();
    std::lock_guard lock(mutex);
    for (const ParallelParameter& p : model->parameters()) {
      if (!out.contains(p.name)) out[p.name] = at::zeros(p.global_shape, p.grad.options());
      Tensor mine = out[p.name].view({-1});
      int64_t width = p.global_shape[0] == 0 ? 0 : mine.numel() / p.global_shape[0];
      mine.narrow(0, p.region.flat() ? p.region.begin : p.region.offsets[0] * width, p.grad.numel())
          .copy_(p.grad.reshape({-1}));
    }
  });
  return out;
}

Tensor rounded(const Tensor& exact, DType dtype) { return exact.to(scalar_type(dtype)); }

// The exact mean over the ranks, rounded once a reduction.
Tensor expected(const Row& row, size_t parameter, DType kept) {
  Tensor sum = at::zeros(kShapes[parameter], at::kDouble);
  for (int64_t micro = 0; micro < row.micro_batches; ++micro) {
    for (int64_t rank = 0; rank < row.ranks; ++rank)
      sum += gradient(rank, micro, parameter) / static_cast<double>(row.ranks);
    if (row.every) sum = rounded(sum, kept).to(at::kDouble);
  }
  return rounded(sum, kept);
}

}  // namespace

TEST_CASE(
    "gradients are summed in the reduce dtype and rounded to the dtype they are kept in once, on "
    "every layout") {
  struct Dtypes {
    DType storage, param, reduce;
    std::optional<DType> main_gradients = {};
  };
  const DType f32 = DType::float32, f64 = DType::float64, bf16 = DType::bfloat16,
              f16 = DType::float16;
  const std::vector<Row> rows = {
      {"one rank", Kind::rows, 1, 1, 2},
      {"one replica", Kind::replicas, 1, 1, 3},
      {"one replica, gradients apart", Kind::replicas_apart, 1, 1, 2},
      {"one replica, one micro-batch", Kind::replicas, 1},
      {"two shards", Kind::rows, 2, 1, 2},
      {"four shards", Kind::rows, 4},
      {"four shards, micro-batches", Kind::rows, 4, 1, 3},
      {"four shards, each micro-batch reduced", Kind::rows, 4, 1, 3, true},
      {"two replicas of two shards", Kind::rows, 4, 2},
      {"two replicas of two shards, micro-batches", Kind::rows, 4, 2, 2},
      {"two replicas of two shards, each micro-batch reduced", Kind::rows, 4, 2, 2, true},
      {"four replicas of one shard", Kind::rows, 4, 4, 2},
      {"a unit over a group of its own", Kind::own_group, 4, 1, 2},
      {"flat", Kind::flat, 4, 1, 2, true},
      {"level 2", Kind::level_2, 4, 1, 2, true},
      {"level 1", Kind::level_1, 4},
      {"level 0", Kind::level_0, 4},
      {"replicas", Kind::replicas, 4, 1, 2},
      {"replicas, gradients apart", Kind::replicas_apart, 4, 1, 2},
  };
  for (const Dtypes& d : {Dtypes{bf16, bf16, f32},
                          {bf16, bf16, f64},
                          {f16, f16, f32},
                          {f32, bf16, f32},
                          {f32, f32, f64},
                          {f64, f32, f32},
                          {bf16, f32, f32},
                          {bf16, bf16, f32, f32}})
    for (const Row& row : rows) {
      if (d.main_gradients && (row.kind == Kind::rows || row.kind == Kind::replicas ||
                               row.kind == Kind::replicas_apart))
        continue;
      INFO(std::string(row.name), ", storage ", std::string(dtype_name(d.storage)), ", param ",
           std::string(dtype_name(d.param)), ", reduce ", std::string(dtype_name(d.reduce)));
      std::map<std::string, Tensor> found = gradients_of(
          row, {d.param, d.reduce, DType::float32, false}, d.storage, d.main_gradients);
      for (size_t i = 0; i < kShapes.size(); ++i) {
        // Sums that each micro-batch adds to stay in the reduce dtype, but for flat buffers, whose
        // original keeps them in the parameters' dtype unless it is told otherwise.
        const bool wide =
            row.every && row.kind == Kind::rows && dtype_size(d.reduce) > dtype_size(d.storage);
        Tensor wanted = expected(row, i, d.main_gradients.value_or(wide ? d.reduce : d.storage)),
               mine = found.at("p" + std::to_string(i));
        CHECK((mine.scalar_type() == wanted.scalar_type()));
        CHECK(mine.equal(wanted));
      }
    }
}

TEST_CASE(
    "a reduce dtype narrower than the gradients rounds what is sent, and no more than a sum in it "
    "would") {
  for (const Row& row : {Row{"shards", Kind::rows, 4},
                         {"replicas of shards", Kind::rows, 4, 2},
                         {"replicas", Kind::replicas, 4},
                         {"level 1", Kind::level_1, 4},
                         {"level 0", Kind::level_0, 4}}) {
    INFO(std::string(row.name));
    std::map<std::string, Tensor> found =
        gradients_of(row, {DType::float32, DType::bfloat16, DType::float32, false}, DType::float32,
                     std::nullopt);
    bool exact = true;
    for (size_t i = 0; i < kShapes.size(); ++i) {
      Tensor wanted = expected(row, i, DType::float32), mine = found.at("p" + std::to_string(i));
      exact = exact && mine.equal(wanted);
      double largest = 31 * 8;  // of a gradient; a rounding to bfloat16 is 2^-8 of it at most, and
                                // there are three of them
      CHECK((mine - wanted).abs().max().item<double>() <= 3 * largest / 256);
    }
    // Whole shards are summed in the dtype they are kept in; what is added up by an all-reduce is
    // summed in the reduce dtype.
    bool all_reduced = row.replicas > 1 || row.kind == Kind::replicas || row.kind == Kind::level_0;
    CHECK(exact != all_reduced);
  }
}

}  // namespace reduce_dtype_test
