#include "engine/checkpoint/meta.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <set>

#include "engine/base/strict_json.h"
#include "engine/checkpoint/checksum.h"
#include "engine/weights/element_types.h"
#include "engine/weights/fused_rows.h"
#include "meshwright/error.h"

namespace meshwright::checkpoint {

namespace {

namespace json = boost::json;

constexpr std::string_view kFormat = "meshwright checkpoint",
                           kChecksumKey = ",\n  \"checksum\": \"", kEnd = "\"\n}\n";
constexpr size_t kMostDims = 16, kMostFusedParts = 8;

std::string quoted(std::string_view text) { return json::serialize(json::string(text)); }

std::string list(std::span<const int64_t> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

std::string key_of(const TensorRecord& tensor) {
  return tensor.state.empty() ? tensor.name : tensor.state + "/" + tensor.name;
}

std::string to_json(const TensorRecord& tensor) {
  std::string out = "    {";
  if (!tensor.state.empty()) out += "\"state\": " + quoted(tensor.state) + ", ";
  out += "\"name\": " + quoted(tensor.name) + ", \"dtype\": " + quoted(dtype_name(tensor.dtype)) +
         ", \"shape\": " + list(tensor.shape);
  if (tensor.export_dtype != tensor.dtype)
    out += ", \"export_dtype\": " + quoted(dtype_name(tensor.export_dtype));
  if (tensor.fused)
    out += ", \"fused\": {\"groups\": " + std::to_string(tensor.fused->groups) +
           ", \"parts\": " + list(tensor.fused->parts) + "}";
  out += ", \"pieces\": [";
  for (const Piece& piece : tensor.pieces) {
    if (&piece != tensor.pieces.data()) out += ", ";
    out += "[" + std::to_string(piece.file) + ", ";
    if (piece.region.flat())
      out += list(std::vector<int64_t>{piece.region.begin, piece.region.end});
    else
      out += list(piece.region.offsets) + ", " + list(piece.region.sizes);
    if (piece.region.within_box())
      out += ", " + list(std::vector<int64_t>{piece.region.begin, piece.region.end});
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
  std::string axes = "[", lr(40, '\0');
  for (const std::string& axis : meta.axes) axes += (axes.size() > 1 ? ", " : "") + quoted(axis);
  lr.resize(static_cast<size_t>(std::snprintf(lr.data(), lr.size(), "%.17g", meta.lr)));
  std::string out = "{\n  \"format\": " + quoted(kFormat);
  out += field("version", std::to_string(kMetaVersion));
  out += field("program", quoted(meta.program));
  out += field("created", quoted(meta.created));
  out += field("step", std::to_string(meta.step));
  out += field("strategy", "{\"name\": " + quoted(meta.strategy) +
                               ", \"plugin_version\": " + quoted(meta.plugin_version) + "}");
  out += field("layout", "{\"world_size\": " + std::to_string(meta.world_size) +
                             ", \"axes\": " + axes + "], \"mesh\": " + list(meta.mesh_shape) +
                             ", \"data_parallel\": " + std::to_string(meta.data_parallel) + "}");
  out += field("model", "{\"architecture\": " + quoted(meta.architecture) + "}");
  out += field("optimizer", "{\"name\": " + quoted(meta.optimizer) +
                                ", \"steps\": " + std::to_string(meta.optimizer_steps) + "}");
  out += field("data", "{\"samples\": " + std::to_string(meta.samples) +
                           ", \"seq_len\": " + std::to_string(meta.seq_len) +
                           ", \"shuffle\": " + (meta.shuffle ? "true" : "false") +
                           ", \"seed\": " + std::to_string(static_cast<int64_t>(meta.seed)) +
                           ", \"fingerprint\": " + quoted(meta.data_fingerprint) + "}");
  out += field("schedule",
               "{\"max_steps\": " + std::to_string(meta.max_steps) + ", \"lr\": " + lr + "}");
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
  return out + std::string(kChecksumKey) + to_hex(sum) + std::string(kEnd);
}

namespace {

bool boxes_overlap(const Region& a, const Region& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d)
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d])
      return false;
  return true;
}

// Whether no two boxes share an element. Boxes of a mesh fall apart at planes that cut none of
// them, dimension by dimension; so a file that lists thousands costs no more than sorting them.
// What does not fall apart is compared pair by pair, when it is not much.
bool disjoint(std::span<const Region*> boxes, size_t dims, int level = 0) {
  constexpr int kMostLevels = 32;
  constexpr size_t kMostPairwise = 1000;
  if (boxes.size() < 2) return true;
  for (size_t d = 0; d < dims && level < kMostLevels; ++d) {
    std::sort(boxes.begin(), boxes.end(),
              [&](const Region* a, const Region* b) { return a->offsets[d] < b->offsets[d]; });
    std::vector<size_t> cuts = {0};
    int64_t end = 0;
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (i > 0 && boxes[i]->offsets[d] >= end) cuts.push_back(i);
      end = std::max(end, boxes[i]->offsets[d] + boxes[i]->sizes[d]);
    }
    if (cuts.size() == 1) continue;
    cuts.push_back(boxes.size());
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      if (!disjoint(boxes.subspan(cuts[i], cuts[i + 1] - cuts[i]), dims, level + 1)) return false;
    return true;
  }
  if (boxes.size() > kMostPairwise) return false;
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = i + 1; j < boxes.size(); ++j)
      if (boxes_overlap(*boxes[i], *boxes[j])) return false;
  return true;
}

}  // namespace

