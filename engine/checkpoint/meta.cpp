#include "engine/checkpoint/meta.h"

#include <algorithm>
#include <boost/json/serialize.hpp>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/meta_format.h"
#include "sdk/base/plain_text.h"

namespace meshwright::checkpoint {

namespace {

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

// Read back it is the same number.
std::string exact(double value) { return text::format("%.17g", value); }

// As texts: a reader of JSON may round numbers.
std::string exact(const std::vector<double>& values) {
  std::string out = "[";
  for (const double& value : values)
    out += (&value == values.data() ? "\"" : ", \"") + exact(value) + "\"";
  return out + "]";
}

std::string to_json(const TensorRecord& tensor) {
  std::string out = "    {";
  if (!tensor.state.empty()) out += "\"state\": " + quoted(tensor.state) + ", ";
  out += "\"name\": " + quoted(tensor.name) + ", \"dtype\": " + quoted(dtype_name(tensor.dtype)) +
         ", \"shape\": " + list_text(tensor.shape);
  if (tensor.export_dtype != tensor.dtype)
    out += ", \"export_dtype\": " + quoted(dtype_name(tensor.export_dtype));
  if (tensor.fused)
    out += ", \"fused\": {\"groups\": " + std::to_string(tensor.fused->groups) +
           ", \"parts\": " + list_text(tensor.fused->parts) + "}";
  if (!tensor.file_name.empty()) out += ", \"file_name\": " + quoted(tensor.file_name);
  if (tensor.transposed) out += ", \"transposed\": true";
  if (tensor.steps) out += ", \"steps\": " + std::to_string(*tensor.steps);
  if (tensor.base) out += ", \"base\": " + quoted(*tensor.base);
  out += ", \"pieces\": [";
  for (const Piece& piece : tensor.pieces) {
    if (&piece != tensor.pieces.data()) out += ", ";
    out += "[" + std::to_string(piece.file) + ", ";
    if (piece.region.flat())
      out += list_text(std::vector<int64_t>{piece.region.begin, piece.region.end});
    else
      out += list_text(piece.region.offsets) + ", " + list_text(piece.region.sizes);
    if (piece.region.within_box())
      out += ", " + list_text(std::vector<int64_t>{piece.region.begin, piece.region.end});
    out += "]";
  }
  return out + "]}";
}

template <class T, class F>
std::string lines(const std::vector<T>& items, F&& line) {
  std::string out = "[";
  for (const T& item : items) out += (&item == items.data() ? "\n" : ",\n") + line(item);
  return out + (items.empty() ? "]" : "\n  ]");
}

}  // namespace

const TensorRecord* Meta::find(std::string_view state, std::string_view name) const {
  for (const TensorRecord& tensor : tensors)
    if (tensor.state == state && tensor.name == name) return &tensor;
  return nullptr;
}

std::vector<std::string> Meta::states() const {
  std::vector<std::string> out;
  for (const TensorRecord& tensor : tensors)
    if (!tensor.state.empty() && std::find(out.begin(), out.end(), tensor.state) == out.end())
      out.push_back(tensor.state);
  return out;
}

std::string to_json(const Meta& meta) {
  auto field = [](const char* name, const std::string& value) {
    return ",\n  \"" + std::string(name) + "\": " + value;
  };
  std::string axes = "[";
  for (const std::string& axis : meta.axes) axes += (axes.size() > 1 ? ", " : "") + quoted(axis);
  std::string out = "{\n  \"format\": " + quoted(kMetaFormat);
  out += field("version", std::to_string(kMetaVersion));
  out += field("program", quoted(meta.program));
  out += field("created", quoted(meta.created));
  out += field("step", std::to_string(meta.step));
  out += field("strategy", "{\"name\": " + quoted(meta.strategy) +
                               ", \"plugin_version\": " + quoted(meta.plugin_version) + "}");
  out += field("layout", "{\"world_size\": " + std::to_string(meta.world_size) +
                             ", \"axes\": " + axes + "], \"mesh\": " + list_text(meta.mesh_shape) +
                             ", \"data_parallel\": " + std::to_string(meta.data_parallel) + "}");
  out += field("model",
               "{\"architecture\": " + quoted(meta.architecture) +
                   (meta.pretrained.empty() ? "" : ", \"pretrained\": " + quoted(meta.pretrained)) +
                   "}");
  if (meta.base)
    out += field("base", "{\"path\": " + quoted(meta.base->path) +
                             ", \"fingerprint\": " + quoted(meta.base->fingerprint) + "}");
  out += field("optimizer", "{\"name\": " + quoted(meta.optimizer) +
                                ", \"steps\": " + std::to_string(meta.optimizer_steps) + "}");
  out += field("data", "{\"samples\": " + std::to_string(meta.samples) +
                           ", \"seq_len\": " + std::to_string(meta.seq_len) +
                           ", \"shuffle\": " + (meta.shuffle ? "true" : "false") +
                           ", \"seed\": " + std::to_string(static_cast<int64_t>(meta.seed)) +
                           ", \"fingerprint\": " + quoted(meta.data_fingerprint) + "}");
  out += field("schedule", "{\"max_steps\": " + std::to_string(meta.max_steps) +
                               ", \"lr\": " + exact(meta.lr) + "}");
  if (meta.best)
    out += field("best", "{\"step\": " + std::to_string(meta.best->step) +
                             ", \"loss\": " + exact(meta.best->loss) + "}");
  if (const StepHistory& h = meta.history; !h.losses.empty() || h.left_out > 0 || h.loss_scale > 0)
    out += field("history",
                 "{\"left_out\": " + std::to_string(h.left_out) + ", \"in_a_row\": " +
                     std::to_string(h.in_a_row) + ", \"losses\": " + exact(h.losses) +
                     ", \"grad_norms\": " + exact(h.grad_norms) +
                     (h.loss_scale > 0 ? ", \"loss_scale\": " + exact(h.loss_scale) +
                                             ", \"even_steps\": " + std::to_string(h.even_steps)
                                       : "") +
                     "}");
  out += field("files", lines(meta.files, [](const FileRecord& file) {
                 std::string blocks;
                 for (uint64_t block : file.blocks) blocks += to_hex(block);
                 return "    {\"name\": " + quoted(file.name) +
                        ", \"bytes\": " + std::to_string(file.bytes) + ", \"blocks\": \"" + blocks +
                        "\"}";
               }));
  out += field("tensors",
               lines(meta.tensors, [](const TensorRecord& tensor) { return to_json(tensor); }));
  out += field("generators", lines(meta.generators, [](const GeneratorRecord& g) {
                 return "    {\"rank\": " + std::to_string(g.rank) +
                        ", \"device\": " + quoted(g.device) +
                        ", \"file\": " + std::to_string(g.file) + "}";
               }));
  uint64_t sum = checksum(out);
  return out + std::string(kChecksumKey) + to_hex(sum) + std::string(kMetaEnd);
}

}  // namespace meshwright::checkpoint
