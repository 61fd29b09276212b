// Ranks that are processes of this test, on the fake device: a case that is skipped otherwise is
// what one of them does.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/fixtures/folder.h"

namespace device_faults_test {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

using Folder = TemporaryFolder;  // for the files of a case

struct Rank {
  int code = -1;          // -1: it was killed at the end
  std::string said, log;  // log: the device's
};

// Runs a command on so many ranks. `own(rank)`: variables of one of them.
std::vector<Rank> run_on_ranks(std::vector<std::string> command, int ranks,
                               const std::function<Variables(int)>& own);
// The same of a case of this test.
std::vector<Rank> play(const std::string& role, int ranks,
                       const std::function<Variables(int)>& own);
std::vector<Rank> play(const std::string& role, int ranks, const Variables& all = {});
// Each rank's own checks held, and nothing was wrong on its device.
void check_played(const std::vector<Rank>& ranks);

// What run_on_ranks() told this rank; empty: nothing.
std::string told(const char* name);

// A function of the fake's libraries, which are in a rank's process before all others.
void* find_in_the_fake(const char* name);
template <class Function>
Function* of_the_fake(const char* name) {
  return reinterpret_cast<Function*>(find_in_the_fake(name));
}
#define OF_THE_FAKE(name) of_the_fake<decltype(name)>(#name)

}  // namespace device_faults_test
