#include "engine/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/read_region.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kWhole = int64_t{64} << 20, kPlace = 4 << 10, kPlaces = 3;

// What stands at the beginning, in the middle and at the end, or all of it.
std::string contents_of(const weights::TensorEntry& tensor, bool whole) {
  const std::span<const std::byte> all(tensor.data, static_cast<size_t>(tensor.bytes));
  if (whole || tensor.bytes <= kPlaces * kPlace) return to_hex(checksum(all));
  std::string out;
  for (const int64_t at : {int64_t{0}, (tensor.bytes - kPlace) / 2, tensor.bytes - kPlace})
    out += to_hex(checksum(all.subspan(static_cast<size_t>(at), static_cast<size_t>(kPlace))));
  return out;
}

std::string text_of(const weights::TensorEntry& tensor) {
  return tensor.name + '\0' + std::string(dtype_name(tensor.dtype)) +
         report::shape_text(tensor.shape);
}

// The same folder by other words is no other folder.
bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code failed;
  return a == b || fs::equivalent(a, b, failed);
}

std::string export_with(const std::string& base, const fs::path& checkpoint) {
  return "meshwright checkpoint export " + checkpoint.string() + " --merged --base " + base +
         " --out DIR";
}

// What to say after --base.
Error help_flag(Error error, const BaseRecord& record, const fs::path& folder) {
  error.help("--base FOLDER: the folder of the model that the run started from, which was " +
             record.path + " then, with the weights of then");
  if (std::error_code failed; !same_place(record.path, folder) && fs::exists(record.path, failed))
    error.help("leave out --base: there still is a folder " + record.path);
  return error.help(
      "leave out --merged and --base to export the adapters alone, which need no model");
}

Error missing(const BaseRecord& record, const fs::path& folder, BaseNamedBy named_by,
              const fs::path& checkpoint) {
  Error error(
      ErrorCode::file_unreadable,
      checkpoint.string() +
          " holds adapters alone, and there is no folder of their model: " + folder.string());
  if (named_by == BaseNamedBy::flag) return help_flag(std::move(error), record, folder);
  return error.help("put the model back into " + record.path)
      .help("where it is elsewhere: model.pretrained = \"FOLDER\" to train on")
      .help("for a model that is whole: " + export_with("FOLDER", checkpoint));
}

Error mismatch(const BaseRecord& record, const fs::path& folder, BaseNamedBy named_by,
               const fs::path& checkpoint) {
  const bool same = same_place(record.path, folder);
  Error error(ErrorCode::checkpoint_mismatch,
              checkpoint.string() + ": its adapters are of the model in " + record.path +
                  (same ? ", whose weights are not those of then"
                        : ", not of " + folder.string() + ", which has other weights"));
  switch (named_by) {
    case BaseNamedBy::flag:
      return help_flag(std::move(error), record, folder);
    case BaseNamedBy::record:
      return error.help("put the weights back that the run started from")
          .help("where a copy of them is, a model that is whole can be made: " +
                export_with("FOLDER", checkpoint));
    case BaseNamedBy::pretrained:
      break;
  }
  error.key("model.pretrained");
  if (same)
    return error.help("put the weights back that the run started from")
        .help("set run.name to another name to train adapters of the new weights beside it");
  return error.help("set model.pretrained = \"" + record.path + "\"")
      .help("set run.name to another name to train adapters of the other model beside it");
}

}  // namespace

std::string fingerprint_of(const weights::WeightFolder& folder) {
  const std::vector<std::string> names = folder.names();
  int64_t bytes = 0;
  for (const std::string& name : names) bytes += folder.find(name)->bytes;
  std::string all;
  for (const std::string& name : names) {
    const weights::TensorEntry& tensor = *folder.find(name);
    tensor.file->check_size();
    all += text_of(tensor) + contents_of(tensor, bytes <= kWhole);
  }
  return to_hex(checksum(all));
}

BaseModel::BaseModel(const BaseRecord& record, const fs::path& folder, BaseNamedBy named_by,
                     const fs::path& checkpoint)
    : checkpoint_(checkpoint), folder_(folder) {
  std::error_code failed;
  if (!fs::exists(folder, failed)) throw missing(record, folder, named_by, checkpoint);
  weights_ = std::make_unique<weights::WeightFolder>(folder);
  if (fingerprint_of(*weights_) != record.fingerprint)
    throw mismatch(record, folder, named_by, checkpoint);
}