// The counts add up, and no two pieces share an element.
bool covers(const TensorRecord& tensor) {
  int64_t elements = Region::whole(tensor.shape).count(), sum = 0;
  bool boxes = true;
  std::vector<const Region*> regions;
  for (const Piece& piece : tensor.pieces) {
    sum += piece.region.count();
    if (sum > elements) return false;
    boxes = boxes && piece.region.begin < 0;
    if (piece.region.count() > 0) regions.push_back(&piece.region);
  }
  if (sum != elements) return false;
  if (tensor.shape.empty()) return regions.size() == 1;
  if (boxes) return disjoint(regions, tensor.shape.size());
  std::vector<Region> runs;
  for (const Region* region : regions) {
    runs.push_back(as_run(*region, tensor.shape));
    if (runs.back().flat()) continue;
    std::vector<Region> parts;
    for (const Region* one : regions)
      for (Region& box : as_boxes(*one, tensor.shape)) parts.push_back(std::move(box));
    std::vector<const Region*> all;
    for (const Region& box : parts) all.push_back(&box);
    return disjoint(all, tensor.shape.size());
  }
  std::sort(runs.begin(), runs.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < runs.size(); ++i)
    if (runs[i].begin < runs[i - 1].end) return false;
  return true;
}

namespace {

// Typed access to one object of the file; what is wrong is said with its place in the document.
class Reader {
 public:
  Reader(const json::value& value, std::string where, const std::string& path)
      : where_(std::move(where)), path_(path) {
    if (!value.is_object()) fail("is not an object");
    object_ = &value.as_object();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::bad_checkpoint, path_ + ": " + where_ + " " + what)
        .help("meshwright checkpoint ls shows the other checkpoints of the run");
  }
  const json::value& at(const char* key) {
    const json::value* value = object_->if_contains(key);
    if (value == nullptr) fail("lacks \"" + std::string(key) + "\"");
    ++used_;
    return *value;
  }
  bool has(const char* key) const { return object_->contains(key); }
  std::string text(const char* key) {
    const json::value& value = at(key);
    if (!value.is_string()) fail("needs a string as \"" + std::string(key) + "\"");
    return std::string(value.as_string());
  }
  int64_t number(const char* key, int64_t least = 0) {
    const json::value& value = at(key);
    if (!value.is_int64() || value.as_int64() < least)
      fail("needs a whole number of at least " + std::to_string(least) + " as \"" + key + "\"");
    return value.as_int64();
  }
  double real(const char* key) {
    const json::value& value = at(key);
    if (!value.is_number()) fail("needs a number as \"" + std::string(key) + "\"");
    return value.to_number<double>();
  }
  bool boolean(const char* key) {
    const json::value& value = at(key);
    if (!value.is_bool()) fail("needs true or false as \"" + std::string(key) + "\"");
    return value.as_bool();
  }
  DType dtype(const char* key) {
    std::string name = text(key);
    try {
      return parse_dtype(name);
    } catch (const Error& error) {
      fail("has an unknown dtype " + name);
    }
  }
  Reader object(const char* key) { return {at(key), "\"" + std::string(key) + "\"", path_}; }
  const json::array& array(const char* key) {
    const json::value& value = at(key);
    if (!value.is_array()) fail("needs a list as \"" + std::string(key) + "\"");
    return value.as_array();
  }
  std::vector<int64_t> numbers(const json::value& value, const char* what) const {
    if (!value.is_array()) fail("needs a list of whole numbers for " + std::string(what));
    std::vector<int64_t> out;
    for (const json::value& item : value.as_array()) {
      if (!item.is_int64() || item.as_int64() < 0)
        fail("has something else than whole numbers in " + std::string(what));
      out.push_back(item.as_int64());
    }
    return out;
  }
  // Everything was read: what is left over would have a meaning that this version does not know.
  void end() const {
    if (used_ != object_->size()) fail("has fields this version does not know");
  }

 private:
  const json::object* object_ = nullptr;
  std::string where_;
  const std::string& path_;
  size_t used_ = 0;
};

