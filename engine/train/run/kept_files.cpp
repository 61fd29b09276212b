#include "engine/train/run/kept_files.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::train {

namespace fs = std::filesystem;

void KeptFiles::add(std::string name, std::string bytes) {
  remove([&](std::string_view other) { return other == name; });
  checkpoint::BlockChecksums sums;
  sums.add(std::as_bytes(std::span(bytes)));
  const auto size = static_cast<int64_t>(bytes.size());
  files_.push_back({{std::move(name), size, sums.finish()}, std::move(bytes)});
}

void KeptFiles::read(std::string name, const fs::path& file) {
  base::ForeignFile opened(file);
  std::string bytes = opened.read(base::kLargeFile);
  if (!opened.problem().empty())
    throw Error(ErrorCode::file_unreadable,
                "cannot read " + file.string() + ", which checkpoints carry along: " +
                    (opened.reason() != 0 ? std::strerror(opened.reason()) : opened.problem()))
        .help("make it readable, or move it out of the folder");
  add(std::move(name), std::move(bytes));
}

void KeptFiles::remove(const std::function<bool(std::string_view name)>& which) {
  std::erase_if(files_, [&](const KeptFile& file) { return which(file.record.name); });
}

checkpoint::FileRecord write_kept(const KeptFile& file, const fs::path& folder) {
  const fs::path to = folder / file.record.name;
  base::make_folders(to.parent_path());
  base::NewFile out(to);
  out.append(file.bytes);
  out.finish();
  return file.record;
}

ModelFiles read_model_files(checkpoint::Checkpoint* from, const fs::path& config,
                            const std::string& config_text, const std::string& pretrained,
                            bool bytes) {
  constexpr std::string_view kSource = "source/";
  ModelFiles out;
  auto carry = [&](weights::Carried carried) {
    for (const weights::CarriedFile& file : carried.files)
      out.files.read(std::string(kSource) + file.name, file.path);
    std::move(carried.notices.begin(), carried.notices.end(), std::back_inserter(out.notices));
  };
  if (!config_text.empty()) out.files.add("config.json", config_text);
  if (from != nullptr) {
    const checkpoint::CarriedFiles carried = checkpoint::carried_by(*from);
    for (const checkpoint::FileRecord* file : carried.files)
      out.files.add(file->name, from->read_file(file->name));
    if (!carried.notice.empty()) out.notices.push_back(carried.notice);
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.state.empty()) out.export_dtypes.emplace_back(tensor.name, tensor.export_dtype);
  } else if (!pretrained.empty()) {
    carry(weights::carried_files(pretrained));
    weights::WeightFolder source(pretrained);
    for (const std::string& name : source.names())
      out.export_dtypes.emplace_back(name, source.find(name)->dtype);
  }
  // Also for a checkpoint of a program that did not look beside the config yet.
  if (!pretrained.empty() || config.empty() || out.files.all().size() > 1) return out;
  if (!bytes)
    carry(weights::carried_beside(config.parent_path()));
  else if (std::optional<std::string> notice = weights::tokenizer_of_no_use(config))
    out.notices.push_back(*notice);
  return out;
}

}  // namespace meshwright::train
