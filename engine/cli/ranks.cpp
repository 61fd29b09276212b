#include "engine/cli/ranks.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "sdk/src/beside.h"

namespace meshwright::cli {

std::optional<launch::RankEnvironment> ranks_of(const Call& call) {
  std::optional<launch::RankEnvironment> ranks = launch::detect_ranks(launch::process_environment());
  if (ranks && call.has("nproc") && !started_by_us(ranks))
    throw Error(ErrorCode::usage, std::string("--nproc starts ranks here, but this process already is rank ") +
                                      std::to_string(ranks->rank) + " of " + std::to_string(ranks->world_size) + " (" +
                                      launch::source_name(ranks->source) + ")")
        .help("leave out --nproc under a launcher")
        .help("unset RANK, WORLD_SIZE and the launcher's other variables to start local ranks");
  return ranks;
}

Screen screen_of(const Call& call, bool started_by_us) {
  Screen screen{::isatty(1) == 1, call.out_style.width, call.out_style.colour, call.out_style.unicode};
  if (!started_by_us) return screen;
  const char* terminal = std::getenv("MESHWRIGHT_TERMINAL");
  if (terminal && *terminal) {
    screen.live = true;
    screen.width = std::atoi(terminal);
    screen.colour = std::getenv("MESHWRIGHT_COLOUR") != nullptr;
  }
  return screen;
}

void tell_screen(const Screen& screen, launch::LocalJob& job) {
  if (screen.live) job.environment.emplace_back("MESHWRIGHT_TERMINAL", std::to_string(screen.width));
  if (screen.colour) job.environment.emplace_back("MESHWRIGHT_COLOUR", "1");
}

int run_in_engine(const char* entry, const void* options) {
  std::string path = beside_sdk("libmeshwright_engine.so").string();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(ErrorCode::internal, "cannot load " + path + ": " + (why ? why : ""))
        .help("the installation is damaged, or LibTorch was moved: build or install again");
  }
  auto run = reinterpret_cast<int (*)(const void*)>(::dlsym(library, entry));
  if (run == nullptr) throw Error(ErrorCode::internal, path + " is not the engine's library");
  return run(options);
}

}  // namespace meshwright::cli
