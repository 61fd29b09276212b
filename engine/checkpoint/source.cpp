#include "engine/checkpoint/source.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/models/models.h"
#include "meshwright/error.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

// Far above any model: one of 128 layers of 1024 experts has half as many.
constexpr size_t kMostTensors = size_t{1} << 20;

}  // namespace

int64_t SourceTensor::elements() const {
  int64_t out = 1;
  for (int64_t size : shape) out *= size;
  return out;
}

std::string SourceTensor::text() const { return state.empty() ? name : state + " of " + name; }

bool is_weights(const fs::path& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return path.extension() == ".safetensors";
  return !fs::exists(path / "meta.json", failed) &&
         (fs::exists(path / "model.safetensors", failed) ||
          fs::exists(path / "model.safetensors.index.json", failed));
}

Source::Source(const fs::path& path, const fs::path& base) : path_(path) {
  if (is_weights(path)) {
    weights_ = std::make_unique<weights::WeightFolder>(path);
    for (const std::string& name : weights_->names()) {
      const weights::TensorEntry& entry = *weights_->find(name);
      tensors_.push_back({"", name, entry.dtype, entry.dtype, entry.shape});
    }
    return;
  }
  path_ = resolve(path);
  checkpoint_ = std::make_unique<Checkpoint>(path_);
  if (!base.empty()) checkpoint_->base_is_in(base, BaseNamedBy::flag);
  auto refuse = [&](const std::string& what) {
    return Error(ErrorCode::bad_checkpoint, (path_ / "meta.json").string() + ": " + what)
        .help("meshwright checkpoint verify " + path_.string());
  };
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (size_t record = 0; record < checkpoint_->meta().tensors.size(); ++record) {
    add(record);
    if (tensors_.size() > kMostTensors)
      throw refuse("its experts are more than " + std::to_string(kMostTensors) +
                   " tensors of a Hugging Face folder");
  }
  for (const SourceTensor& tensor : tensors_)
    if (!seen.emplace(tensor.state, tensor.name).second)
      throw refuse("two tensors are " + tensor.text() + " of a Hugging Face folder");
}

void Source::add(size_t record) {
  const Meta& meta = checkpoint_->meta();
  const TensorRecord& tensor = meta.tensors[record];
  std::optional<weights::ExpertTensors> experts;
  if (tensor.state != "buffer") experts = weights::expert_tensors(meta.architecture, tensor.name);
  if (!experts || !weights::fits(*experts, tensor.shape)) {
    std::vector<int64_t> shape = tensor.shape;
    if (tensor.transposed) std::reverse(shape.begin(), shape.end());
    tensors_.push_back(
        {tensor.state,
         tensor.file_name.empty() ? weights::file_name(meta.architecture, tensor.name)
                                  : tensor.file_name,
         tensor.dtype, tensor.export_dtype, shape, tensor.transposed, tensor.base.has_value()});
    places_.push_back({record});
    return;
  }
  int64_t width = tensor.shape[2] / static_cast<int64_t>(experts->parts.size());
  for (int64_t e = 0; e < tensor.shape[0]; ++e)
    for (size_t part = 0; part < experts->parts.size(); ++part) {
      tensors_.push_back({tensor.state,
                          experts->name(e, part),
                          tensor.dtype,
                          tensor.export_dtype,
                          {width, tensor.shape[1]},
                          false,
                          tensor.base.has_value()});
      places_.push_back({record, e, static_cast<int64_t>(part) * width});
    }
}

