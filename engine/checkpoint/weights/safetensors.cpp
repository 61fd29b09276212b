// What a safetensors file may have; writers keep to it, readers refuse more.
#include "engine/checkpoint/weights/safetensors.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/models/other_format.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::weights {

inline constexpr int64_t kMaxHeader = 100 << 20;
inline constexpr size_t kMaxDims = 16;
inline constexpr base::JsonBounds kHeaderBounds{.depth = 3, .elements = kMaxDims};

namespace {

// One loop for each pair, so that the choice is not made again for each element.
template <class From, class To>
void loop(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(static_cast<void*>(&value), from + i * static_cast<int64_t>(sizeof(From)),
                sizeof(From));
    To out;
    if constexpr (std::is_same_v<To, double>)
      out = static_cast<double>(value);
    else if constexpr (std::is_same_v<To, float>)
      out = static_cast<float>(value);
    else
      out = To(static_cast<float>(value));
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), static_cast<const void*>(&out),
                sizeof(To));
  }
}

using Loop = void (*)(const std::byte*, std::byte*, int64_t);

template <class From>
Loop loop_to(DType to) {
  switch (to) {
    case DType::float64:
      return loop<From, double>;
    case DType::float32:
      return loop<From, float>;
    case DType::float16:
      return loop<From, c10::Half>;
    default:
      return loop<From, c10::BFloat16>;
  }
}

}  // namespace

bool is_floating(DType type) {
  return type == DType::float64 || type == DType::float32 || type == DType::float16 ||
         type == DType::bfloat16;
}

void convert_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                      int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<size_t>(count * dtype_size(to_type)));
    return;
  }
  Loop run = from_type == DType::float64   ? loop_to<double>(to_type)
             : from_type == DType::float32 ? loop_to<float>(to_type)
             : from_type == DType::float16 ? loop_to<c10::Half>(to_type)
                                           : loop_to<c10::BFloat16>(to_type);
  run(from, to, count);
}

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

[[noreturn]] void damaged(const std::string& path, int64_t at, const std::string& what) {
  throw Error(ErrorCode::bad_safetensors, path + ": byte " + std::to_string(at) + ": " + what)
      .help("fetch or copy the file again");
}

// The JSON text between the length of the header and the data.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& path) {
  uint64_t length = 0;
  if (bytes.size() < 8) damaged(path, 0, "the file ends within the length of its header");
  std::memcpy(&length, bytes.data(), 8);
  if (length > static_cast<uint64_t>(kMaxHeader))
    damaged(path, 0, "the header claims " + std::to_string(length) + " bytes, more than 100 MiB");
  if (length > bytes.size() - 8)
    damaged(path, 0,
            "the header claims " + std::to_string(length) + " bytes, the file has " +
                std::to_string(bytes.size() - 8) + " more");
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (text.empty() || text[0] != '{') damaged(path, 8, "the header is not a JSON object");
  return text;
}

json::object parse_header(std::string_view text, const std::string& path) {
  try {
    return std::move(base::parse_strictly(text, kHeaderBounds).as_object());
  } catch (const base::JsonProblem& problem) {
    damaged(path, 8 + problem.offset, "the header " + problem.what);
  }
}

// The tensor that an item of the header describes. `space`: bytes of data behind the header;
// `offset` is from the beginning of the data, and `data` and `file` are left to the caller.
// `unread` is called, and throws, for a dtype that is none of ours.
template <class Bad, class Unread>
TensorEntry read_entry(const std::string& name, const json::object& about, int64_t space, Bad&& bad,
                       Unread&& unread) {
  const json::value *type = about.if_contains("dtype"), *shape = about.if_contains("shape"),
                    *offsets = about.if_contains("data_offsets");
  if (about.size() != 3 || !type || !shape || !offsets || !type->is_string() ||
      !shape->is_array() || !offsets->is_array())
    bad("lacks dtype, shape or data_offsets, or has more than those");
  TensorEntry entry;
  entry.name = name;
  std::optional<DType> dtype = parse_element_type(type->as_string());
  if (!dtype) unread(name, std::string(type->as_string()).substr(0, 40));
  entry.dtype = *dtype;
  auto whole = [&](const json::value& v) {
    if (!v.is_int64() || v.as_int64() < 0)
      bad("has a size or offset that is no whole number below 2^63");
    return v.as_int64();
  };
  for (const json::value& size : shape->as_array()) entry.shape.push_back(whole(size));
  std::optional<int64_t> wanted = tensor_bytes(entry.dtype, entry.shape);
  if (!wanted) bad("is larger than any file");
  if (offsets->as_array().size() != 2) bad("needs two data_offsets");
  int64_t from = whole(offsets->as_array()[0]), to = whole(offsets->as_array()[1]);
  if (from > to || to > space)
    bad("lies at [" + std::to_string(from) + ", " + std::to_string(to) + ") of " +
        std::to_string(space) + " bytes of data");
  if (to - from != *wanted)
    bad("has " + std::to_string(to - from) + " bytes where its shape and dtype need " +
        std::to_string(*wanted));
  entry.bytes = *wanted;
  entry.offset = from;
  return entry;
}

