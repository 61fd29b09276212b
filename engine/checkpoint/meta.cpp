// meta.json, written and read. Long because what writes a field and what reads it stay beside each
// other.
#include "engine/checkpoint/meta.h"

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <set>
#include <span>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/models.h"
#include "meshwright/error.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::checkpoint {

namespace {

std::string json_quoted(std::string_view text) {
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
  if (!tensor.state.empty()) out += "\"state\": " + json_quoted(tensor.state) + ", ";
  out += "\"name\": " + json_quoted(tensor.name) +
         ", \"dtype\": " + json_quoted(dtype_name(tensor.dtype)) +
         ", \"shape\": " + report::shape_text(tensor.shape);
  if (tensor.export_dtype != tensor.dtype)
    out += ", \"export_dtype\": " + json_quoted(dtype_name(tensor.export_dtype));
  if (tensor.fused)
    out += ", \"fused\": {\"groups\": " + std::to_string(tensor.fused->groups) +
           ", \"parts\": " + report::shape_text(tensor.fused->parts) + "}";
  if (!tensor.file_name.empty()) out += ", \"file_name\": " + json_quoted(tensor.file_name);
  if (tensor.transposed) out += ", \"transposed\": true";
  if (tensor.steps) out += ", \"steps\": " + std::to_string(*tensor.steps);
  if (tensor.base) out += ", \"base\": " + json_quoted(*tensor.base);
  out += ", \"pieces\": [";
  for (const Piece& piece : tensor.pieces) {
    if (&piece != tensor.pieces.data()) out += ", ";
    out += "[" + std::to_string(piece.file) + ", ";
    if (piece.region.flat())
      out += report::shape_text(std::array{piece.region.begin, piece.region.end});
    else
      out +=
          report::shape_text(piece.region.offsets) + ", " + report::shape_text(piece.region.sizes);
    if (piece.region.within_box())
      out += ", " + report::shape_text(std::array{piece.region.begin, piece.region.end});
    out += "]";
  }
  return out + "]}";
}

std::string to_json(const MixRecord& mix) {
  std::string out = "{\"first\": " + std::to_string(mix.first) + ", \"sources\": [";
  for (const MixedSource& source : mix.sources)
    out += (&source == mix.sources.data() ? "" : ", ") + std::string("{\"name\": ") +
           json_quoted(source.name) + ", \"fingerprint\": " + json_quoted(source.fingerprint) +
           ", \"share\": " + std::to_string(source.share) +
           ", \"read\": " + std::to_string(source.read) + "}";
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
  for (const std::string& axis : meta.axes)
    axes += (axes.size() > 1 ? ", " : "") + json_quoted(axis);
  std::string out = "{\n  \"format\": " + json_quoted(kMetaFormat);
  out += field("version", std::to_string(kMetaVersion));
  out += field("program", json_quoted(meta.program));
  out += field("created", json_quoted(meta.created));
  out += field("step", std::to_string(meta.step));
  out += field("strategy", "{\"name\": " + json_quoted(meta.strategy) +
                               ", \"plugin_version\": " + json_quoted(meta.plugin_version) + "}");
  out += field("layout", "{\"world_size\": " + std::to_string(meta.world_size) + ", \"axes\": " +
                             axes + "], \"mesh\": " + report::shape_text(meta.mesh_shape) +
                             ", \"data_parallel\": " + std::to_string(meta.data_parallel) + "}");
  out += field(
      "model",
      "{\"architecture\": " + json_quoted(meta.architecture) +
          (meta.pretrained.empty() ? "" : ", \"pretrained\": " + json_quoted(meta.pretrained)) +
          "}");
  if (meta.base)
    out += field("base", "{\"path\": " + json_quoted(meta.base->path) +
                             ", \"fingerprint\": " + json_quoted(meta.base->fingerprint) + "}");
  out += field("optimizer", "{\"name\": " + json_quoted(meta.optimizer) +
                                ", \"steps\": " + std::to_string(meta.optimizer_steps) + "}");
  out += field("data", "{\"samples\": " + std::to_string(meta.samples) +
                           ", \"seq_len\": " + std::to_string(meta.seq_len) +
                           ", \"shuffle\": " + (meta.shuffle ? "true" : "false") +
                           ", \"seed\": " + std::to_string(static_cast<int64_t>(meta.seed)) +
                           ", \"fingerprint\": " + json_quoted(meta.data_fingerprint) +
                           (meta.mix ? ", \"mix\": " + to_json(*meta.mix) : "") + "}");
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
                 return "    {\"name\": " + json_quoted(file.name) +
                        ", \"bytes\": " + std::to_string(file.bytes) + ", \"blocks\": \"" + blocks +
                        "\"}";
               }));
  out += field("tensors",
               lines(meta.tensors, [](const TensorRecord& tensor) { return to_json(tensor); }));
  out += field("generators", lines(meta.generators, [](const GeneratorRecord& g) {
                 return "    {\"rank\": " + std::to_string(g.rank) +
                        ", \"device\": " + json_quoted(g.device) +
                        ", \"file\": " + std::to_string(g.file) + "}";
               }));
  uint64_t sum = checksum(out);
  return out + std::string(kChecksumKey) + to_hex(sum) + std::string(kMetaEnd);
}

