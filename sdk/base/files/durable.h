// Files that survive a crash: written beside their place, synced, renamed; and those that grow.
// Every failure is an Error(output_unwritable) that names the path, what was tried and the errno.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "meshwright/error.h"

namespace meshwright::base {

// "cannot write runs/a/x: No space left on device (ENOSPC)". `did`: "write", "sync", "rename",
// "make".
Error unwritable(const std::filesystem::path& path, int reason, std::string_view did = "write");

// A new file, written once from front to back. One that is not finished is removed by the
// destructor.
class NewFile {
 public:
  // Replaces what stands there.
  explicit NewFile(std::filesystem::path path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Everything is on the disk afterwards, but for the folder's entry: sync_folder().
  void finish();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool ours_ = false;  // a regular file, not a device
  int64_t size_ = 0, sent_ = 0;
};

// A file that grows by whole pieces: one that does not fit leaves no beginning of itself.
class AppendFile {
 public:
  enum class Old : uint8_t { kept, emptied, refused };
  // `old`: what becomes of what stands there. Throws Error(output_unwritable).
  AppendFile(std::filesystem::path path, Old old);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // 0, or the errno of why nothing of it is there. Nothing waits for the disk.
  int append(std::string_view text) const noexcept;
  // 0, or an errno: what was appended is on the disk. A pipe or a terminal has nothing to sync.
  int sync() const noexcept;
  // No name leads to it any more: what is appended is lost with the last reader.
  bool removed() const noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Its parent exists; an error when something stands there.
void make_folder(const std::filesystem::path& path);
void make_folders(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);
// Replaces a file (or an empty folder) at `to`, and syncs the folder that holds it.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// A whole file at once: written beside as .NAME.RANDOM.tmp, synced, renamed, its folder synced.
void write_durably(const std::filesystem::path& path, std::string_view contents);
// One more line (or several) with its time at the end of a log, as far as that can be done: what it
// tells of must not fail a second time over the telling.
void append_line(const std::filesystem::path& path, std::string_view line) noexcept;
// A symbolic link beside, then renamed over `link`; where the file system has no links, a text file
// that holds the target.
void link_durably(const std::string& target, const std::filesystem::path& link);
// Removes a file or a tree; what cannot be removed stays. Returns whether nothing is left.
bool remove_tree(const std::filesystem::path& path) noexcept;

// Time as it is written down and as it is measured.

// "2026-11-22T09:30:00Z".
std::string utc_now();

// Milliseconds on a clock that nobody sets. For signal handlers too.
int64_t monotonic_ms();

// Milliseconds since `begin`.
inline double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace meshwright::base
