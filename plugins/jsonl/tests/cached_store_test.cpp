// One store for all processes of a host, whoever dies over it.
#include "plugins/jsonl/cached_store.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "meshwright/error.h"
#include "temporary_folder.h"

namespace cached_store_test {

namespace fs = std::filesystem;
using meshwright::Error;
using meshwright::jsonl::cached_store;
using meshwright::jsonl::StoreWriter;
using meshwright::jsonl::TokenStore;

std::vector<std::byte> store_bytes(const std::string& key) {
  StoreWriter writer(false);
  writer.add({{1, 2, 3}, {{1, 3}}, 0});
  return writer.bytes({key, "", {}});
}

struct Told {
  std::vector<std::string> lines;
  void operator()(const std::string& line) { lines.push_back(line); }
};

// `body` says in each of `count` processes at once whether all is well.
void check_in_processes(int count, const std::function<bool()>& body) {
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int status = 1;
      try {
        status = body() ? 0 : 2;
      } catch (...) {
        status = 3;
      }
      ::_exit(status);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE("the first one makes it, the next one maps it") {
  const jsonl_test::TemporaryFolder folder;
  const std::string cache = folder / "a/b";
  int built = 0;
  auto build = [&] {
    ++built;
    return store_bytes("k");
  };
  Told told;
  CHECK(cached_store({cache}, "k", build, std::ref(told))->tokens() == 3);
  CHECK(cached_store({cache}, "k", build, std::ref(told))->tokens() == 3);
  CHECK(built == 1);
  CHECK(told.lines.empty());
  CHECK(fs::exists(cache + "/k.mwtokens"));
  CHECK_FALSE(fs::exists(cache + "/k.lock"));
  // Without a folder everybody makes its own.
  CHECK(cached_store({""}, "k", build, std::ref(told))->tokens() == 3);
  CHECK(built == 2);
}

TEST_CASE("what is damaged, or of another key, is made anew and told") {
  const jsonl_test::TemporaryFolder folder;
  int built = 0;
  auto build = [&] {
    ++built;
    return store_bytes("k");
  };
  auto place = folder / "k.mwtokens";
  const std::vector<std::byte> other = store_bytes("other");
  for (const std::string& contents :
       {std::string("MWTOKENS"), std::string("no store"), std::string(5000, '\0'),
        std::string(reinterpret_cast<const char*>(other.data()), other.size())}) {
    jsonl_test::write(place, contents);
    Told told;
    built = 0;
    CHECK(cached_store({folder.string()}, "k", build, std::ref(told))->tokens() == 3);
    CHECK(built == 1);
    REQUIRE(told.lines.size() == 1);
    CHECK(told.lines[0].starts_with("the cache is made anew: " + place + ": "));
  }
}

TEST_CASE("an error while it is made leaves nothing") {
  const jsonl_test::TemporaryFolder folder;
  Told told;
  CHECK_THROWS_AS(
      cached_store(
          {folder.string()}, "k",
          []() -> std::vector<std::byte> { throw std::runtime_error("row 3"); }, std::ref(told)),
      std::runtime_error);
  CHECK(fs::is_empty(folder.string()));
  CHECK(cached_store(
            {folder.string()}, "k", [] { return store_bytes("k"); }, std::ref(told))
            ->tokens() == 3);
}

TEST_CASE("several processes at once: one makes it, and all have it") {
  const jsonl_test::TemporaryFolder folder;
  check_in_processes(4, [&] {
    auto build = [&] {
      std::ofstream(folder / "built", std::ios::app) << 'x';
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return store_bytes("k");
    };
    return cached_store({folder.string()}, "k", build, [](const std::string&) {})->tokens() == 3;
  });
  CHECK(fs::file_size(folder / "built") == 1);
  CHECK_FALSE(fs::exists(folder / "k.lock"));
}

TEST_CASE("who waits for a lock whose file is removed takes the one that stands there now") {
  // All fail, one behind the other: each takes the lock, and no two at once.
  const jsonl_test::TemporaryFolder folder;
  check_in_processes(6, [&] {
    auto build = [&]() -> std::vector<std::byte> {
      if (!fs::create_directory(folder / "at_it")) ::_exit(2);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      fs::remove(folder / "at_it");
      throw std::runtime_error("row 3");
    };
    try {
      cached_store({folder.string()}, "k", build, [](const std::string&) {});
    } catch (const std::exception& error) {
      return std::string(error.what()) == "row 3";
    }
    return false;
  });
  CHECK(fs::is_empty(folder.string()));
}

TEST_CASE("a process that is killed while it makes the store keeps nobody from it") {
  const jsonl_test::TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      cached_store(
          {folder.string()}, "k",
          [&] {
            jsonl_test::write(folder / "begun", "x");
            std::this_thread::sleep_for(std::chrono::hours(1));
            return store_bytes("k");
          },
          [](const std::string&) {});
    } catch (...) {
    }
    ::_exit(0);
  }
  while (!fs::exists(folder / "begun")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(child, SIGKILL);
  });
  Told told;
  CHECK(cached_store(
            {folder.string()}, "k", [] { return store_bytes("k"); }, std::ref(told))
            ->tokens() == 3);
  killer.join();
  ::waitpid(child, nullptr, 0);
  REQUIRE(told.lines.size() == 1);
  CHECK(told.lines[0].starts_with("waits for another process of this host"));
}

