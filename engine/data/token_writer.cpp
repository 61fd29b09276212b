#include "engine/data/token_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/data/token_files.h"

namespace meshwright::data {

namespace fs = std::filesystem;

namespace {

fs::path beside(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + ".tmp");
}

// Over the beginning of a file that is still open elsewhere, whose sync takes it along.
void write_front(const fs::path& path, std::span<const int32_t> head) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) throw base::unwritable(path, errno, "open");
  ssize_t done = 0;
  do done = ::pwrite(fd, head.data(), head.size_bytes(), 0);
  while (done < 0 && errno == EINTR);
  int reason = done < 0 ? errno : ENOSPC;
  ::close(fd);
  if (done != static_cast<ssize_t>(head.size_bytes())) throw base::unwritable(path, reason);
}

template <class T>
void convert(std::span<const int64_t> tokens, std::byte* out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    T token = static_cast<T>(tokens[i]);
    std::memcpy(out + i * sizeof token, &token, sizeof token);
  }
}

}  // namespace

TokenWriter::TokenWriter(fs::path path, int64_t vocabulary)
    : path_(std::move(path)),
      type_(vocabulary <= 65536 ? TokenType::uint16 : TokenType::uint32),
      file_(beside(path_)),
      vocabulary_(vocabulary) {
  file_.append(std::vector<std::byte>(kTokenHeader));  // filled in once the tokens are counted
}

void TokenWriter::append(std::span<const int64_t> tokens) {
  for (int64_t token : tokens)
    if (token < 0 || token >= vocabulary_)
      throw Error(ErrorCode::internal, "the token " + std::to_string(token) +
                                           " is outside of the vocabulary of " +
                                           std::to_string(vocabulary_));
  buffer_.resize(tokens.size() * static_cast<size_t>(token_width(type_)));
  type_ == TokenType::uint16 ? convert<uint16_t>(tokens, buffer_.data())
                             : convert<uint32_t>(tokens, buffer_.data());
  file_.append(buffer_);
  tokens_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::finish() {
  std::array<int32_t, 5> head{};
  for (const TokenMagic& known : kTokenMagics)
    if (known.type == type_) head[0] = known.magic, head[1] = known.version;
  head[2] = tokens_ <= INT32_MAX ? static_cast<int32_t>(tokens_) : kLongCount;
  if (head[2] == kLongCount) std::memcpy(&head[3], &tokens_, sizeof tokens_);
  write_front(file_.path(), head);
  file_.finish();
  base::rename_durably(file_.path(), path_);
}

}  // namespace meshwright::data