// Whether a name stays in the folder it is joined to.
bool stays_inside(std::string_view name) {
  if (name.empty() || name.size() > 1024 || name.find('\0') != std::string_view::npos) return false;
  while (true) {
    size_t slash = name.find('/');
    std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

FileRecord read_file(Reader reader) {
  FileRecord file;
  file.name = reader.text("name");
  if (!stays_inside(file.name) || file.name == "meta.json")
    reader.fail("has a name that is not a file of the checkpoint's folder");
  file.bytes = reader.number("bytes");
  std::string blocks = reader.text("blocks");
  reader.end();
  int64_t wanted = file.bytes / kBlock + (file.bytes % kBlock != 0);
  if (blocks.size() % 16 != 0 || static_cast<int64_t>(blocks.size() / 16) != wanted)
    reader.fail("(" + file.name + ") needs " + std::to_string(wanted) +
                " checksums of 16 digits for its " + std::to_string(file.bytes) + " bytes");
  for (size_t at = 0; at < blocks.size(); at += 16) {
    uint64_t sum = 0;
    if (!parse_hex(std::string_view(blocks).substr(at, 16), sum))
      reader.fail("(" + file.name + ") has a checksum that is not hexadecimal");
    file.blocks.push_back(sum);
  }
  return file;
}

TensorRecord read_tensor(Reader reader, const std::vector<FileRecord>& files) {
  TensorRecord tensor;
  if (reader.has("state")) {
    tensor.state = reader.text("state");
    if (tensor.state.empty() || tensor.state.find('/') != std::string::npos)
      reader.fail("has an unusable name of a state");
  }
  tensor.name = reader.text("name");
  if (tensor.name.empty()) reader.fail("has no name");
  tensor.dtype = tensor.export_dtype = reader.dtype("dtype");
  if (reader.has("export_dtype")) tensor.export_dtype = reader.dtype("export_dtype");
  tensor.shape = reader.numbers(reader.at("shape"), "its shape");
  if (tensor.shape.size() > kMostDims)
    reader.fail("(" + tensor.name + ") has more than 16 dimensions");
  std::optional<int64_t> bytes = weights::tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) reader.fail("(" + tensor.name + ") is larger than any file");
  if (reader.has("fused")) {
    Reader fused = reader.object("fused");
    tensor.fused =
        FusedRows{fused.number("groups", 1), fused.numbers(fused.at("parts"), "\"parts\"")};
    fused.end();
    // Every run of rows costs a read.
    if (tensor.fused->groups > weights::kMostFusedGroups ||
        tensor.fused->parts.size() > kMostFusedParts || !weights::fits(*tensor.fused, tensor.shape))
      reader.fail("(" + tensor.name + ") has fused parts that do not make up its shape " +
                  list(tensor.shape));
  }
  for (const json::value& item : reader.array("pieces")) {
    if (!item.is_array() || item.as_array().size() < 2 || item.as_array().size() > 4)
      reader.fail("(" + tensor.name + ") has a piece of a wrong form");
    const json::array& parts = item.as_array();
    Piece piece;
    if (!parts[0].is_int64() || parts[0].as_int64() < 0 ||
        parts[0].as_int64() >= static_cast<int64_t>(files.size()))
      reader.fail("(" + tensor.name + ") has a piece in a file that is not listed");
    piece.file = static_cast<size_t>(parts[0].as_int64());
    std::vector<int64_t> first = reader.numbers(parts[1], "a piece");
    if (parts.size() >= 3) {
      piece.region = Region::box(std::move(first), reader.numbers(parts[2], "a piece"));
      if (parts.size() == 4) {
        std::vector<int64_t> ends = reader.numbers(parts[3], "a piece");
        if (ends.size() != 2 || piece.region.sizes.empty())
          reader.fail("(" + tensor.name + ") has a run of a box without two ends");
        piece.region.begin = ends[0];
        piece.region.end = ends[1];
      }
    } else {
      if (first.size() != 2) reader.fail("(" + tensor.name + ") has a run without two ends");
      piece.region = Region::run(first[0], first[1]);
    }
    if (!fits(piece.region, tensor.shape))
      reader.fail("(" + tensor.name + ") has a piece outside of its shape " + list(tensor.shape));
    // Else a short file could claim a tensor that takes days to walk over.
    if (piece.region.count() > files[piece.file].bytes / dtype_size(tensor.dtype))
      reader.fail("(" + tensor.name + ") has a piece of " + std::to_string(piece.region.count()) +
                  " elements in " + files[piece.file].name + ", which has " +
                  std::to_string(files[piece.file].bytes) + " bytes");
    piece.key = key_of(tensor);
    tensor.pieces.push_back(std::move(piece));
  }
  reader.end();
  if (!covers(tensor))
    reader.fail("(" + tensor.name + ") has pieces that do not cover its shape " +
                list(tensor.shape) + " exactly once");
  return tensor;
}

std::string numbered(const char* what, size_t index) {
  return "\"" + std::string(what) + "\"[" + std::to_string(index) + "]";
}

}  // namespace

