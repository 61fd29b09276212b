#include "engine/checkpoint/weights/export.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <cstring>
#include <set>

#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/abi.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"

namespace meshwright::weights {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kPiece = 4 << 20;

// The folder itself, whatever links lead to it, without a slash at the end.
fs::path real_target(const fs::path& target) {
  std::error_code failed;
  fs::path out;
  if (target.string().find('\0') == std::string::npos) out = fs::absolute(target, failed);
  if (!failed) out = fs::weakly_canonical(out, failed);
  if (!out.has_filename()) out = out.parent_path();
  if (failed || !out.has_filename() || out == out.root_path())
    throw Error(ErrorCode::output_unwritable,
                "\"" + target.string() + "\" cannot be a folder to write to")
        .help("name a new folder, or one of an earlier export");
  return out;
}

// What an earlier export says it has written; nothing when the folder is none.
std::optional<std::set<std::string>> marked_files(const fs::path& folder) {
  std::error_code failed;
  fs::path path = folder / kExportMarker;
  if (!fs::is_regular_file(fs::symlink_status(path, failed)) ||
      fs::file_size(path, failed) > (16 << 20))
    return std::nullopt;
  boost::system::error_code wrong;
  json::value parsed = json::parse(base::read_file(path), wrong);
  const json::value* files =
      wrong || !parsed.is_object() ? nullptr : parsed.as_object().if_contains("files");
  if (files == nullptr || !files->is_array()) return std::nullopt;
  std::set<std::string> out = {kExportMarker};
  for (const json::value& file : files->as_array())
    if (file.is_string()) out.emplace(file.as_string());
  return out;
}

Error refused(const fs::path& folder, const std::string& why) {
  return Error(ErrorCode::output_unwritable, folder.string() + " " + why)
      .help("name a folder that does not exist yet")
      .help("or move that one away: mv '" + folder.string() + "' '" + folder.string() + ".kept'");
}

// Whether a folder may be replaced; throws when not. An export that was cut off has no complete
// list, but is under a name of ours.
void check_replaceable(const fs::path& folder) {
  std::error_code failed;
  fs::file_status status = fs::symlink_status(folder, failed);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw refused(folder, "is not a folder");
  if (fs::is_empty(folder, failed) && !failed) return;
  std::optional<std::set<std::string>> ours = marked_files(folder);
  if (!ours) throw refused(folder, "holds files that no export made, and is left as it is");
  fs::recursive_directory_iterator at(folder, failed), end;
  for (; !failed && at != end; at.increment(failed)) {
    std::string name = at->path().lexically_relative(folder).generic_string();
    std::error_code ignored;
    if (!fs::is_directory(at->symlink_status(ignored)) && !ours->contains(name))
      throw refused(folder, "holds " + name +
                                ", which the earlier export did not write, and is left as it is");
  }
  if (failed)
    throw refused(folder, "cannot be listed (" + failed.message() + "), and is left as it is");
}

// Removes a folder of an export; the marker goes last, so that what cannot be removed now is known
// as ours later.
bool remove_export(const fs::path& path) {
  std::error_code failed;
  bool gone = true;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
    if (at->path().filename() != kExportMarker) gone = base::remove_tree(at->path()) && gone;
  return gone && !failed && base::remove_tree(path);
}

// The temporary folder beside the target: locked while this process lives, removed unless it was
// moved into place.
class Temporary {
 public:
  explicit Temporary(const fs::path& target)
      : path_(target.parent_path() / ("." + target.filename().string() + ".export")) {
    std::error_code failed;
    if (fs::exists(fs::symlink_status(path_, failed))) take_leftover();
    base::make_folder(path_);
    try {
      lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
      if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0)
        throw base::unwritable(path_, errno, "lock");
      base::NewFile marker(path_ / kExportMarker);
      marker.append("{\"files\":[]}\n");
      marker.finish();
    } catch (const Error&) {
      clear();
      throw;
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() { clear(); }
  const fs::path& path() const { return path_; }
  // Another folder has taken the name, or none.
  void release() { path_.clear(); }

 private:
  void clear() {
    if (!path_.empty()) remove_export(path_);
    if (lock_ >= 0) ::close(lock_);
  }
  // One of a process that died is removed; one in use, or of somebody else's making, is not.
  void take_leftover() {
    int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool free = fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    std::error_code failed;
    bool ours = free && (marked_files(path_) || fs::is_empty(path_, failed) ||
                         fs::exists(path_ / kExportMarker, failed));
    bool gone = ours && remove_export(path_);
    if (fd >= 0) ::close(fd);
    if (fd >= 0 && !free) throw refused(path_, "is in use by another export to the same folder");
    if (!ours) throw refused(path_, "is in the way, and no export made it");
    if (!gone) throw refused(path_, "is left of an export that was cut off, and cannot be removed");
  }
  fs::path path_;
  int lock_ = -1;
};

// Tensors by file, as transformers splits them: in order, each file filled up to the limit.
std::vector<std::vector<ExportTensor>> split(std::vector<ExportTensor> tensors, int64_t limit) {
  std::vector<std::vector<ExportTensor>> out;
  std::vector<ExportTensor> current;
  int64_t filled = 0;
  for (ExportTensor& tensor : tensors) {
    int64_t bytes = tensor_bytes(tensor.spec.dtype, tensor.spec.shape).value_or(0);
    if (bytes > limit) {
      out.emplace_back().push_back(std::move(tensor));
      continue;
    }
    if (filled + bytes > limit) {
      out.push_back(std::move(current));
      current.clear();
      filled = 0;
    }
    current.push_back(std::move(tensor));
    filled += bytes;
  }
  if (!current.empty() || out.empty()) out.push_back(std::move(current));
  return out;
}

std::string shard_name(const std::string& stem, size_t index, size_t count) {
  if (count == 1) return stem + ".safetensors";
  return stem + text::format("-%05zu-of-%05zu.safetensors", index + 1, count);
}

void write_shard(const fs::path& path, std::vector<ExportTensor> tensors,
                 const std::function<void(int64_t)>& progress) {
  std::sort(tensors.begin(), tensors.end(), [](const ExportTensor& a, const ExportTensor& b) {
    return as_save_file(a.spec, b.spec);
  });
  std::vector<TensorSpec> specs;
  for (const ExportTensor& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(path, std::move(specs), {{"format", "pt"}},
                           [&](std::span<const std::byte> bytes) {
                             if (progress) progress(static_cast<int64_t>(bytes.size()));
                           });
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i].stream([&](std::span<const std::byte> bytes) { writer.append(i, bytes); });
  writer.finish();
}

// As json.dumps(..., indent=2, sort_keys=True) writes it.
std::string index_text(int64_t total,
                       const std::vector<std::pair<std::string, std::string>>& sorted) {
  auto quoted = [](const std::string& text) { return json::serialize(json::string(text)); };
  std::string out = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total) +
                    "\n  },\n  \"weight_map\": {\n";
  for (const auto& [tensor, file] : sorted)
    out += "    " + quoted(tensor) + ": " + quoted(file) +
           (&tensor == &sorted.back().first ? "\n" : ",\n");
  return out + "  }\n}\n";
}

// Where a folder steps aside before it is removed: nothing is there.
fs::path free_place_beside(const fs::path& target) {
  std::error_code failed;
  fs::path out = target.parent_path() / ("." + target.filename().string() + ".replaced");
  check_replaceable(out);
  if (fs::exists(out, failed) && !remove_export(out)) throw refused(out, "cannot be removed");
  return out;
}

void put_in_place(Temporary& temporary, const fs::path& target) {
  std::error_code failed;
  bool replaces = fs::exists(fs::symlink_status(target, failed)) && !fs::is_empty(target, failed);
  if (!replaces) {
    base::rename_durably(temporary.path(), target);
    temporary.release();
    return;
  }
  if (::renameat2(AT_FDCWD, temporary.path().c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) ==
      0) {
    base::sync_folder(target.parent_path());
    return;  // the destructor removes the old one, which has the temporary name now
  }
  // Where two folders cannot change places, the old one steps aside first.
  const fs::path aside = free_place_beside(target);
  base::rename_durably(target, aside);
  try {
    base::rename_durably(temporary.path(), target);
  } catch (const Error&) {
    if (!fs::exists(target, failed)) fs::rename(aside, target, failed);
    throw;
  }
  temporary.release();
  remove_export(aside);
}

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace

bool would_replace(const fs::path& target, const fs::path& kept) {
  std::error_code failed;
  if (!fs::exists(kept, failed)) return false;
  const fs::path folder = real_target(target);
  if (fs::equivalent(folder, kept, failed)) return true;
  auto leads_in = [&](const fs::path& path) {
    std::error_code lost;
    const fs::path real = fs::canonical(path, lost);
    return !lost && is_within(real, folder);
  };
  if (leads_in(kept)) return true;
  for (fs::directory_iterator at(kept, failed), end; !failed && at != end; at.increment(failed))
    if (std::error_code lost; at->is_regular_file(lost) && leads_in(at->path())) return true;
  return false;
}

void check_target(const fs::path& target) { check_replaceable(real_target(target)); }

void remove_folder(const fs::path& target) {
  const fs::path folder = real_target(target);
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(folder, failed))) return;
  check_replaceable(folder);
  const fs::path aside = free_place_beside(folder);
  base::rename_durably(folder, aside);
  remove_export(aside);
}

