#include "engine/checkpoint/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

Listed look_at(Found found) {
  Listed out;
  out.found = std::move(found);
  if (!out.found.problem.empty()) return out;
  try {
    Checkpoint opened(out.found.path);
    if (const std::optional<Error> wrong = misnamed(out.found.path, opened.meta())) throw *wrong;
    out.bytes = opened.bytes();
    out.meta = opened.meta();
  } catch (const Error& error) {
    out.found.problem = error.message();
  }
  return out;
}

std::optional<Group> group_of(const fs::path& folder) {
  Group group{folder, {}};
  for (Found& found : find_all(folder, For::reading))
    group.checkpoints.push_back(look_at(std::move(found)));
  if (group.checkpoints.empty()) return std::nullopt;
  std::optional<fs::path> latest = latest_of(folder);
  std::optional<fs::path> best = best_of(folder);
  for (Listed& listed : group.checkpoints) {
    listed.latest = listed.found.path == latest;
    listed.best = listed.found.path == best;
  }
  return group;
}

}  // namespace

std::vector<Group> list_checkpoints(const fs::path& path) {
  auto none = [&](const std::string& what) {
    return Error(ErrorCode::no_checkpoint, path.string() + what)
        .help("name a checkpoint, the folder of a run (runs/first), or a folder of runs (runs)")
        .help("[checkpoint] every_steps = 50 saves one every 50 steps of a run");
  };
  std::error_code failed;
  if (!fs::exists(path, failed)) throw none(" does not exist");
  if (!fs::is_directory(path, failed)) throw none(" is not a folder");
  if (fs::exists(path / "meta.json", failed)) {
    fs::path real = fs::canonical(path, failed);  // `latest` is a link
    Group group{real.parent_path(),
                {look_at({fs::is_symlink(fs::symlink_status(path, failed)) ? real : path,
                          step_of(real.filename().string()).value_or(0), ""})}};
    if (group.checkpoints[0].meta)
      group.checkpoints[0].found.step = group.checkpoints[0].meta->step;
    auto is_real = [&](const std::optional<fs::path>& named) {
      return named && fs::canonical(*named, failed) == real;
    };
    group.checkpoints[0].latest = is_real(latest_of(real.parent_path()));
    group.checkpoints[0].best = is_real(best_of(real.parent_path()));
    return {group};
  }
  std::vector<Group> out;
  for (const fs::path& folder : {path, path / "checkpoints"})
    if (std::optional<Group> group = group_of(folder)) return {*group};
  std::vector<fs::path> runs;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
    runs.push_back(at->path());
  std::sort(runs.begin(), runs.end());
  for (const fs::path& run : runs)
    if (std::error_code ignored; fs::is_directory(run / "checkpoints", ignored))
      if (std::optional<Group> group = group_of(run / "checkpoints"))
        out.push_back(std::move(*group));
  if (out.empty()) throw none(" holds no checkpoint");
  return out;
}

int64_t parameters_of(const Meta& meta) {
  int64_t out = 0;
  for (const TensorRecord& tensor : meta.tensors) {
    if (!tensor.state.empty()) continue;
    int64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= size;
    out += elements;
  }
  return out;
}

namespace {

constexpr int64_t kDiffPiece = 2 << 20;  // elements
using Key = std::pair<std::string, std::string>;
using Bytes = std::vector<std::byte>;

std::map<Key, size_t> index_of(const Source& source) {
  std::map<Key, size_t> out;
  for (size_t i = 0; i < source.tensors().size(); ++i)
    out[{source.tensors()[i].state, source.tensors()[i].name}] = i;
  return out;
}

// What both leave to one model is the same, and not read.
bool of_one_base(Source& a, Source& b) {
  const auto fingerprint = [](Source& source) {
    const Checkpoint* checkpoint = source.checkpoint();
    return checkpoint != nullptr && checkpoint->meta().base ? checkpoint->meta().base->fingerprint
                                                            : "";
  };
  return !fingerprint(a).empty() && fingerprint(a) == fingerprint(b);
}

bool has_optimizer(const Source& source) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [](const SourceTensor& t) { return !t.state.empty(); });
}

template <class T>
void widen(const Bytes& from, std::vector<double>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    to[i] = static_cast<double>(value);
  }
}

void to_doubles(const Bytes& from, DType dtype, std::vector<double>& to) {
  switch (dtype) {
    case DType::int64:
      return widen<int64_t>(from, to);
    case DType::int32:
      return widen<int32_t>(from, to);
    case DType::int16:
      return widen<int16_t>(from, to);
    case DType::int8:
    case DType::boolean:
      return widen<int8_t>(from, to);
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      weights::convert_elements(from.data(), dtype, reinterpret_cast<std::byte*>(to.data()),
                                DType::float64, static_cast<int64_t>(to.size()));
  }
}

