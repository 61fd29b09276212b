// The store of rank 0 does what LibTorch's do.
#include <c10/util/Exception.h>
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/tests/served_store.h"
#include "engine/launch/rendezvous/wire.h"
#include "meshwright/error.h"

namespace store_test {

using namespace served_store;

namespace {

// What a row of calls gives, as text.
std::string told(c10d::Store& store) {
  std::string out;
  auto say = [&](const std::string& word) { out += word + "\n"; };
  auto number = [&](int64_t value) { say(std::to_string(value)); };
  store.set("a", bytes_of("one"));
  store.set("a", bytes_of(std::string("two\0three", 9)));
  say(text_of(store.get("a")));
  store.set("empty", bytes_of(""));
  say("[" + text_of(store.get("empty")) + "]");
  number(store.add("n", 0));
  number(store.add("n", 41));
  number(store.add("n", -99));
  say(text_of(store.get("n")));
  number(store.check({"a", "n"}));
  number(store.check({"a", "none"}));
  number(store.check({}));
  say(text_of(store.compareSet("c", bytes_of("x"), bytes_of("y"))));
  number(store.check({"c"}));
  say(text_of(store.compareSet("c", bytes_of(""), bytes_of("y"))));
  say(text_of(store.compareSet("c", bytes_of("z"), bytes_of("w"))));
  say(text_of(store.compareSet("c", bytes_of("y"), bytes_of("w"))));
  say(text_of(store.get("c")));
  store.append("p", bytes_of("ab"));
  store.append("p", bytes_of("cd"));
  store.multiSet({"m", "k"}, {bytes_of("1"), bytes_of("2")});
  for (const std::vector<uint8_t>& value : store.multiGet({"k", "p", "m", "k"}))
    say(text_of(value));
  number(store.getNumKeys());
  number(store.deleteKey("p"));
  number(store.deleteKey("p"));
  number(store.getNumKeys());
  number(store.hasExtendedApi());
  store.wait({"a", "k"}, milliseconds(1));
  return out;
}

}  // namespace

TEST_CASE("the store does what LibTorch's own store of one process does") {
  const Served served;
  StorePtr store = served.come(badge(kSecret));
  const auto own = c10::make_intrusive<c10d::HashStore>();
  CHECK(told(*store) == told(*own));
  const std::string large(3 << 20, 'x');
  store->set("large", bytes_of(large));
  CHECK(text_of(store->clone()->get("large")) == large);
}

TEST_CASE("who waits hears when all keys are there, or that they did not come in time") {
  const Served served;
  StorePtr one = served.come(badge(kSecret, 1)), two = served.come(badge(kSecret, 2));
  auto begin = Clock::now();
  CHECK_THROWS_AS(one->wait({"x", "y"}, milliseconds(100)), c10::DistStoreError);
  CHECK(Clock::now() - begin >= milliseconds(99));
  CHECK(Clock::now() - begin < milliseconds(10000));
  one->setTimeout(milliseconds(50));
  CHECK_THROWS_AS(one->get("x"), c10::DistStoreError);
  CHECK_THROWS_AS(one->multiGet({"x", "x"}), c10::DistStoreError);
  one->setTimeout(milliseconds(20000));
  std::atomic<bool> there = false;
  std::thread late([&] {
    two->set("x", bytes_of("1"));
    std::this_thread::sleep_for(milliseconds(100));
    there = true;
    two->add("y", 7);
  });
  one->wait({"x", "y", "x"}, milliseconds(20000));
  CHECK(there);
  late.join();
  CHECK(text_of(one->get("y")) == "7");
  // A connection is good for more after all that.
  CHECK(one->check({"x"}));
  two->set("word", bytes_of("seven"));
  CHECK_THROWS_WITH_AS(one->add("word", 1), doctest::Contains("the key word holds no number"),
                       c10::DistStoreError);
  CHECK(one->add("y", INT64_MAX - 7) == INT64_MAX);
  CHECK_THROWS_AS(one->add("y", 1), c10::DistStoreError);
}

TEST_CASE("many ranks at once: no addition is lost, and each sees what all others left") {
  const Served served(badge(kSecret, 0, 16));
  std::vector<std::thread> ranks;
  std::atomic<int> right = 0;
  for (int64_t rank = 0; rank < 16; ++rank)
    ranks.emplace_back([&, rank] {
      StorePtr store = served.come(badge(kSecret, rank, 16));
      for (int i = 0; i < 100; ++i) store->add("sum", 1);
      store->set(std::to_string(rank), bytes_of(std::to_string(rank * rank)));
      std::vector<std::string> keys;
      for (int64_t r = 0; r < 16; ++r) keys.push_back(std::to_string(r));
      const auto values = store->multiGet(keys);
      bool all = values.size() == 16;
      for (int64_t r = 0; all && r < 16; ++r)
        all = text_of(values[static_cast<size_t>(r)]) == std::to_string(r * r);
      right += all ? 1 : 0;
    });
  for (std::thread& rank : ranks) rank.join();
  CHECK(right == 16);
  CHECK(served.come(badge(kSecret, 0, 16))->add("sum", 0) == 1600);
}

TEST_CASE("a store whose rank 0 has ended is lost, not silent") {
  auto served = std::make_unique<Served>();
  StorePtr store = served->come(badge(kSecret));
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(100));
    served.reset();
  });
  auto begin = Clock::now();
  CHECK_THROWS_AS(store->wait({"never"}, milliseconds(60000)), c10::DistNetworkError);
  CHECK(Clock::now() - begin < milliseconds(20000));
  ends.join();
  CHECK_THROWS_AS(store->set("a", bytes_of("b")), c10::DistNetworkError);
}

