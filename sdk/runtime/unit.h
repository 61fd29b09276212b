// One sharded unit: where its shards lie, and its life through forward and backward.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "buffers.h"
#include "gradient_place.h"
#include "meshwright/scalar_type.h"
#include "meshwright/sharded_units.h"

namespace meshwright::detail {

class Unit;

// A gradient that holds values that are no numbers of their own.
struct Nonfinite {
  std::string parameter;  // empty: none
  bool infinite = false;  // false: NaN
  static Nonfinite in(const std::string& parameter, const at::Tensor& gradient);
};

// What all units of a model share.
struct UnitContext {
  ShardedPolicy policy;
  std::shared_ptr<World> world;
  std::shared_ptr<BufferPool> pool;
  bool synchronise = true;     // this micro-batch reduces
  Unit* reducing = nullptr;    // whose reduction is under way
  std::vector<Unit*> holding;  // flat units with a slot of the shared memory for gathers
  bool lasting = false;        // what is gathered now stays for long, and may be written to
  int64_t gathers = 0;
  Nonfinite own_nonfinite;  // the first one of this step among this rank's own gradients, where that is looked for
  int64_t averaged() const { return policy.shard->size() * (policy.replicate ? policy.replicate->size() : 1); }
};

class Unit {
 public:
  struct Parameter {
    std::string name;
    at::Tensor variable;  // the module's own
    std::vector<int64_t> sizes;
    int64_t count = 0;    // elements
    int64_t offset = 0;   // in the gathered buffer
    int64_t largest = 0;  // elements on the tensor-parallel rank that has the most; 0: as here
    bool trainable = true;
    LentStorage storage;
    at::Tensor held;      // gradient of earlier micro-batches in the reduce dtype
    bool came = false;    // whole gradients: this step's sum has something of it
    bool placed = false;  // its gradient has been written to gradient_ already
  };
  // `count` elements of parameter `parameter` from `from` on lie at `at` of rank `rank`'s shard.
  struct Piece {
    size_t parameter;
    int64_t from, at, count;
  };

  Unit(UnitContext& context, const UnitSpec& spec);

  // Elements of a shard, padding included; trainable parameters come first and fill [0, trainable_size).
  int64_t shard_size() const { return shard_size_; }
  int64_t trainable_size() const { return trainable_size_; }
  // The ranks that share one copy of this unit, those that hold the same shard (or null), and the dimension that is cut.
  Group& group() const { return *sharding_.shard; }
  const std::string& axis() const { return sharding_.axis; }
  bool replicated() const { return replicate_ && replicate_->size() > 1; }
  int64_t cut_dim(const Parameter& p) const { return static_cast<int64_t>(p.sizes.size()) > sharding_.dim ? sharding_.dim : 0; }
  // Takes its part of the model's flat tensors and the parameters' values; empties the parameters.
  void adopt(const at::Tensor& shard, const at::Tensor& gradient);
  // Whole parameters: the same with memory of its own, of which shard() and gradient() may be views.
  void adopt_whole();

  void gather();               // starts, if the parameters are neither here nor under way
  void ready();                // gathers and waits
  void release();              // frees, if here
  void leave_shared_memory();  // of memory that other ranks read too, if it is there
  void refresh();              // the shard has new values: what was made from it is made again
  void before_backward();
  void gradient_ready(size_t parameter);
  std::optional<GradientPlace> gradient_place(size_t parameter);
  void reduce();         // packs and starts
  void finish_reduce();  // waits and sums; replicas then start to add up
  void settle();         // after a backward: reduces what waits for gradients that did not come, frees
  void abandon();        // after an exception: back to the start of a step
  void begin_step();
  void reduce_late();  // before end_step(): whole gradients that no backward reduced
  void end_step();     // a unit nobody reduced has zero gradients

