#include "apps/prove/running/resumed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

using at::Tensor;

namespace {

// "exp_avg model.norm.weight": what is kept of a parameter, and its name.
std::string kind_of(const std::string& name) { return name.substr(0, name.find(' ')); }
std::string told(const std::string& name) {
  const std::string kind = kind_of(name), parameter = name.substr(name.find(' ') + 1);
  return kind == "weight" ? parameter : kind + " of " + parameter;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && !a.ne(b).any().item<bool>();
}

// "row 0 holds what row 16 should", of the first row that is one of the others.
std::string rows_moved(const Tensor& found, const Tensor& expected) {
  if (expected.dim() == 0 || expected.size(0) < 2) return "";
  const Tensor mine = found.reshape({found.size(0), -1}),
               right = expected.reshape({expected.size(0), -1});
  for (int64_t row = 0; row < mine.size(0); ++row) {
    if (same(mine[row], right[row])) continue;
    const Tensor equal = right.eq(mine[row]).all(1).nonzero().flatten();
    if (equal.numel() != 1) return "";
    return "row " + std::to_string(row) + " holds what row " +
           std::to_string(equal[0].item<int64_t>()) + " should";
  }
  return "";
}

// What a tensor that should be `all[name]` is instead.
std::string what_it_is(const std::string& name, const Tensor& found, const Joined& all,
                       const Whole& before) {
  const Tensor& expected = all.whole.at(name);
  for (const auto& [other, tensor] : all.whole)
    if (other != name && same(found, tensor) && kind_of(other) == kind_of(name))
      return "it holds what " + told(other) + " should";
  for (const auto& [other, tensor] : all.whole)
    if (other != name && same(found, tensor)) return "it holds what " + told(other) + " should";
  if (!found.any().item<bool>()) return "it is zero";
  if (const auto at = before.find(name); at != before.end() && same(found, at->second))
    return "it is as before the first step";
  if (std::string rows = rows_moved(found, expected); !rows.empty()) return rows;
  if (same(std::get<0>(found.flatten().sort()), std::get<0>(expected.flatten().sort())))
    return "its elements are all there, in other places";
  const Tensor wrong = found.ne(expected).flatten().nonzero().flatten();
  const auto at = wrong[0].item<int64_t>();
  return text::format("%.9g at ", found.flatten()[at].item<double>()) +
         comparison::element_text(at, expected.sizes().vec()) +
         text::format(", where %.9g was saved", expected.flatten()[at].item<double>());
}

struct Reading {
  Worst worst;
  std::map<std::string, std::vector<std::string>> wrong;  // by what they are instead
};

// `through`: the run that had them in between, in its own dtypes; nullptr: nobody. What is a
// strategy's own one process does not have, and replicas that go their own ways ("exp_avg@1") are
// one there.
Reading read(const Run& saved_by, const Joined& saved, const Joined& found, const Joined* through) {
  Reading out;
  auto wrong = [&](const std::string& name, const std::string& what, double difference) {
    out.worst.take(difference, told(name));
    out.wrong[what].push_back(name);
  };
  for (const auto& [name, tensor] : saved.whole) {
    if (through != nullptr && !through->whole.contains(name)) continue;
    const auto at = found.whole.find(name);
    if (at == found.whole.end()) {
      if (kind_of(name) == "weight") wrong(name, "it is not there", HUGE_VAL);
      continue;
    }
    if (at->second.sizes() != tensor.sizes()) {
      wrong(name, "it has another shape", HUGE_VAL);
      continue;
    }
    Tensor expected = tensor;
    if (through != nullptr) expected = expected.to(through->types.at(name));
    expected = expected.to(found.types.at(name)).to(at::kDouble);
    if (same(at->second, expected)) {
      out.worst.take(0, told(name));
      continue;
    }
    const double scale = std::max(largest(expected), 1e-30);
    wrong(name, what_it_is(name, at->second, saved, saved_by.begin.whole),
          largest(at->second - expected) / scale);
  }
  for (const auto& [name, tensor] : found.whole)
    if (!saved.whole.contains(name) && kind_of(name) != "buffer" &&
        (through == nullptr || through->whole.contains(name)))
      wrong(name, "the ranks had none of it", HUGE_VAL);
  if (!found.differ.empty())
    wrong(found.name, "ranks got different values: " + found.differ, HUGE_VAL);
  return out;
}

// What the ranks save and one process has no place for.
std::vector<std::string> own_states(const Joined& saved, const Joined& one) {
  std::set<std::string> kinds;
  for (const auto& [name, tensor] : saved.whole)
    if (!one.whole.contains(name) && kind_of(name) != "buffer") kinds.insert(kind_of(name));
  return {kinds.begin(), kinds.end()};
}

bool routed_alike(const StepResult& a, const StepResult& b) {
  return std::ranges::equal(a.experts, b.experts, [](const ExpertLoad& x, const ExpertLoad& y) {
    return x.tokens == y.tokens;
  });
}

Worst of_step(const StepResult& found, const StepResult& expected, bool norms,
              const std::string& who) {
  Worst out;
  out.take(apart(found.loss, expected.loss), "the loss, " + who);
  if (norms) out.take(apart(found.grad_norm, expected.grad_norm), "the gradient norm, " + who);
  return out;
}

// The ranks whose part of a tensor is not what a checkpoint has of it. `of`: what a rank should
// have.
template <class Of>
std::vector<int64_t> ranks_off(const Run& run, const std::string& name, const Tensor& whole,
                               const Of& of) {
  std::vector<int64_t> out;
  for (size_t rank = 0; rank < run.ranks.size(); ++rank)
    for (const Part& part : of(run.ranks[rank]))
      if (part.name == name && part.shape == whole.sizes() &&
          !same(part.values.to(at::kDouble).flatten(),
                comparison::cut(whole, part.region).flatten()))
        out.push_back(static_cast<int64_t>(rank));
  return out;
}

template <class Of>
void tell(const Reading& reading, const std::string& where, const std::string& mend, const Run& run,
          const Whole& beside, const Of& of, Findings& out) {
  for (const auto& [what, names] : reading.wrong) {
    std::vector<std::string> texts;
    for (const std::string& name : names) texts.push_back(told(name));
    Fault fault{.what = text::first_few(texts, 4) + ", " + where, .pattern = what, .mend = mend};
    if (std::isfinite(reading.worst.difference)) fault.difference = reading.worst.difference;
    if (const auto at = beside.find(names.front()); at != beside.end())
      fault.ranks = ranks_off(run, names.front(), at->second, of);
    if (!fault.ranks.empty()) {
      std::vector<std::string> ranks;
      for (const int64_t rank : fault.ranks) ranks.push_back(std::to_string(rank));
      fault.pattern += "; the parts of " + std::string(ranks.size() == 1 ? "rank " : "ranks ") +
                       text::first_few(ranks, 8);
    }
    out.faults.push_back(std::move(fault));
  }
}

// What a save has of an earlier step than its last one: "model.norm.weight as after step 1".
std::string of_other_steps(const Run& run, const Joined& saved) {
  std::vector<std::string> names;
  std::string when;
  for (const auto& [name, tensor] : saved.whole) {
    const auto at = run.end.whole.find(name);
    if (at == run.end.whole.end() || same(tensor, at->second)) continue;
    // From the last one back: a step may have moved nothing.
    for (size_t steps = run.ranks.front().steps.size(); when.empty() && steps-- > 0;) {
      const Joined then =
          run.together([steps](const Captured& rank) { return rank.states.at(steps); });
      if (const auto old = then.whole.find(name);
          old != then.whole.end() && same(tensor, old->second))
        when = " as after step " + std::to_string(steps);
    }
    names.push_back(told(name));
  }
  return when.empty() ? "" : text::first_few(names, 4) + when;
}

}  // namespace