TEST_CASE("what a process left that died while it wrote goes, once it is old") {
  const jsonl_test::TemporaryFolder folder;
  const std::string old = folder / ".k.mwtokens.0123.tmp", fresh = folder / ".k.mwtokens.4567.tmp",
                    other = folder / ".notes.tmp";
  for (const std::string& file : {old, fresh, other}) jsonl_test::write(file, "half");
  for (const std::string& file : {old, other})
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  CHECK(cached_store(
            {folder.string()}, "k", [] { return store_bytes("k"); }, [](const std::string&) {})
            ->tokens() == 3);
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(fresh));
  CHECK(fs::exists(other));
}

TEST_CASE("what a process of this host left of the same store goes at once") {
  using meshwright::jsonl::temporary_name;
  const jsonl_test::TemporaryFolder folder;
  auto make = [&](const std::string& key) {
    return cached_store(
               {folder.string()}, key, [&] { return store_bytes(key); }, [](const std::string&) {})
        ->tokens();
  };
  // Of another process: the number at the end is the process's.
  auto left_by = [&](const std::string& key, const std::string& process) {
    std::string name = temporary_name(key);
    name.replace(name.rfind(std::to_string(::getpid())), std::string::npos, process + ".tmp");
    return folder / name;
  };
  const std::string mine = left_by("k", "1"), same = folder / temporary_name("k"),
                    other = left_by("other", "1"), longer = left_by("kk", "1");
  CHECK(mine.starts_with(folder / ".k.mwtokens."));
  for (const std::string& file : {mine, same, other, longer}) jsonl_test::write(file, "half");
  CHECK(make("k") == 3);
  CHECK_FALSE(fs::exists(mine));
  CHECK_FALSE(fs::exists(same));
  // Their writers may be at it: they have other locks.
  CHECK(fs::exists(other));
  CHECK(fs::exists(longer));
  CHECK(make("other") == 3);
  CHECK_FALSE(fs::exists(other));
  // The store is written under that name: what cannot be replaced there is in the way.
  fs::create_directories((folder / temporary_name("k2")) + "/x");
  CHECK_THROWS_AS(make("k2"), Error);
  CHECK_FALSE(fs::exists(folder / "k2.mwtokens"));
}

TEST_CASE("a folder that cannot be written to: an error, or none where it is not needed") {
  const jsonl_test::TemporaryFolder folder;
  jsonl_test::write(folder / "file", "x");
  fs::create_directories(folder / "locked/k.lock");  // no file
  int built = 0;
  auto build = [&] {
    ++built;
    return store_bytes("k");
  };
  // It cannot be made; nothing can be locked there; what stands there cannot be replaced.
  fs::create_directories(folder / "taken/k.mwtokens/x");
  for (const std::string& cache :
       {(folder / "file") + "/cache", folder / "locked", folder / "taken"}) {
    CAPTURE(cache);
    Told told;
    CHECK_THROWS_AS(cached_store({cache}, "k", build, std::ref(told)), Error);
    built = 0;
    told.lines.clear();
    CHECK(cached_store({cache, false}, "k", build, std::ref(told))->tokens() == 3);
    CHECK(built == 1);  // and not once more in memory
    REQUIRE(!told.lines.empty());
    CHECK(told.lines.back().starts_with(
        "there is no cache, so that every process tokenizes for itself: cannot "));
    CHECK(told.lines.back().find(folder.string()) != std::string::npos);
  }
  // What build() throws is thrown.
  CHECK_THROWS_AS(cached_store(
                      {folder / "new", false}, "k",
                      []() -> std::vector<std::byte> { throw std::runtime_error("row 3"); },
                      [](const std::string&) {}),
                  std::runtime_error);
  Told told;
  CHECK(cached_store({"", false}, "k", build, std::ref(told))->tokens() == 3);
  CHECK(told.lines ==
        std::vector<std::string>{"there is no cache: neither XDG_CACHE_HOME nor HOME is set"});
}

}  // namespace cached_store_test
