#include "engine/weights/safetensors.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

namespace meshwright::weights {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kMaxHeader = 100 << 20, kMaxTensors = 1 << 20, kMaxIndex = 256 << 20;

struct NamedType {
  const char* name;
  DType dtype;
};
constexpr NamedType kTypes[] = {{"F64", DType::float64}, {"F32", DType::float32}, {"F16", DType::float16}, {"BF16", DType::bfloat16},
                                {"I64", DType::int64},   {"I32", DType::int32},   {"I16", DType::int16},   {"I8", DType::int8},
                                {"U8", DType::int8},     {"BOOL", DType::boolean}};

[[noreturn]] void damaged(const std::string& path, int64_t at, const std::string& what) {
  throw Error(ErrorCode::bad_safetensors, path + ": byte " + std::to_string(at) + ": " + what).help("fetch or copy the file again");
}

// Boost.JSON keeps the last of two equal keys; a file with two meanings is damage. Finds keys of the outermost object.
bool repeats_a_key(std::string_view text) {
  std::set<std::string> seen;
  int depth = 0;
  bool key = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '{' || c == '[') {
      ++depth;
      key = c == '{' && depth == 1;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',' && depth == 1) {
      key = true;
    } else if (c == '"') {
      size_t end = i + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      if (depth == 1 && key) {
        boost::system::error_code failed;
        json::value name = json::parse(text.substr(i, std::min(end, text.size() - 1) - i + 1), failed);
        if (!failed && name.is_string() && !seen.insert(std::string(name.as_string())).second) return true;
        key = false;
      }
      i = end;
    }
  }
  return false;
}

json::parse_options strict() {
  json::parse_options options;
  options.max_depth = 8;
  return options;
}