void compare_resumed(const Run& saved, const Run& one, const Run& back,
                     const StepTolerance& tolerance, Findings& out) {
  const Joined all = saved.together([](const Captured& rank) { return rank.saved; });
  const Reading there = read(saved, all, one.begin, nullptr),
                again = read(saved, all, back.begin, &one.begin);
  out.rows.push_back({"checkpoint, in one process", there.worst.difference, 0, there.worst.where});
  out.rows.push_back({"checkpoint, back on ranks", again.worst.difference, 0, again.worst.where});
  const char* mend =
      "of each parameter the model says its name in the whole model and which part of it is here "
      "(ParallelParameter::name, region), the same when it is saved, loaded and trained; the "
      "optimizer's states lie as update_groups() do";
  tell(
      there, "of the ranks' checkpoint in one process", mend, saved, one.begin.whole,
      [](const Captured& rank) { return rank.saved; }, out);
  if (there.wrong.empty())
    tell(
        again, "of one process's checkpoint on the ranks", mend, back, all.whole,
        [](const Captured& rank) { return rank.states.front(); }, out);

  Row step{.what = "step after it"};
  const StepResult &before = *saved.ranks.front().next, &alone = *one.ranks.front().next;
  if (const std::vector<std::string> own = own_states(all, one.begin); !own.empty())
    step.not_compared = "the ranks keep " + text::join(own, ", ") + ", which one process does not";
  // Tolerances differ, so that the worse one counts by its own.
  const Worst in_one = of_step(alone, before, tolerance.norms, "in one process");
  Worst on_ranks;
  for (size_t rank = 0; rank < back.ranks.size(); ++rank)
    on_ranks.take(of_step(*back.ranks[rank].next, before, true, "").difference,
                  "back on rank " + std::to_string(rank));
  const bool routed = routed_alike(alone, before);
  const bool by_one =
      routed && in_one.difference / tolerance.one > on_ranks.difference / tolerance.back;
  const Worst& worse = by_one ? in_one : on_ranks;
  step.difference = worse.difference;
  step.tolerance = by_one ? tolerance.one : tolerance.back;
  step.where = worse.where;
  out.rows.push_back(step);
  if (!step.not_compared.empty() || step.ok() || !there.wrong.empty() || !again.wrong.empty())
    return;
  if (const std::string older = of_other_steps(saved, all); !older.empty()) {
    out.faults.push_back(
        {.what = "the ranks' checkpoint has two steps in it",
         .pattern = older + ", and all else as after step " +
                    std::to_string(saved.ranks.front().steps.size()),
         .mend = "a save is of one step: what it has are copies, or nothing moves before it ends "
                 "(ParallelModel::before_save() leaves the values that training goes on with)",
         .difference = step.difference});
    return;
  }
  out.faults.push_back(
      {.what = "the step after a checkpoint, " + step.where,
       .pattern = "every value is as it was saved, and yet the step is another one",
       .mend = "values_written() hears of a checkpoint: what is made from the values (copies, "
               "gathered parts, counts of updates) is made anew there",
       .difference = step.difference});
}

}  // namespace meshwright::prove