double distance(double a, double b) {
  if (std::isfinite(a) && std::isfinite(b)) return std::abs(a - b);
  bool alike = a == b || (std::isnan(a) && std::isnan(b));
  return alike ? 0 : std::numeric_limits<double>::infinity();
}

// One piece of both, `first` being the number of its first element.
class Comparison {
 public:
  explicit Comparison(TensorDifference& out) : out_(out) {}
  void add(const Bytes& a, const Bytes& b, int64_t first, int64_t count) {
    bool same_dtype = out_.dtype_a == out_.dtype_b;
    if (same_dtype && std::memcmp(a.data(), b.data(), a.size()) == 0) return;
    wide_a_.resize(static_cast<size_t>(count));
    wide_b_.resize(static_cast<size_t>(count));
    to_doubles(a, out_.dtype_a, wide_a_);
    to_doubles(b, out_.dtype_b, wide_b_);
    auto size = static_cast<size_t>(dtype_size(out_.dtype_a));
    for (size_t i = 0; i < wide_a_.size(); ++i) {
      double x = wide_a_[i], y = wide_b_[i], apart = distance(x, y);
      if (same_dtype ? std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0
                     : apart == 0)
        continue;
      ++out_.differing;
      for (double value : {x, y})
        if (std::isfinite(value)) scale_ = std::max(scale_, std::abs(value));
      if (out_.worst >= 0 && !(apart > out_.max_abs)) continue;
      out_.max_abs = apart;
      out_.worst = first + static_cast<int64_t>(i);
    }
    out_.relative =
        !std::isfinite(out_.max_abs) || scale_ == 0 ? out_.max_abs : out_.max_abs / scale_;
  }

 private:
  TensorDifference& out_;
  double scale_ = 0;
  std::vector<double> wide_a_, wide_b_;
};

}  // namespace

bool Difference::equal() const {
  return only_a.empty() && only_b.empty() &&
         std::all_of(both.begin(), both.end(), [](const TensorDifference& t) { return t.equal(); });
}

int64_t diff_bytes(const Source& a, const Source& b) {
  std::map<Key, size_t> in_b = index_of(b);
  int64_t out = 0;
  for (const SourceTensor& tensor : a.tensors())
    if (auto found = in_b.find({tensor.state, tensor.name});
        found != in_b.end() && b.tensors()[found->second].shape == tensor.shape)
      out += tensor.bytes();
  return out;
}

Difference compare(Source& a, Source& b, const std::function<void(int64_t bytes)>& progress) {
  Difference out;
  out.optimizer_a = has_optimizer(a);
  out.optimizer_b = has_optimizer(b);
  out.optimizer_compared = out.optimizer_a && out.optimizer_b;
  std::map<Key, size_t> in_a = index_of(a), in_b = index_of(b);
  auto counts = [&](const SourceTensor& tensor) {
    return tensor.state.empty() || out.optimizer_compared;
  };
  for (const SourceTensor& tensor : b.tensors())
    if (counts(tensor) && !in_a.contains({tensor.state, tensor.name}))
      out.only_b.push_back(tensor.text());
  Bytes one, other;
  const bool one_base = of_one_base(a, b);
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const SourceTensor& tensor = a.tensors()[i];
    if (!counts(tensor)) continue;
    auto found = in_b.find({tensor.state, tensor.name});
    if (found == in_b.end()) {
      out.only_a.push_back(tensor.text());
      continue;
    }
    const SourceTensor& twin = b.tensors()[found->second];
    TensorDifference difference{tensor.state, tensor.name, tensor.dtype,     twin.dtype,
                                tensor.shape, twin.shape,  tensor.elements()};
    if (one_base && tensor.of_base && twin.of_base) {
      progress(difference.same_shape() ? tensor.bytes() : 0);
      out.both.push_back(std::move(difference));
      continue;
    }
    Comparison comparison(difference);
    for (int64_t at = 0, end = 0; difference.same_shape() && at < difference.elements; at = end) {
      end = std::min(at + kDiffPiece, difference.elements);
      one.resize(static_cast<size_t>((end - at) * dtype_size(tensor.dtype)));
      other.resize(static_cast<size_t>((end - at) * dtype_size(twin.dtype)));
      a.read(i, at, end, tensor.dtype, one.data());
      b.read(found->second, at, end, twin.dtype, other.data());
      comparison.add(one, other, at, end - at);
      progress(static_cast<int64_t>(one.size()));
    }
    out.both.push_back(std::move(difference));
  }
  return out;
}

