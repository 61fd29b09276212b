// plan_mesh: answers that are layouts, that are the same every time, and refusals that help.
#include <algorithm>
#include <functional>
#include <thread>

#include "sdk/conformance/cases.h"
#include "sdk/conformance/mesh_checks.h"
#include "sdk/conformance/probe.h"
#include "sdk/conformance/settings.h"

namespace meshwright::conformance {
namespace {

constexpr int64_t kMaxWorld = 4096;
constexpr int kRequests = 400;

using MeshAnswer = Answer<MeshPlan>;

MeshAnswer plan(Strategy& strategy, const MeshRequest& request) {
  return ask([&] { return strategy.plan_mesh(request); });
}

// Plain data parallelism over 1 .. 16 and 4,096 ranks, then random sizes.
std::vector<Wish> wishes(const meshwright_strategy& strategy, uint64_t seed, int spoilt_percent) {
  std::vector<Wish> out;
  for (int64_t world : {1, 2, 3, 4, 6, 8, 16, 4096}) {
    Wish wish;
    wish.world = world;
    out.push_back(wish);
  }
  Random random(seed);
  while (out.size() < kRequests) {
    out.push_back(random_wish(random,
                              random.chance(10)   ? kMaxWorld
                              : random.chance(50) ? 512
                                                  : 32,
                              spoilt_percent));
    if (random.chance(30)) randomize_own(strategy, out.back(), random);
  }
  return out;
}

std::string outcome(const MeshAnswer& answer) {
  if (answer.value) return fingerprint(*answer.value);
  return answer.error ? answer.error->what() : answer.foreign;
}

void check_refusal(const Wish& wish, const Error& error, Report& report) {
  std::string lead = describe(wish) + ": refused by " + one_line(error);
  if (static_cast<int>(error.code()) / 100 != 3) report.fail(lead + ", which is not a 3xx code");
  if (error.key().empty() && wish.ranks.empty()) report.fail(lead + ", which names no key");
  if (error.helps().empty()) report.fail(lead + ", without a help line");
}

// A request's refusals, followed through the first setting each of them advises, end in a plan.
void follow_help(Strategy& strategy, const Subject& subject, Wish wish, const MeshAnswer& first,
                 Report& report) {
  OptionSchema own = own_schema(*subject.strategy);
  std::string trail = describe(wish);
  MeshAnswer answer = first;
  for (int step = 0; answer.error; ++step) {
    const std::string failure = one_line(*answer.error);
    std::optional<Setting> advice;
    for (const std::string& help : answer.error->helps()) {
      SettingOrProblem parsed = parse_setting(help, own);
      if (!parsed.problem.empty())
        return report.fail(trail + ": the help \"" + help + "\" " + parsed.problem);
      if (parsed.setting && !advice) advice = std::move(parsed.setting);
    }
    if (!advice) return;  // advice in other words, which a program cannot follow
    if (step == 6) return report.fail(trail + ": following the help never ends; last " + failure);
    trail += " -> " + advice->text;
    apply(*advice, wish);
    Answer<MeshRequest> request = ask([&] { return make_request(subject, wish); });
    if (!request.value)
      return report.fail(trail + ": the advised value is refused: " + one_line(*request.error));
    answer = plan(strategy, *request.value);
    if (answer.error && one_line(*answer.error) == failure)
      return report.fail(trail + ": the help changes nothing: " + failure);
  }
  if (!answer.foreign.empty()) report.fail(trail + ": " + answer.foreign + " left plan_mesh");
}

// Sizes no layout can have, whatever the strategy.
std::vector<Wish> impossible() {
  auto wish = [](int64_t world, const std::function<void(Wish&)>& set) {
    Wish w;
    w.world = world;
    set(w);
    return w;
  };
  return {
      wish(8, [](Wish& w) { w.tp = 3; }),
      wish(8, [](Wish& w) { w.tp = 2, w.cp = 3; }),
      wish(6, [](Wish& w) { w.pp = 4; }),
      wish(8, [](Wish& w) { w.tp = 16; }),
      wish(8, [](Wish& w) { w.dp = 2, w.tp = 2; }),
      wish(8, [](Wish& w) { w.dp = 8, w.tp = 2; }),
      wish(8, [](Wish& w) { w.dp = 5; }),
      wish(8, [](Wish& w) { w.dp_replicate = 3; }),
      wish(8, [](Wish& w) { w.ep = 3; }),
      wish(8, [](Wish& w) { w.ep = 16; }),
      wish(1, [](Wish& w) { w.ep = 2; }),
      wish(4096, [](Wish& w) { w.tp = 4097; }),
      wish(8, [](Wish& w) { w.ranks = {0, 1, 2}, w.dp = 2, w.tp = 2; }),
      wish(8, [](Wish& w) { w.ranks = {0, 1, 1, 2}, w.dp = 2, w.tp = 2; }),
      wish(8, [](Wish& w) { w.ranks = {0, 1, 1, 2}; }),
      wish(1, [](Wish& w) { w.tp = int64_t{1} << 62; }),
      wish(int64_t{1} << 40, [](Wish& w) { w.tp = int64_t{1} << 40, w.cp = int64_t{1} << 40; }),
  };
}

// What the strategy answers to a wish; anything that leaves it but an Error is a failure.
MeshAnswer ask(Strategy& strategy, const Subject& subject, const Wish& wish, Report& report) {
  MeshAnswer answer = plan(strategy, make_request(subject, wish));
  if (!answer.foreign.empty())
    report.fail(describe(wish) + ": " + answer.foreign +
                " left plan_mesh; only meshwright::Error may");
  return answer;
}

}  // namespace

void check_mesh(const Subject& subject, Report& report) {
  Instance strategy(subject);
  const meshwright_strategy& about = *subject.strategy;
  int planned = 0, refused = 0, delegated = 0;
  int64_t largest = 0;
  std::string first_refusal;
  for (const Wish& wish : wishes(about, 1, 10)) {
    if (report.full()) return;
    MeshAnswer answer = ask(*strategy, subject, wish, report);
    if (answer.error) {
      ++refused;
      if (first_refusal.empty()) first_refusal = describe(wish) + ": " + one_line(*answer.error);
    }
    if (!answer.value) continue;
    check_plan(wish, *answer.value, about.name, report);
    ++(answer.value->delegate_to.empty() ? planned : delegated);
    if (answer.value->delegate_to.empty()) largest = std::max(largest, wish.places());
  }
  if (planned == 0)
    report.fail("it refused all " + std::to_string(refused) +
                " requests; the first: " + first_refusal);
  report.note(std::to_string(planned) + " planned up to " + std::to_string(largest) + " ranks, " +
                  std::to_string(refused) + " refused" +
                  (delegated > 0 ? ", " + std::to_string(delegated) + " handed on" : ""),
              planned);
}

void check_mesh_pure(const Subject& subject, Report& report) {
  const meshwright_strategy& about = *subject.strategy;
  Instance strategy(subject), other(subject);
  std::vector<MeshRequest> requests;
  std::vector<std::string> names, answers;
  for (const Wish& wish : wishes(about, 2, 10)) {
    if (wish.world > 512 || requests.size() == 120) continue;
    requests.push_back(make_request(subject, wish));
    names.push_back(describe(wish));
  }
  for (size_t i = 0; i < requests.size() && !report.full(); ++i) {
    std::string before = fingerprint(requests[i]);
    answers.push_back(outcome(plan(*strategy, requests[i])));
    if (fingerprint(requests[i]) != before)
      report.fail(names[i] + ": plan_mesh changed its request");
    if (outcome(plan(*strategy, requests[i])) != answers[i])
      report.fail(names[i] + ": a second call gave another answer");
    if (outcome(plan(*other, requests[i])) != answers[i])
      report.fail(names[i] + ": another instance gave another answer");
  }
  if (report.full()) return;
  // Later calls must not remember earlier ones, and several threads may ask one instance.
  std::vector<size_t> different(4, requests.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < different.size(); ++t)
    threads.emplace_back([&, t] {
      for (size_t k = 0; k < requests.size(); ++k) {
        size_t i = (k * 7 + t * 31) % requests.size();
        if (outcome(plan(*strategy, requests[i])) != answers[i]) different[t] = i;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i : different)
    if (i < requests.size())
      report.fail(names[i] +
                  ": asked again in another order from several threads, it gave another answer");
  report.note(std::to_string(requests.size()) + " requests, 2 instances, 4 threads",
              std::ssize(requests));
}

void check_mesh_refusal(const Subject& subject, Report& report) {
  Instance strategy(subject);
  const meshwright_strategy& about = *subject.strategy;
  int refused = 0, followed = 0;
  auto look = [&](const Wish& wish, bool must_refuse) {
    MeshAnswer answer = ask(*strategy, subject, wish, report);
    if (answer.error) {
      ++refused;
      check_refusal(wish, *answer.error, report);
      if (wish.ranks.empty()) ++followed, follow_help(*strategy, subject, wish, answer, report);
    }
    // Whoever hands the job on leaves the refusal to the other strategy.
    if (answer.value && must_refuse && answer.value->delegate_to.empty())
      report.fail(describe(wish) + ": accepted, but these sizes cannot be");
  };
  for (const Wish& wish : impossible())
    if (!report.full()) look(wish, true);
  for (const Wish& wish : wishes(about, 3, 60))
    if (!report.full()) look(wish, false);
  report.note(
      std::to_string(refused) + " refused, the help of " + std::to_string(followed) + " followed",
      refused);
}

}  // namespace meshwright::conformance
