#include "own_kernels.h"

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime.h"
#include "sdk/base/kernels/host_team.h"
// After it, as the device's compiler reads them.
#include "sdk/base/kernels/arguments.h"
#include "sdk/base/kernels/grouped_product.h"
#include "sdk/base/kernels/kernels.h"

namespace fake_device {

namespace {

namespace kernels = meshwright::kernels;

// One launch: its arguments point to the device, and are turned to the host's view.
class Launch {
 public:
  Launch(const std::string& name, cudaStream_t stream, long long teams)
      : width_(name.find("float") == std::string::npos || name.find("bfloat") != std::string::npos
                   ? 2
                   : 4),
        teams_(teams),
        name_(name),
        stream_(stream) {}

  // Counts of elements.
  template <class T>
  void read(T& pointer, long long count, kernels::Kind kind = kernels::same) {
    turn(pointer, count, width_of<T>(kind), false);
  }
  template <class T>
  void write(T& pointer, long long count, kernels::Kind kind = kernels::same) {
    turn(pointer, count, width_of<T>(kind), true);
  }
  long long teams() const { return teams_; }
  size_t bytes_read = 0, bytes_written = 0;
  // Bytes that lie between what the kernel touches.
  void skip(size_t& bytes, long long count) const { bytes -= static_cast<size_t>(count) * width_; }

 private:
  template <class T>
  size_t width_of(kernels::Kind kind) const {
    if constexpr (std::is_void_v<std::remove_pointer_t<T>>)
      return kind == kernels::same ? width_ : 2;
    else
      return sizeof(std::remove_pointer_t<T>);
  }
  template <class T>
  void turn(T& pointer, long long count, size_t width, bool write) {
    if (pointer == nullptr || count <= 0) return;
    const size_t bytes = static_cast<size_t>(count) * width;
    fake_device_access(stream_, current_device(), pointer, bytes, write ? 1 : 0, name_.c_str());
    (write ? bytes_written : bytes_read) += bytes;
    pointer = static_cast<T>(fake_device_view(pointer));
    if (!settings().arithmetic && write && bytes <= kFakeDeviceZeroed)
      memset(const_cast<std::remove_const_t<std::remove_pointer_t<T>>*>(pointer), 0, bytes);
  }

