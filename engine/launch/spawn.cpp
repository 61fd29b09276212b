#include "engine/launch/spawn.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <torch/headeronly/version.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "meshwright/error.h"
#include "sdk/base/beside.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/used_up.h"
#include "sdk/base/words.h"

namespace meshwright::launch {

void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 1 << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool driver_lists_devices() {
  std::error_code failed;
  std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", failed);
  return (!failed && gpus != std::filesystem::directory_iterator()) ||
         std::filesystem::exists("/dev/nvidia0", failed);
}

namespace {

std::string wanted() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

// As a package of Python's, whose folder lies beside that of torch.
bool in_wheel() {
  std::error_code failed;
  return std::filesystem::exists(beside_sdk("../../__main__.py"), failed);
}

// The dynamic linker names the first library that it missed.
Error cannot_load(const std::string& path, const std::string& why) {
  // LibTorch's wheel needs those of the CUDA runtime and CUPTI, even where there is no device.
  const auto missed = {"libtorch", "libc10", "libcudart", "libcupti"};
  if (std::ranges::none_of(missed, [&](const char* name) { return why.starts_with(name); }))
    return Error(ErrorCode::internal, "cannot load " + path + ": " + why)
        .help("the installation is damaged: build or install again");
  return Error(ErrorCode::file_unreadable, "LibTorch " + wanted() + " is not found: " + why)
      .help(how_to_get_libtorch())
      .help("or name its lib folder in LD_LIBRARY_PATH");
}

// With another version it would load, or not, as luck has it.
void check_version() {
  const std::optional<LibTorch> found = find_libtorch();
  if (!found || found->version.empty() || found->version.starts_with(wanted() + ".")) return;
  throw Error(ErrorCode::file_unreadable, "LibTorch " + found->version + " lies in " +
                                              found->folder.string() + ", but " + wanted() +
                                              " is wanted")
      .help(how_to_get_libtorch());
}

}  // namespace

void check_current_folder() {
  std::error_code failed;
  static_cast<void>(std::filesystem::current_path(failed));
  if (!failed) return;
  throw Error(ErrorCode::file_unreadable,
              "the current folder is gone, or no path leads to it any more: " + failed.message())
      .help("cd to a folder that is there, and start again: relative paths begin at it")
      .help("`cd \"$PWD\"` enters a folder that was made again under the same name");
}

std::optional<LibTorch> find_libtorch() {
  std::vector<std::filesystem::path> folders;
  for (const std::string& named : text::split_names(std::getenv("LD_LIBRARY_PATH"), ':'))
    folders.emplace_back(named);
  // Libraries of a wheel have an RPATH, which goes before the variable; others a RUNPATH.
  folders.insert(in_wheel() ? folders.begin() : folders.end(),
                 beside_sdk(in_wheel() ? "../../../torch/lib" : "meshwright/torch/lib"));
  for (const std::filesystem::path& folder : folders) {
    std::error_code failed;  // of a folder that may not be read, as the linker passes over it
    if (!std::filesystem::exists(folder / "libtorch_cpu.so", failed)) continue;
    LibTorch out{(folder / "../x").lexically_normal().parent_path(), ""};
    std::ifstream in(out.folder / "version.py");
    for (std::string line; std::getline(in, line) && out.version.empty();)
      if (line.starts_with("__version__")) {
        const std::vector<std::string> parts = text::split(line, '\'');
        if (parts.size() == 3) out.version = parts[1];
      }
    return out;
  }
  return std::nullopt;
}

std::string how_to_get_libtorch() {
  if (in_wheel()) return "python -m pip install 'torch==" + wanted() + ".*'";
  return "ln -s <the torch folder of the LibTorch wheel> " +
         beside_sdk("meshwright/torch").lexically_normal().string();
}

std::string how_to_get_devices(const std::string& why) {
  std::error_code failed;
  if (!std::filesystem::exists(beside_sdk("libmeshwright_cuda.so"), failed))
    return "run ./quickstart --cuda once: it fetches the CUDA libraries and builds the part that "
           "uses them";
  // A wheel of LibTorch for CPUs has the same name and release as one for CUDA.
  const std::optional<LibTorch> found = find_libtorch();
  const bool for_cpus = why.find("libtorch_cuda") != std::string::npos ||
                        why.find("libc10_cuda") != std::string::npos;
  std::string which = "LibTorch " + wanted() + " for CUDA 13 and its nvidia-* packages";
  if (for_cpus && found && !found->version.empty())
    which += ", in place of " + found->version + " in " + found->folder.string();
  return "install " + which + ": " +
         (in_wheel() ? "python -m pip install --force-reinstall 'torch==" + wanted() + ".*'"
                     : how_to_get_libtorch());
}

void* engine_function(const char* name) {
  check_current_folder();
  check_version();
  detail::check_room_for_libtorch();
  const std::string path = beside_sdk("libmeshwright_engine.so.1").string();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* told = ::dlerror();
    throw cannot_load(path, told ? told : "");
  }
  void* function = ::dlsym(library, name);
  if (function == nullptr) throw Error(ErrorCode::internal, path + " is not the engine's library");
  return function;
}

}  // namespace meshwright::launch

