#include "shapes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "device.h"

namespace fake_device {

namespace {

using at::Tensor;
using c10::IValue;

struct Shape {
  bool defined = false;
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
};
// One return: tensors, alone or as a list, or something else as it is.
struct Result {
  std::vector<Shape> tensors;
  bool is_list = false;
  IValue other;
};
struct Results {
  std::vector<Result> returns;
  std::vector<Shape> sized;  // of arguments that were given empty, in order
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// What the results depend on, as bytes.
class Key {
 public:
  explicit Key(const void* what) { add(what); }
  const std::string& text() const { return text_; }

  void add(const IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      add('[');
      add(value.toListRef().size());
      for (const IValue& t : value.toListRef()) add(t.toTensor());
    } else if (value.isOptionalTensorList()) {
      add('?');
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        add(t.value_or(Tensor()));
    } else if (value.isInt()) {
      add('i');
      add(value.toInt());
    } else if (value.isDouble()) {
      add('d');
      add(value.toDouble());
    } else if (value.isBool()) {
      add(value.toBool() ? 'y' : 'n');
    } else if (value.isIntList()) {
      add('l');
      add(value.toListRef().size());
      for (const IValue& one : value.toListRef()) add(one.toInt());
    } else if (value.isBoolList()) {  // which gradients are wanted
      add('b');
      for (const bool wanted : value.toBoolList()) add(wanted ? 'y' : 'n');
    } else if (value.isString()) {
      text_ += value.toStringRef();
      add('s');
    } else {
      add('-');  // nothing, or what no size depends on
    }
  }

 private:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const Tensor& t) {
    if (!t.defined()) return add('u');
    add(t.is_cuda() ? 'c' : 't');
    add(t.scalar_type());
    add(t.dim());
    for (const int64_t size : t.sizes()) add(size);
    for (const int64_t stride : t.strides()) add(stride);
  }

  std::string text_;
};

Shape shape_of(const Tensor& t) {
  if (!t.defined()) return {};
  const Tensor dense = t.is_non_overlapping_and_dense() ? t : t.contiguous();
  return {true, dense.sizes().vec(), dense.strides().vec(), dense.scalar_type()};
}
Result result_of(const IValue& value) {
  Result out;
  if (value.isTensor()) {
    out.tensors.push_back(shape_of(value.toTensor()));
  } else if (value.isTensorList()) {
    out.is_list = true;
    for (const Tensor& t : value.toTensorVector()) out.tensors.push_back(shape_of(t));
  } else {
    out.other = value;
  }
  return out;
}

// Zeros of the host in the place of a device's tensors: as indices they are valid.
Tensor host_zeros(const Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU)).zero_();
}
IValue host_zeros(const IValue& value) {
  if (value.isTensor()) return host_zeros(value.toTensor());
  if (value.isTensorList()) {
    std::vector<Tensor> out;
    for (const Tensor& t : value.toTensorVector()) out.push_back(host_zeros(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      out.push_back(t ? std::optional<Tensor>(host_zeros(*t)) : std::nullopt);
    return out;
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) return at::make_generator<at::CPUGeneratorImpl>(uint64_t{0});
  return value;
}

Results find_out(const c10::OperatorHandle& op, const std::vector<IValue>& given) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  torch::jit::Stack stack;
  for (size_t i = 0; i < given.size(); ++i)
    stack.push_back(arguments[i].name() == "pin_memory" ? IValue() : host_zeros(given[i]));
  const torch::jit::Stack host = stack;
  op.callBoxed(stack);
  Results out;
  for (const IValue& value : stack) out.returns.push_back(result_of(value));
  for (size_t i = 0; i < given.size(); ++i)
    if (is_sized(arguments[i], given[i])) out.sized.push_back(shape_of(host[i].toTensor()));
  return out;
}

// Of one thread, so that nobody waits.
const Results& results_for(const c10::OperatorHandle& op, const std::vector<IValue>& given) {
  thread_local auto* known = new std::unordered_map<std::string, Results>;  // it may end late
  Key key(&op.schema());
  for (const IValue& value : given) key.add(value);
  auto it = known->find(key.text());
  if (it == known->end()) it = known->emplace(key.text(), find_out(op, given)).first;
  return it->second;
}

Tensor make(const Shape& shape, c10::Device device) {
  return shape.defined ? make_result(shape.sizes, shape.strides, shape.type, device) : Tensor();
}

// A list of more tensors is one kernel of a device, and on the host many operators.
constexpr size_t kFewTensors = 8;
bool is_few(const Tensor& t, bool& found) {
  if (!t.defined()) return true;
  found = found || t.is_cuda();
  return t.numel() <= kFakeDeviceFewElements;
}

}  // namespace

bool is_sized(const c10::Argument& argument, const IValue& given) {
  return is_written(argument) && argument.kwarg_only() && given.isTensor() &&
         given.toTensor().is_cuda() && given.toTensor().numel() == 0;
}

const IValue* given_back(const c10::Argument& value, const c10::FunctionSchema& schema,
                         const std::vector<IValue>& given) {
  if (!is_written(value)) return nullptr;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* from = schema.arguments()[i].alias_info();
    if (from != nullptr && from->beforeSets() == value.alias_info()->beforeSets()) return &given[i];
  }
  return nullptr;
}

Tensor make_result(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                   c10::Device device) {
  Tensor out = at::empty_strided(sizes, strides, at::TensorOptions().dtype(type).device(device));
  if (fake_device_computes() != 0) return out;  // it will be written
  if (const size_t bytes = out.nbytes(); bytes > 0 && bytes <= kFakeDeviceZeroed)
    std::memset(fake_device_view(out.const_data_ptr()), 0, bytes);
  return out;
}

bool is_small(const std::vector<IValue>& given) {
  bool found = false;
  for (const IValue& value : given) {
    if (value.isTensor()) {
      if (!is_few(value.toTensor(), found)) return false;
    } else if (value.isTensorList()) {
      if (value.toListRef().size() > kFewTensors) return false;
      for (const IValue& t : value.toListRef())
        if (!is_few(t.toTensor(), found)) return false;
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        if (t && !is_few(*t, found)) return false;
    }
  }
  return found;
}

void give_results(const c10::OperatorHandle& op, const std::vector<IValue>& given,
                  torch::jit::Stack& stack, c10::Device device) {
  const c10::FunctionSchema& schema = op.schema();
  bool needs_shapes = false;
  for (const c10::Argument& value : schema.returns())
    needs_shapes = needs_shapes || given_back(value, schema, given) == nullptr;
  for (size_t i = 0; i < given.size(); ++i)
    needs_shapes = needs_shapes || is_sized(schema.arguments()[i], given[i]);
  at::AutoDispatchBelowADInplaceOrView below;
  const Results* results = needs_shapes ? &results_for(op, given) : nullptr;
  torch::jit::drop(stack, given.size());
  for (size_t i = 0, sized = 0; i < given.size(); ++i)
    if (is_sized(schema.arguments()[i], given[i])) {
      const Tensor& out = given[i].toTensor();
      out.resize_(results->sized[sized++].sizes);
    }
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (const IValue* same = given_back(schema.returns()[i], schema, given)) {
      stack.push_back(*same);
      continue;
    }
    const Result& result = results->returns[i];
    if (result.is_list) {
      std::vector<Tensor> all;
      for (const Shape& shape : result.tensors) all.push_back(make(shape, device));
      stack.emplace_back(std::move(all));
    } else if (!result.tensors.empty()) {
      stack.emplace_back(make(result.tensors[0], device));
    } else {
      stack.push_back(result.other);
    }
  }
}

}  // namespace fake_device
