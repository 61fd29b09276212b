// What CUDA kernels compute, computed by the CPU's: every operator that has a kernel for CUDA runs
// the CPU's on the host's view of the same memory. Its schema tells the race check what it reads
// and writes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <cstring>
#include <set>
#include <string>
#include <unordered_set>

#include "costs.h"
#include "device.h"
#include "operation.h"
#include "shapes.h"

namespace {

using at::Tensor;
using c10::IValue;
using fake_device::Ending;
using fake_device::Extent;
using fake_device::extent_of;
using fake_device::is_captured;
using fake_device::Operation;
using fake_device::refuse_capture;
using fake_device::stream_of;
using torch::jit::Stack;
using Names = std::unordered_set<std::string>;

// These take tensors of the host beside the device's.
const Names kMix{"aten::copy_", "aten::index", "aten::_index_put_impl_", "aten::index_put_",
                 "aten::set_"};
// The host waits for these: the size of what they give depends on numbers.
const Names kSync{
    "aten::nonzero",  "aten::masked_select", "aten::_unique2",           "aten::unique_dim",
    "aten::bincount", "aten::equal",         "aten::unique_consecutive", "aten::repeat_interleave"};
// These stay LibTorch's, or are below.
const Names kKept{"aten::empty",
                  "aten::empty_strided",
                  "aten::resize_",
                  "aten::set_",
                  "aten::record_stream",
                  "aten::_local_scalar_dense",
                  "aten::_pin_memory",
                  "aten::is_pinned",
                  "aten::is_set_to",
                  "aten::_efficientzerotensor",
                  "aten::copy_",
                  "aten::_copy_from_and_resize",
                  "aten::new_empty_strided",
                  "aten::_fused_rms_norm_backward",
                  "aten::histc",
                  "aten::_fused_sdp_choice",
                  "aten::_scaled_dot_product_flash_attention",
                  "aten::_scaled_dot_product_flash_attention_backward",
                  "aten::_scaled_dot_product_efficient_attention",
                  "aten::_scaled_dot_product_efficient_attention_backward",
                  "aten::pin_memory",
                  "aten::lift_fresh"};

c10::impl::VirtualGuardImpl cuda() { return c10::impl::VirtualGuardImpl(c10::kCUDA); }

void access(const Tensor& t, c10::Device device, bool write, const std::string& what) {
  const Extent extent = extent_of(t);
  fake_device_access(stream_of(device), device.index(), extent.begin, extent.bytes, write ? 1 : 0,
                     what.c_str());
}

Tensor on_host(const Tensor& t) {
  void* p = t.numel() > 0 ? fake_device_view(t.const_data_ptr()) : nullptr;
  return at::from_blob(
      p, t.sizes(), t.strides(), [kept = t.storage()](void*) {},
      t.options().device(c10::kCPU).requires_grad(false));
}

Tensor to_device(const Tensor& t, c10::Device device, const std::string& what) {
  if (!t.defined() || t.is_cuda()) return t;
  const Tensor dense = t.is_non_overlapping_and_dense() ? t : t.contiguous();
  Tensor out = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(device));
  if (out.numel() == 0) return out;
  access(out, device, true, what);
  const Extent to = extent_of(out), from = extent_of(dense);
  if (from.begin != nullptr) std::memcpy(fake_device_view(to.begin), from.begin, to.bytes);
  return out;
}

// A generator of the CPU that continues where the device's stands, and moves that one on.
at::Generator host_generator(at::Generator given, c10::Device device) {
  if (!given.defined()) given = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(given.mutex());
  const uint64_t offset = given.get_offset();
  auto out = at::make_generator<at::CPUGeneratorImpl>(given.current_seed() * 1000003 + offset);
  given.set_offset(offset + 4);
  return out;
}

