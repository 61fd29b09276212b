#include "plugin_at_work.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/rank_thread.h"

namespace meshwright::detail {

// No destructor of a static object may take away what is read when the process ends or crashes.
struct PluginCode {
  char told[512];
};

namespace {

constexpr size_t kMostPlugins = 256, kMostRanges = 1024;
constexpr std::array<int, 5> kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

struct Range {
  const PluginCode* plugin;  // nullptr: the engine
  const void *begin, *end;
};

std::mutex g_mutex;  // of those who add
PluginCode g_plugins[kMostPlugins];
Range g_ranges[kMostRanges];
std::atomic<size_t> g_many_plugins{0}, g_many_ranges{0};
std::atomic<const PluginCode*> g_last{nullptr};  // that was called
std::atomic<int64_t> g_rank{-1};
std::atomic<int> g_watches{0};
std::atomic<pid_t> g_process{0};  // a child that a plugin forks ends as it likes
struct sigaction g_before[kSignals.size()];

std::atomic<pid_t> g_teller{0};  // the thread whose crash is told
thread_local constinit bool t_told = false;
thread_local constinit const PluginCode* t_plugin = nullptr;
thread_local constinit const char* t_doing = nullptr;
thread_local constinit int64_t t_rank = -1;  // of a rank that is a thread

int64_t rank_here() { return t_rank >= 0 ? t_rank : g_rank.load(); }

struct Blamed {
  const PluginCode* plugin = nullptr;
  const char* doing = nullptr;
};

const Range* range_of(const void* address) {
  for (size_t i = 0, n = g_many_ranges; i < n; ++i)
    if (address >= g_ranges[i].begin && address < g_ranges[i].end) return &g_ranges[i];
  return nullptr;
}

// Whose fault it is that this instruction crashed: the plugin's whose code holds it (a method, a
// hook of a module or of autograd, or a thread that it left running), nobody's where it is the
// engine's, else (in a library that both call) that of the plugin which this thread was called for.
Blamed blamed_for(const void* instruction) {
  const Range* range = range_of(instruction);
  if (range == nullptr || range->plugin == t_plugin) return {t_plugin, t_doing};
  return {range->plugin, "code that it left behind"};
}

const void* instruction_of(const void* context) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#ifdef __aarch64__
  const auto address = static_cast<uintptr_t>(machine.pc);
#else
  const auto address = static_cast<uintptr_t>(machine.gregs[REG_RIP]);
#endif
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

bool watches() { return g_watches > 0 && g_process == ::getpid(); }

// "error[E0421]: the plugin acme ... crashed in begin_step, on rank 1: <what>". Nothing here takes
// memory.
void tell(ErrorCode code, const Blamed& who, const char* did, const char* what, const char* help) {
  char text[1400], rank[40] = "";
  if (const int64_t mine = rank_here(); mine >= 0)
    std::snprintf(rank, sizeof rank, ", on rank %lld", static_cast<long long>(mine));
  const int size =
      std::snprintf(text, sizeof text, "error[E%04d]: the plugin %s %s in %s%s%s%s\n  = help: %s\n",
                    static_cast<int>(code), who.plugin->told, did,
                    who.doing != nullptr ? who.doing : "the middle of its work", rank,
                    *what ? ": " : "", what, help);
  for (size_t at = 0, end = std::min(sizeof text - 1, static_cast<size_t>(std::max(size, 0)));
       at < end;) {
    const ssize_t n = ::write(2, text + at, end - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

// The library that called exit(), if it is LibTorch or one that it brings: they end the process
// where they cannot go on (oneMKL, OpenMP), whoever's call it was. Empty: another, or it cannot be
// told.
std::string library_that_exits() {
  void* frames[32];
  const int many = ::backtrace(frames, 32);
  for (int i = 0; i < many; ++i) {
    Dl_info of{};
    if (::dladdr(frames[i], &of) == 0 || of.dli_fname == nullptr) continue;
    const std::string_view path = of.dli_fname, name = path.substr(path.rfind('/') + 1);
    for (const char* known : {"libtorch", "libc10", "libgomp", "libomp", "libiomp", "libmkl"})
      if (name.starts_with(known)) return std::string(name);
    if (range_of(frames[i]) != nullptr) return "";
  }
  return "";
}

// Its own words stand above.
[[noreturn]] void tell_of_library(const std::string& name) {
  const bool threads = name.find("omp") != std::string::npos;
  const ErrorCode code = threads ? ErrorCode::out_of_memory : ErrorCode::internal;
  const std::string text =
      "error[" + code_string(code) + "]: " + name + " ended the process" + on_this_rank() +
      "; why, it says above\n  = help: " +
      (threads ? "where a thread could not be made: raise the limit of processes (`ulimit -u`, "
                 "--pids-limit of a container), or set run.threads = 1\n"
               : "this is not the plugins' fault: look at its words\n");
  static_cast<void>(::write(2, text.data(), text.size()));
  ::_exit(exit_status(code));
}

void refuse_exit() {
  if (!watches() || g_many_plugins == 0) return;
  if (const std::string library = library_that_exits(); !library.empty()) {
    g_watches = 0;
    std::fflush(stdout);
    tell_of_library(library);
  }
  const Blamed who{t_plugin != nullptr ? t_plugin : g_last.load(), t_doing};
  if (who.plugin == nullptr) return;
  g_watches = 0;
  std::fflush(stdout);
  tell(ErrorCode::plugin_exited, who, "called exit()", "",
       "a plugin reports what is wrong by throwing meshwright::Error; nothing may end the process "
       "but the program itself");
  ::_exit(exit_status(ErrorCode::plugin_exited));
}

// Handlers run in reverse order: one that is set after libraries were loaded and before threads
// start comes before the destructors of what these threads still use. So it is set again and again,
// at a start, for a plugin and when the ranks have met; the first that runs ends the process.
bool look_at_exits() {
  return std::atexit(refuse_exit) == 0 && std::at_quick_exit(refuse_exit) == 0;
}

const char* name_of(int number) {
  switch (number) {
    case SIGSEGV:
      return "SIGSEGV, it used memory that is not there";
    case SIGBUS:
      return "SIGBUS, it used memory that cannot be read";
    case SIGILL:
      return "SIGILL, no instruction of this processor";
    case SIGFPE:
      return "SIGFPE, a division by zero";
    default:
      return "SIGABRT, by abort(), a failed assertion, or an exception that nothing could catch";
  }
}

bool sent_by_somebody_else(const siginfo_t* info) {
  return info->si_code <= 0 && info->si_pid != ::getpid();
}

// Who wants a core file gets one, of a copy of the process that dies by the signal.
void leave_core(int number) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0 || limit.rlim_cur == 0) return;
  const pid_t copy = ::fork();
  if (copy == 0) {
    ::signal(number, SIG_DFL);
    sigset_t mine;
    ::sigemptyset(&mine);
    ::sigaddset(&mine, number);
    ::sigprocmask(SIG_UNBLOCK, &mine, nullptr);
    ::raise(number);
    ::_exit(1);
  }
  if (copy > 0) ::waitpid(copy, nullptr, 0);
}

// False for a thread that crashes while the crash of another is told; the process ends meanwhile.
bool is_mine_to_tell() {
  const pid_t self = static_cast<pid_t>(::syscall(SYS_gettid));
  for (int waited = 0; waited < 6000; ++waited) {
    pid_t teller = 0;
    if (g_teller.compare_exchange_strong(teller, self) || teller == self) return true;
    const timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return false;
}

void on_crash(int number, siginfo_t* info, void* context) {
  size_t index = 0;
  while (kSignals[index] != number) ++index;
  const struct sigaction before = g_before[index];
  // A crash in what follows a told one; the told one is what ends the process.
  if (t_told) ::_exit(exit_status(ErrorCode::plugin_foreign_exception));
  const bool mine = is_mine_to_tell();
  Blamed who;
  if (mine && watches() && !sent_by_somebody_else(info)) who = blamed_for(instruction_of(context));
  // A told crash keeps the handler: other threads that crash meanwhile wait in it.
  if (who.plugin == nullptr) ::sigaction(number, &before, nullptr);
  if (who.plugin != nullptr) {
    t_told = true;
    char what[120];
    std::snprintf(what, sizeof what, "signal %d (%s)", number, name_of(number));
    tell(ErrorCode::plugin_foreign_exception, who, "crashed", what,
         "this is a defect of the plugin; a debugger stops where it is (gdb --args meshwright "
         "train ...)");
  } else if (mine) {
    g_teller = 0;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr)
    before.sa_sigaction(number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(number);
  if (who.plugin != nullptr) {
    leave_core(number);
    ::_exit(exit_status(ErrorCode::plugin_foreign_exception));
  }
  if (info->si_code <= 0) ::raise(number);  // else the instruction runs again
}

// A stack for the handler: the plugin may have used up its own.
void use_other_stack() {
  static char memory[size_t{64} << 10];
  const stack_t stack{memory, 0, sizeof memory};
  stack_t old{};
  if (::sigaltstack(nullptr, &old) == 0 && (old.ss_flags & SS_DISABLE) != 0)
    ::sigaltstack(&stack, nullptr);
}

}  // namespace

const PluginCode* plugin_code(const std::string& told) {
  std::lock_guard lock(g_mutex);
  PluginCode made{};
  std::snprintf(made.told, sizeof made.told, "%s", told.c_str());
  const size_t many = g_many_plugins;
  for (size_t i = 0; i < many; ++i)
    if (std::strcmp(g_plugins[i].told, made.told) == 0) return &g_plugins[i];
  if (many == kMostPlugins) return &g_plugins[many - 1];
  g_plugins[many] = made;
  ++g_many_plugins;
  look_at_exits();
  return &g_plugins[many];
}

const char* told(const PluginCode* plugin) { return plugin->told; }

void plugin_has_code(const PluginCode* plugin, const void* begin, const void* end) {
  std::lock_guard lock(g_mutex);
  if (g_many_ranges == kMostRanges || range_of(begin) != nullptr) return;
  g_ranges[g_many_ranges] = {plugin, begin, end};
  ++g_many_ranges;
}

void library_is_of(const PluginCode* plugin, const void* inside) {
  using Part = ElfW(Phdr);
  struct Search {
    const PluginCode* plugin;
    uintptr_t inside;
  } search{plugin, reinterpret_cast<uintptr_t>(inside)};
  auto take = [](dl_phdr_info* library, size_t, void* given) {
    const auto& wanted = *static_cast<const Search*>(given);
    const std::span<const Part> parts(library->dlpi_phdr, library->dlpi_phnum);
    if (std::ranges::none_of(parts, [&](const Part& part) {
          return part.p_type == PT_LOAD &&
                 wanted.inside - (library->dlpi_addr + part.p_vaddr) < part.p_memsz;
        }))
      return 0;
    for (const Part& part : parts) {
      if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
      const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
      // Addresses of the dynamic linker are numbers. NOLINTBEGIN(performance-no-int-to-ptr)
      plugin_has_code(wanted.plugin, reinterpret_cast<const void*>(begin),
                      reinterpret_cast<const void*>(begin + part.p_memsz));
      // NOLINTEND(performance-no-int-to-ptr)
    }
    return 1;
  };
  ::dl_iterate_phdr(take, &search);
}

PluginCall::PluginCall(const PluginCode* plugin, const char* doing) noexcept
    : plugin_(t_plugin), doing_(t_doing) {
  t_plugin = plugin;
  t_doing = doing;
  if (plugin != nullptr) g_last.store(plugin, std::memory_order_relaxed);
}

PluginCall::~PluginCall() {
  t_plugin = plugin_;
  t_doing = doing_;
}

const PluginCode* plugin_at_work() { return t_plugin; }
const PluginCode* last_plugin() { return g_last; }

void this_is_rank(int64_t rank) {
  g_rank = rank;
  look_at_exits();
}

std::string on_this_rank() {
  const int64_t rank = rank_here();
  return rank < 0 ? "" : ", on rank " + std::to_string(rank);
}

RankThread::RankThread(int64_t rank) noexcept : before_(t_rank) { t_rank = rank; }
RankThread::~RankThread() { t_rank = before_; }

PluginWatch::PluginWatch() {
  g_process = ::getpid();
  if (!look_at_exits() || g_watches++ > 0) return;
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // the first call loads a library
  use_other_stack();
  struct sigaction ours{};
  ours.sa_sigaction = on_crash;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &ours, &g_before[i]);
}

PluginWatch::~PluginWatch() {
  if (g_watches == 0) return;
  if (--g_watches > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now{};
    if (::sigaction(kSignals[i], nullptr, &now) == 0 && now.sa_sigaction == on_crash)
      ::sigaction(kSignals[i], &g_before[i], nullptr);
  }
}

}  // namespace meshwright::detail