TEST_CASE("a table keeps nothing of those that wait no longer") {
  StoreTable table;
  const auto op = [](wire::Op what) { return static_cast<uint8_t>(what); };
  CHECK(!table.ask(1, {op(wire::Op::wait), 0, {"a", "b"}}).reply);
  CHECK(!table.ask(2, {op(wire::Op::get), 0, {"a"}}).reply);
  table.forget(1);
  CHECK(table.ask(3, {op(wire::Op::set), 0, {"a", "1", "b", "2"}}).reply);
  auto ready = table.take_ready();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].first == 2);
  CHECK(ready[0].second.parts == std::vector<std::string>{"1"});
  CHECK(table.take_ready().empty());
  for (const wire::Message& nonsense : std::vector<wire::Message>{
           {99, 0, {}}, {op(wire::Op::set), 0, {"a"}}, {op(wire::Op::add), 0, {}}})
    CHECK(!table.ask(1, nonsense).sense);
}

TEST_CASE("messages are read back as they were, and nothing else is a message") {
  const wire::Message message{3, -5, {"", "a", std::string(300, 'b')}};
  const std::string packed = wire::pack(message);
  const auto back = wire::unpack(packed);
  REQUIRE(back);
  CHECK(back->what == 3);
  CHECK(back->number == -5);
  CHECK(back->parts == message.parts);
  for (size_t size = 0; size < packed.size(); ++size)
    CHECK(!wire::unpack(std::string_view(packed).substr(0, size)));
  CHECK(!wire::unpack(packed + "x"));
  std::string greedy(13, '\0');
  for (size_t i = 9; i < 13; ++i) greedy[i] = '\xff';
  CHECK(!wire::unpack(greedy));
}

