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

#include "given.h"
#include "meshwright/error.h"

namespace cached_store_test {

namespace fs = std::filesystem;
using meshwright::Error;
using meshwright::jsonl::cached_store;
using meshwright::jsonl::CachePlace;
using meshwright::jsonl::StoreWriter;
using meshwright::jsonl::TokenStore;

std::vector<std::byte> store_bytes(const std::string& key) {
  StoreWriter writer(false);
  writer.add({{1, 2, 3}, {{1, 3}}, 0});
  return writer.bytes({key, "", {}});
}

// A folder, and what opening stores in it made and told.
struct Cache {
  jsonl_test::TemporaryFolder folder;
  int built = 0;
  std::vector<std::string> told;

  std::shared_ptr<const TokenStore> open(
      const CachePlace& place, const std::string& key = "k",
      const std::function<void()>& meanwhile = [] {}) {
    auto build = [&] {
      ++built;
      meanwhile();
      return store_bytes(key);
    };
    return cached_store(place, key, build, [&](const std::string& line) { told.push_back(line); });
  }
  std::shared_ptr<const TokenStore> open(
      const std::string& key = "k", const std::function<void()>& meanwhile = [] {}) {
    return open(CachePlace{folder.string()}, key, meanwhile);
  }
};

void fail() { throw std::runtime_error("row 3"); }

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

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
  Cache cache;
  const std::string folder = cache.folder / "a/b";
  for (int i = 0; i < 2; ++i) CHECK(cache.open(CachePlace{folder})->tokens() == 3);
  CHECK(cache.built == 1);
  CHECK(cache.told.empty());
  CHECK(fs::exists(folder + "/k.mwtokens"));
  CHECK_FALSE(fs::exists(folder + "/k.lock"));
  // Without a folder everybody makes its own.
  CHECK(cache.open(CachePlace{""})->tokens() == 3);
  CHECK(cache.built == 2);
}

TEST_CASE("what is damaged, or of another key, is made anew and told") {
  Cache cache;
  const std::string place = cache.folder / "k.mwtokens";
  const std::vector<std::byte> other = store_bytes("other");
  for (const std::string& contents :
       {std::string("MWTOKENS"), std::string("no store"), std::string(5000, '\0'),
        std::string(reinterpret_cast<const char*>(other.data()), other.size())}) {
    jsonl_test::write(place, contents);
    cache.built = 0;
    cache.told.clear();
    CHECK(cache.open()->tokens() == 3);
    CHECK(cache.built == 1);
    REQUIRE(cache.told.size() == 1);
    CHECK(cache.told[0].starts_with("the cache is made anew: " + place + ": "));
  }
}

TEST_CASE("an error while it is made leaves nothing") {
  Cache cache;
  CHECK_THROWS_AS(cache.open("k", fail), std::runtime_error);
  CHECK(fs::is_empty(cache.folder.string()));
  CHECK(cache.open()->tokens() == 3);
}

TEST_CASE("several processes at once: one makes it, and all have it") {
  Cache cache;
  check_in_processes(4, [&] {
    auto building = [&] {
      std::ofstream(cache.folder / "built", std::ios::app) << 'x';
      pause(300);
    };
    return cache.open("k", building)->tokens() == 3;
  });
  CHECK(fs::file_size(cache.folder / "built") == 1);
  CHECK_FALSE(fs::exists(cache.folder / "k.lock"));
}

TEST_CASE("who waits for a lock whose file is removed takes the one that stands there now") {
  // All fail, one behind the other: each takes the lock, and no two at once.
  Cache cache;
  check_in_processes(6, [&] {
    auto building = [&] {
      if (!fs::create_directory(cache.folder / "at_it")) ::_exit(2);
      pause(50);
      fs::remove(cache.folder / "at_it");
      fail();
    };
    try {
      cache.open("k", building);
    } catch (const std::exception& error) {
      return std::string(error.what()) == "row 3";
    }
    return false;
  });
  CHECK(fs::is_empty(cache.folder.string()));
}