// Every byte of [begin, end) belongs to one tensor.
void check_filled(const std::vector<TensorEntry>& tensors, int64_t begin, int64_t end,
                  const std::string& path) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  int64_t next = begin;
  for (const TensorEntry* entry : order) {
    if (entry->offset < next)
      damaged(path, entry->offset, "tensor \"" + entry->name + "\" overlaps the one before it");
    if (entry->offset > next)
      damaged(path, next, std::to_string(entry->offset - next) + " bytes belong to no tensor");
    next += entry->bytes;
  }
  if (next != end) damaged(path, next, std::to_string(end - next) + " bytes belong to no tensor");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : file_(std::make_unique<base::MappedFile>(path.string(), ErrorCode::bad_safetensors)) {
  const std::string_view text = header_text(file_->bytes(), file_->path());
  const int64_t begin = static_cast<int64_t>(text.size()) + 8;
  for (const auto& item : parse_header(text, file_->path())) {
    const std::string name(item.key());
    auto bad = [&](const std::string& what) {
      damaged(file_->path(), 8, "tensor \"" + name + "\" " + what);
    };
    if (!item.value().is_object()) bad("is not described by an object");
    const json::object& about = item.value().as_object();
    if (name == "__metadata__") {
      for (const auto& meta : about) {
        if (!meta.value().is_string()) bad("holds something else than strings");
        metadata_.emplace_back(meta.key(), std::string(meta.value().as_string()));
      }
      continue;
    }
    // The file may be whole all the same.
    auto unread = [&](const std::string& tensor, const std::string& type) {
      throw Error(ErrorCode::bad_safetensors, file_->path() + ": byte 8: tensor \"" + tensor +
                                                  "\" has the dtype " + type +
                                                  ", which is not supported")
          .help(kNotQuantized);
    };
    TensorEntry entry = read_entry(name, about, file_->size() - begin, bad, unread);
    entry.offset += begin;
    entry.data = file_->bytes().data() + entry.offset;
    entry.file = file_.get();
    tensors_.push_back(std::move(entry));
  }
  check_filled(tensors_, begin, file_->size(), file_->path());
}

// Folders as Hugging Face lays them out, downloads in its cache among them.

namespace {

constexpr int64_t kMaxIndex = 256 << 20;

[[noreturn]] void damaged(const fs::path& index, int64_t at, const std::string& what) {
  throw Error(ErrorCode::bad_safetensors,
              index.string() + ": byte " + std::to_string(at) + ": " + what)
      .help("fetch or copy the file again")
      .help("export the model anew (save_pretrained writes the index)");
}

void check_link(const fs::path& folder, const fs::path& file) {
  std::optional<fs::path> real = leads_out(folder, file);
  if (!real) return;
  throw Error(ErrorCode::bad_safetensors,
              file.string() + " is a link that leads out of the folder, to " + real->string())
      .help("copy the file into the folder: cp --remove-destination '" + real->string() + "' '" +
            file.string() + "'")
      .help("or name the folder that holds the files themselves");
}

}  // namespace