void BaseModel::read(const TensorRecord& tensor, const std::string& architecture,
                     const Region& region, DType target, void* out) const {
  const auto experts = weights::expert_tensors(architecture, tensor.name);
  if (experts && weights::fits(*experts, tensor.shape))
    return weights::read_region_of_experts(*weights_, folder_.string(), *experts, tensor.shape,
                                           region, target, out);
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.transposed) std::reverse(shape.begin(), shape.end());
  const weights::TensorEntry* found = weights_->find(*tensor.base);
  if (found == nullptr || found->shape != shape)
    throw Error(ErrorCode::bad_checkpoint, checkpoint_.string() + ": meta.json says that " +
                                               tensor.name + " is the tensor \"" + *tensor.base +
                                               "\" of " + folder_.string() +
                                               ", which has none of that shape")
        .help("meshwright checkpoint ls shows the other checkpoints of the run");
  found->file->check_size();
  weights::read_region(*found, tensor.shape, tensor.fused, tensor.transposed, region, target, out);
}

namespace {

constexpr int64_t kMostMeta = 512 << 20;
constexpr const char* kOthers =
    "meshwright checkpoint ls shows the other checkpoints of the run; checkpoint verify lists all "
    "damage";

Error damaged(const fs::path& file, const std::string& what) {
  return Error(ErrorCode::bad_checkpoint, file.string() + ": " + what).help(kOthers);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_safetensors(const std::string& name) {
  return name.size() > 12 && name.ends_with(".safetensors") && name.find('/') == std::string::npos;
}

}  // namespace

// A file in use, with what is known of its blocks.
struct Checkpoint::Opened {
  explicit Opened(const fs::path& path) : file(path.string(), ErrorCode::bad_checkpoint) {}
  base::MappedFile file;
  const FileRecord* record = nullptr;
  std::vector<bool> checked;  // one per block
  std::unique_ptr<weights::SafetensorsFile> tensors;
  std::map<std::string, const weights::TensorEntry*, std::less<>> entries;
};

Meta read_meta(const fs::path& folder) {
  fs::path path = folder / "meta.json";
  std::error_code failed;
  fs::file_status status = fs::symlink_status(path, failed);
  if (!fs::exists(status))
    throw Error(ErrorCode::no_checkpoint,
                folder.string() + " is not a checkpoint: it has no meta.json")
        .help(kOthers);
  if (!fs::is_regular_file(status)) throw damaged(path, "not a regular file");
  base::MappedFile file(path.string(), ErrorCode::bad_checkpoint);
  if (file.size() > kMostMeta)
    throw damaged(path, "has " + std::to_string(file.size()) + " bytes, more than 512 MiB");
  return parse_meta({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                    path.string());
}

Checkpoint::Checkpoint(fs::path folder) : folder_(std::move(folder)), meta_(read_meta(folder_)) {
  std::error_code failed;
  fs::file_status status;
  fs::path inside = fs::canonical(folder_, failed);
  for (const FileRecord& file : meta_.files) {
    fs::path full = folder_ / file.name;
    status = fs::symlink_status(full, failed);
    if (!fs::exists(status)) throw damaged(full, "the file is missing");
    // No link, and no folder on the way that is one.
    if (!fs::is_regular_file(status) || fs::canonical(full, failed) != inside / file.name)
      throw damaged(full, "not a regular file of this folder");
    auto size = static_cast<int64_t>(fs::file_size(full, failed));
    if (size != file.bytes)
      throw damaged(full, "the file has " + std::to_string(size) + " bytes, meta.json says " +
                              std::to_string(file.bytes));
  }
  opened_.resize(meta_.files.size());
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::release() {
  for (std::unique_ptr<Opened>& opened : opened_) opened.reset();
  base_.reset();
}

int64_t Checkpoint::bytes() const {
  int64_t sum = 0;
  for (const FileRecord& file : meta_.files) sum += file.bytes;
  return sum;
}

int64_t Checkpoint::bytes_checked() const {
  int64_t sum = 0;
  for (const auto& opened : opened_)
    for (size_t block = 0; opened && block < opened->checked.size(); ++block)
      if (opened->checked[block])
        sum += std::min(kBlock, opened->record->bytes - static_cast<int64_t>(block) * kBlock);
  return sum;
}

Checkpoint::Opened& Checkpoint::open(size_t index) {
  if (opened_[index]) return *opened_[index];
  const FileRecord& record = meta_.files[index];
  fs::path path = folder_ / record.name;
  auto opened = std::make_unique<Opened>(path);
  if (opened->file.size() != record.bytes)
    throw damaged(path, "the file has " + std::to_string(opened->file.size()) +
                            " bytes, meta.json says " + std::to_string(record.bytes));
  opened->record = &record;
  opened->checked.assign(record.blocks.size(), false);
  opened_[index] = std::move(opened);
  return *opened_[index];
}

void Checkpoint::check_blocks(Opened& opened, int64_t from, int64_t to) {
  if (from >= to) return;
  opened.file.check_size();
  for (int64_t block = from / kBlock; block <= (to - 1) / kBlock; ++block) {
    auto index = static_cast<size_t>(block);
    if (opened.checked[index]) continue;
    int64_t begin = block * kBlock, end = std::min(begin + kBlock, opened.record->bytes);
    if (checksum(opened.file.bytes().subspan(static_cast<size_t>(begin),
                                             static_cast<size_t>(end - begin))) !=
        opened.record->blocks[index])
      throw damaged(opened.file.path(), "bytes " + std::to_string(begin) + " to " +
                                            std::to_string(end - 1) +
                                            " do not match their checksum");
    opened.checked[index] = true;
  }
}

const weights::TensorEntry& Checkpoint::entry(const Piece& piece, const TensorRecord* tensor) {
  Opened& opened = open(piece.file);
  if (!opened.tensors) {
    // The header says where everything lies.
    uint64_t header = 0;
    auto bytes = opened.file.bytes();
    check_blocks(opened, 0, std::min<int64_t>(8, opened.file.size()));
    if (bytes.size() >= 8) std::memcpy(&header, bytes.data(), 8);
    if (header < bytes.size())
      check_blocks(opened, 0,
                   std::min<int64_t>(static_cast<int64_t>(header) + 8, opened.file.size()));
    auto tensors = std::make_unique<weights::SafetensorsFile>(opened.file.path());
    for (const weights::TensorEntry& found : tensors->tensors())
      opened.entries[found.name] = &found;
    opened.tensors = std::move(tensors);
  }
  auto found = opened.entries.find(piece.key);
  if (found == opened.entries.end())
    throw damaged(opened.file.path(), "has no tensor \"" + piece.key + "\", which meta.json names");
  const weights::TensorEntry& out = *found->second;
  if (tensor != nullptr && (out.dtype != tensor->dtype || out.shape != piece.region.stored_shape()))
    throw damaged(opened.file.path(),
                  "tensor \"" + piece.key + "\" has another dtype or shape than meta.json says");
  return out;
}

void Checkpoint::open_base() {
  if (meta_.base && !base_)
    base_.emplace(*meta_.base, base_folder_.empty() ? fs::path(meta_.base->path) : base_folder_,
                  base_named_by_, folder_);
}

void Checkpoint::read(const TensorRecord& tensor, const Region& region, DType target, void* out) {
  if (tensor.base) {
    open_base();
    return base_->read(tensor, meta_.architecture, region, target, out);
  }
  auto* to = static_cast<std::byte*>(out);
  int64_t wide = dtype_size(target);
  for (const Piece& piece : tensor.pieces) {
    const weights::TensorEntry* from = nullptr;
    for_each_overlap(
        tensor.shape, region, piece.region, [&](int64_t here, int64_t there, int64_t count) {
          if (from == nullptr) from = &entry(piece, &tensor);
          int64_t narrow = dtype_size(tensor.dtype), begin = from->offset + there * narrow;
          check_blocks(open(piece.file), begin, begin + count * narrow);
          weights::TensorEntry flat = *from;
          flat.shape = {flat.bytes / narrow};
          weights::read_slice(flat, std::span(&there, 1), std::span(&count, 1), target,
                              to + here * wide);
        });
  }
}

std::string Checkpoint::read_file(const std::string& name) {
  for (size_t i = 0; i < meta_.files.size(); ++i)
    if (meta_.files[i].name == name) {
      if (meta_.files[i].bytes == 0) return "";
      Opened& opened = open(i);
      check_blocks(opened, 0, opened.file.size());
      return text_of(opened.file.bytes());
    }
  throw damaged(folder_ / name, "the checkpoint has no such file");
}

std::string Checkpoint::read_generator(const GeneratorRecord& generator) {
  const weights::TensorEntry& found = entry({generator.file, generator.key, {}}, nullptr);
  check_blocks(open(generator.file), found.offset, found.offset + found.bytes);
  return text_of({found.data, static_cast<size_t>(found.bytes)});
}

std::vector<Error> Checkpoint::check_headers() {
  std::vector<Error> out;
  std::vector<std::set<std::string>> named(meta_.files.size());
  std::vector<bool> wrong(meta_.files.size(), false);
  auto check = [&](size_t file, auto&& body) {
    if (wrong[file]) return;
    try {
      body();
    } catch (const Error& error) {
      wrong[file] = true;
      out.push_back(error);
    }
  };
  for (const TensorRecord& tensor : meta_.tensors)
    for (const Piece& piece : tensor.pieces)
      check(piece.file, [&] { named[piece.file].insert(entry(piece, &tensor).name); });
  for (const GeneratorRecord& g : meta_.generators)
    check(g.file, [&] { named[g.file].insert(entry({g.file, g.key, {}}, nullptr).name); });
  for (size_t i = 0; i < meta_.files.size(); ++i) {
    if (meta_.files[i].bytes == 0 || !is_safetensors(meta_.files[i].name)) continue;
    check(i, [&] {
      if (!open(i).tensors || named[i].size() != open(i).entries.size())
        throw damaged(folder_ / meta_.files[i].name, "holds tensors that meta.json does not name");
    });
  }
  return out;
}

}  // namespace meshwright::checkpoint
