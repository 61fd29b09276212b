// Who else comes to the store of rank 0: nobody that does not know the secret gets in, and nobody
// keeps the ranks out.
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/launch/rendezvous/tests/served_store.h"
#include "engine/launch/spawn.h"
#include "engine/launch/store_bytes.h"

namespace strangers_test {

using namespace served_store;
using meshwright::base::bytes_of;
using meshwright::base::text_of;

TEST_CASE("who does not know the secret, or is of another job, is refused and told why") {
  struct Row {
    wire::Badge zero, comes;
    Refusal refusal;
    std::string told;
  };
  for (const Row& row : std::vector<Row>{
           {badge(kSecret, 0), badge(kSecret), Refusal::none, ""},
           {badge(kSecret, 0), badge("another secret of it"), Refusal::wrong_secret,
            "127.0.0.1, which does not know the job's secret"},
           {badge(kSecret, 0), badge(""), Refusal::secret_missing,
            "127.0.0.1, which has no secret"},
           {badge("", 0), badge(kSecret), Refusal::secret_unknown,
            "127.0.0.1, which has a secret where rank 0 has none"},
           {badge("", 0, 4, "7001.0"), badge("", 1, 4, "7002.0"), Refusal::other_job,
            "127.0.0.1, a rank of another job"},
           {badge(kSecret, 0, 4, "7001.0"), badge(kSecret, 1, 4, "7002.0"), Refusal::other_job,
            "127.0.0.1, a rank of another job"},
           {badge("", 0), badge("", 1, 5), Refusal::other_world,
            "127.0.0.1, rank 1 of WORLD_SIZE 5"},
           {badge("", 0), badge("", 4), Refusal::no_such_rank,
            "127.0.0.1, which says it is rank 4"},
           {badge("", 0), badge("", -1), Refusal::no_such_rank,
            "127.0.0.1, which says it is rank -1"},
           // Of one job for sure: connect_store() ends it on all ranks.
           {badge("", 0, 4, "7001.0"), badge("", 1, 5, "7001.0"), Refusal::none, ""},
           {badge(kSecret, 0), badge(kSecret, 1, 5), Refusal::none, ""},
       }) {
    CAPTURE(row.told);
    const Served served(row.zero);
    const NoStore why = refusal_of(served, row.comes);
    CHECK(why.why == NoStore::Why::refused);
    CHECK(why.refusal == row.refusal);
    if (row.refusal == Refusal::other_world) CHECK(why.number == 4);
    CHECK(served.server->refused() ==
          (row.told.empty() ? std::vector<std::string>() : std::vector<std::string>{row.told}));
  }
}

TEST_CASE("without secret and name, the first that comes as a rank is that rank, also once gone") {
  const wire::Badge zero = badge("", 0), first = badge("", 1);
  const Served served(zero);
  CHECK(refusal_of(served, badge("", 0)).refusal == Refusal::rank_taken);
  CHECK(refusal_of(served, zero).refusal == Refusal::none);
  StorePtr store = served.come(first);
  StorePtr clone = store->clone();  // the same process
  CHECK(refusal_of(served, badge("", 1)).refusal == Refusal::rank_taken);
  store.reset();
  clone.reset();
  CHECK(refusal_of(served, badge("", 1)).refusal == Refusal::rank_taken);
  CHECK(refusal_of(served, first).refusal == Refusal::none);
  CHECK(refusal_of(served, badge("", 2)).refusal == Refusal::none);
}

TEST_CASE("without a secret rank 0 keeps little for whoever comes, until the ranks have met") {
  // The launcher's name of a job is no secret: anybody passes for any of its ranks.
  const auto of_job = [](int64_t rank) { return badge("", rank, 4, "job 7"); };
  const Served served(of_job(0));
  const std::string small(20 << 10, 'x'), large(1 << 20, 'x');
  const wire::Badge rank = of_job(1);
  StorePtr first = served.come(rank);
  first->set("small", bytes_of(small));
  CHECK(text_of(first->get("small")) == small);
  CHECK_THROWS(first->set("large", bytes_of(large)));
  // Many small ones neither.
  StorePtr filling = served.come(of_job(2));
  bool full = false;
  for (int i = 0; i < 1000 && !full; ++i) try {
      filling->set(std::to_string(i), bytes_of(small));
    } catch (const std::exception&) {
      full = true;
    }
  CHECK(full);
  std::vector<StorePtr> crowd;
  size_t let_in = 0;
  for (int i = 0; i < 40; ++i) try {
      crowd.push_back(served.come(of_job(3)));
      ++let_in;
    } catch (const NoStore& why) {
      CHECK(why.refusal == Refusal::crowded);
    }
  CHECK(let_in <= 24);
  crowd.clear();
  served.server->ranks_met();
  StorePtr met = served.come(rank);
  met->set("large", bytes_of(large));
  CHECK(text_of(met->get("large")) == large);
  StorePtr other = served.come(of_job(1));  // the same number, and not the process that has met
  CHECK_THROWS(other->set("large", bytes_of(large)));
}

TEST_CASE("a rank does not tell its words to a store that does not know the secret") {
  // It says that the rank may go on, whatever the rank proves.
  const int listener = listen_on(0, /*loopback_only=*/true);
  std::string heard;
  std::thread impostor([&] {
    const int fd = ::accept(listener, nullptr, nullptr);
    std::string hello(wire::kHello, '\0');
    ::recv(fd, hello.data(), hello.size(), MSG_WAITALL);
    const std::string answer = wire::answer_of({});
    ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    std::string proof(wire::kProof, '\0');
    ::recv(fd, proof.data(), proof.size(), MSG_WAITALL);
    const std::string verdict = '\0' + wire::prove("a guess", "rank 0", hello, answer);
    ::send(fd, verdict.data(), verdict.size(), MSG_NOSIGNAL);
    char more = 0;
    heard.assign(&more, static_cast<size_t>(std::max<ssize_t>(::recv(fd, &more, 1, 0), 0)));
    ::close(fd);
  });
  const NoStore why = refusal_at(bound_port(listener), badge(kSecret));
  impostor.join();
  ::close(listener);
  CHECK(why.refusal == Refusal::wrong_secret);
  CHECK(heard.empty());
}

TEST_CASE("nobody on the way can refuse a rank for another reason than a secret, nor pass it") {
  const std::string hello = wire::hello_of(badge(kSecret)), answer = wire::answer_of({});
  for (Refusal refusal : {Refusal::none, Refusal::other_world, Refusal::crowded}) {
    const std::string verdict = wire::verdict_of(kSecret, refusal, hello, answer);
    CHECK(wire::read_verdict(kSecret, verdict, hello, answer) == refusal);
    for (Refusal other : {Refusal::none, Refusal::rank_taken, Refusal::wrong_secret}) {
      if (other == refusal) continue;
      std::string changed = verdict;
      changed[0] = static_cast<char>(other);
      CHECK(wire::read_verdict(kSecret, changed, hello, answer) == Refusal::wrong_secret);
    }
    CHECK(wire::read_verdict("a guess", verdict, hello, answer) == Refusal::wrong_secret);
  }
  std::string strange = wire::verdict_of(kSecret, Refusal::none, hello, answer);
  strange[0] = 'x';
  CHECK(!wire::read_verdict(kSecret, strange, hello, answer));
  // Its answer, which comes before any proof, is not believed.
  for (Refusal refusal : {Refusal::other_job, Refusal::other_world, Refusal::secret_unknown}) {
    const int listener = listen_on(0, /*loopback_only=*/true);
    std::thread impostor([&] {
      const int fd = ::accept(listener, nullptr, nullptr);
      std::string words(wire::kHello, '\0');
      ::recv(fd, words.data(), words.size(), MSG_WAITALL);
      const std::string lie = wire::answer_of({refusal, 7});
      ::send(fd, lie.data(), lie.size(), MSG_NOSIGNAL);
      ::close(fd);
    });
    try {
      remote_store({"127.0.0.1", bound_port(listener), badge(kSecret)},
                   Clock::now() + milliseconds(20000), milliseconds(20000));
      FAIL("it was believed");
    } catch (const NoStore& why) {
      CHECK(why.refusal == (refusal == Refusal::secret_unknown ? refusal : Refusal::wrong_secret));
    }
    impostor.join();
    ::close(listener);
  }
}

TEST_CASE("one noisy address hides no other: neither its connections nor what it was refused for") {
  const Served served;
  // 127.0.0.2 connects first, and is silent for a while; then 127.0.0.1 comes 300 times.
  const int quiet = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::optional<SocketAddress> from = socket_address("127.0.0.2", 0),
                                     to = socket_address("127.0.0.1", served.port);
  REQUIRE(::bind(quiet, from->get(), from->size) == 0);
  REQUIRE(::connect(quiet, to->get(), to->size) == 0);
  std::vector<int> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(probe(served.port));
  size_t kept = 0;
  for (int fd : crowd) kept += hung_up(fd, milliseconds(kept == 0 ? 200 : 0)) ? 0 : 1;
  CHECK(kept <= 127);
  CHECK(!hung_up(quiet, milliseconds(0)));
  for (int fd : crowd) ::close(fd);
  for (int64_t rank : {4, 5, 6, 7, 8, 9, 10, 11, 12})
    CHECK(refusal_of(served, badge(kSecret, rank)).refusal == Refusal::no_such_rank);
  CHECK(served.server->refused().size() == 2);
  const std::string hello = wire::hello_of(badge(""));
  ::send(quiet, hello.data(), hello.size(), MSG_NOSIGNAL);
  std::string answer(wire::kAnswer, '\0');
  CHECK(::recv(quiet, answer.data(), answer.size(), MSG_WAITALL) ==
        static_cast<ssize_t>(answer.size()));
  ::close(quiet);
  const std::vector<std::string> told = {"127.0.0.1, which says it is rank 4",
                                         "127.0.0.1, which says it is rank 5",
                                         "127.0.0.2, which has no secret"};
  CHECK(served.server->refused() == told);
}

TEST_CASE("an echo is no store") {
  const int listener = listen_on(0, /*loopback_only=*/true);
  std::thread echo([&] {
    const int fd = ::accept(listener, nullptr, nullptr);
    char bytes[1024];
    for (ssize_t got = 0; (got = ::recv(fd, bytes, sizeof bytes, 0)) > 0;)
      ::send(fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    ::close(fd);
  });
  const NoStore why = refusal_at(bound_port(listener), badge(kSecret));
  echo.join();
  ::close(listener);
  CHECK(why.why == NoStore::Why::other_program);
}

TEST_CASE("another program's words, silence, and frames that no rank sends end that connection") {
  const Served served;
  StorePtr store = served.come(badge(kSecret));
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n") + std::string(200, 'x'),
        std::string(1 << 20, '\xff'), std::string(wire::kHello, '\0')}) {
    const int fd = probe(served.port);
    REQUIRE(fd >= 0);
    ::send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    CHECK(hung_up(fd, milliseconds(10000)));
    ::close(fd);
  }
  const int silent = probe(served.port), slow = probe(served.port);
  const std::string hello = wire::hello_of(badge(kSecret));
  ::send(slow, hello.data(), 10, MSG_NOSIGNAL);
  CHECK(!hung_up(silent, milliseconds(1000)));
  CHECK(hung_up(silent, milliseconds(10000)));
  CHECK(hung_up(slow, milliseconds(10000)));
  ::close(silent);
  ::close(slow);
  CHECK(store->add("alive", 1) == 1);
}

