// A plugin that calls exit() must not make a job look done.
#pragma once

#include <string>

namespace meshwright::loader {

// While one of these lives, exit() and quick_exit() end the process with E0424, which names the
// plugin that was last at work, instead of the status they were given; before a plugin was loaded
// they do as ever. For the program and for its ranks; an application that uses the library ends as
// it likes. One at a time. What nothing can hold back, _exit(), is noticed by the launcher of local
// ranks alone.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

// Code of this plugin runs from now on: "acme 1.0.0 (/opt/libmeshwright_acme.so)".
void plugin_at_work(const std::string& plugin);

}  // namespace meshwright::loader