// One call of an operator: which device it is for, and its arguments for the host.
class Call {
 public:
  explicit Call(const c10::FunctionSchema& schema)
      : what_(schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name())),
        mixes_(kMix.contains(schema.name())) {}

  const std::string& what() const { return what_; }
  c10::Device device() const { return found_ ? device_ : cuda().getDevice(); }

  void look(const IValue& value) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) look(t);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        if (t) look(*t);
    } else if (value.isDevice() && value.toDevice().is_cuda() && !found_) {
      device_ = value.toDevice();
      if (!device_.has_index()) device_ = cuda().getDevice();
      found_ = true;
    }
  }

  // From now on turn() gives views for this operation, which runs later.
  void turn_for(Operation& operation) { later_ = &operation; }

  IValue turn(const IValue& value, bool write) const {
    if (value.isTensor()) return turn(value.toTensor(), write);
    if (value.isTensorList()) {
      std::vector<Tensor> out;
      for (const Tensor& t : value.toTensorVector()) out.push_back(turn(t, write));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        out.push_back(t ? std::optional<Tensor>(turn(*t, write)) : std::nullopt);
      return out;
    }
    if (value.isDevice()) return c10::Device(c10::kCPU);
    return value;
  }

 private:
  void look(const Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return;
    TORCH_CHECK(!found_ || t.device() == device_,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device_, " and ", t.device(), "! (", what_, ")");
    device_ = t.device();
    found_ = true;
  }
  // Beside tensors of the device only scalars of the host may be.
  Tensor turn(const Tensor& t, bool write) const {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      TORCH_CHECK(!t.is_meta(), "a meta tensor beside CUDA tensors (", what_, ")");
      TORCH_CHECK(t.dim() == 0 || mixes_,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device(), " and cpu! (", what_, ")");
      // Its number is the kernel's argument, whatever becomes of it.
      if (later_ == nullptr) return t;
      if (t.dim() > 0) refuse_capture(device(), what_, "a tensor of the host would be copied");
      return t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone();
    }
    if (later_ != nullptr) return later_->touch(t, write);
    if (const Extent extent = extent_of(t); extent.bytes > 0) {
      if (fake_device_of(extent.begin) != t.device().index())
        fake_device_note("fake device: %s: data of a %s tensor lies at %p\n", what_.c_str(),
                         t.device().str().c_str(), static_cast<const void*>(extent.begin));
      access(t, device(), write, what_);
    }
    return on_host(t);
  }

  std::string what_;
  bool mixes_ = false, found_ = false;
  Operation* later_ = nullptr;
  c10::Device device_ = c10::kCPU;
};

bool is_generator(const c10::Argument& argument) {
  return argument.name() == "generator" ||
         argument.type()->str().find("Generator") != std::string::npos;
}

// What the CPU's kernel returned becomes what a device's would: the tensor that was given, where it
// says so, and otherwise a new one of the device.
IValue returned(const IValue& value, const c10::Argument& of, const c10::FunctionSchema& schema,
                const std::vector<IValue>& given, const Call& call) {
  if (const c10::AliasInfo* alias = of.alias_info(); alias != nullptr && alias->isWrite()) {
    const IValue* same = fake_device::given_back(of, schema, given);
    return same != nullptr ? *same : value;
  }
  if (value.isTensor()) return to_device(value.toTensor(), call.device(), call.what());
  if (!value.isTensorList()) return value;
  std::vector<Tensor> out;
  for (const Tensor& t : value.toTensorVector())
    out.push_back(to_device(t, call.device(), call.what()));
  return out;
}

// Runs the CPU's operator in the place of the device's.
void compute(const c10::OperatorHandle& op, const std::vector<IValue>& given, const Call& call,
             Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::Argument>& arguments = schema.arguments();
  const size_t base = stack->size() - arguments.size();
  const c10::Device device = call.device();
  std::vector<std::pair<Tensor, Tensor>> sized;  // given empty, and what the operator makes of it
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    IValue& slot = (*stack)[base + i];
    if (fake_device::is_sized(argument, given[i])) {
      const Tensor& out = given[i].toTensor();
      sized.emplace_back(out, at::empty({0}, out.options().device(c10::kCPU)));
      slot = sized.back().second;
    } else if (is_generator(argument)) {
      slot =
          host_generator(given[i].isGenerator() ? given[i].toGenerator() : at::Generator(), device);
    } else if (argument.name() == "pin_memory") {
      slot = IValue();
    } else {
      slot = call.turn(given[i], write);
    }
  }
  at::AutoDispatchBelowADInplaceOrView below;
  try {
    op.callBoxed(*stack);
  } catch (const c10::Error& error) {
    fake_device_note("fake device: operator failed: %s: %s\n", call.what().c_str(),
                     error.what_without_backtrace());
    throw;
  }
  for (auto& [out, host] : sized) {
    if (host.numel() == 0) continue;
    out.resize_(host.sizes());
    access(out, device, true, call.what());
    on_host(out).copy_(host);
  }
  const size_t first = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    IValue& value = (*stack)[first + i];
    value = returned(value, schema.returns()[i], schema, given, call);
  }
}

// The tensors of values, one after the other.
std::vector<Tensor> tensors_among(const IValue* values, size_t count) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < count; ++i) {
    if (values[i].isTensor()) out.push_back(values[i].toTensor());
    if (values[i].isTensorList())
      for (const Tensor& t : values[i].toTensorVector()) out.push_back(t);
  }
  return out;
}

