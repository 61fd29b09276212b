#include "engine/checkpoint/export.h"

#include <algorithm>
#include <limits>
#include <set>

#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/words.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kExportPiece = 4 << 20;  // elements read at a time
constexpr std::string_view kSource = "source/";

DType dtype_of(const SourceTensor& tensor, const ExportChoice& choice) {
  return choice.dtype && weights::is_floating(tensor.export_dtype) ? *choice.dtype
                                                                   : tensor.export_dtype;
}

std::string config_of(const fs::path& folder, const fs::path& path) {
  constexpr size_t kMost = 16 << 20;
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::bad_model_config, path.string() + " " + why)
        .help("copy the model's own config.json into the folder");
  };
  if (std::optional<fs::path> real = weights::leads_out(folder, path))
    throw refuse("is a link that leads out of the folder, to " + real->string());
  std::string text;
  weights::copy_of("config.json", path).stream([&](std::span<const std::byte> bytes) {
    if (text.size() + bytes.size() > kMost) throw refuse("is larger than 16 MiB");
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

// What of the source is written, and how.
struct Content {
  std::optional<AdapterSet> adapters;
  bool alone = false;  // the adapters without the model

  explicit Content(Source& source, const ExportChoice& choice)
      : adapters(adapters_of(source)),
        alone(adapters.has_value() && choice.form == ExportForm::adapter) {
    if (!adapters) return;
    for (const auto& [weight, pair] : adapters->of_weight) factors_.insert({pair.in, pair.out});
  }
  bool takes(const Source& source, size_t tensor) const {
    return source.tensors()[tensor].state.empty() && factors_.contains(tensor) == alone;
  }
  // nullptr: the tensor stays as it is.
  const AdapterPair* joined_with(size_t tensor) const {
    if (!adapters || alone) return nullptr;
    const auto found = adapters->of_weight.find(tensor);
    return found == adapters->of_weight.end() ? nullptr : &found->second;
  }
  // Adapters keep the digits that were trained, in float32 at least.
  DType dtype(const SourceTensor& tensor, const ExportChoice& choice) const {
    if (!alone) return dtype_of(tensor, choice);
    const bool wide = dtype_size(tensor.dtype) >= dtype_size(DType::float32);
    return choice.dtype.value_or(wide ? tensor.dtype : DType::float32);
  }

 private:
  std::set<size_t> factors_;  // of adapters, among the source's tensors
};

// Everything beside the weights, with its size.
std::vector<std::pair<weights::ExportFile, int64_t>> extras_of(Source& source,
                                                               const Content& content,
                                                               const ExportChoice& choice) {
  std::vector<std::pair<weights::ExportFile, int64_t>> out;
  auto add_config = [&](const std::string& text) {
    out.emplace_back(
        weights::text_of("config.json", choice.dtype ? with_dtype(text, *choice.dtype) : text),
        text.size());
  };
  if (Checkpoint* checkpoint = source.checkpoint()) {
    for (const FileRecord& file : checkpoint->meta().files) {
      if (file.name == "config.json" && !content.alone)
        add_config(checkpoint->read_file(file.name));
      if (file.name == kAdapterConfig && content.alone)
        out.emplace_back(weights::text_of(file.name, content.adapters->config), file.bytes);
    }
    for (const FileRecord* file : carried_by(*checkpoint).files)
      out.emplace_back(
          weights::ExportFile{file->name.substr(kSource.size()),
                              [checkpoint, name = file->name](const weights::ByteSink& sink) {
                                std::string text = checkpoint->read_file(name);
                                sink(std::as_bytes(std::span(text.data(), text.size())));
                              }},
          file->bytes);
    return out;
  }
  std::error_code failed;
  if (!fs::is_directory(source.path(), failed)) return out;
  if (fs::path config = source.path() / "config.json"; fs::exists(config, failed))
    add_config(config_of(source.path(), config));
  for (const weights::CarriedFile& file : weights::carried_files(source.path()).files)
    out.emplace_back(weights::copy_of(file.name, file.path), file.bytes);
  return out;
}

}  // namespace

CarriedFiles carried_by(const Checkpoint& checkpoint) {
  CarriedFiles out;
  std::vector<std::string> left;
  for (const FileRecord& file : checkpoint.meta().files) {
    if (!file.name.starts_with(kSource)) continue;
    const std::string_view name = std::string_view(file.name).substr(kSource.size());
    if (weights::left_behind(name).empty() &&
        !weights::may_hold_program(checkpoint.folder() / file.name))
      out.files.push_back(&file);
    else
      left.emplace_back(name);
  }
  if (!left.empty())
    out.notice = checkpoint.folder().string() +
                 ": weights, pickles, archives and programs in source/ are not carried along: " +
                 text::first_few(left, 1);
  return out;
}

std::string with_dtype(std::string_view config, DType dtype) {
  std::string out(config);
  int depth = 0;
  std::string key;
  for (size_t at = 0; at < out.size(); ++at) {
    char c = out[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ',') key.clear();
    if (c != '"') continue;
    size_t end = at + 1;
    while (end < out.size() && out[end] != '"') end += out[end] == '\\' ? 2 : 1;
    std::string text = out.substr(at + 1, end - at - 1);
    if (depth == 1 && (key == "torch_dtype" || key == "dtype")) {
      // "torch.float32" occurs in old files.
      std::string named =
          (text.rfind("torch.", 0) == 0 ? "torch." : "") + std::string(dtype_name(dtype));
      out.replace(at + 1, end - at - 1, named);
      end = at + 1 + named.size();
    }
    key = depth == 1 && key.empty() ? text : "-";
    at = end;
  }
  return out;
}

int64_t export_bytes(Source& source, const ExportChoice& choice) {
  const Content content(source, choice);
  int64_t out = 0;
  for (size_t i = 0; i < source.tensors().size(); ++i)
    if (const SourceTensor& tensor = source.tensors()[i]; content.takes(source, i))
      out += tensor.elements() * dtype_size(content.dtype(tensor, choice));
  for (const auto& [file, bytes] : extras_of(source, content, choice)) out += bytes;
  return out;
}

namespace {

weights::ExportTensor tensor_as_it_is(Source& source, size_t i, const std::string& name,
                                      DType dtype) {
  const SourceTensor& tensor = source.tensors()[i];
  return {{name, dtype, tensor.shape}, [&source, &tensor, i, dtype](const weights::ByteSink& sink) {
            std::vector<std::byte> buffer;
            for (int64_t at = 0, end = 0; at < tensor.elements(); at = end) {
              end = std::min(at + kExportPiece, tensor.elements());
              buffer.resize(static_cast<size_t>((end - at) * dtype_size(dtype)));
              source.read(i, at, end, dtype, buffer.data());
              sink(buffer);
            }
          }};
}

}  // namespace

void check_keeps_base(Source& source, const fs::path& target) {
  const Checkpoint* checkpoint = source.checkpoint();
  if (checkpoint == nullptr || !checkpoint->meta().base) return;
  for (const fs::path& base : {checkpoint->base_folder(), fs::path(checkpoint->meta().base->path)})
    if (!base.empty() && weights::would_replace(target, base))
      throw Error(ErrorCode::output_unwritable,
                  "an export to " + target.string() + " would take away the model in " +
                      base.string() + ", which the adapters of " + source.path().string() + " need")
          .help("name a folder that does not exist yet");
}

weights::Exported export_folder(Source& source, const fs::path& target, const ExportChoice& choice,
                                MergeCount* merged) {
  check_keeps_base(source, target);
  const Content content(source, choice);
  MergeCount count;
  std::vector<weights::ExportTensor> tensors;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    if (!content.takes(source, i)) continue;
    const SourceTensor& tensor = source.tensors()[i];
    const DType dtype = content.dtype(tensor, choice);
    if (const AdapterPair* pair = content.joined_with(i))
      tensors.push_back(merged_tensor({source, i, source, *pair, tensor.transposed}, dtype, count));
    else
      tensors.push_back(tensor_as_it_is(
          source, i, (content.alone ? std::string(kPeftPrefix) : "") + tensor.name, dtype));
  }
  std::vector<weights::ExportFile> extras;
  for (auto& [file, bytes] : extras_of(source, content, choice)) extras.push_back(std::move(file));
  weights::ExportOptions options{.shard_bytes = choice.shard_bytes, .progress = choice.progress};
  // peft reads one file.
  if (content.alone) {
    options.stem = "adapter_model";
    options.shard_bytes = std::numeric_limits<int64_t>::max();
  }
  weights::Exported out =
      weights::write_folder(target, std::move(tensors), std::move(extras), options);
  if (merged != nullptr) *merged = count;
  return out;
}

}  // namespace meshwright::checkpoint