// Whole rows of the file's tensor are columns of the expert's in memory.
void Source::read_expert(const Place& place, const SourceTensor& tensor, int64_t begin, int64_t end,
                         DType target, void* out) {
  if (begin >= end) return;
  int64_t in = tensor.shape[1], first = begin / in, rows = (end + in - 1) / in - first,
          element = dtype_size(target);
  std::vector<std::byte> columns(static_cast<size_t>(in * rows * element)), turned(columns.size());
  checkpoint_->read(checkpoint_->meta().tensors[place.record],
                    Region::box({place.expert, 0, place.column + first}, {1, in, rows}), target,
                    columns.data());
  weights::transpose(columns.data(), in, rows, element, turned.data(), in);
  std::memcpy(out, turned.data() + (begin - first * in) * element,
              static_cast<size_t>((end - begin) * element));
}

// A file's row is a column in memory.
void Source::read_transposed(const TensorRecord& record, int64_t begin, int64_t end, DType target,
                             void* out) {
  if (begin >= end) return;
  const int64_t rows = record.shape[0], first = begin / rows,
                columns = (end + rows - 1) / rows - first, element = dtype_size(target);
  const std::vector<weights::RowRun> runs = record.fused
                                                ? weights::runs_of_file(*record.fused, 0, rows)
                                                : std::vector<weights::RowRun>{{0, 0, rows}};
  std::vector<std::byte> part, turned(static_cast<size_t>(columns * rows * element));
  for (const weights::RowRun& run : runs) {
    part.resize(static_cast<size_t>(run.count * columns * element));
    checkpoint_->read(record, Region::box({run.memory, first}, {run.count, columns}), target,
                      part.data());
    weights::transpose(part.data(), run.count, columns, element, turned.data() + run.file * element,
                       rows);
  }
  std::memcpy(out, turned.data() + (begin - first * rows) * element,
              static_cast<size_t>((end - begin) * element));
}

Source::~Source() = default;

void Source::read(size_t index, int64_t begin, int64_t end, DType target, void* out) {
  if (checkpoint_) {
    const Place& place = places_[index];
    const TensorRecord& tensor = checkpoint_->meta().tensors[place.record];
    if (place.expert >= 0) return read_expert(place, tensors_[index], begin, end, target, out);
    if (tensor.transposed) return read_transposed(tensor, begin, end, target, out);
    if (!tensor.fused) return checkpoint_->read(tensor, Region::run(begin, end), target, out);
    for (const weights::RowRun& run :
         weights::runs_of_file(weights::fused_elements(*tensor.fused, tensor.shape), begin, end))
      checkpoint_->read(tensor, Region::run(run.memory, run.memory + run.count), target,
                        static_cast<std::byte*>(out) + (run.file - begin) * dtype_size(target));
    return;
  }
  weights::TensorEntry flat = *weights_->find(tensors_[index].name);
  flat.shape = {tensors_[index].elements()};
  int64_t count = end - begin;
  weights::read_slice(flat, std::span(&begin, 1), std::span(&count, 1), target, out);
}

bool restarted() {
  for (const char* name : {"MESHWRIGHT_RESTART", "TORCHELASTIC_RESTART_COUNT"})
    if (const char* text = std::getenv(name); text != nullptr && std::atoll(text) > 0) return true;
  return false;
}

Start choose_start(const std::string& resume, const fs::path& own, bool again) {
  std::vector<std::string> told;
  auto tell = [&](const std::string& text) { told.push_back(text); };
  if (resume == "auto" || again)
    if (std::optional<Found> found = newest(own, For::resuming, tell))
      return {found->path, true, std::move(told)};
  if (resume == "auto" || resume == "none") return {};
  fs::path from;
  try {
    from = resolve(resume);
    if (std::optional<Error> wrong = misnamed(from, read_meta(from))) throw *wrong;
  } catch (const Error& error) {
    throw Error(error).key("checkpoint.resume");
  }
  std::error_code failed;
  return {from, fs::equivalent(from.parent_path(), own, failed)};
}

std::string set_aside(const Start& start, const fs::path& own) {
  std::string aside =
      set_aside(own, start.own ? step_of(start.from.filename().string()).value_or(-1) : -1);
  tidy(own);
  return aside;
}

}  // namespace meshwright::checkpoint