  size_t width_;
  long long teams_;
  std::string name_;
  cudaStream_t stream_;
};

void touch(Launch& launch, kernels::RmsNorm& a) {
  const long long all = a.rows * a.size;
  launch.read(a.x, all);
  launch.read(a.added, all, a.kind_of_added);
  launch.read(a.weight, a.size);
  launch.write(a.sum, all);
  launch.write(a.y, all);
  launch.write(a.rstd, a.rows);
}
void touch(Launch& launch, kernels::RmsNormBackward& a) {
  const long long all = a.rows * a.size;
  launch.read(a.x, all);
  launch.read(a.weight, a.size);
  launch.read(a.grad, all);
  launch.read(a.grad_of_sum, all);
  launch.read(a.rstd, a.rows);
  launch.write(a.to_x, all);
  launch.write(a.to_added, all, a.kind_of_added);
  launch.write(a.to_weight, launch.teams() * a.size);
}
void touch(Launch& launch, kernels::SumRows& a) {
  launch.read(a.parts, a.rows * a.size);
  launch.write(a.out, a.size);
}
void touch(Launch& launch, kernels::SumWide& a) {
  for (int part = 0; part < a.count; ++part) launch.read(a.parts[part], a.size);
  launch.write(a.out, a.size);
}
// As float32 where it is, whatever the kernel's own type.
template <class Pointer>
void read_table(Launch& launch, Pointer& table, long long count, bool wide) {
  auto* numbers = static_cast<const float*>(table);
  if (wide)
    launch.read(numbers, count), table = numbers;
  else
    launch.read(table, count);
}
// Rows with a stride, from the first element to the last; what lies between them does not count.
template <class Pointer>
void read_rows(Launch& launch, Pointer& rows_of, long long rows, long long size, long long stride) {
  launch.read(rows_of, rows > 0 ? (rows - 1) * stride + size : 0);
  launch.skip(launch.bytes_read, (rows - 1) * (stride - size));
}
void read_inserted(Launch& launch, kernels::Inserted& among, long long size) {
  if (among.count == 0) return;
  launch.read(among.rows, among.of * size);
  launch.read(among.named, among.count);
}
void touch(Launch& launch, kernels::TakeRows& a) {
  if (a.wide != 0)
    read_table(launch, a.in, a.of * a.size, true);
  else if (a.of > 0)
    read_rows(launch, a.in, a.of, a.size, a.in_stride != 0 ? a.in_stride : a.size);
  read_inserted(launch, a.among, a.size);
  launch.read(a.rows, a.count);
  const long long stride = a.out_stride != 0 ? a.out_stride : a.size;
  launch.write(a.out, a.count > 0 ? (a.count - 1) * stride + a.size : 0);
  if (a.count > 0) launch.skip(launch.bytes_written, (a.count - 1) * (stride - a.size));
}
void touch(Launch& launch, kernels::CombineRows& a) {
  if (a.of > 0) read_rows(launch, a.in, a.of, a.size, a.in_stride != 0 ? a.in_stride : a.size);
  read_inserted(launch, a.among, a.size);
  launch.read(a.place, a.count * a.most);
  auto* numbers = static_cast<float*>(a.out);
  if (a.wide != 0)
    launch.write(numbers, a.count * a.size), a.out = numbers;
  else
    launch.write(a.out, a.count * a.size);
}
void touch(Launch& launch, kernels::SiluTimes& a) {
  read_rows(launch, a.gate, a.rows, a.size, a.gate_stride);
  read_rows(launch, a.up, a.rows, a.size, a.up_stride);
  launch.write(a.out, a.rows * a.size);
}
void touch(Launch& launch, kernels::SiluTimesBackward& a) {
  read_rows(launch, a.gate, a.rows, a.size, a.gate_stride);
  read_rows(launch, a.up, a.rows, a.size, a.up_stride);
  launch.read(a.grad, a.rows * a.size);
  launch.write(a.to_gate, a.rows * a.size);
  launch.write(a.to_up, a.rows * a.size);
}
void touch(Launch& launch, kernels::WeightedSwiglu& a) {
  launch.read(a.h, 2 * a.rows * a.size);
  launch.read(a.weights, a.rows);
  launch.write(a.out, a.rows * a.size);
}
void touch(Launch& launch, kernels::WeightedSwigluBackward& a) {
  launch.read(a.h, 2 * a.rows * a.size);
  launch.read(a.grad, a.rows * a.size);
  launch.read(a.weights, a.rows);
  launch.write(a.to_h, 2 * a.rows * a.size);
  launch.write(a.weighted, a.rows * a.size);
  launch.write(a.to_weights, a.rows);
}
void touch(Launch& launch, kernels::GroupedProduct& a) {
  const bool sums_rows = a.sums_rows != 0;
  const long long out = (sums_rows ? a.groups * a.height : a.rows) * a.width;
  launch.read(a.a, a.rows * (sums_rows ? a.height : a.inner));
  launch.read(a.b, (sums_rows ? a.rows : a.groups * a.inner) * a.width);
  launch.read(a.bounds, a.groups + 1);
  if (a.add != 0) {
    const float* before = a.out;
    launch.read(before, out);
  }
  launch.write(a.out, out);
}
void touch(Launch& launch, kernels::Rotate& a) {
  for (kernels::Heads* heads : {&a.query, &a.key}) {
    const long long all = a.batch * a.length * heads->heads * a.size,
                    from_first = (a.batch - 1) * heads->batch_stride +
                                 (a.length - 1) * heads->row_stride +
                                 (heads->heads - 1) * heads->head_stride + a.size;
    launch.read(heads->in, all > 0 ? from_first : 0);
    if (all > 0) launch.skip(launch.bytes_read, from_first - all);
    launch.write(heads->out, all);
  }
  const long long angles = (a.by_sample != 0 ? a.batch : 1) * a.length * a.dim;
  for (const void** table : {&a.cos, &a.sin})
    read_table(launch, *table, angles, a.wide_angles != 0);
}
void touch(Launch& launch, kernels::CrossEntropy& a) {
  read_rows(launch, a.logits, a.rows, a.columns, a.stride);
  launch.read(a.targets, a.rows);
  launch.write(a.max, a.rows);
  launch.write(a.sum, a.rows);
  launch.write(a.picked, a.rows);
  launch.write(a.losses, a.rows);
  a.bad = static_cast<long long*>(fake_device_view(a.bad));  // pinned memory, hardly ever written
}
void touch(Launch& launch, kernels::CrossEntropyBackward& a) {
  read_rows(launch, a.logits, a.rows, a.columns, a.stride);
  launch.read(a.targets, a.rows);
  launch.read(a.shift, a.rows);
  launch.read(a.inverse, a.rows);
  launch.read(a.grad, 1);
  launch.write(a.out, a.rows * a.columns);
}

struct Known {
  std::string_view prefix;
  size_t size;  // of the arguments
  void (*run)(const std::string& name, long long blocks, size_t shared, const void* given,
              Launch& launch);
};
template <class Arguments>
void run(const std::string& name, long long blocks, size_t shared, const void* given,
         Launch& launch) {
  Arguments arguments;
  memcpy(&arguments, given, sizeof arguments);
  touch(launch, arguments);
  if (settings().arithmetic) kernels::run_on_host(name, blocks, shared, &arguments);
}
template <class Arguments>
constexpr Known known_as(std::string_view prefix) {
  return {prefix, sizeof(Arguments), run<Arguments>};
}
// The longest prefix first.
constexpr Known kKnown[] = {
    known_as<kernels::RmsNormBackward>("rms_norm_backward_"),
    known_as<kernels::RmsNormBackward>("rms_norm_wide_backward_"),
    known_as<kernels::RmsNorm>("rms_norm_"),
    known_as<kernels::SumRows>("sum_rows_"),
    known_as<kernels::SumWide>("sum_wide_"),
    known_as<kernels::TakeRows>("take_rows_"),
    known_as<kernels::CombineRows>("combine_rows_"),
    known_as<kernels::SiluTimesBackward>("silu_times_backward_"),
    known_as<kernels::SiluTimes>("silu_times_"),
    known_as<kernels::WeightedSwigluBackward>("weighted_swiglu_backward_"),
    known_as<kernels::WeightedSwiglu>("weighted_swiglu_"),
    known_as<kernels::GroupedProduct>("grouped_product_"),
    known_as<kernels::Rotate>("rotate_"),
    known_as<kernels::CrossEntropyBackward>("cross_entropy_backward_"),
    known_as<kernels::CrossEntropy>("cross_entropy_"),
};

using Entry = std::pair<const std::string, kernels::HostKernel>;

void launch_now(const Known& known, const Entry& entry, long long blocks, size_t shared_bytes,
                const void* arguments, cudaStream_t stream) {
  const auto& [name, host] = entry;
  Launch launch(name, stream, blocks * host.teams);
  fake_device_begin(stream, current_device(), name.c_str());
  known.run(name, blocks, shared_bytes, arguments, launch);
  fake_device_end();
  fake_device_launched(name.c_str(), 1, launch.bytes_read, launch.bytes_written);
}

}  // namespace

const void* own_kernel(const char* name) {
  const auto found = kernels::host_kernels().find(name);
  return found == kernels::host_kernels().end() ? nullptr : &*found;
}
bool is_own_kernel(const void* kernel) {
  static const auto all = [] {
    std::unordered_set<const void*> out;
    for (const Entry& entry : kernels::host_kernels()) out.insert(&entry);
    return out;
  }();
  return all.contains(kernel);
}
bool run_own_kernel(const void* kernel, long long blocks, size_t shared_bytes,
                    const void* arguments, cudaStream_t stream) {
  const auto& entry = *static_cast<const Entry*>(kernel);
  for (const Known& known : kKnown) {
    if (!entry.first.starts_with(known.prefix)) continue;
    // Of 48 KiB, with what the kernels of wide rows have of their own.
    constexpr size_t kOwn = 256, kMost = size_t{48} << 10;
    if (shared_bytes + kOwn > kMost) return false;
    if (fake_device_capture(stream, current_device()) == 0) {
      launch_now(known, entry, blocks, shared_bytes, arguments, stream);
      return true;
    }
    const auto* first = static_cast<const char*>(arguments);
    std::vector<char> copy(first, first + known.size);
    fake_device_record(stream, current_device(), [=, &known, &entry](void* on) {
      launch_now(known, entry, blocks, shared_bytes, copy.data(), static_cast<cudaStream_t>(on));
    });
    fake_device_recorded();
    return true;
  }
  return false;
}

}  // namespace fake_device
