#include "engine/checkpoint/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "engine/checkpoint/weights/convert.h"

namespace meshwright::checkpoint {

namespace {

constexpr int64_t kDiffPiece = 2 << 20;  // elements
using Key = std::pair<std::string, std::string>;
using Bytes = std::vector<std::byte>;

std::map<Key, size_t> index_of(const Source& source) {
  std::map<Key, size_t> out;
  for (size_t i = 0; i < source.tensors().size(); ++i)
    out[{source.tensors()[i].state, source.tensors()[i].name}] = i;
  return out;
}

// What both leave to one model is the same, and not read.
bool of_one_base(Source& a, Source& b) {
  const auto fingerprint = [](Source& source) {
    const Checkpoint* checkpoint = source.checkpoint();
    return checkpoint != nullptr && checkpoint->meta().base ? checkpoint->meta().base->fingerprint
                                                            : "";
  };
  return !fingerprint(a).empty() && fingerprint(a) == fingerprint(b);
}

bool has_optimizer(const Source& source) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [](const SourceTensor& t) { return !t.state.empty(); });
}

template <class T>
void widen(const Bytes& from, std::vector<double>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    to[i] = static_cast<double>(value);
  }
}

void to_doubles(const Bytes& from, DType dtype, std::vector<double>& to) {
  switch (dtype) {
    case DType::int64:
      return widen<int64_t>(from, to);
    case DType::int32:
      return widen<int32_t>(from, to);
    case DType::int16:
      return widen<int16_t>(from, to);
    case DType::int8:
    case DType::boolean:
      return widen<int8_t>(from, to);
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      weights::convert_elements(from.data(), dtype, reinterpret_cast<std::byte*>(to.data()),
                                DType::float64, static_cast<int64_t>(to.size()));
  }
}

double distance(double a, double b) {
  if (std::isfinite(a) && std::isfinite(b)) return std::abs(a - b);
  bool alike = a == b || (std::isnan(a) && std::isnan(b));
  return alike ? 0 : std::numeric_limits<double>::infinity();
}

// One piece of both, `first` being the number of its first element.
class Comparison {
 public:
  explicit Comparison(TensorDifference& out) : out_(out) {}
  void add(const Bytes& a, const Bytes& b, int64_t first, int64_t count) {
    bool same_dtype = out_.dtype_a == out_.dtype_b;
    if (same_dtype && std::memcmp(a.data(), b.data(), a.size()) == 0) return;
    wide_a_.resize(static_cast<size_t>(count));
    wide_b_.resize(static_cast<size_t>(count));
    to_doubles(a, out_.dtype_a, wide_a_);
    to_doubles(b, out_.dtype_b, wide_b_);
    auto size = static_cast<size_t>(dtype_size(out_.dtype_a));
    for (size_t i = 0; i < wide_a_.size(); ++i) {
      double x = wide_a_[i], y = wide_b_[i], apart = distance(x, y);
      if (same_dtype ? std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0
                     : apart == 0)
        continue;
      ++out_.differing;
      for (double value : {x, y})
        if (std::isfinite(value)) scale_ = std::max(scale_, std::abs(value));
      if (out_.worst >= 0 && !(apart > out_.max_abs)) continue;
      out_.max_abs = apart;
      out_.worst = first + static_cast<int64_t>(i);
    }
    out_.relative =
        !std::isfinite(out_.max_abs) || scale_ == 0 ? out_.max_abs : out_.max_abs / scale_;
  }

 private:
  TensorDifference& out_;
  double scale_ = 0;
  std::vector<double> wide_a_, wide_b_;
};

}  // namespace

bool Difference::equal() const {
  return only_a.empty() && only_b.empty() &&
         std::all_of(both.begin(), both.end(), [](const TensorDifference& t) { return t.equal(); });
}

int64_t diff_bytes(const Source& a, const Source& b) {
  std::map<Key, size_t> in_b = index_of(b);
  int64_t out = 0;
  for (const SourceTensor& tensor : a.tensors())
    if (auto found = in_b.find({tensor.state, tensor.name});
        found != in_b.end() && b.tensors()[found->second].shape == tensor.shape)
      out += tensor.bytes();
  return out;
}

Difference compare(Source& a, Source& b, const std::function<void(int64_t bytes)>& progress) {
  Difference out;
  out.optimizer_a = has_optimizer(a);
  out.optimizer_b = has_optimizer(b);
  out.optimizer_compared = out.optimizer_a && out.optimizer_b;
  std::map<Key, size_t> in_a = index_of(a), in_b = index_of(b);
  auto counts = [&](const SourceTensor& tensor) {
    return tensor.state.empty() || out.optimizer_compared;
  };
  for (const SourceTensor& tensor : b.tensors())
    if (counts(tensor) && !in_a.contains({tensor.state, tensor.name}))
      out.only_b.push_back(tensor.text());
  Bytes one, other;
  const bool one_base = of_one_base(a, b);
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const SourceTensor& tensor = a.tensors()[i];
    if (!counts(tensor)) continue;
    auto found = in_b.find({tensor.state, tensor.name});
    if (found == in_b.end()) {
      out.only_a.push_back(tensor.text());
      continue;
    }
    const SourceTensor& twin = b.tensors()[found->second];
    TensorDifference difference{tensor.state, tensor.name, tensor.dtype,     twin.dtype,
                                tensor.shape, twin.shape,  tensor.elements()};
    if (one_base && tensor.of_base && twin.of_base) {
      progress(difference.same_shape() ? tensor.bytes() : 0);
      out.both.push_back(std::move(difference));
      continue;
    }
    Comparison comparison(difference);
    for (int64_t at = 0, end = 0; difference.same_shape() && at < difference.elements; at = end) {
      end = std::min(at + kDiffPiece, difference.elements);
      one.resize(static_cast<size_t>((end - at) * dtype_size(tensor.dtype)));
      other.resize(static_cast<size_t>((end - at) * dtype_size(twin.dtype)));
      a.read(i, at, end, tensor.dtype, one.data());
      b.read(found->second, at, end, twin.dtype, other.data());
      comparison.add(one, other, at, end - at);
      progress(static_cast<int64_t>(one.size()));
    }
    out.both.push_back(std::move(difference));
  }
  return out;
}

}  // namespace meshwright::checkpoint
