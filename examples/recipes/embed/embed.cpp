// A program of your own that trains a module of your own under a strategy that a TOML file names:
//
//   embed job.toml [key=value...]     or     embed     with the configuration built in code
//
// Alone it is a world of one rank. Started by torchrun, srun, mpirun, or with RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT set, it is one rank of many. main() stays yours: the library installs
// no signal handler and never exits.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/stage.h>
#include <meshwright/trainer.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>

#include <cstdio>
#include <vector>

namespace {

// An ordinary module. MESHWRIGHT_MODULE in place of TORCH_MODULE lets a strategy run hooks around
// forward; every item of a ModuleList becomes a unit that fsdp2 gathers and frees. ddp would take a
// plain torch::nn::Module too.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    widen = register_module("widen", meshwright::Linear(width, 4 * width));
    narrow = register_module("narrow", meshwright::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + narrow(at::gelu(widen(x))); }
  meshwright::Linear widen{nullptr}, narrow{nullptr};
};
MESHWRIGHT_MODULE(Block);

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl(int64_t features, int64_t width, int64_t depth, int64_t classes) {
    in = register_module("in", meshwright::Linear(features, width));
    register_module("blocks", blocks);
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(Block(width));
    out = register_module("out", meshwright::Linear(width, classes));
  }
  // In a pipeline a rank has some of the blocks, and forward computes one stage: `x` is then what
  // the stage before gave. Without one, current_stage() is all of the model.
  at::Tensor forward(const at::Tensor& x) {
    const meshwright::StagePart stage = meshwright::current_stage();
    at::Tensor h = stage.first ? in(x) : x;
    const int64_t end = stage.end_of(static_cast<int64_t>(blocks->size()));
    for (int64_t i = stage.begin; i < end; ++i)
      h = blocks[static_cast<size_t>(i)]->as<Block>()->forward(h);
    return stage.last ? out(h) : h;
  }
  meshwright::Linear in{nullptr}, out{nullptr};
  torch::nn::ModuleList blocks;
};
MESHWRIGHT_MODULE(Classifier);

meshwright::Job job_in_code() {
  meshwright::Job job;
  for (const auto& [key, value] : {std::pair{"distributed.strategy", "\"ddp\""},
                                   {"distributed.mp_policy.param_dtype", "\"float32\""},
                                   {"distributed.mp_policy.output_dtype", "\"float32\""},
                                   {"step_scheduler.global_batch_size", "64"},
                                   {"step_scheduler.local_batch_size", "16"},
                                   {"step_scheduler.max_steps", "60"},
                                   {"optimizer.lr", "5e-3"},
                                   {"optimizer.weight_decay", "0"}})
    job.set(key, value);
  return job;
}

// Which of four directions a point of eight numbers leans to most. A point depends on its number
// alone, so ranks and micro-batches may be as many as they like. It is made on the host and lies
// where the model computes; the host does not wait for a copy from pinned memory to a device.
meshwright::MicroBatchLoss loss_of(Classifier& net, at::Device device, int64_t micro_batch,
                                   int64_t rows, const at::Tensor& hidden) {
  std::vector<at::Tensor> points;
  for (int64_t row = 0; row < rows; ++row) {
    torch::manual_seed(static_cast<uint64_t>(1000 + micro_batch * rows + row));
    points.push_back(at::randn({8}));
  }
  at::Tensor x = at::stack(points);
  if (device.is_cuda()) x = x.pin_memory().to(device, /*non_blocking=*/true);
  at::Tensor target = x.narrow(1, 0, 4).add(x.narrow(1, 4, 4)).argmax(1);
  const meshwright::StagePart stage = meshwright::current_stage();
  at::Tensor y = net(stage.first ? x : hidden);
  if (!stage.last) return {y, rows};
  return {at::cross_entropy_loss(y, target, {}, at::Reduction::Sum), rows};
}

}  // namespace

int main(int argc, char** argv) try {
  meshwright::Job job =
      argc > 1 ? meshwright::Job::from_file(argv[1], {argv + 2, argv + argc}) : job_in_code();
  std::shared_ptr<meshwright::World> world = meshwright::join_world(job);
  torch::manual_seed(42);  // the same first weights on every rank
  Classifier net(8, 32, 4, 4);
  meshwright::Trainer trainer(job, world, net.ptr(), {},
                              job.table("step_scheduler").get_int("local_batch_size"));

  double first = 0, last = 0;
  for (int64_t step = 0; step < trainer.max_steps(); ++step) {
    // `hidden` is for pipelines; step() takes a function of `micro` alone as well.
    meshwright::StepResult result = trainer.step([&](int64_t micro, const at::Tensor& hidden) {
      int64_t number = (step * trainer.accumulation() + micro) * trainer.data_parallel_size() +
                       trainer.data_parallel_rank();
      return loss_of(net, world->device(), number, trainer.local_batch(), hidden);
    });
    last = result.loss;
    if (step == 0) first = last;
    if (world->rank() == 0 && step % 10 == 0)
      std::printf("step %2ld  loss %.6f  grad norm %.4f\n", long(step), result.loss,
                  result.grad_norm);
  }
  if (world->rank() == 0)
    std::printf("%s, world size %ld: loss %.6f -> %.6f\n",
                job.table("distributed").get_string("strategy").c_str(), long(world->size()), first,
                last);
  return last < first ? 0 : 1;
} catch (const meshwright::Error& error) {
  std::fprintf(stderr, "embed: %s\n", error.what());
  return meshwright::exit_status(error.code());
}
