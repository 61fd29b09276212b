#include <fcntl.h>

#include "engine/cli/verb.h"

namespace {

// A descriptor below 3 that was closed would become the first file or pipe that is opened, and be
// written to as standard output. Each is opened the other way round, so that its use still fails as
// it would have.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  return meshwright::cli::run(argc, argv);
}
