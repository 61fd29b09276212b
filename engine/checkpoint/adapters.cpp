#include "engine/checkpoint/adapters.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/host/module_numbers.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::checkpoint {
namespace {

constexpr int64_t kMergePiece = 1 << 20;  // elements merged at a time

Error damaged_adapters(const std::filesystem::path& checkpoint, const std::string& what) {
  return Error(ErrorCode::bad_checkpoint, checkpoint.string() + ": " + what)
      .help("meshwright checkpoint verify " + checkpoint.string());
}

}  // namespace

PeftScale scale_in(const std::string& config, const std::filesystem::path& checkpoint) {
  boost::system::error_code failed;
  const boost::json::value parsed = boost::json::parse(config, failed);
  const boost::json::object* table = failed ? nullptr : parsed.if_object();
  auto number = [&](const char* name) {
    const boost::json::value* value = table != nullptr ? table->if_contains(name) : nullptr;
    if (value == nullptr || !value->is_number() || value->to_number<double>() <= 0)
      throw damaged_adapters(checkpoint,
                             std::string(kAdapterConfig) + " has no " + name + " above 0");
    return value->to_number<double>();
  };
  PeftScale out{.r = number("r"), .alpha = number("lora_alpha")};
  auto pattern = [&](const char* name) {
    StringMap entries;
    const boost::json::value* value = table->if_contains(name);
    if (value == nullptr || value->is_null()) return entries;
    if (!value->is_object())
      throw damaged_adapters(checkpoint,
                             std::string(kAdapterConfig) + " has a " + name + " of no modules");
    for (const auto& item : value->as_object())
      entries.emplace_back(item.key(), item.value().is_number()
                                           ? to_toml(item.value().to_number<double>())
                                           : boost::json::serialize(item.value()));
    try {
      const base::ModuleNumbers read(1, entries, /*whole=*/false);
    } catch (const Error& error) {
      throw damaged_adapters(checkpoint,
                             std::string(kAdapterConfig) + ": " + name + ": " + error.message());
    }
    return entries;
  };
  out.ranks = pattern("rank_pattern");
  out.alphas = pattern("alpha_pattern");
  const boost::json::value* stabilized = table->if_contains("use_rslora");
  out.rank_stabilized = stabilized != nullptr && stabilized->is_bool() && stabilized->as_bool();
  return out;
}

namespace {

template <class T>
std::vector<T> whole(Source& source, size_t tensor, DType dtype) {
  const int64_t count = source.tensors()[tensor].elements();
  std::vector<T> out(static_cast<size_t>(count));
  source.read(tensor, 0, count, dtype, out.data());
  return out;
}

template <class T>
std::vector<T> turned(const std::vector<T>& from, int64_t rows, int64_t columns) {
  std::vector<T> out(from.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = from[static_cast<size_t>(i * columns + j)];
  return out;
}

// Rows of the file's W are rows of left [rows, r] times right [r, columns].
template <class T>
struct Factors {
  std::vector<T> left, right;
  int64_t r = 0;
};

template <class T>
Factors<T> factors_of(Source& source, const AdapterPair& pair, bool transposed, DType dtype) {
  const std::vector<int64_t>&in = source.tensors()[pair.in].shape,
        &out = source.tensors()[pair.out].shape;
  Factors<T> made{whole<T>(source, pair.out, dtype), whole<T>(source, pair.in, dtype), in[0]};
  if (!transposed) return made;
  return {turned(made.right, in[0], in[1]), turned(made.left, out[0], out[1]), in[0]};
}

template <class T>
void merge_row(const Factors<T>& factors, int64_t row, int64_t columns, T scale, T* sum,
               T* weight) {
  std::fill_n(sum, columns, T(0));
  for (int64_t k = 0; k < factors.r; ++k) {
    const T left = factors.left[static_cast<size_t>(row * factors.r + k)];
    const T* right = factors.right.data() + k * columns;
    for (int64_t j = 0; j < columns; ++j) sum[j] += left * right[j];
  }
  for (int64_t j = 0; j < columns; ++j) weight[j] += scale * sum[j];
}

int64_t equal_elements(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                       size_t element) {
  int64_t out = 0;
  for (size_t at = 0; at < a.size(); at += element)
    out += std::memcmp(a.data() + at, b.data() + at, element) == 0 ? 1 : 0;
  return out;
}

template <class T>
void stream_merged(const Joint& joint, DType dtype, MergeCount& count,
                   const weights::ByteSink& sink) {
  constexpr DType kSums = sizeof(T) == 8 ? DType::float64 : DType::float32;
  const SourceTensor& tensor = joint.weights.tensors()[joint.weight];
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1],
                at_once = std::max<int64_t>(kMergePiece / std::max<int64_t>(columns, 1), 1);
  const Factors<T> factors = factors_of<T>(joint.factors, joint.pair, joint.transposed, kSums);
  std::vector<T> values, sum(static_cast<size_t>(columns));
  std::vector<std::byte> before, after;
  auto round = [&](std::vector<std::byte>& out) {
    out.resize(values.size() * static_cast<size_t>(dtype_size(dtype)));
    weights::convert_elements(reinterpret_cast<const std::byte*>(values.data()), kSums, out.data(),
                              dtype, static_cast<int64_t>(values.size()));
  };
  for (int64_t row = 0; row < rows; row += at_once) {
    const int64_t end = std::min(row + at_once, rows);
    values.resize(static_cast<size_t>((end - row) * columns));
    joint.weights.read(joint.weight, row * columns, end * columns, kSums, values.data());
    round(before);
    for (int64_t i = row; i < end; ++i)
      merge_row(factors, i, columns, static_cast<T>(joint.pair.scale), sum.data(),
                values.data() + (i - row) * columns);
    round(after);
    count.elements += static_cast<int64_t>(values.size());
    count.unchanged += equal_elements(before, after, static_cast<size_t>(dtype_size(dtype)));
    sink(after);
  }
}

}  // namespace