extern char** environ;

namespace meshwright::launch {

namespace {

constexpr int kStoreFd = 3;

// Above the numbers that a child gets, whatever was closed in this process.
Descriptor high(int fd) {
  Descriptor low(fd);
  int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 10);
  if (moved < 0) errno = detail::reason_of_copy(errno);
  return Descriptor(moved);
}

struct Pipe {
  Descriptor read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = high(ends[0]);
      write = high(ends[1]);
    }
    if (read.get() < 0 || write.get() < 0)
      throw Error(ErrorCode::rank_failed,
                  std::string("cannot make a pipe for a rank: ") + std::strerror(errno))
          .help("raise the limit of open files (ulimit -n), or start fewer ranks");
    ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
};

// 32 random bytes as text, which an environment can hold.
std::string new_secret() {
  std::string out;
  for (char byte : random_bytes(32)) {
    out += "0123456789abcdef"[byte >> 4 & 15];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::vector<std::string> rank_environment(const LocalJob& job, int64_t number, int64_t restart,
                                          const Listener& listener) {
  std::string rank = std::to_string(number), world = std::to_string(job.ranks);
  std::vector<std::pair<std::string, std::string>> ours = job.environment;
  ours.insert(ours.end(), {{"RANK", rank},
                           {"WORLD_SIZE", world},
                           {"LOCAL_RANK", rank},
                           {"LOCAL_WORLD_SIZE", world},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", std::to_string(listener.port)},
                           {"MESHWRIGHT_JOB_SECRET", listener.secret},
                           {"MESHWRIGHT_LOCAL_JOB", std::to_string(::getpid())}});
  if (number == 0) ours.emplace_back("MESHWRIGHT_STORE_FD", std::to_string(kStoreFd));
  if (restart > 0) ours.emplace_back("MESHWRIGHT_RESTART", std::to_string(restart));
  for (const auto& [name, fd] : job.descriptors) ours.emplace_back(name, std::to_string(fd));
  std::set<std::string> replaced{"MESHWRIGHT_STORE_FD", "MESHWRIGHT_RESTART", kRunLock,
                                 kConfiguration, kAttempts};
  for (const auto& [name, value] : ours) replaced.insert(name);
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    if (!replaced.contains(entry.substr(0, entry.find('=')))) out.push_back(std::move(entry));
  }
  for (const auto& [name, value] : ours) out.push_back(name + "=" + value);
  return out;
}

Error cannot_keep() {
  return Error(ErrorCode::rank_failed,
               std::string("what ranks are handed cannot be kept in memory (memfd): ") +
                   std::strerror(errno));
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  for (size_t at = 0; at < count;) {
    const ssize_t got = ::getrandom(out.data() + at, count - at, 0);
    if (got > 0)
      at += static_cast<size_t>(got);
    else if (errno != EINTR)
      throw Error(ErrorCode::rendezvous_failed,
                  std::string("the kernel gives no random bytes: ") + std::strerror(errno));
  }
  return out;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Listener listen_on_free_port() {
  Listener out;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); fd >= 0) out.fd = high(fd);
  if (out.fd.get() < 0 ||
      ::bind(out.fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(out.fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(out.fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error(ErrorCode::rendezvous_failed,
                std::string("cannot listen on 127.0.0.1: ") + std::strerror(errno))
        .help("local ranks meet over the loopback interface: it must be up");
  out.port = ntohs(address.sin_port);
  out.secret = new_secret();
  return out;
}

Process spawn_rank(const LocalJob& job, int64_t number, int64_t restart, const Listener& listener) {
  if (number == 0) raise_descriptor_limit();  // there are three descriptors per rank
  Pipe out, err;
  std::vector<std::string> words = job.argv,
                           variables = rank_environment(job, number, restart, listener);
  std::vector<char*> argv = pointers(words), envp = pointers(variables);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, err.write.get(), 2);
  // Rank 0 alone: were the socket open in others too, connections to it would hang after rank 0's
  // death instead of being refused.
  if (number == 0) posix_spawn_file_actions_adddup2(&actions, listener.fd.get(), kStoreFd);
  // On themselves, which leaves them open in the child.
  for (const auto& [name, fd] : job.descriptors) posix_spawn_file_actions_adddup2(&actions, fd, fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults, none;
  sigemptyset(&defaults);
  sigemptyset(&none);
  for (int s : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGTSTP, SIGCHLD})
    sigaddset(&defaults, s);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  Process process;
  int failed =
      ::posix_spawnp(&process.pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0)
    throw Error(ErrorCode::rank_failed, "cannot start rank " + std::to_string(number) + " (" +
                                            job.argv[0] + "): " + std::strerror(failed));
  process.out = std::move(out.read);
  process.err = std::move(err.read);
  if (int fd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)); fd >= 0)
    process.exit = high(fd);
  return process;
}

Descriptor shared_memory() {
  Descriptor out;
  if (int fd = ::memfd_create("meshwright", MFD_CLOEXEC | MFD_ALLOW_SEALING); fd >= 0)
    out = high(fd);
  if (out.get() < 0) throw cannot_keep();
  return out;
}

Descriptor sealed_memory(const std::string& bytes) {
  Descriptor out = shared_memory();
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = ::write(out.get(), bytes.data() + at, bytes.size() - at);
    if (got > 0)
      at += static_cast<size_t>(got);
    else if (errno != EINTR)
      throw cannot_keep();
  }
  ::fcntl(out.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  return out;
}

std::optional<std::string> handed_to_rank(const char* variable) {
  const char* told = std::getenv(variable);
  if (told == nullptr) return std::nullopt;
  const Descriptor file(std::atoi(told));
  return bytes_of(file.get(), std::string("what ") + variable + " = " + told + " names");
}

std::string bytes_of(int memory, const std::string& what) {
  std::string out;
  char part[65536];
  for (;;) {  // the ranks share one position
    const ssize_t got = ::pread(memory, part, sizeof part, static_cast<off_t>(out.size()));
    if (got == 0) return out;
    if (got > 0)
      out.append(part, static_cast<size_t>(got));
    else if (errno != EINTR)
      throw Error(ErrorCode::internal, what + " cannot be read: " + std::strerror(errno));
  }
}

bool end_with_parent() {
  const char* parent = std::getenv("MESHWRIGHT_LOCAL_JOB");
  if (parent == nullptr) return true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // What the rank starts must not hold the run folder's lock after it.
  if (const char* lock = std::getenv(kRunLock); lock != nullptr) {
    ::fcntl(std::atoi(lock), F_SETFD, FD_CLOEXEC);
    base::close_in_forks(std::atoi(lock));
  }
  // It may have died before the line above.
  return std::to_string(::getppid()) == parent;
}

}  // namespace meshwright::launch
