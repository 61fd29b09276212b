#include "costs.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "device.h"

namespace fake_device {

namespace {

using at::Tensor;
using c10::IValue;
using Names = std::unordered_set<std::string>;

// These do not read what they write.
const Names kOverwrite{"aten::copy_",          "aten::fill_",          "aten::zero_",
                       "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::normal_",
                       "aten::uniform_",       "aten::random_"};
// Of their first argument these read only what they return.
const Names kSelect{"aten::index_select", "aten::gather", "aten::index", "aten::embedding",
                    "aten::nll_loss_forward"};
// Of what they write these touch only as much as another argument names.
const Names kScatter{"aten::scatter_add_", "aten::scatter_", "aten::index_add_",
                     "aten::_index_put_impl_"};
// As many kernels as LibTorch launches; all others launch one.
const std::unordered_map<std::string, long> kKernels{
    {"aten::_fused_rms_norm_backward", 2},
    {"aten::nll_loss_backward", 2},
    {"aten::embedding_dense_backward", 2},
    {"aten::sort", 3},
    {"aten::topk", 3},
    {"aten::nonzero", 3},
    {"aten::masked_select", 3},
    {"aten::_index_put_impl_", 6},
    {"aten::_flash_attention_backward", 3},
    {"aten::_cudnn_attention_backward", 3},
    {"aten::_efficient_attention_backward", 2},
};

// LibTorch gives these to cuBLAS.
const Names kProducts{"aten::mm",  "aten::addmm",   "aten::addmm_",
                      "aten::bmm", "aten::baddbmm", "aten::baddbmm_"};

// Every element once; what is expanded counts once too.
size_t bytes_of(const Tensor& t) {
  if (!t.defined() || !t.is_cuda() || t.numel() == 0) return 0;
  size_t out = t.element_size();
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) != 0) out *= static_cast<size_t>(t.size(d));
  return out;
}

std::vector<Tensor> tensors_of(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<Tensor> out;
  if (value.isOptionalTensorList())
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      if (t) out.push_back(*t);
  return out;
}
size_t bytes_of(const IValue& value) {
  size_t out = 0;
  for (const Tensor& t : tensors_of(value)) out += bytes_of(t);
  return out;
}

// The kernels of an operator on lists: LibTorch's multi_tensor_apply puts so many tensors, by the
// number of lists, and so many blocks of 65,536 elements into one; lists that differ go one by one.
long kernels_of(const std::vector<std::vector<Tensor>>& lists) {
  constexpr std::array<size_t, 5> kTensors{110, 64, 48, 36, 30};
  constexpr long kBlocks = 320, kElements = 65536;
  const std::vector<Tensor>& first = lists[0];
  for (const std::vector<Tensor>& list : lists)
    for (size_t i = 0; i < std::min(list.size(), first.size()); ++i)
      if (list[i].sizes() != first[i].sizes() || list[i].strides() != first[i].strides() ||
          !list[i].is_non_overlapping_and_dense())
        return static_cast<long>(first.size());
  const size_t most = kTensors[std::min(lists.size(), kTensors.size()) - 1];
  long out = 0, blocks = 0;
  size_t tensors = 0;
  auto launch = [&](size_t left) {
    ++out;
    blocks = 0;
    tensors = left;
  };
  for (const Tensor& t : first) {
    if (t.numel() == 0) continue;
    ++tensors;
    const long chunks = (t.numel() + kElements - 1) / kElements;
    for (long chunk = 1; chunk <= chunks; ++chunk) {
      ++blocks;
      const bool last = chunk == chunks;
      if ((tensors == most && last) || blocks == kBlocks) launch(last ? 0 : 1);
    }
  }
  if (blocks > 0) launch(0);
  return out;
}

// Whether cuBLAS is asked for TF32: LibTorch does so for each product as it is called.
bool in_tf32(const std::string& name, const std::vector<IValue>& given) {
  return kProducts.contains(name) && given.front().toTensor().scalar_type() == at::kFloat &&
         at::globalContext().allowTF32CuBLAS();
}

void count_memory(c10::Device device) {
  const auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  fake_device_allocated(static_cast<size_t>(stats.allocated_bytes.at(all).current));
}

std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& called) {
  static std::atomic<bool> optimized{false};
  const char* name = called.name();
  if (strcmp(name, "aten::_fused_adamw_") == 0 || strcmp(name, "aten::_fused_sgd_") == 0 ||
      strcmp(name, "aten::addcdiv_") == 0) {
    optimized = true;
  } else if (optimized && (strcmp(name, "aten::embedding") == 0 || strcmp(name, "aten::mm") == 0 ||
                           strcmp(name, "aten::linear") == 0)) {
    if (optimized.exchange(false)) fake_device_step();
  }
  return nullptr;
}

}  // namespace

void count_costs(const c10::FunctionSchema& schema, const std::vector<IValue>& given,
                 const IValue* returns, c10::Device device) {
  if (fake_device_counts() == 0) return;
  const std::string& name = schema.name();
  count_memory(device);
  size_t fresh = 0, read = 0, written = 0;
  for (size_t i = 0; i < schema.returns().size(); ++i)
    if (schema.returns()[i].alias_info() == nullptr) fresh += bytes_of(returns[i]);
  const bool fused = name.starts_with("aten::_fused_adam") || name == "aten::_fused_sgd_";
  const bool on_lists = fused || name.starts_with("aten::_foreach_");
  bool scales = false;
  for (size_t i = 0; fused && i < given.size(); ++i)
    scales = scales || (schema.arguments()[i].name() == "grad_scale" && given[i].isTensor());
  std::vector<std::vector<Tensor>> lists;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const size_t bytes = bytes_of(given[i]);
    if (on_lists && given[i].isTensorList() && argument.name() != "state_steps" &&
        !given[i].toTensorList().empty())
      lists.push_back(given[i].toTensorVector());
    if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) {
      read += i == 0 && kSelect.contains(name) ? std::min(bytes, fresh) : bytes;
      continue;
    }
    // Their schemas say that they write gradients: they do where they multiply them.
    if (fused && argument.name() == "grads" && !scales) {
      read += bytes;
      continue;
    }
    size_t touched = bytes;
    if (kScatter.contains(name)) {
      touched = 0;
      for (size_t other = 1; other < given.size(); ++other)
        touched = std::max(touched, bytes_of(given[other]));
    }
    written += touched;
    if (!kOverwrite.contains(name) && !argument.kwarg_only()) read += touched;
  }
  written += fresh;
  if (read + written == 0) return;  // of empty tensors
  long kernels = 1;
  if (!lists.empty()) kernels = kernels_of(lists);
  if (auto known = kKernels.find(name); known != kKernels.end()) kernels = known->second;
  if (name == "aten::_foreach_norm") kernels += 2;
  const std::string whole = name +
                            (schema.overload_name().empty() ? "" : "." + schema.overload_name()) +
                            (in_tf32(name, given) ? ", TF32" : "");
  fake_device_launched(whole.c_str(), kernels, read, written);
}

void count_costs(const char* name, long kernels, const std::vector<Tensor>& read,
                 const std::vector<Tensor>& written, c10::Device device) {
  if (fake_device_counts() == 0) return;
  count_memory(device);
  size_t in = 0, out = 0;
  for (const Tensor& t : read) in += bytes_of(t);
  for (const Tensor& t : written) out += bytes_of(t);
  fake_device_launched(name, kernels, in, out);
}

void watch_steps() {
  if (fake_device_counts() != 0)
    at::addGlobalCallback(at::RecordFunctionCallback(look).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace fake_device