TEST_CASE("a process that is killed while it makes the store keeps nobody from it") {
  Cache cache;
  const std::string begun = cache.folder / "begun";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      cache.open("k", [&] {
        jsonl_test::write(begun, "x");
        pause(3'600'000);
      });
    } catch (...) {
    }
    ::_exit(0);
  }
  while (!fs::exists(begun)) pause(5);
  std::thread killer([&] {
    pause(200);
    ::kill(child, SIGKILL);
  });
  CHECK(cache.open()->tokens() == 3);
  killer.join();
  ::waitpid(child, nullptr, 0);
  REQUIRE(cache.told.size() == 1);
  CHECK(cache.told[0].starts_with("waits for another process of this host"));
}

TEST_CASE("what a process left that died while it wrote goes, once it is old") {
  Cache cache;
  const std::string old = cache.folder / ".k.mwtokens.0123.tmp",
                    fresh = cache.folder / ".k.mwtokens.4567.tmp",
                    other = cache.folder / ".notes.tmp";
  for (const std::string& file : {old, fresh, other}) jsonl_test::write(file, "half");
  for (const std::string& file : {old, other})
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  CHECK(cache.open()->tokens() == 3);
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(fresh));
  CHECK(fs::exists(other));
}

TEST_CASE("what a process of this host left of the same store goes at once") {
  using meshwright::jsonl::temporary_name;
  Cache cache;
  const jsonl_test::TemporaryFolder& folder = cache.folder;
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
  CHECK(cache.open()->tokens() == 3);
  CHECK_FALSE(fs::exists(mine));
  CHECK_FALSE(fs::exists(same));
  // Their writers may be at it: they have other locks.
  CHECK(fs::exists(other));
  CHECK(fs::exists(longer));
  CHECK(cache.open("other")->tokens() == 3);
  CHECK_FALSE(fs::exists(other));
  // The store is written under that name: what cannot be replaced there is in the way.
  fs::create_directories((folder / temporary_name("k2")) + "/x");
  CHECK_THROWS_AS(cache.open("k2"), Error);
  CHECK_FALSE(fs::exists(folder / "k2.mwtokens"));
}

TEST_CASE("a folder that cannot be written to: an error, or none where it is not needed") {
  Cache cache;
  const jsonl_test::TemporaryFolder& folder = cache.folder;
  jsonl_test::write(folder / "file", "x");
  fs::create_directories(folder / "locked/k.lock");  // no file
  // It cannot be made; nothing can be locked there; what stands there cannot be replaced.
  fs::create_directories(folder / "taken/k.mwtokens/x");
  for (const std::string& place :
       {(folder / "file") + "/cache", folder / "locked", folder / "taken"}) {
    CAPTURE(place);
    CHECK_THROWS_AS(cache.open(CachePlace{place}), Error);
    cache.built = 0;
    cache.told.clear();
    CHECK(cache.open(CachePlace{place, false})->tokens() == 3);
    CHECK(cache.built == 1);  // and not once more in memory
    REQUIRE(!cache.told.empty());
    CHECK(cache.told.back().starts_with(
        "the cache cannot be written, so that every process tokenizes for itself: cannot "));
    CHECK(cache.told.back().find(folder.string()) != std::string::npos);
  }
  // What build() throws is thrown.
  CHECK_THROWS_AS(cache.open(CachePlace{folder / "new", false}, "k", fail), std::runtime_error);
  cache.told.clear();
  CHECK(cache.open(CachePlace{"", false})->tokens() == 3);
  CHECK(cache.told ==
        std::vector<std::string>{"there is no cache: neither XDG_CACHE_HOME nor HOME is set"});
  // With the setting that moves it.
  for (const std::string& place : {std::string(), (folder / "file") + "/cache"}) {
    cache.open(CachePlace{place, false, "dataset.text.cache"});
    CHECK(
        cache.told.back().ends_with("; set dataset.text.cache to a folder that may be written to"));
  }
}

}  // namespace cached_store_test