TEST_CASE("thousands of connections keep no rank out, and the store keeps few of them") {
  launch::raise_descriptor_limit();
  const Served served;
  StorePtr before = served.come(badge(kSecret, 1));
  std::vector<int> crowd;
  while (crowd.size() < 2000) {
    const int fd = connect_to("127.0.0.1", served.port, Clock::now() + milliseconds(10000));
    if (fd < 0) {  // this machine lends no more descriptors; what follows needs a few
      for (int i = 0; i < 16 && !crowd.empty(); ++i) {
        ::close(crowd.back());
        crowd.pop_back();
      }
      break;
    }
    crowd.push_back(fd);
  }
  CHECK(crowd.size() > 300);
  StorePtr after = served.come(badge(kSecret, 2));
  before->set("a", bytes_of("b"));
  CHECK(text_of(after->get("a")) == "b");
  size_t kept = 0;
  for (int fd : crowd) kept += hung_up(fd, milliseconds(0)) ? 0 : 1;
  CHECK(kept <= 128);
  for (int fd : crowd) ::close(fd);
  CHECK(after->add("alive", 1) == 1);
}

namespace {

// Between a rank and the store: passes on what they say, and may change it.
class Between {
 public:
  explicit Between(int port)
      : listener_(listen_on(0, true)), to_(port), thread_([this] { pass(); }) {}
  ~Between() {
    ends_ = true;
    thread_.join();
    ::close(listener_);
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;
  int port() const { return bound_port(listener_); }
  std::atomic<bool> flips = false, repeats = false;

 private:
  void pass() {
    pollfd waits{listener_, POLLIN, 0};
    while (!ends_ && ::poll(&waits, 1, 20) == 0) {
    }
    if (ends_) return;
    pollfd ends[2] = {{::accept(listener_, nullptr, nullptr), POLLIN, 0}, {probe(to_), POLLIN, 0}};
    for (bool open = true; open && !ends_;) {
      if (::poll(ends, 2, 20) <= 0) continue;
      for (int side : {0, 1}) {
        if (ends[side].revents == 0) continue;
        char bytes[4096];
        const ssize_t got = ::recv(ends[side].fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0) continue;
        if (got == 0) {
          open = false;
          break;
        }
        const auto size = static_cast<size_t>(got);
        if (side == 0 && flips) bytes[size / 2] = static_cast<char>(bytes[size / 2] ^ 1);
        for (int turn = 0; turn < (side == 0 && repeats ? 2 : 1); ++turn)
          ::send(ends[1 - side].fd, bytes, size, MSG_NOSIGNAL);
      }
    }
    ::close(ends[0].fd);
    ::close(ends[1].fd);
  }
  int listener_, to_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("what is changed or sent again on the way is not done, and ends the connection") {
  for (bool flips : {true, false}) {
    CAPTURE(flips);
    const Served served;
    StorePtr honest = served.come(badge(kSecret, 2));
    Between between(served.port);
    StorePtr store = come_to(between.port(), badge(kSecret, 1));
    CHECK(store->add("n", 1) == 1);
    (flips ? between.flips : between.repeats) = true;
    // The same request twice: the first is honest, the second is not.
    auto add = [&] { store->add("n", 10); };
    if (flips)
      CHECK_THROWS_AS(add(), c10::DistNetworkError);
    else
      add();
    CHECK_THROWS_AS(add(), c10::DistNetworkError);
    CHECK(honest->add("n", 0) == (flips ? 1 : 11));
  }
}

}  // namespace strangers_test