namespace {

Error damaged_file(const fs::path& file, const std::string& what) {
  return Error(ErrorCode::bad_checkpoint, file.string() + ": " + what)
      .help("copy the file again if there is another copy of the checkpoint")
      .help("meshwright checkpoint ls shows the other checkpoints of the run");
}

// Bytes read from `at` on; fewer than asked for at the end of the file, or with `errno` set where
// the disk fails.
int64_t fill(const base::ForeignFile& file, int64_t at, std::span<std::byte> out) {
  int64_t done = 0;
  errno = 0;
  while (done < std::ssize(out)) {
    const ssize_t n =
        ::pread(file.fd(), out.data() + done, out.size() - static_cast<size_t>(done), at + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += n;
  }
  return done;
}

void verify_file(const fs::path& path, const FileRecord& record, std::vector<Error>& damage,
                 const std::function<void(int64_t)>& progress) {
  const base::ForeignFile file(path, base::ForeignFile::Links::refused);
  if (!file.is_open()) {
    const std::string& problem = file.problem();
    damage.push_back(damaged_file(path, file.reason() == ENOENT ? "the file is missing"
                                        : problem == "is a link"
                                            ? "is a link, not a file of this folder"
                                        : file.reason() == 0 ? "is not a regular file"
                                                             : problem));
    return;
  }
  const int64_t size = file.size();
  if (size != record.bytes)
    damage.push_back(damaged_file(
        path,
        "has " + std::to_string(size) + " bytes, meta.json says " + std::to_string(record.bytes) +
            (size < record.bytes
                 ? ": bytes from " + std::to_string(size) + " on are lost"
                 : ": bytes from " + std::to_string(record.bytes) + " on do not belong to it")));
  std::vector<std::byte> block(static_cast<size_t>(std::min(kBlock, record.bytes)));
  int64_t bad_from = -1, bad_to = -1;
  auto tell = [&] {
    if (bad_from >= 0)
      damage.push_back(damaged_file(
          path, "bytes " + std::to_string(bad_from) + " to " + std::to_string(bad_to - 1) +
                    " do not match " +
                    (bad_to - bad_from > kBlock ? "their checksums" : "their checksum")));
    bad_from = -1;
  };
  for (int64_t at = 0; at < record.bytes; at += kBlock) {
    int64_t wanted = std::min(kBlock, record.bytes - at),
            got = fill(file, at, std::span(block).first(static_cast<size_t>(wanted)));
    if (got < wanted && errno != 0) {
      tell();
      damage.push_back(damaged_file(
          path, "byte " + std::to_string(at + got) + " cannot be read: " + std::strerror(errno)));
    } else if (got < wanted) {
      break;  // the size is told already
    } else if (checksum(std::span(block).first(static_cast<size_t>(wanted))) !=
               record.blocks[static_cast<size_t>(at / kBlock)]) {
      if (bad_from < 0) bad_from = at;
      bad_to = at + wanted;
    } else {
      tell();
    }
    progress(wanted);
  }
  tell();
}

std::vector<std::string> files_beside(const fs::path& folder, const Meta& meta) {
  std::set<std::string> listed = {"meta.json"};
  for (const FileRecord& file : meta.files) listed.insert(file.name);
  std::vector<std::string> out;
  std::error_code failed, ignored;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    std::string name = at->path().lexically_relative(folder).generic_string();
    if (!fs::is_directory(at->symlink_status(ignored)) && !listed.contains(name))
      out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string problem_of_base(const fs::path& folder) {
  try {
    Checkpoint(folder).open_base();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

int64_t verify_bytes(const fs::path& folder) {
  int64_t out = 0;
  try {
    for (const FileRecord& file : read_meta(folder).files) out += file.bytes;
  } catch (const Error&) {
    // verify_checkpoint tells it.
  }
  return out;
}

Verified verify_checkpoint(const fs::path& folder, const std::function<void(int64_t)>& progress) {
  Verified out;
  out.path = folder;
  try {
    Meta meta = read_meta(folder);
    out.files = static_cast<int64_t>(meta.files.size());
    out.tensors = static_cast<int64_t>(meta.tensors.size());
    for (const FileRecord& file : meta.files) {
      out.bytes += file.bytes;
      verify_file(folder / file.name, file, out.damage, progress);
    }
    out.not_covered = files_beside(folder, meta);
    // What the headers say has a meaning only once their bytes are right.
    if (out.damage.empty()) out.damage = Checkpoint(folder).check_headers();
    if (std::optional<Error> wrong = misnamed(folder, meta)) out.damage.push_back(*wrong);
    if (meta.base) {
      out.base = meta.base->path;
      out.base_problem = problem_of_base(folder);
    }
  } catch (const Error& error) {
    out.damage.push_back(error);
  }
  return out;
}

Verified verify_weights(const fs::path& path) {
  Verified out;
  out.path = path;
  out.checksums = false;
  try {
    Source source(path);
    std::set<std::string> files;
    for (const SourceTensor& tensor : source.tensors()) {
      files.insert(source.weights()->find(tensor.name)->file->path());
      out.bytes += tensor.bytes();
    }
    out.files = static_cast<int64_t>(files.size());
    out.tensors = static_cast<int64_t>(source.tensors().size());
  } catch (const Error& error) {
    out.damage.push_back(error);
  }
  return out;
}

}  // namespace meshwright::checkpoint