bool names_adapters(const Meta& meta) {
  return std::any_of(meta.files.begin(), meta.files.end(),
                     [](const FileRecord& file) { return file.name == kAdapterConfig; });
}

std::optional<PeftScale> scale_of(Checkpoint& checkpoint) {
  if (!names_adapters(checkpoint.meta())) return std::nullopt;
  return scale_in(checkpoint.read_file(std::string(kAdapterConfig)), checkpoint.folder());
}

std::vector<std::string> trained_whole(Source& source) {
  std::vector<std::string> out;
  if (source.checkpoint() == nullptr || !names_adapters(source.checkpoint()->meta())) return out;
  const bool beside_base = source.checkpoint()->meta().base.has_value();
  std::set<std::string_view> updated;  // what an optimizer has states of
  for (const SourceTensor& tensor : source.tensors())
    if (!tensor.state.empty() && tensor.state != "buffer") updated.insert(tensor.name);
  for (const SourceTensor& tensor : source.tensors())
    if (tensor.state.empty() && !low_rank_factor(tensor.name) &&
        (beside_base ? !tensor.of_base : updated.contains(tensor.name)))
      out.push_back(tensor.name);
  return out;
}

std::string trained_whole_text(Source& source) {
  const std::vector<std::string> names = trained_whole(source);
  if (names.empty()) return {};
  const auto more = static_cast<int64_t>(names.size()) - 1;
  return "the adapters alone are not this model: " + names[0] +
         (more > 0 ? " and " + text::counted(more, "other") : "") + " trained whole beside them";
}

std::optional<AdapterSet> adapters_of(Source& source) {
  Checkpoint* checkpoint = source.checkpoint();
  if (checkpoint == nullptr || !names_adapters(checkpoint->meta())) return std::nullopt;
  AdapterSet out;
  out.config = checkpoint->read_file(std::string(kAdapterConfig));
  const PeftScale scale = scale_in(out.config, source.path());
  const base::ModuleNumbers alphas(scale.alpha, scale.alphas, /*whole=*/false);
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < source.tensors().size(); ++i)
    if (source.tensors()[i].state.empty()) places.emplace(source.tensors()[i].name, i);
  for (const auto& [name, in] : places) {
    const std::optional<LowRankFactor> factor = low_rank_factor(name);
    if (!factor || factor->out) continue;
    const std::string module(factor->linear);
    const auto weight = places.find(module + ".weight"),
               b = places.find(module + "." + std::string(kFactorOut) + ".weight");
    if (weight == places.end() || b == places.end())
      throw damaged_adapters(source.path(), std::string(name) + " lies beside no weight");
    const SourceTensor& w = source.tensors()[weight->second];
    std::vector<int64_t> shape{source.tensors()[b->second].shape.at(0),
                               source.tensors()[in].shape.at(1)};
    if (w.transposed) std::reverse(shape.begin(), shape.end());
    if (w.shape != shape ||
        source.tensors()[in].shape[0] != source.tensors()[b->second].shape.at(1))
      throw damaged_adapters(source.path(),
                             std::string(name) + " has another shape than the weight beside it");
    const auto r = static_cast<double>(source.tensors()[in].shape[0]);
    out.of_weight.emplace(
        weight->second,
        AdapterPair{in, b->second, alphas.of(module) / (scale.rank_stabilized ? std::sqrt(r) : r)});
  }
  if (out.of_weight.empty())
    throw damaged_adapters(source.path(),
                           "it has an " + std::string(kAdapterConfig) + ", but no adapters");
  return out;
}

std::string merge_text(const MergeCount& merged) {
  return text::format(
      "merged the adapters into weights of %s elements, of which %.1f%% are as they were before",
      report::human_count(merged.elements).c_str(),
      100 * static_cast<double>(merged.unchanged) / static_cast<double>(merged.elements));
}

weights::ExportTensor merged_tensor(const Joint& joint, DType dtype, MergeCount& count) {
  const SourceTensor& tensor = joint.weights.tensors()[joint.weight];
  const bool wide = tensor.dtype == DType::float64;
  return {{tensor.name, dtype, tensor.shape},
          [&count, joint, dtype, wide](const weights::ByteSink& sink) {
            if (wide)
              stream_merged<double>(joint, dtype, count, sink);
            else
              stream_merged<float>(joint, dtype, count, sink);
          }};
}

}  // namespace meshwright::checkpoint