// Results have their memory now, and their numbers when the graph runs.
void record(const c10::OperatorHandle& op, const std::vector<IValue>& given, Call& call,
            Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::Argument>& arguments = schema.arguments();
  if (kSync.contains(schema.name()))
    refuse_capture(call.device(), call.what(), "the size of what it gives depends on numbers");
  for (const c10::Argument& argument : arguments)
    if (is_generator(argument)) refuse_capture(call.device(), call.what(), "it is random");
  at::AutoDispatchBelowADInplaceOrView below;
  fake_device::give_results(op, given, *stack, call.device());
  Operation operation{call.what(), call.device(), {}, {}};
  call.turn_for(operation);
  Stack host;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool write = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    host.push_back(arguments[i].name() == "pin_memory" ? IValue() : call.turn(given[i], write));
  }
  const size_t count = schema.returns().size();
  const IValue* returns = stack->data() + (stack->size() - count);
  std::vector<Tensor> fresh;
  for (size_t i = 0; i < count; ++i) {
    const bool is_new = fake_device::given_back(schema.returns()[i], schema, given) == nullptr;
    for (const Tensor& t : tensors_among(returns + i, 1))
      fresh.push_back(is_new && t.defined() && t.is_cuda() ? operation.touch(t, true) : Tensor());
  }
  if (fake_device_computes() != 0 || fake_device::is_small(given))
    operation.compute = [op, host, fresh, count] {
      Stack values = host;
      op.callBoxed(values);
      const std::vector<Tensor> made =
          tensors_among(values.data() + (values.size() - count), count);
      for (size_t i = 0; i < fresh.size(); ++i)
        if (fresh[i].defined()) fresh[i].copy_(made.at(i));
    };
  fake_device::run_or_record(std::move(operation), [&] {
    fake_device::count_costs(schema, given, returns, call.device());
  });
}

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t base = stack->size() - schema.arguments().size();
  const std::vector<IValue> given(stack->begin() + static_cast<int64_t>(base), stack->end());
  Call call(schema);
  for (const IValue& value : given) call.look(value);
  const c10::Device device = call.device();
  c10::OptionalDeviceGuard guard(device);
  if (is_captured(device, call.what())) return record(op, given, call, stack);
  fake_device_begin(stream_of(device), device.index(), call.what().c_str());
  std::optional<Ending> ending(std::in_place);
  const bool waits = kSync.contains(schema.name());
  if (fake_device_computes() != 0 || waits || fake_device::is_small(given))
    compute(op, given, call, stack);
  else
    fake_device::give_results(op, given, *stack, device);
  ending.reset();
  const size_t first = stack->size() - schema.returns().size();
  fake_device::count_costs(schema, given, stack->data() + first, device);
  if (waits) cuda().synchronizeStream(cuda().getStream(device));
}

// Copies between the host and the device stay LibTorch's; those on a device are a kernel.
Tensor& copy_(c10::DispatchKeySet, Tensor& self, const Tensor& from, bool non_blocking) {
  if (!self.is_cuda() || self.device() != from.device())
    return at::native::copy_(self, from, non_blocking);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Stack stack{self, from, non_blocking};
  run_on_host(op, c10::DispatchKeySet(), &stack);
  return self;
}

// LibTorch's own choice on devices that have a new cuDNN, and on those without flash attention.
template <at::SDPBackend choice>
int64_t prefers(c10::DispatchKeySet, const Tensor&, const Tensor&, const Tensor&,
                const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(choice);
}

bool gives_a_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& value : schema.returns())
    if (value.alias_info() != nullptr && !value.alias_info()->isWrite()) return true;
  return false;
}

struct Load {
  Load() {
    auto& dispatcher = c10::Dispatcher::singleton();
    static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      auto op = dispatcher.findOp(name);
      if (!op || !op->hasSchema() || !name.name.starts_with("aten::") ||
          kKept.contains(name.name) || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
          gives_a_view(op->schema()))
        continue;
      kept->push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_on_host>(),
          std::nullopt, nullptr, "fake device"));
    }
    static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA,
                                              __FILE__, __LINE__);
    library->impl("copy_", torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(copy_)));
    fake_device::add_written_out(*library);
    fake_device::watch_steps();
    // Flash attention and cuDNN's are made of operators that have a stand-in. The plain path has
    // the CPU's numbers to the bit.
    if (getenv("FAKE_DEVICE_CUDNN_ATTENTION") != nullptr)
      library->impl("_fused_sdp_choice",
                    torch::dispatch(c10::DispatchKey::CUDA,
                                    TORCH_FN(prefers<at::SDPBackend::cudnn_attention>)));
    if (getenv("FAKE_DEVICE_EFFICIENT_ATTENTION") != nullptr)
      library->impl("_fused_sdp_choice",
                    torch::dispatch(c10::DispatchKey::CUDA,
                                    TORCH_FN(prefers<at::SDPBackend::efficient_attention>)));
    auto& context = at::globalContext();
    context.setSDPUseMemEfficient(getenv("FAKE_DEVICE_FUSED_ATTENTION") != nullptr);
    context.setSDPUseCuDNN(false);  // nobody asks LibTorch's own choice for it
    if (getenv("FAKE_DEVICE_VERBOSE") != nullptr)
      fake_device_note("fake device: %zu operators run on the host\n", kept->size());
  }
} load;

}  // namespace
