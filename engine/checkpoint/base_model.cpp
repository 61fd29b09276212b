#include "engine/checkpoint/base_model.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/meta_format.h"
#include "engine/checkpoint/weights/experts.h"
#include "engine/checkpoint/weights/read_region.h"
#include "meshwright/error.h"

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
  return tensor.name + '\0' + std::string(dtype_name(tensor.dtype)) + list_text(tensor.shape);
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

}  // namespace meshwright::checkpoint
