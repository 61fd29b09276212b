// What a rank that fails leaves for the others, and what they make of it.
#include "engine/launch/rendezvous/error_exchange.h"

#include <doctest/doctest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace error_exchange_test {

using namespace meshwright;
using namespace meshwright::rendezvous;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

launch::RankEnvironment rank_of(int64_t rank, int64_t world) {
  launch::RankEnvironment e;
  e.source = launch::RankEnvironment::Source::plain;
  e.rank = rank;
  e.world_size = world;
  return e;
}

Error sample() {
  return Error(ErrorCode::output_unwritable, "cannot write x: \"No space\"\nleft")
      .key("run.dir")
      .at({Origin::Source::file, "job.toml", 3, 7})
      .help("make room")
      .help("or move")
      .note("while saving");
}

void check_alike(const Error& a, const Error& b) {
  CHECK(a.code() == b.code());
  CHECK(a.message() == b.message());
  CHECK(a.key() == b.key());
  CHECK(a.helps() == b.helps());
  CHECK(a.origin().file == b.origin().file);
  CHECK(a.origin().line == b.origin().line);
  CHECK(a.origin().column == b.origin().column);
}

}  // namespace

TEST_CASE("an error is the same error in another process, and a text that is none says so") {
  check_alike(decode_error(encode_error(sample())), sample());
  CHECK(decode_error(encode_error(sample())).notes() == sample().notes());
  Error bare(ErrorCode::internal, "");
  check_alike(decode_error(encode_error(bare)), bare);
  const std::string one = encode_error(sample());
  auto with = [&](const std::string& old, const std::string& other) {
    return std::string(one).replace(one.find(old), old.size(), other);
  };
  for (const std::string& text :
       {std::string(), std::string("705"), std::string("nonsense"), one.substr(0, one.size() - 1),
        with("\"code\":", "\"code\":99"), with("\"message\"", "\"words\"")})
    CHECK(decode_error(text).code() == ErrorCode::rank_failed);
}

TEST_CASE(
    "the first error that a rank posts is what all others read; one that follows from it is not "
    "posted") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  ErrorExchange zero(rank_of(0, 3), store, milliseconds(20000)),
      one(rank_of(1, 3), store, milliseconds(20000)),
      two(rank_of(2, 3), store, milliseconds(20000));
  CHECK(!zero.read(milliseconds(0)));
  two.post(Error(ErrorCode::collective_timeout, "in vain"));
  CHECK(!zero.read(milliseconds(0)));
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    one.post(sample());
  });
  std::optional<Error> read = two.read(milliseconds(20000));
  late.join();
  REQUIRE(read);
  check_alike(*read, sample());
  REQUIRE(read->notes().size() == 2);
  CHECK(read->notes()[1] == "on " + name_here(1));
  CHECK(one.read(milliseconds(0))->notes() == sample().notes());  // its own
  two.post(Error(ErrorCode::bad_dataset, "later"));
  check_alike(*zero.read(milliseconds(0)), sample());
}

TEST_CASE("a rank that was lost is named by whoever lost it first, until an error explains it") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  ErrorExchange zero(rank_of(0, 4), store, milliseconds(100)),
      one(rank_of(1, 4), store, milliseconds(100)), two(rank_of(2, 4), store, milliseconds(100));
  two.post(Error(ErrorCode::collective_failed, "rank 3 ended"));
  std::optional<Error> read = one.read(milliseconds(0));
  REQUIRE(read);
  CHECK(read->message() == "rank 3 ended");
  CHECK(read->notes() == std::vector<std::string>{"on " + name_here(2)});
  one.post(*read);
  CHECK(zero.read(milliseconds(0))->message() == "rank 3 ended");
  one.post(sample());
  check_alike(*zero.read(milliseconds(0)), sample());
}

TEST_CASE(
    "ranks end a run when rank 0 has done what it does alone, with its error when that failed") {
  for (bool fails : {false, true}) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    std::thread leader([&] {
      ErrorExchange zero(rank_of(0, 2), store, milliseconds(20000));
      std::this_thread::sleep_for(milliseconds(300));
      fails ? zero.post(sample()) : zero.finish();
    });
    ErrorExchange one(rank_of(1, 2), store, milliseconds(20000));
    auto begin = Clock::now();
    std::optional<Error> thrown;
    try {
      one.finish();
    } catch (const Error& error) {
      thrown = error;
      one.post(error);
    }
    CHECK(Clock::now() - begin >= milliseconds(200));
    leader.join();
    CHECK(Clock::now() - begin < milliseconds(15000));
    REQUIRE(thrown.has_value() == fails);
    if (fails) check_alike(*thrown, sample());
  }
}

}  // namespace error_exchange_test
