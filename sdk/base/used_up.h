// The error of memory that ended, on the host or on a device.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::detail {

inline Error out_of_memory(std::string what = "out of memory") {
  // LibTorch names a variable of the environment; here it is a key.
  const size_t advice = what.find(" If reserved but unallocated memory is large");
  if (advice != std::string::npos) what.erase(advice);
  Error error(ErrorCode::out_of_memory, what);
  error
      .help(
          "lower step_scheduler.local_batch_size, or pp_microbatch_size of a pipeline: the global "
          "batch stays, in more micro-batches")
      .help("set distributed.activation_checkpointing = \"full\"")
      .help("`plan` says what a rank needs: shard over more ranks, or offload");
  if (advice != std::string::npos)
    error.help("set dist_env.expandable_segments = true where much is reserved and unallocated");
  return error;
}

// Where the words of LibTorch's exception, of NCCL's in it, or of the dynamic linker say so.
inline size_t place_of_memory(const std::string& what) {
  size_t place = std::string::npos;
  for (const char* words :
       {"out of memory", "can't allocate memory", "failed to map segment", "bad_alloc"})
    place = std::min(place, what.find(words));
  return place;
}
inline bool tells_of_memory(const std::string& what) {
  return place_of_memory(what) != std::string::npos;
}

// The line of them that does.
inline std::string line_of_memory(const std::string& what) {
  const size_t place = place_of_memory(what);
  if (place == std::string::npos) return what;
  const size_t before = what.rfind('\n', place),
               begin = before == std::string::npos ? 0 : before + 1;
  return what.substr(begin, what.find('\n', place) - begin);
}

// What a process may not have more of: open files, threads, memory. Whoever is refused one tells of
// what it was about to do with it (a file that cannot be read, a peer that is lost, a library that
// does not load), with the C library's words for the reason somewhere in its own. The reason is
// what is to be changed, so it gives the code, the exit status and the help. Not public, and all
// inline.

inline std::string limit_text(const char* what, int which, const char* name) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY)
    return "";
  return std::string("; ") + what + std::to_string(limit.rlim_cur) + " (" + name + ")";
}

inline Error too_few_descriptors(const std::string& words) {
  return Error(ErrorCode::out_of_memory, words + limit_text("this process may have open at most ",
                                                            RLIMIT_NOFILE, "RLIMIT_NOFILE"))
      .help(
          "raise the limit of open files where the program is started: `ulimit -n 65536` in a "
          "shell, LimitNOFILE of a service, --ulimit nofile of a container");
}

inline Error too_few_threads(const std::string& words) {
  return Error(ErrorCode::out_of_memory,
               "a thread or process cannot be started: " + words +
                   limit_text("the processes and threads of this user may be at most ",
                              RLIMIT_NPROC, "RLIMIT_NPROC") +
                   limit_text("its stack may have found no room: this process may map at most ",
                              RLIMIT_AS, "bytes, RLIMIT_AS"))
      .help(
          "raise the limit of processes: `ulimit -u` in a shell, LimitNPROC or TasksMax of a "
          "service, --pids-limit of a container")
      .help("or start fewer: run.threads = 1, dataset.workers = 0, or fewer ranks on this host");
}

inline Error no_memory(const std::string& words) {
  const std::string limit =
      limit_text("this process may map at most ", RLIMIT_AS, "bytes, RLIMIT_AS");
  Error error = out_of_memory(words + limit);
  if (!limit.empty())
    error.help(
        "or raise the limit of memory where the program is started: `ulimit -v unlimited` "
        "(LibTorch alone maps some gigabytes)");
  return error;
}

// Of the words that an error came with, told behind `before`; nullopt: they say nothing of a limit.
inline std::optional<Error> used_up(const std::string& before, const std::string& words) {
  if (tells_of_memory(words)) return no_memory(before + line_of_memory(words));
  const std::string line = words.substr(0, words.find('\n'));
  const auto holds = [&](int reason) {
    const char* told = std::strerror(reason);  // in the language of the process, as the words are
    return line.find(told) != std::string::npos;
  };
  if (holds(EMFILE) || holds(ENFILE)) return too_few_descriptors(before + line);
  if (holds(ENOMEM)) return no_memory(before + line);
  if (holds(EAGAIN)) return too_few_threads(before + line);
  return std::nullopt;
}

// What a copy of a descriptor above a number failed with: the kernel calls a number that the limit
// does not allow invalid.
inline int reason_of_copy(int reason) { return reason == EINVAL ? EMFILE : reason; }

// Throws Error(out_of_memory) where the process may not map as much as LibTorch's libraries do:
// they end it without a word, or fail in one of many ways.
inline void check_room_for_libtorch() {
  constexpr rlim_t kLeast = rlim_t{480} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < kLeast)
    throw no_memory("LibTorch's libraries do not fit");
}

// Of an exception, whoever threw it.
inline std::optional<Error> used_up(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return no_memory("out of memory");
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    if (known->code() == ErrorCode::out_of_memory) return std::nullopt;
    std::optional<Error> out = used_up("", known->message());
    if (!out) return out;
    for (const std::string& note : known->notes()) out->note(note);
    return out;
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    if (system->code() == std::errc::resource_unavailable_try_again)
      return too_few_threads(error.what());
  return used_up("", error.what());
}

// What an error is told as: by its cause, if that is a limit. Of several, this one alone.
inline std::vector<Error> by_cause(std::span<const Error> errors) {
  for (const Error& error : errors)
    if (const std::optional<Error> limit = used_up(error)) return {*limit};
  return {errors.begin(), errors.end()};
}

}  // namespace meshwright::detail
