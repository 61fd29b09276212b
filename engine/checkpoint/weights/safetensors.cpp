#include "engine/checkpoint/weights/safetensors.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "engine/checkpoint/weights/bounds.h"
#include "engine/checkpoint/weights/element_types.h"

namespace meshwright::weights {

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
          .help(
              "quantized weights are not read: take the model's weights in bfloat16 or float32, "
              "or dequantize them with the library that quantized them");
    };
    TensorEntry entry = read_entry(name, about, file_->size() - begin, bad, unread);
    entry.offset += begin;
    entry.data = file_->bytes().data() + entry.offset;
    entry.file = file_.get();
    tensors_.push_back(std::move(entry));
  }
  check_filled(tensors_, begin, file_->size(), file_->path());
}

}  // namespace meshwright::weights