// parse_meta(): the reader of meta.json, which may be damaged or anybody's.

namespace {

namespace json = boost::json;

constexpr size_t kMostDims = 16, kMostFusedParts = 8;

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
  // Numbers, or their digits as a text: of those the last bit is read, too, which Boost.JSON rounds
  // as it likes.
  std::vector<double> reals(const char* key) {
    std::vector<double> out;
    try {
      base::codec::read(at(key), out, {});
    } catch (const base::JsonProblem&) {
      fail("needs numbers in \"" + std::string(key) + "\"");
    }
    return out;
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
  // Calls use(Reader) for each object of a list, in its order.
  template <class Use>
  void for_each(const char* key, Use&& use) {
    const json::array& items = array(key);
    for (size_t i = 0; i < items.size(); ++i)
      use(Reader(items[i], "\"" + std::string(key) + "\"[" + std::to_string(i) + "]", path_));
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

Piece read_piece(const Reader& reader, const json::value& item, const TensorRecord& tensor,
                 const std::vector<FileRecord>& files) {
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
    reader.fail("(" + tensor.name + ") has a piece outside of its shape " +
                report::shape_text(tensor.shape));
  // Else a short file could claim a tensor that takes days to walk over.
  if (piece.region.count() > files[piece.file].bytes / dtype_size(tensor.dtype))
    reader.fail("(" + tensor.name + ") has a piece of " + std::to_string(piece.region.count()) +
                " elements in " + files[piece.file].name + ", which has " +
                std::to_string(files[piece.file].bytes) + " bytes");
  piece.key = key_of(tensor);
  return piece;
}

TensorRecord read_tensor(Reader reader, const std::vector<FileRecord>& files,
                         int64_t optimizer_steps, bool with_base) {
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
                  report::shape_text(tensor.shape));
  }
  if (reader.has("file_name")) {
    tensor.file_name = reader.text("file_name");
    if (tensor.file_name.empty()) reader.fail("(" + tensor.name + ") has an empty name in files");
  }
  if (reader.has("transposed")) {
    tensor.transposed = reader.boolean("transposed");
    if (tensor.transposed && tensor.shape.size() != 2)
      reader.fail("(" + tensor.name + ") is transposed, but no matrix");
  }
  if (!tensor.state.empty() && reader.has("steps")) {
    tensor.steps = reader.number("steps");
    if (*tensor.steps > optimizer_steps)
      reader.fail("(" + tensor.name + ") has had more updates than the optimizer has done");
  }
  for (const json::value& item : reader.array("pieces"))
    tensor.pieces.push_back(read_piece(reader, item, tensor, files));
  if (reader.has("base")) {
    tensor.base = reader.text("base");
    if (!with_base || !tensor.state.empty() || !tensor.pieces.empty() || tensor.base->empty())
      reader.fail("(" + tensor.name + ") is of a base model, which does not fit the rest");
  }
  reader.end();
  if (!tensor.base && !covers(tensor))
    reader.fail("(" + tensor.name + ") has pieces that do not cover its shape " +
                report::shape_text(tensor.shape) + " exactly once");
  return tensor;
}

GeneratorRecord read_generator(Reader reader, const Meta& meta) {
  GeneratorRecord generator;
  generator.rank = reader.number("rank");
  generator.device = reader.text("device");
  generator.file = static_cast<size_t>(reader.number("file"));
  reader.end();
  if (generator.file >= meta.files.size() || generator.rank >= meta.world_size)
    reader.fail("names a file or rank that is not there");
  generator.key = "rng/" + generator.device;
  return generator;
}

// The document, when it ends with its checksum and matches it.
json::value parse_checked(std::string_view text, const std::string& path) {
  auto bad = [&](int64_t at, const std::string& what) -> Error {
    return Error(ErrorCode::bad_checkpoint, path + ": byte " + std::to_string(at) + ": " + what)
        .help("meshwright checkpoint ls shows the other checkpoints of the run");
  };
  size_t tail = kChecksumKey.size() + 16 + kMetaEnd.size();
  uint64_t sum = 0;
  if (text.size() < tail || text.substr(text.size() - tail, kChecksumKey.size()) != kChecksumKey ||
      text.substr(text.size() - kMetaEnd.size()) != kMetaEnd ||
      !parse_hex(text.substr(text.size() - kMetaEnd.size() - 16, 16), sum))
    throw bad(static_cast<int64_t>(text.size()),
              "the file does not end with its checksum: it is cut short or damaged");
  if (checksum(text.substr(0, text.size() - tail)) != sum)
    throw bad(0, "the file does not match its checksum");
  try {
    return base::parse_strictly(text, {.depth = 8, .elements = 1 << 20});
  } catch (const base::JsonProblem& problem) {
    throw bad(problem.offset, problem.what);
  }
}

MixRecord read_mix(Reader reader, int64_t samples) {
  // What stages of a mix are computed with.
  constexpr int64_t kMostShares = int64_t{1} << 31;
  MixRecord mix;
  mix.first = reader.number("first");
  int64_t shares = 0, read = 0;
  reader.for_each("sources", [&](Reader one) {
    MixedSource source{one.text("name"), one.text("fingerprint"), one.number("share"),
                       one.number("read")};
    if (source.share > kMostShares || source.read > samples)
      one.fail("has a share or a count that cannot be");
    if (std::ranges::find(mix.sources, source.name, &MixedSource::name) != mix.sources.end())
      one.fail("has a name that another source has");
    one.end();
    shares += source.share;
    read += source.read;
    mix.sources.push_back(std::move(source));
  });
  if (mix.first > samples || read != mix.first || shares < 1 || shares > kMostShares)
    reader.fail("has counts that are not those of its positions");
  reader.end();
  return mix;
}

// All but the lists.
void read_run(Reader& root, Meta& meta) {
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
  if (model.has("pretrained")) meta.pretrained = model.text("pretrained");
  model.end();
  if (root.has("base")) {
    Reader base = root.object("base");
    meta.base = BaseRecord{base.text("path"), base.text("fingerprint")};
    base.end();
    if (meta.base->path.empty() || meta.base->path.find('\0') != std::string::npos)
      root.fail("names no folder of a base model");
  }
  meta.optimizer = optimizer.text("name");
  meta.optimizer_steps = optimizer.number("steps");
  optimizer.end();
  meta.samples = data.number("samples");
  meta.seq_len = data.number("seq_len");
  meta.shuffle = data.boolean("shuffle");
  meta.seed = static_cast<uint64_t>(data.number("seed", INT64_MIN));
  meta.data_fingerprint = data.text("fingerprint");
  if (data.has("mix")) meta.mix = read_mix(data.object("mix"), meta.samples);
  data.end();
  meta.max_steps = schedule.number("max_steps");
  meta.lr = schedule.real("lr");
  schedule.end();
  if (root.has("best")) {
    Reader best = root.object("best");
    meta.best = BestLoss{best.number("step"), best.real("loss")};
    best.end();
  }
  if (root.has("history")) {
    Reader history = root.object("history");
    meta.history.left_out = history.number("left_out");
    meta.history.in_a_row = history.number("in_a_row");
    meta.history.losses = history.reals("losses");
    meta.history.grad_norms = history.reals("grad_norms");
    if (history.has("loss_scale")) {
      meta.history.loss_scale = history.real("loss_scale");
      meta.history.even_steps = history.number("even_steps");
    }
    history.end();
  }
}

}  // namespace