WeightFolder::WeightFolder(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    if (path.extension() == ".json" && fs::is_regular_file(path, failed))
      throw Error(ErrorCode::bad_safetensors, path.string() + " is no file of weights")
          .help("name its folder, " + (path.has_parent_path() ? path.parent_path() : ".").string());
    add(path, nullptr);
    return;
  }
  fs::path single = path / "model.safetensors", index = path / "model.safetensors.index.json";
  if (fs::exists(single, failed)) {
    check_link(path, single);
    add(single, nullptr);
    return;
  }
  if (!fs::exists(index, failed)) {
    Error none(ErrorCode::bad_safetensors,
               path.string() + " has neither model.safetensors nor model.safetensors.index.json");
    if (std::optional<std::string> help = base::own_folder_help(path)) none.help(*help);
    if (std::optional<std::string> help = base::other_format_help(path)) none.help(*help);
    throw none.help("export the model in safetensors format (save_pretrained does)");
  }
  check_link(path, index);
  base::MappedFile file(index.string(), ErrorCode::bad_safetensors);
  if (file.size() > kMaxIndex) damaged(index, 0, "the index is larger than 256 MiB");
  json::value parsed;
  try {
    parsed = base::parse_strictly(
        {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, {});
  } catch (const base::JsonProblem& problem) {
    damaged(index, problem.offset, "the index " + problem.what);
  }
  const json::value* map =
      !parsed.is_object() ? nullptr : parsed.as_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object())
    damaged(index, 0, "the index is not a JSON object with a weight_map");
  std::map<std::string, std::map<std::string, std::string>> by_file;
  for (const auto& item : map->as_object()) {
    if (!item.value().is_string())
      damaged(index, 0, "weight_map names no file for \"" + std::string(item.key()) + "\"");
    std::string target(item.value().as_string());
    fs::path relative(target);
    bool plain =
        !target.empty() && target.find('\0') == std::string::npos && !relative.is_absolute();
    for (const fs::path& part : relative) plain = plain && part != "..";
    if (!plain)
      damaged(index, 0, "weight_map names \"" + target + "\", which leads out of the folder");
    if (!target.ends_with(".safetensors"))
      damaged(index, 0, "weight_map names \"" + target + "\", which is no safetensors file");
    by_file[target].emplace(item.key(), target);
  }
  for (const auto& [target, names] : by_file) {
    if (!fs::exists(path / target, failed))
      throw Error(ErrorCode::bad_safetensors,
                  index.string() + " names " + target + ", which is not there")
          .help("fetch the missing file");
    check_link(path, path / target);
    add(path / target, &names);
  }
}

void WeightFolder::add(const fs::path& path, const std::map<std::string, std::string>* index) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : files_.back()->tensors()) {
    if (index && !index->contains(entry.name)) continue;
    if (!tensors_.emplace(entry.name, &entry).second)
      damaged(path, entry.offset, "tensor \"" + entry.name + "\" is in two files");
  }
  if (!index) return;
  for (const auto& [name, target] : *index)
    if (!tensors_.contains(name))
      damaged(path, 8, "the index says that tensor \"" + name + "\" is here, and it is not");
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

// Reading parts of tensors, in another floating type where asked for.

void read_slice(const TensorEntry& tensor, std::span<const int64_t> offsets,
                std::span<const int64_t> sizes, DType target, void* out) {
  size_t dims = tensor.shape.size();
  auto mismatch = [&](const std::string& what) {
    throw Error(ErrorCode::weights_mismatch,
                tensor.file->path() + ": tensor \"" + tensor.name + "\" " + what)
        .key("model.pretrained")
        .help("check that config.json and the safetensors files belong together");
  };
  if (offsets.size() != dims || sizes.size() != dims)
    mismatch("has " + std::to_string(dims) + " dimensions, " + std::to_string(sizes.size()) +
             " are wanted");
  for (size_t d = 0; d < dims; ++d)
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] > tensor.shape[d] ||
        sizes[d] > tensor.shape[d] - offsets[d])
      mismatch("has " + std::to_string(tensor.shape[d]) + " rows in dimension " +
               std::to_string(d) + ", wanted are " + std::to_string(sizes[d]) + " from " +
               std::to_string(offsets[d]) + " on");
  bool same = tensor.dtype == target;
  if (!same && (!is_floating(tensor.dtype) || !is_floating(target)))
    mismatch("is " + std::string(dtype_name(tensor.dtype)) + ", wanted is " +
             std::string(dtype_name(target)));
  for (size_t d = 0; d < dims; ++d)
    if (sizes[d] == 0) return;
  int64_t from_size = dtype_size(tensor.dtype), to_size = dtype_size(target);
  // Dimensions from `inner` on are whole, so they are one run together with the one before.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0 && (inner == dims || sizes[inner] == tensor.shape[inner])) run *= sizes[--inner];
  tensor.file->check_size();
  std::vector<int64_t> strides(dims, 1);
  for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
  std::vector<int64_t> at(offsets.begin(), offsets.end());
  auto* to = static_cast<std::byte*>(out);
  for (;;) {
    int64_t element = 0;
    for (size_t d = 0; d < dims; ++d) element += at[d] * strides[d];
    const std::byte* from = tensor.data + element * from_size;
    convert_elements(from, tensor.dtype, to, target, run);
    to += run * to_size;
    size_t d = inner;
    for (; d-- > 0;) {
      if (++at[d] < offsets[d] + sizes[d]) break;
      at[d] = offsets[d];
    }
    if (d == SIZE_MAX) return;
  }
}