  bool in_backward() const { return in_backward_; }
  bool reducing() const { return reducing_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Piece>& pieces(int64_t rank) const { return pieces_[static_cast<size_t>(rank)]; }
  const MixedPrecision& mp() const { return mp_; }
  const at::Tensor& shard() const { return shard_; }
  const at::Tensor& gradient() const { return gradient_; }
  at::ScalarType storage_type() const { return storage_; }  // of parameters
  at::ScalarType main_type() const { return main_; }        // of the shard, which the optimizer updates
  at::ScalarType gradient_type() const { return gradient_type_; }
  int64_t gathered_bytes() const { return size_ * static_cast<int64_t>(c10::elementSize(param_)); }
  // Whole parameters: a frozen one, as every rank has it.
  at::Tensor resident(const Parameter& parameter) const {
    return whole_.narrow(0, parameter.offset, parameter.count).view(parameter.sizes);
  }
  at::ScalarType compute_type() const { return param_; }
  at::ScalarType reduce_type() const { return reduce_; }
  at::ScalarType output_type() const { return output_; }
  // The whole of one parameter in the storage dtype. Collective.
  at::Tensor whole(size_t parameter);

  std::string name;
  torch::nn::Module* module;
  bool reshard;
  int64_t list;
  size_t index = 0;
  bool done = false;           // its backward is over, until its next forward
  int64_t backward_began = 0;  // while tracing

 private:
  void finish_replication();
  bool keeps() const { return context_.policy.whole_parameters; }
  bool sums() const { return context_.policy.whole_gradients; }
  void absorb(Parameter& parameter);
  void reduce_sums();
  void gather_in_place();
  void take_in_place();
  void attach();
  void take_turn();
  void give_back();
  enum class State : uint8_t { freed, flying, here };
  void lay_out();
  void align_parts();
  void drop_gather();
  void copy_in();
  // This rank's gradient of a parameter, earlier micro-batches included; undefined when there is none.
  at::Tensor take_gradient(Parameter& parameter);
  void keep_gradients();

  int64_t shards() const { return sharding_.shard->size(); }
  int64_t me() const { return sharding_.shard->rank(); }
  // A sum of gradients as they are kept would round more than the reduce dtype allows.
  bool sums_apart() const { return wider(reduce_, gradient_type_); }
  // The shard itself serves as the whole: one rank, and nothing to cast or bring.
  bool direct() const { return shards() == 1 && main_ == param_ && shard_.device() == context_.world->device(); }

  UnitContext& context_;
  UnitSharding sharding_;
  std::shared_ptr<Group> replicate_;
  MixedPrecision mp_;
  at::ScalarType storage_ = at::kFloat, param_, reduce_, output_, main_ = at::kFloat, gradient_type_ = at::kFloat;
  std::vector<Parameter> parameters_;
  std::vector<std::vector<Piece>> pieces_;  // by rank
  int64_t size_ = 0, shard_size_ = 0, trainable_size_ = 0, trainable_count_ = 0;
  double before_reduce_ = 1, after_reduce_ = 1;
  at::Tensor shard_, gradient_;
  at::Tensor whole_, scratch_, cast_, packed_, received_, target_;
  bool in_place_ = false;  // flat: shards in the order of the ranks, padding behind them, are the gathered parameters
  bool shares_ = false;    // gathered in memory that all ranks of a host read: each writes its own part only
  int64_t turn_ = 0;       // which of the model's gathers that was
  at::Tensor spare_;       // memory of a unit that is not resharded
  at::Tensor model_;       // the shard in the parameters' dtype, where main weights are wider
  at::Tensor compute_;     // whole parameters: `whole_` in the dtype of computation
  at::Tensor sums_;        // whole gradients, one after the other
  Work gathering_, exchanging_, replicating_;
  State state_ = State::freed;
  bool in_backward_ = false, reducing_ = false, fresh_ = true, first_ = true, overwrite_ = false;
  int64_t waiting_ = 0;
};

}  // namespace meshwright::detail
