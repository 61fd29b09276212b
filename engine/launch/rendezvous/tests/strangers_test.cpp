// Who else comes to the store of rank 0: nobody that does not know the secret gets in, and nobody
// keeps the ranks out.
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "engine/launch/rendezvous/tests/served_store.h"

namespace strangers_test {

using namespace served_store;

namespace {

// Somebody who listens in place of rank 0, and what he does with the first who comes.
class Impostor {
 public:
  explicit Impostor(const std::function<void(int)>& does)
      : listener_(listen_at(kLoopback, 0)), thread_([this, does] {
          const int fd = ::accept(listener_, nullptr, nullptr);
          does(fd);
          ::close(fd);
        }) {}
  ~Impostor() {
    thread_.join();
    ::close(listener_);
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  int port() const { return local_end(listener_).port; }

 private:
  int listener_;
  std::thread thread_;
};

void say(int fd, const std::string& bytes) {
  ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}
std::string hear_from(int fd, size_t count) {
  std::string out(count, '\0');
  const ssize_t got = ::recv(fd, out.data(), count, MSG_WAITALL);
  out.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return out;
}

}  // namespace

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
  std::string heard;
  {
    const Impostor impostor([&](int fd) {
      const std::string hello = hear_from(fd, wire::kHello), answer = wire::answer_of({});
      say(fd, answer);
      hear_from(fd, wire::kProof);
      say(fd, '\0' + wire::prove("a guess", "rank 0", hello, answer));
      heard = hear_from(fd, 1);
    });
    CHECK(refusal_at(impostor.port(), badge(kSecret)).refusal == Refusal::wrong_secret);
  }
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
    const Impostor impostor([&](int fd) {
      hear_from(fd, wire::kHello);
      say(fd, wire::answer_of({refusal, 7}));
    });
    CHECK(refusal_at(impostor.port(), badge(kSecret)).refusal ==
          (refusal == Refusal::secret_unknown ? refusal : Refusal::wrong_secret));
  }
}

TEST_CASE(
    "one noisy address keeps no rank out and hides no other: neither its connections nor what it "
    "was refused for") {
  const Served served;
  StorePtr before = served.come(badge(kSecret, 1));
  // 127.0.0.2 connects first, and is silent for a while; then 127.0.0.1 comes 300 times.
  const int quiet = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::optional<SocketAddress> from = socket_address("127.0.0.2", 0),
                                     to = socket_address("127.0.0.1", served.port);
  REQUIRE(::bind(quiet, from->get(), from->size) == 0);
  REQUIRE(::connect(quiet, to->get(), to->size) == 0);
  std::vector<int> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(probe(served.port));
  // The store takes its time on a busy machine.
  size_t kept = crowd.size();
  for (const auto end = Clock::now() + milliseconds(20000); kept > 127 && Clock::now() < end;)
    kept = static_cast<size_t>(std::ranges::count_if(crowd, [first = crowd.front()](int fd) {
      return !hung_up(fd, milliseconds(fd == first ? 20 : 0));
    }));
  CHECK(kept <= 127);
  CHECK(!hung_up(quiet, milliseconds(0)));
  StorePtr after = served.come(badge(kSecret, 2));
  before->set("a", bytes_of("b"));
  CHECK(text_of(after->get("a")) == "b");
  for (int fd : crowd) ::close(fd);
  for (int64_t rank : {4, 5, 6, 7, 8, 9, 10, 11, 12})
    CHECK(refusal_of(served, badge(kSecret, rank)).refusal == Refusal::no_such_rank);
  CHECK(served.server->refused().size() == 2);
  say(quiet, wire::hello_of(badge("")));
  CHECK(hear_from(quiet, wire::kAnswer).size() == wire::kAnswer);
  ::close(quiet);
  const std::vector<std::string> told = {"127.0.0.1, which says it is rank 4",
                                         "127.0.0.1, which says it is rank 5",
                                         "127.0.0.2, which has no secret"};
  CHECK(served.server->refused() == told);
}

TEST_CASE("an echo is no store") {
  const Impostor echo([](int fd) {
    char bytes[1024];
    for (ssize_t got = 0; (got = ::recv(fd, bytes, sizeof bytes, 0)) > 0;)
      say(fd, {bytes, static_cast<size_t>(got)});
  });
  CHECK(refusal_at(echo.port(), badge(kSecret)).why == NoStore::Why::other_program);
}

TEST_CASE("another program's words, silence, and frames that no rank sends end that connection") {
  const Served served;
  StorePtr store = served.come(badge(kSecret));
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n") + std::string(200, 'x'),
        std::string(1 << 20, '\xff'), std::string(wire::kHello, '\0')}) {
    const int fd = probe(served.port);
    REQUIRE(fd >= 0);
    say(fd, words);
    CHECK(hung_up(fd, milliseconds(10000)));
    ::close(fd);
  }
  const int silent = probe(served.port), slow = probe(served.port);
  say(slow, wire::hello_of(badge(kSecret)).substr(0, 10));
  CHECK(!hung_up(silent, milliseconds(1000)));
  CHECK(hung_up(silent, milliseconds(10000)));
  CHECK(hung_up(slow, milliseconds(10000)));
  ::close(silent);
  ::close(slow);
  CHECK(store->add("alive", 1) == 1);
}

TEST_CASE("what is changed or sent again on the way is not done, and ends the connection") {
  for (bool changed : {true, false}) {
    CAPTURE(changed);
    const Served served;
    StorePtr honest = served.come(badge(kSecret, 2));
    std::atomic<bool> ends = false, flips = false, repeats = false;
    // Passes on what the rank and the store say, and may change it.
    const Impostor between([&](int rank) {
      pollfd sides[2] = {{rank, POLLIN, 0}, {probe(served.port), POLLIN, 0}};
      for (bool open = true; open && !ends;) {
        if (::poll(sides, 2, 20) <= 0) continue;
        for (int side : {0, 1}) {
          if (sides[side].revents == 0) continue;
          char bytes[4096];
          const ssize_t got = ::recv(sides[side].fd, bytes, sizeof bytes, MSG_DONTWAIT);
          if (got == 0) open = false;
          if (got <= 0) continue;
          const auto size = static_cast<size_t>(got);
          if (side == 0 && flips) bytes[size / 2] = static_cast<char>(bytes[size / 2] ^ 1);
          for (int turn = 0; turn < (side == 0 && repeats ? 2 : 1); ++turn)
            ::send(sides[1 - side].fd, bytes, size, MSG_NOSIGNAL);
        }
      }
      ::close(sides[1].fd);
    });
    StorePtr store = come_to(between.port(), badge(kSecret, 1));
    CHECK(store->add("n", 1) == 1);
    (changed ? flips : repeats) = true;
    // The same request twice: the first is honest, the second is not.
    auto add = [&] { store->add("n", 10); };
    if (changed)
      CHECK_THROWS_AS(add(), c10::DistNetworkError);
    else
      add();
    CHECK_THROWS_AS(add(), c10::DistNetworkError);
    CHECK(honest->add("n", 0) == (changed ? 1 : 11));
    ends = true;
  }
}

}  // namespace strangers_test