Meta parse_meta(std::string_view text, const std::string& path) {
  json::value parsed = parse_checked(text, path);
  Reader root(parsed, "the file", path);
  if (root.text("format") != kMetaFormat) root.fail("is not a checkpoint's");
  if (int64_t version = root.number("version"); version != kMetaVersion)
    root.fail("is of version " + std::to_string(version) + ", this program reads version " +
              std::to_string(kMetaVersion));
  Meta meta;
  read_run(root, meta);
  std::set<std::string> names;
  root.for_each("files", [&](Reader reader) {
    meta.files.push_back(read_file(std::move(reader)));
    const std::string& name = meta.files.back().name;
    if (!names.insert(name).second) root.fail("lists the file " + name + " twice");
  });
  names.clear();
  root.for_each("tensors", [&](Reader reader) {
    meta.tensors.push_back(
        read_tensor(std::move(reader), meta.files, meta.optimizer_steps, meta.base.has_value()));
    std::string key = key_of(meta.tensors.back());
    if (!names.insert(key).second) root.fail("lists " + key + " twice");
  });
  root.for_each("generators", [&](Reader reader) {
    meta.generators.push_back(read_generator(std::move(reader), meta));
  });
  root.at("checksum");
  root.end();
  return meta;
}

// covers(): the pieces of a tensor hold every element exactly once.

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

}  // namespace meshwright::checkpoint
