#include "engine/loader/exit_guard.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "meshwright/error.h"

namespace meshwright::loader {

namespace {

std::atomic<bool> g_armed{false};
char g_plugin[512] =
    "";  // not a std::string: destructors of static objects may have run by the time it is read

void refuse_exit() {
  if (!g_armed.exchange(false) || g_plugin[0] == '\0') return;
  std::fflush(stdout);
  std::fprintf(stderr,
               "error[%s]: the plugin %s called exit() in the middle of its work\n  = help: a "
               "plugin reports what is wrong by throwing "
               "meshwright::Error; nothing may end the process but the program itself\n",
               code_string(ErrorCode::plugin_exited).c_str(), g_plugin);
  std::fflush(stderr);
  ::_exit(exit_status(ErrorCode::plugin_exited));
}

}  // namespace

ExitGuard::ExitGuard() {
  static const bool registered =
      std::atexit(refuse_exit) == 0 && std::at_quick_exit(refuse_exit) == 0;
  g_armed = registered;
}

ExitGuard::~ExitGuard() { g_armed = false; }

void plugin_at_work(const std::string& plugin) {
  std::snprintf(g_plugin, sizeof g_plugin, "%s", plugin.c_str());
}

}  // namespace meshwright::loader
