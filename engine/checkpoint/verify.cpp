#include "engine/checkpoint/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/source.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::checkpoint {

namespace fs = std::filesystem;

namespace {

Error damaged_file(const fs::path& file, const std::string& what) {
  return Error(ErrorCode::bad_checkpoint, file.string() + ": " + what)
      .help("copy the file again if there is another copy of the checkpoint")
      .help("meshwright checkpoint ls shows the other checkpoints of the run");
}

class Reading {
 public:
  explicit Reading(const fs::path& path) : file_(path, base::ForeignFile::Links::refused) {}
  const base::ForeignFile& file() const { return file_; }
  // Bytes read; fewer than asked for at the end of the file, or with `errno` set where the disk
  // fails.
  int64_t fill(std::span<std::byte> out) const {
    int64_t done = 0;
    errno = 0;
    while (done < static_cast<int64_t>(out.size())) {
      ssize_t n = ::read(file_.fd(), out.data() + done, out.size() - static_cast<size_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += n;
    }
    return done;
  }
  void go_to(int64_t at) const { ::lseek(file_.fd(), at, SEEK_SET); }

 private:
  base::ForeignFile file_;
};

void verify_file(const fs::path& path, const FileRecord& record, std::vector<Error>& damage,
                 const std::function<void(int64_t)>& progress) {
  Reading file(path);
  if (!file.file().is_open()) {
    const std::string& problem = file.file().problem();
    damage.push_back(damaged_file(path, file.file().reason() == ENOENT ? "the file is missing"
                                        : problem == "is a link"
                                            ? "is a link, not a file of this folder"
                                        : file.file().reason() == 0 ? "is not a regular file"
                                                                    : problem));
    return;
  }
  const int64_t size = file.file().size();
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
            got = file.fill(std::span(block).first(static_cast<size_t>(wanted)));
    if (got < wanted && errno != 0) {
      tell();
      damage.push_back(damaged_file(
          path, "byte " + std::to_string(at + got) + " cannot be read: " + std::strerror(errno)));
      file.go_to(at + wanted);
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