Exported write_folder(const fs::path& target, std::vector<ExportTensor> tensors,
                      std::vector<ExportFile> extras, const ExportOptions& options) {
  Exported out;
  out.folder = real_target(target);
  check_replaceable(out.folder);
  base::make_folders(out.folder.parent_path());
  Temporary temporary(out.folder);
  auto record = [&](const std::string& name) {
    std::error_code failed;
    out.files.push_back(name);
    out.bytes += static_cast<int64_t>(fs::file_size(temporary.path() / name, failed));
  };
  int64_t total = 0;
  for (const ExportTensor& tensor : tensors)
    total += tensor_bytes(tensor.spec.dtype, tensor.spec.shape).value_or(0);
  std::vector<std::vector<ExportTensor>> shards = split(std::move(tensors), options.shard_bytes);
  std::vector<std::pair<std::string, std::string>> map;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string name = shard_name(options.stem, i, shards.size());
    for (const ExportTensor& tensor : shards[i]) map.emplace_back(tensor.spec.name, name);
    write_shard(temporary.path() / name, std::move(shards[i]), options.progress);
    record(name);
  }
  if (shards.size() > 1) {
    std::sort(map.begin(), map.end());
    extras.push_back(text_of(options.stem + ".safetensors.index.json", index_text(total, map)));
  }
  std::set<fs::path> folders;
  for (const ExportFile& extra : extras) {
    fs::path path = temporary.path() / extra.name;
    std::error_code failed;
    if (extra.name.empty() || fs::path(extra.name).is_absolute() ||
        path.lexically_relative(temporary.path()).string().starts_with(".."))
      throw Error(ErrorCode::internal,
                  "\"" + extra.name + "\" is not a name in the exported folder");
    if (fs::exists(fs::symlink_status(path, failed)))
      throw Error(ErrorCode::output_unwritable,
                  path.string() + ": a file of that name is written already")
          .help("rename the file");
    base::make_folders(path.parent_path());
    for (fs::path inner = path.parent_path(); inner != temporary.path();
         inner = inner.parent_path())
      folders.insert(inner);
    base::NewFile file(path);
    extra.stream([&](std::span<const std::byte> bytes) {
      file.append(bytes);
      if (options.progress) options.progress(static_cast<int64_t>(bytes.size()));
    });
    file.finish();
    record(extra.name);
  }
  json::object marker;
  marker["program"] = "meshwright " MESHWRIGHT_VERSION;
  marker["files"] = json::array(out.files.begin(), out.files.end());
  base::write_durably(temporary.path() / kExportMarker, json::serialize(marker) + "\n");
  for (const fs::path& folder : folders) base::sync_folder(folder);
  base::sync_folder(temporary.path());
  check_replaceable(out.folder);  // a long time may have passed
  put_in_place(temporary, out.folder);
  return out;
}