float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  if (exponent == 0) {
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  } else {
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;   // NaN
  if (rest >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (rest < 0x38800000) {                       // subnormal: one unit is 2^-24
    float value;
    std::memcpy(&value, &rest, 4);
    float scaled = value + 0.5f;  // the addition rounds to the unit, to nearest even
    uint32_t out;
    std::memcpy(&out, &scaled, 4);
    return static_cast<uint16_t>(sign | (out - 0x3f000000));
  }
  rest += 0xfff + ((rest >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rest - 0x38000000) >> 13));
}
float bfloat_to_float(uint16_t b) {
  uint32_t bits = static_cast<uint32_t>(b) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
uint16_t float_to_bfloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double load(const std::byte* at, DType type) {
  switch (type) {
    case DType::float64: {
      double v;
      std::memcpy(&v, at, 8);
      return v;
    }
    case DType::float32: {
      float v;
      std::memcpy(&v, at, 4);
      return static_cast<double>(v);
    }
    default: {
      uint16_t v;
      std::memcpy(&v, at, 2);
      return static_cast<double>(type == DType::float16 ? half_to_float(v) : bfloat_to_float(v));
    }
  }
}
void store(std::byte* at, DType type, double value) {
  auto single = static_cast<float>(value);
  uint16_t narrow = 0;
  switch (type) {
    case DType::float64:
      std::memcpy(at, &value, 8);
      return;
    case DType::float32:
      std::memcpy(at, &single, 4);
      return;
    case DType::float16:
      narrow = float_to_half(single);
      break;
    default:
      narrow = float_to_bfloat(single);
      break;
  }
  std::memcpy(at, &narrow, 2);
}

bool floating(DType type) { return type == DType::float64 || type == DType::float32 || type == DType::float16 || type == DType::bfloat16; }

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : file_(std::make_unique<data::MappedFile>(path.string(), ErrorCode::bad_safetensors)) {
  const std::string& name = file_->path();
  auto bytes = file_->bytes();
  uint64_t length = 0;
  if (bytes.size() < 8) damaged(name, 0, "the file ends within the length of its header");
  std::memcpy(&length, bytes.data(), 8);
  if (length > static_cast<uint64_t>(kMaxHeader))
    damaged(name, 0, "the header claims " + std::to_string(length) + " bytes, more than 100 MiB");
  if (length > bytes.size() - 8)
    damaged(name, 0, "the header claims " + std::to_string(length) + " bytes, the file has " + std::to_string(bytes.size() - 8) + " more");
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (text.empty() || text[0] != '{') damaged(name, 8, "the header is not a JSON object");
  boost::system::error_code failed;
  json::value parsed = json::parse(text, failed, {}, strict());
  if (failed || !parsed.is_object()) damaged(name, 8, "the header is not valid JSON: " + failed.message());
  if (repeats_a_key(text)) damaged(name, 8, "the header lists a tensor twice");
  auto begin = static_cast<int64_t>(length) + 8, space = static_cast<int64_t>(bytes.size()) - begin;
  if (parsed.as_object().size() > static_cast<size_t>(kMaxTensors)) damaged(name, 8, "the header lists more than a million tensors");
  for (const auto& item : parsed.as_object()) {
    std::string tensor(item.key());
    auto bad = [&](const std::string& what) { damaged(name, 8, "tensor \"" + tensor + "\" " + what); };
    if (!item.value().is_object()) bad("is not described by an object");
    const json::object& about = item.value().as_object();
    if (tensor == "__metadata__") {
      for (const auto& meta : about) {
        if (!meta.value().is_string()) bad("holds something else than strings");
        metadata_.emplace_back(meta.key(), std::string(meta.value().as_string()));
      }
      continue;
    }
    TensorEntry entry;
    entry.name = tensor;
    const json::value *type = about.if_contains("dtype"), *shape = about.if_contains("shape"), *offsets = about.if_contains("data_offsets");
    if (about.size() != 3 || !type || !shape || !offsets || !type->is_string() || !shape->is_array() || !offsets->is_array())
      bad("lacks dtype, shape or data_offsets, or has more than those");
    const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NamedType& t) { return type->as_string() == t.name; });
    if (known == std::end(kTypes)) bad("has the dtype " + std::string(type->as_string()) + ", which is not supported");
    entry.dtype = known->dtype;
    int64_t wanted = dtype_size(entry.dtype);
    auto whole = [&](const json::value& v) -> int64_t {
      std::optional<int64_t> out;
      if (v.is_int64() && v.as_int64() >= 0) out = v.as_int64();
      if (!out) bad("has a size or offset that is no whole number below 2^63");
      return *out;
    };
    if (shape->as_array().size() > 16) bad("has more than 16 dimensions");
    for (const json::value& size : shape->as_array()) {
      entry.shape.push_back(whole(size));
      if (__builtin_mul_overflow(wanted, entry.shape.back(), &wanted)) bad("is larger than any file");
    }
    if (offsets->as_array().size() != 2) bad("needs two data_offsets");
    int64_t from = whole(offsets->as_array()[0]), to = whole(offsets->as_array()[1]);
    if (from > to || to > space)
      bad("lies at [" + std::to_string(from) + ", " + std::to_string(to) + ") of " + std::to_string(space) + " bytes of data");
    if (to - from != wanted) bad("has " + std::to_string(to - from) + " bytes where its shape and dtype need " + std::to_string(wanted));
    entry.bytes = wanted;
    entry.offset = begin + from;
    entry.data = bytes.data() + entry.offset;
    entry.file = file_.get();
    tensors_.push_back(std::move(entry));
  }
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : tensors_) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes); });
  int64_t next = begin;
  for (const TensorEntry* entry : order) {
    if (entry->offset < next) damaged(name, entry->offset, "tensor \"" + entry->name + "\" overlaps the one before it");
    if (entry->offset > next) damaged(name, next, std::to_string(entry->offset - next) + " bytes belong to no tensor");
    next += entry->bytes;
  }
  if (next != static_cast<int64_t>(bytes.size()))
    damaged(name, next, std::to_string(static_cast<int64_t>(bytes.size()) - next) + " bytes belong to no tensor");
}

