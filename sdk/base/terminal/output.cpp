#include <stdio_ext.h>

#include <cerrno>
#include <cstring>

#include "sdk/base/terminal/report.h"

namespace meshwright::report {

WriteFailed::WriteFailed(const std::string& stream, int error)
    : closed_pipe_(error == EPIPE),
      what_("cannot write to " + stream + ": " + std::strerror(error)) {}

void Output::write(std::string_view text) { write_data(screened(text)); }

void Output::write_data(std::string_view bytes) {
  errno = 0;
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size() && loss_ == Loss::noticed)
    throw WriteFailed(name_, errno == 0 ? EIO : errno);
}

void Output::flush() {
  errno = 0;
  if ((std::fflush(stream_) != 0 || std::ferror(stream_) != 0) && loss_ == Loss::noticed)
    throw WriteFailed(name_, errno == 0 ? EIO : errno);
}

void Output::give_up() {
  ::__fpurge(stream_);
  std::clearerr(stream_);
}

}  // namespace meshwright::report
