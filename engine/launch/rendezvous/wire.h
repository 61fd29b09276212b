// What goes over a connection between a rank and the store of rank 0.
//
// First each end proves that it knows the job's secret, without telling it:
//
//   rank    hello    magic, whether it has a secret, the job's name (hashed), rank, world size,
//                    the process, 32 random bytes
//   rank 0  answer   magic, a refusal or none, a number that explains it, 32 random bytes
//   rank    proof    HMAC-SHA256(secret, "rank", hello, answer)
//   rank 0  verdict  a refusal or none, HMAC-SHA256(secret, "rank 0", that, hello, answer)
//
// So nobody else can refuse a rank for any reason but a secret: rank 0's answer says no more than
// that the other has one and it has none, or the other way round, and its verdict proves nothing
// to a rank whose proof is wrong.
//
// All four have fixed sizes, so who is not known yet can make rank 0 keep no more than these bytes.
// Then requests and replies, each as its length, itself, and an HMAC over the direction, its number
// on this connection and itself, under a key of this connection: nothing can be put in between,
// left out or sent again. Nothing is encrypted. A job without a secret does the same with an empty
// one, which keeps out other programs and not people.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshwright::rendezvous::wire {

// A rank as it introduces itself.
struct Badge {
  std::string secret, job;  // empty: none
  int64_t rank = 0, world = 1;
  std::string process;  // random; connections of one process have the same
};
inline constexpr size_t kRandom = 32, kProcess = 16, kJob = 16, kProof = 32;
inline constexpr size_t kHello = 8 + 1 + kJob + 8 + 8 + kProcess + kRandom,
                        kAnswer = 8 + 1 + 8 + kRandom, kVerdict = 1 + kProof;

enum class Refusal : uint8_t {
  none,
  wrong_secret,
  secret_missing,  // the job has one, the rank has none
  secret_unknown,  // the other way round
  other_job,
  rank_taken,
  other_world,  // with the world size of rank 0
  no_such_rank,
  crowded  // too many connections of one process
};

struct Hello {
  bool has_secret = false;
  std::string job;  // hashed
  int64_t rank = 0, world = 0;
  std::string process;
};
std::string hello_of(const Badge& badge);
std::optional<Hello> read_hello(std::string_view bytes);  // nullopt: none of ours
std::string hashed_job(const std::string& job);

struct Answer {
  Refusal refusal = Refusal::none;
  int64_t number = 0;
};
std::string answer_of(const Answer& answer);
std::optional<Answer> read_answer(std::string_view bytes);

// HMAC(secret, who, hello, answer); as a key of the connection too.
std::string prove(const std::string& secret, std::string_view who, std::string_view hello,
                  std::string_view answer);

// What rank 0 says to a rank that has sent its proof.
std::string verdict_of(const std::string& secret, Refusal refusal, std::string_view hello,
                       std::string_view answer);
// nullopt: it is none of rank 0's.
std::optional<Refusal> read_verdict(const std::string& secret, std::string_view verdict,
                                    std::string_view hello, std::string_view answer);

enum class Op : uint8_t { set, get, wait, check, add, remove, count, compare_set, append };
enum class Status : uint8_t { done, late, impossible };
// A request or a reply: what (Op or Status), a number (milliseconds to wait, what to add, a
// result), keys and values.
struct Message {
  uint8_t what = 0;
  int64_t number = 0;
  std::vector<std::string> parts = {};
};
std::string pack(const Message& message);
std::optional<Message> unpack(std::string_view bytes);

// Longer ones are refused on both sides.
inline constexpr size_t kMostBytes = size_t{64} << 20;
// The same for whoever has proved nothing: without a secret anybody passes for a rank until the
// ranks have met. What ranks say before that, an error among it, is a few KiB.
inline constexpr size_t kMostBeforeMeeting = size_t{32} << 10;

// The frames of one direction of a connection.
class Seal {
 public:
  Seal() = default;
  Seal(std::string key, char direction) : key_(std::move(key)), direction_(direction) {}
  std::string close(std::string_view message);
  enum class Found : uint8_t { part, whole, forged };
  // Takes the first frame out of `bytes`; one that says that it is longer than `most` is forged.
  Found open(std::string& bytes, std::string& message, size_t most = kMostBytes);

 private:
  std::string mac(std::string_view message) const;
  std::string key_;
  char direction_ = 0;
  uint64_t number_ = 0;
};
inline constexpr char kToStore = 'q', kFromStore = 'r';

}  // namespace meshwright::rendezvous::wire

namespace meshwright::rendezvous {

// The keys of a store, and who waits for them. No sockets, no clock, one thread.

class StoreTable {
 public:
  using Client = uint64_t;
  struct Outcome {
    bool sense = true;                        // false: no request at all
    std::optional<wire::Message> reply = {};  // nullopt: it waits for keys
  };
  // A client waits in one request at a time.
  Outcome ask(Client client, const wire::Message& request);
  // Those whose keys are all there since the last call, with their replies.
  std::vector<std::pair<Client, wire::Message>> take_ready();
  // It waits no longer.
  void forget(Client client);
  // Bytes of all keys and values with what it takes to keep them, and of one reply.
  struct Limits {
    size_t stored, reply;
  };
  void set_limits(const Limits& limits) { limits_ = limits; }
  // A job of thousands of ranks has a few MiB.
  static constexpr Limits kUsual{size_t{512} << 20, wire::kMostBytes};

 private:
  struct Waiting {
    wire::Message request;
    size_t missing = 0;
  };
  wire::Message values(const wire::Message& request) const;
  bool put(const std::string& key, std::string value);  // false: there is no room
  wire::Message add(const std::string& key, int64_t more);
  std::unordered_map<std::string, std::string> keys_;
  std::unordered_map<std::string, std::vector<Client>> wanted_;
  std::unordered_map<Client, Waiting> waiting_;
  std::vector<Client> ready_;
  Limits limits_ = kUsual;
  size_t bytes_ = 0;
};

}  // namespace meshwright::rendezvous
