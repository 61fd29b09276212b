#include "engine/job/main_weights.h"

namespace meshwright::plan {

namespace {

bool is_narrow(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

std::string quoted(DType dtype) { return '"' + std::string(dtype_name(dtype)) + '"'; }

// The bytes of the optimizer's row if it kept so many tensors beside the weights that it updates.
int64_t optimizer_bytes(const JobPlan& plan, const ShardingRequest& cost, int64_t states) {
  ShardingRequest asked = cost;
  asked.workload.optimizer_states = states;
  asked.workload.seq_len = 0;  // without a length nothing of passes is counted
  // A cost of the strategy's own goes by the states asked about.
  return plan.sharding->own_cost
             ? footprint_of(asked, plan.strategy.strategy->plan_sharding(asked)).bytes.optimizer
             : footprint_of(asked, *plan.sharding).bytes.optimizer;
}

int64_t product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

}  // namespace

void check_state(const std::string& optimizer, DType weights) {
  if (optimizer != "adamw" || weights != DType::float16) return;
  throw Error(
      ErrorCode::conflict,
      "optimizer.name = \"adamw\" keeps its state in the dtype of the weights, and squares "
      "of gradients are mostly zero in float16: updates would be divided by next to nothing")
      .key("model.torch_dtype")
      .help("set optimizer.main_dtype = \"float32\"")
      .help("set model.torch_dtype = \"bfloat16\"");
}

std::string narrow_update_warning(const std::string& optimizer, DType weights) {
  const char* lost = weights == DType::bfloat16 ? "1/256" : "1/2048";
  return optimizer + " updates " + std::string(dtype_name(weights)) +
         " weights and keeps its state in " + std::string(dtype_name(weights)) +
         ": what changes a weight by less than " + lost +
         " of it is lost. Set optimizer.main_dtype = \"float32\" to keep float32 weights and state "
         "beside them, or model.torch_dtype = "
         "\"float32\"";
}

// A strategy that keeps main weights of its own counts bytes for them even where the optimizer
// keeps nothing else.
void count_main_weights(JobPlan& plan, const config::Config& config, const ShardingRequest& cost) {
  const Options& optimizer = config.table("optimizer");
  DType storage = plan.workload.storage;
  std::optional<DType> main = optimizer.find_dtype("main_dtype");
  if (!main && !is_narrow(storage)) return;
  std::string asked = main ? "optimizer.main_dtype = " + quoted(*main) : "";
  if (main && dtype_size(*main) < dtype_size(storage))
    throw Error(ErrorCode::conflict,
                asked + " is narrower than model.torch_dtype = " + quoted(storage) +
                    ": main weights are there to hold more than what is stored")
        .key("optimizer.main_dtype")
        .at(optimizer.origin("main_dtype"))
        .help("leave out optimizer.main_dtype")
        .help("set model.torch_dtype = " + quoted(*main));
  if (main == storage) {
    plan.notices.push_back(asked + " has no effect: that is the dtype in which " +
                           (config.table("lora").get_int("r") > 0
                                ? "adapters and what trains beside them are stored"
                                : "the weights are stored (model.torch_dtype)"));
    return;
  }
  const int64_t own = optimizer_bytes(plan, cost, 0);
  if (!main) {
    if (own == 0) check_state(optimizer.get_string("name"), storage);
    if (own == 0)
      plan.warnings.push_back(narrow_update_warning(optimizer.get_string("name"), storage));
    return;
  }
  // Main weights of strategies are float32, and so is one tensor of the optimizer's state beside
  // them.
  if (own > 0 && *main == DType::float32) {
    plan.notices.push_back(asked + " has no effect: the strategy " + plan.strategy.info->name +
                           " keeps float32 main weights of its own, which the optimizer updates");
    return;
  }
  const int64_t one = optimizer_bytes(plan, cost, 1) - own;
  int64_t elements = one / dtype_size(own > 0 ? DType::float32 : storage),
          tensors = 1 + plan.workload.optimizer_states;
  int64_t added = product(elements, tensors * dtype_size(*main));
  if (__builtin_add_overflow(own, added, &plan.footprint->bytes.optimizer))
    plan.footprint->bytes.optimizer = INT64_MAX;
}

}  // namespace meshwright::plan