Meta parse_meta(std::string_view text, const std::string& path) {
  auto bad = [&](int64_t at, const std::string& what) -> Error {
    return Error(ErrorCode::bad_checkpoint, path + ": byte " + std::to_string(at) + ": " + what)
        .help("meshwright checkpoint ls shows the other checkpoints of the run");
  };
  size_t tail = kChecksumKey.size() + 16 + kEnd.size();
  uint64_t sum = 0;
  if (text.size() < tail || text.substr(text.size() - tail, kChecksumKey.size()) != kChecksumKey ||
      text.substr(text.size() - kEnd.size()) != kEnd ||
      !parse_hex(text.substr(text.size() - kEnd.size() - 16, 16), sum))
    throw bad(static_cast<int64_t>(text.size()),
              "the file does not end with its checksum: it is cut short or damaged");
  if (checksum(text.substr(0, text.size() - tail)) != sum)
    throw bad(0, "the file does not match its checksum");
  json::value parsed;
  try {
    parsed = base::parse_strictly(text, {.depth = 8, .elements = 1 << 20});
  } catch (const base::JsonProblem& problem) {
    throw bad(problem.offset, problem.what);
  }
  Reader root(parsed, "the file", path);
  if (root.text("format") != kFormat) root.fail("is not a checkpoint's");
  if (int64_t version = root.number("version"); version != kMetaVersion)
    root.fail("is of version " + std::to_string(version) + ", this program reads version " +
              std::to_string(kMetaVersion));
  Meta meta;
  meta.program = root.text("program");
  meta.created = root.text("created");
  meta.step = root.number("step");
  Reader strategy = root.object("strategy"), layout = root.object("layout"),
         model = root.object("model"), optimizer = root.object("optimizer"),
         data = root.object("data"), schedule = root.object("schedule");
  meta.strategy = strategy.text("name");
  meta.plugin_version = strategy.text("plugin_version");
  strategy.end();
  meta.world_size = layout.number("world_size", 1);
  for (const json::value& axis : layout.array("axes")) {
    if (!axis.is_string()) layout.fail("needs names as \"axes\"");
    meta.axes.emplace_back(axis.as_string());
  }
  meta.mesh_shape = layout.numbers(layout.at("mesh"), "\"mesh\"");
  if (meta.axes.size() != meta.mesh_shape.size()) layout.fail("needs one size an axis");
  meta.data_parallel = layout.number("data_parallel", 1);
  layout.end();
  meta.architecture = model.text("architecture");
  model.end();
  meta.optimizer = optimizer.text("name");
  meta.optimizer_steps = optimizer.number("steps");
  optimizer.end();
  meta.samples = data.number("samples");
  meta.seq_len = data.number("seq_len");
  meta.shuffle = data.boolean("shuffle");
  meta.seed = static_cast<uint64_t>(data.number("seed", INT64_MIN));
  meta.data_fingerprint = data.text("fingerprint");
  data.end();
  meta.max_steps = schedule.number("max_steps");
  meta.lr = schedule.real("lr");
  schedule.end();
  std::set<std::string> names;
  const json::array& files = root.array("files");
  for (size_t i = 0; i < files.size(); ++i) {
    meta.files.push_back(read_file({files[i], numbered("files", i), path}));
    if (!names.insert(meta.files.back().name).second)
      root.fail("lists the file " + meta.files.back().name + " twice");
  }
  names.clear();
  const json::array& tensors = root.array("tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    meta.tensors.push_back(read_tensor({tensors[i], numbered("tensors", i), path}, meta.files));
    const TensorRecord& tensor = meta.tensors.back();
    if (!names.insert(key_of(tensor)).second) root.fail("lists " + key_of(tensor) + " twice");
  }
  const json::array& generators = root.array("generators");
  for (size_t i = 0; i < generators.size(); ++i) {
    Reader reader(generators[i], numbered("generators", i), path);
    GeneratorRecord generator;
    generator.rank = reader.number("rank");
    generator.device = reader.text("device");
    generator.file = static_cast<size_t>(reader.number("file"));
    reader.end();
    if (generator.file >= files.size() || generator.rank >= meta.world_size)
      reader.fail("names a file or rank that is not there");
    generator.key = "rng/" + generator.device;
    meta.generators.push_back(std::move(generator));
  }
  root.at("checksum");
  root.end();
  return meta;
}

}  // namespace meshwright::checkpoint