WeightFolder::WeightFolder(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    add(path, nullptr);
    return;
  }
  fs::path single = path / "model.safetensors", index = path / "model.safetensors.index.json";
  if (fs::exists(single, failed)) {
    add(single, nullptr);
    return;
  }
  if (!fs::exists(index, failed))
    throw Error(ErrorCode::bad_safetensors, path.string() + " has neither model.safetensors nor model.safetensors.index.json")
        .help("export the model in safetensors format (save_pretrained does)");
  data::MappedFile file(index.string(), ErrorCode::bad_safetensors);
  if (file.size() > kMaxIndex) damaged(index.string(), 0, "the index is larger than 256 MiB");
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  boost::system::error_code bad;
  json::value parsed = json::parse(text, bad, {}, strict());
  const json::value* map = bad || !parsed.is_object() ? nullptr : parsed.as_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object()) damaged(index.string(), 0, "the index is not JSON with a weight_map");
  std::map<std::string, std::map<std::string, std::string>> by_file;
  fs::path root = fs::canonical(path, failed);
  for (const auto& item : map->as_object()) {
    if (!item.value().is_string()) damaged(index.string(), 0, "weight_map names no file for \"" + std::string(item.key()) + "\"");
    std::string target(item.value().as_string());
    fs::path relative(target);
    bool plain = !target.empty() && target.find('\0') == std::string::npos && !relative.is_absolute();
    for (const fs::path& part : relative) plain = plain && part != "..";
    if (!plain) damaged(index.string(), 0, "weight_map names \"" + target + "\", which leads out of the folder");
    by_file[target].emplace(item.key(), target);
  }
  for (const auto& [target, names] : by_file) {
    // Download caches are made of links to files beside them, so a link may leave the folder only where every folder of it does: never
    // by a name in the index.
    fs::path real = fs::canonical(path / target, failed);
    if (failed)
      throw Error(ErrorCode::bad_safetensors, index.string() + " names " + target + ", which is not there").help("fetch the missing file");
    fs::path inside = real.lexically_relative(root);
    if (inside.empty() || *inside.begin() == "..") damaged(index.string(), 0, "\"" + target + "\" is a link that leads out of the folder");
    add(real, &names);
  }
}

void WeightFolder::add(const fs::path& path, const std::map<std::string, std::string>* index) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : files_.back()->tensors()) {
    if (index && !index->contains(entry.name)) continue;
    if (!tensors_.emplace(entry.name, &entry).second) damaged(path.string(), entry.offset, "tensor \"" + entry.name + "\" is in two files");
  }
  if (!index) return;
  for (const auto& [name, target] : *index)
    if (!tensors_.contains(name)) damaged(path.string(), 8, "the index says that tensor \"" + name + "\" is here, and it is not");
}

const TensorEntry* WeightFolder::find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : tensors_) out.push_back(name);
  return out;
}

void read_slice(const TensorEntry& tensor, std::span<const int64_t> offsets, std::span<const int64_t> sizes, DType target, void* out) {
  size_t dims = tensor.shape.size();
  auto mismatch = [&](const std::string& what) {
    throw Error(ErrorCode::weights_mismatch, tensor.file->path() + ": tensor \"" + tensor.name + "\" " + what);
  };
  if (offsets.size() != dims || sizes.size() != dims)
    mismatch("has " + std::to_string(dims) + " dimensions, " + std::to_string(sizes.size()) + " are wanted");
  for (size_t d = 0; d < dims; ++d)
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] + sizes[d] > tensor.shape[d])
      mismatch("does not hold the wanted part of dimension " + std::to_string(d));
  bool same = tensor.dtype == target;
  if (!same && (!floating(tensor.dtype) || !floating(target)))
    mismatch("is " + std::string(dtype_name(tensor.dtype)) + ", wanted is " + std::string(dtype_name(target)));
  int64_t from_size = dtype_size(tensor.dtype), to_size = dtype_size(target);
  // Dimensions from `inner` on are whole, so they are one run together with the one before.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0 && (inner == dims || sizes[inner] == tensor.shape[inner])) run *= sizes[--inner];
  for (size_t d = 0; d < dims; ++d)
    if (sizes[d] == 0) return;
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
  std::vector<int64_t> at(offsets.begin(), offsets.end());
  auto* to = static_cast<std::byte*>(out);
  for (;;) {
    int64_t element = 0;
    for (size_t d = 0; d < dims; ++d) element += at[d] * strides[d];
    const std::byte* from = tensor.data + element * from_size;
    if (same)
      std::memcpy(to, from, static_cast<size_t>(run * to_size));
    else
      for (int64_t i = 0; i < run; ++i) store(to + i * to_size, target, load(from + i * from_size, tensor.dtype));
    to += run * to_size;
    size_t d = inner;
    for (; d-- > 0;) {
      if (++at[d] < offsets[d] + sizes[d]) break;
      at[d] = offsets[d];
    }
    if (d == SIZE_MAX) return;
  }
}

}  // namespace meshwright::weights