namespace {

constexpr size_t kGather = 1 << 20;

// As serde_json writes strings, so that headers are equal to the byte.
void quote(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"':
      case '\\':
        out += '\\';
        out += c;
        break;
      case '\b':
        out += "\\b";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::bad_safetensors, "cannot write " + path.string() + ": " + what)
      .help("rename the tensor in the model, or save fewer of them into one file");
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors, const Metadata& metadata,
                                     ByteSink sink)
    : file_(path), tensors_(std::move(tensors)), sink_(std::move(sink)) {
  std::string header(8, '\0');
  header += '{';
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      quote(header, key);
      header += ':';
      quote(header, value);
    }
    header += '}';
  }
  int64_t at = 0;
  for (const TensorSpec& tensor : tensors_) {
    if (tensor.name == "__metadata__")
      refuse(path, "a tensor is called __metadata__, which the format keeps for itself");
    if (header.back() != '{') header += ',';
    quote(header, tensor.name);
    header += ":{\"dtype\":\"" + std::string(element_type_name(tensor.dtype)) + "\",\"shape\":[";
    for (int64_t size : tensor.shape)
      header += (header.back() == '[' ? "" : ",") + std::to_string(size);
    header += "],\"data_offsets\":[" + std::to_string(at) + ',';
    std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes)
      refuse(path, "tensor \"" + tensor.name + "\" has a negative size or is larger than any file");
    if (__builtin_add_overflow(at, *bytes, &at))
      refuse(path, "the tensors are larger than any file");
    header += std::to_string(at) + "]}";
    ends_.push_back(at);
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t length = header.size() - 8;
  if (length > static_cast<uint64_t>(kMaxHeader))
    refuse(path, "its header would have " + std::to_string(length) + " bytes, more than 100 MiB");
  // What no reader would take is not written: names that stand twice, are too long or not UTF-8,
  // too many dimensions.
  try {
    base::parse_strictly(std::string_view(header).substr(8), kHeaderBounds);
  } catch (const base::JsonProblem& problem) {
    refuse(path, "its header " + problem.what);
  }
  for (size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(length >> (8 * i));
  data_begin_ = static_cast<int64_t>(header.size());
  if (__builtin_add_overflow(data_begin_, at, &at))
    refuse(path, "the tensors are larger than any file");
  gather(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::append(size_t tensor, std::span<const std::byte> bytes) {
  if (bytes.empty() && tensor < tensors_.size()) return;
  int64_t begin = tensor < tensors_.size() ? (tensor == 0 ? 0 : ends_[tensor - 1]) : -1;
  if (begin < 0 || written_ < begin)
    throw Error(ErrorCode::internal, file_.path().string() + ": bytes of tensor number " +
                                         std::to_string(tensor) + " come after only " +
                                         std::to_string(written_) + " bytes of those before it");
  if (static_cast<uint64_t>(ends_[tensor] - written_) < bytes.size() || written_ > ends_[tensor])
    throw Error(ErrorCode::internal, file_.path().string() + ": tensor \"" + tensors_[tensor].name +
                                         "\" has " + std::to_string(ends_[tensor] - begin) +
                                         " bytes, and gets " + std::to_string(bytes.size()) +
                                         " more after " + std::to_string(written_ - begin));
  written_ += static_cast<int64_t>(bytes.size());
  gather(bytes);
}

void SafetensorsWriter::gather(std::span<const std::byte> bytes) {
  if (gathered_.size() + bytes.size() > kGather && !gathered_.empty()) {
    put(gathered_);
    gathered_.clear();
  }
  if (bytes.size() >= kGather) return put(bytes);
  if (gathered_.capacity() == 0) gathered_.reserve(kGather);
  gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
}

void SafetensorsWriter::put(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (sink_) sink_(bytes);
  file_.append(bytes);
}

void SafetensorsWriter::finish() {
  int64_t wanted = ends_.empty() ? 0 : ends_.back();
  if (written_ != wanted)
    throw Error(ErrorCode::internal,
                file_.path().string() + ": " + std::to_string(wanted - written_) + " of " +
                    std::to_string(wanted) + " bytes of tensors were not given");
  put(gathered_);
  gathered_ = {};
  file_.finish();
}

bool as_save_file(const TensorSpec& a, const TensorSpec& b) {
  size_t first = element_type_rank(a.dtype), second = element_type_rank(b.dtype);
  return first != second ? first < second : a.name < b.name;
}

}  // namespace meshwright::weights