ExportFile copy_of(std::string name, fs::path path) {
  return {std::move(name), [path = std::move(path)](const ByteSink& sink) {
            auto fail = [&](const std::string& why) {
              return Error(ErrorCode::file_unreadable, "cannot read " + path.string() + ": " + why)
                  .help("make the file readable, or move it out of the folder");
            };
            const base::ForeignFile file(path);
            if (!file.is_open())
              throw fail(file.reason() != 0 ? std::strerror(file.reason()) : file.problem());
            std::vector<std::byte> buffer(1 << 20);
            for (;;) {
              ssize_t n = ::read(file.fd(), buffer.data(), buffer.size());
              if (n == 0) return;
              if (n > 0)
                sink(std::span(buffer).first(static_cast<size_t>(n)));
              else if (errno != EINTR)
                throw fail(std::strerror(errno));
            }
          }};
}

ExportFile text_of(std::string name, std::string contents) {
  return {std::move(name), [contents = std::move(contents)](const ByteSink& sink) {
            sink(std::as_bytes(std::span(contents.data(), contents.size())));
          }};
}

ExportTensor tensor_of(const TensorEntry& entry, DType dtype) {
  return {{entry.name, dtype, entry.shape}, [&entry, dtype](const ByteSink& sink) {
            TensorEntry flat = entry;
            int64_t narrow = dtype_size(entry.dtype), count = entry.bytes / narrow;
            flat.shape = {count};
            std::vector<std::byte> buffer;
            for (int64_t at = 0, size = 0; at < count; at += size) {
              size = std::min(count - at, kPiece / 8);
              if (dtype == entry.dtype) {
                entry.file->check_size();
                sink({entry.data + at * narrow, static_cast<size_t>(size * narrow)});
                continue;
              }
              buffer.resize(static_cast<size_t>(size * dtype_size(dtype)));
              read_slice(flat, std::span(&at, 1), std::span(&size, 1), dtype, buffer.data());
              sink(buffer);
            }
          }};
}

}  // namespace meshwright::weights