TEST_CASE("rank 0 listens at the address that MASTER_ADDR names, not at every one") {
  const std::vector<Interface> two = {
      {"lo", "127.0.0.1", true, false},    {"eth0", "10.70.0.1", false, false},
      {"eth1", "10.71.0.1", false, false}, {"lo", "::1", true, false},
      {"eth0", "fd00::1", false, false},   {"eth0", "fe80::1", false, true}};
  const std::vector<Interface> one = {two[0], two[1], two[4], two[5]};
  using Addresses = std::vector<std::string>;
  struct Row {
    std::string master;
    std::optional<Addresses> resolved;
    std::string interface;
    std::vector<Interface> all;
    Addresses open;
  };
  const Addresses both = {"10.70.0.1", "fd00::1"};
  for (const Row& row : std::vector<Row>{
           {"10.70.0.1", Addresses{"10.70.0.1"}, "", two, {"10.70.0.1"}},
           {"hosta", Addresses{"10.71.0.1", "127.0.1.1"}, "eth0", two, {"10.71.0.1"}},
           {"hosta",
            Addresses{"fd00::1", "10.70.0.1", "10.70.0.1"},
            "",
            two,
            {"fd00::1", "10.70.0.1"}},
           // A name of the loopback interface, of another host, or of nothing.
           {"hosta", Addresses{"127.0.1.1"}, "", one, both},
           {"hosta", Addresses{"127.0.1.1"}, "eth1", two, {"10.71.0.1"}},
           {"hosta", Addresses{"127.0.1.1"}, "eth7", two, {}},
           {"service", Addresses{"10.99.0.1"}, "", one, both},
           {"service", Addresses{"10.99.0.1"}, "", two, {}},
           {"nobody", Addresses{}, "eth0", two, both},
           {"nobody", Addresses{}, "", {two[0]}, {}},
           {"localhost", Addresses{"127.0.0.1"}, "eth0", two, {"127.0.0.1"}},
           {"127.0.0.1", Addresses{}, "", one, {"127.0.0.1"}},
           // Nobody answers for the name.
           {"hosta", std::nullopt, "eth1", two, {"10.71.0.1"}},
           {"hosta", std::nullopt, "", one, both},
       }) {
    CAPTURE(row.master);
    CHECK(addresses_to_open(row.master, row.resolved, row.interface, row.all) == row.open);
  }
  try {
    addresses_to_open("hosta", std::nullopt, "", two);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::rendezvous_failed);
    CHECK(error.message().starts_with(
        "rank 0 cannot tell at which address to listen: the name hosta is not answered for"));
    CHECK(error.message().ends_with("eth1 (10.71.0.1)"));
    CHECK(error.helps().size() == 2);
  }
}

TEST_CASE("rank 0's own store has one port at each of its addresses, and at its host's loopback") {
  // Somebody else may have that port at one of them, and then it is looked for elsewhere: another.
  OpenListeners listeners = listeners_at({"127.0.0.3", "127.0.0.4"}, {});
  for (int turn = 0; turn < 20 && listeners.nearest() != "127.0.0.1"; ++turn) {
    for (int fd : listeners.sockets) ::close(fd);
    listeners = listeners_at({"127.0.0.3", "127.0.0.4"}, {});
  }
  const int port = local_end(listeners.sockets.at(0)).port;
  CHECK(listeners.own == "127.0.0.3");
  CHECK(listeners.sockets.size() == 3);
  CHECK(listeners.nearest() == "127.0.0.1");
  for (const char* address : {"127.0.0.1", "127.0.0.3", "127.0.0.4"}) {
    const int fd = connect_to(address, port, Clock::now() + milliseconds(5000));
    CHECK(fd >= 0);
    if (fd >= 0) ::close(fd);
  }
  for (int fd : listeners.sockets) ::close(fd);
  // Nothing but the loopback is asked for.
  const OpenListeners one = listeners_at({"127.0.0.1"}, {});
  CHECK(one.sockets.size() == 1);
  CHECK(one.nearest() == "127.0.0.1");
  ::close(one.sockets.at(0));
  CHECK(is_of_this_host("127.0.0.1"));
  CHECK(!is_of_this_host("203.0.113.9"));
}

TEST_CASE("a number that is none names its key and the rank that left it") {
  CHECK(number_of("-12", "a", "rank 1") == -12);
  for (const char* text : {"", "x", "1x", " 1", "99999999999999999999"})
    CHECK_THROWS_WITH_AS(
        number_of(text, "endpoints/row/3", "rank 3"),
        doctest::Contains("what rank 3 left in the store under \"endpoints/row/3\""), Error);
}

}  // namespace store_test
