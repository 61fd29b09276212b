#include "engine/checkpoint/weights/safetensors_writer.h"

#include <algorithm>
#include <string_view>

#include "engine/checkpoint/weights/bounds.h"
#include "engine/checkpoint/weights/element_types.h"

namespace meshwright::weights {

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
