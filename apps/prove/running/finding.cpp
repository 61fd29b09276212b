#include "apps/prove/running/finding.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/prove/running/explained.h"
#include "apps/prove/running/norm.h"
#include "apps/prove/running/operators.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/diagnosis.h"
#include "sdk/kit/comparison/pieces.h"
#include "sdk/kit/comparison/wrong.h"

namespace meshwright::prove {

namespace {

constexpr double kModules = 1e-9;  // of outputs and their gradients

class Finding {
 public:
  Finding(int64_t length, const Run& truth, const Run& ranks, const Again& again,
          const Again& ranks_again, Findings& out)
      : length_(length),
        truth_(truth),
        ranks_(ranks),
        again_(again),
        ranks_again_(ranks_again),
        out_(out) {
    for (const Captured& rank : ranks_.ranks) axes_.push_back(rank.seen.axes);
  }

  void run() {
    std::vector<comparison::RankSeen> seen;
    for (const Captured& rank : ranks_.ranks) seen.push_back(rank.seen);
    std::vector<comparison::Seen> whole = truth_.ranks.front().seen.seen;
    for (comparison::Seen& one : whole)
      if (one.gradient.defined()) one.gradient = one.gradient * truth_.ranks.front().seen.scale;
    const comparison::Compared found = comparison::compare_modules(whole, seen, length_, kModules);
    out_.modules = found.modules;
    out_.modules_left = found.left;
    // Modules say where numbers turn wrong. Where all of them are right, outputs that differ are
    // other parts, or of another micro-batch: recomputation and pipelines call them in turns.
    const bool right = out_.problems.empty() &&
                       std::ranges::all_of(out_.rows, [](const Row& r) { return r.ok(); });
    for (const auto& [what, difference] : {std::pair("modules, forward", found.forward),
                                           std::pair("modules, backward", found.backward)})
      out_.rows.push_back({what, difference, kModules, "",
                           right && difference > kModules
                               ? "which part of which micro-batch each is, is not known"
                               : ""});
    draw(found);
    // What backward computes again is told before the gradients that it spoils.
    const bool again = found.again && !(found.fault && !found.fault->backward);
    if ((found.fault || again) && !right) {
      const comparison::PlaceOfFault& at = again ? *found.again : *found.fault;
      out_.picture.turn(at.module, at.backward ? Picture::Part::backward : Picture::Part::forward);
      out_.rows[out_.rows.size() - (at.backward ? 1 : 2)].where = at.module;
      out_.faults.push_back(
          {.what = (at.backward ? "the gradient of the output of " : "the output of ") + at.module +
                   (again ? ", computed again" : "") + ", micro-batch " +
                   std::to_string(at.micro_batch),
           .pattern = again ? at.pattern.text : with_operator(at),
           .mend = at.pattern.mend,
           .ranks = at.ranks,
           .difference = at.difference});
    }
    if (!right && found.forward <= kModules) find_loss();
    if (ranks_.ranks.front().approximate == 0) {
      find_gradients();
      find_norm(truth_, ranks_, out_);
    }
    find_replicas();
    if (ranks_.ranks.front().approximate == 0) {
      if (out_.faults.empty()) find_step();
      if (out_.faults.empty()) find_states();
    }
    find_evaluation();
    // Behind a wrong output, a wrong gradient says nothing of its parameter.
    if (out_.picture.turned.empty() || out_.picture.in == Picture::Part::gradients)
      for (const auto& [name, how] : ranks_.ranks.front().own) add_own(name, how);
  }

 private:
  // Of a plugin's model, whose loss may be its own: outputs are right, and the first loss is not.
  void find_loss() {
    const Captured& one = truth_.ranks.front();
    if (ranks_.ranks.front().own.empty()) return;
    std::vector<int64_t> wrong;
    for (size_t r = 0; r < ranks_.ranks.size(); ++r)
      if (apart(ranks_.ranks[r].steps[0].loss, one.steps[0].loss) > kExact)
        wrong.push_back(static_cast<int64_t>(r));
    if (wrong.empty()) return;
    out_.faults.insert(
        out_.faults.begin(),
        Fault{.what = "the loss of step 0",
              .pattern =
                  "every output is right and the loss is not, over tp: ranks of it have some "
                  "columns of the output each",
              .mend = "RunningModel::loss_sum() gets the columns as its `shard`: hand it to "
                      "cross_entropy_sum(), or make logits whole with whole_logits()",
              .ranks = wrong,
              .difference = apart(ranks_.ranks.front().steps[0].loss, one.steps[0].loss)});
  }

  // A second look, once it is known which module to look into.
  std::string with_operator(const comparison::PlaceOfFault& at) const {
    const Different second{.one_step = true, .operators_of = at.module};
    const std::optional<Run> one = again_(second),
                             ranks = one ? ranks_again_(second) : std::nullopt;
    const std::string found = ranks ? first_operator(*one, *ranks, length_) : std::string();
    return at.pattern.text + (at.pattern.text.empty() || found.empty() ? "" : "; ") + found;
  }

  // Layers that are alike in this are one line.
  void add_own(const std::string& name, const std::string& how) {
    std::vector<std::string> parts = text::split(name, '.');
    for (std::string& part : parts)
      if (std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) part = "*";
    const bool ok = worst_of(only(ranks_.raw, name), only(truth_.raw, name)).difference <= kExact;
    OwnParameter one{text::join(parts, "."), how, ok};
    const auto at = std::ranges::find_if(
        out_.own, [&](const OwnParameter& o) { return o.name == one.name && o.how == one.how; });
    if (at == out_.own.end())
      out_.own.push_back(std::move(one));
    else
      at->ok = at->ok && ok;
  }

  void draw(const comparison::Compared& found) {
    const size_t count = ranks_.ranks.size();
    for (size_t r = 0; r < count; ++r)
      for (const comparison::Axis& axis : ranks_.ranks[r].seen.axes) {
        auto at = std::ranges::find_if(out_.picture.axes,
                                       [&](const auto& one) { return one.first == axis.name; });
        if (at == out_.picture.axes.end())
          at = out_.picture.axes.insert(at, {axis.name, std::vector<int64_t>(count, 0)});
        at->second[r] = ranks_.coordinate(r, axis.name);
      }
    for (const comparison::ModuleMarks& marks : found.marks) {
      Picture::Line line{marks.module, std::string(count, Picture::kNotCompared), {}, {}};
      line.backward = line.gradients = line.forward;
      auto mark = [](double difference) {
        return difference < 0           ? Picture::kNotCompared
               : difference <= kModules ? Picture::kRight
                                        : Picture::kWrong;
      };
      for (size_t r = 0; r < count; ++r) {
        line.forward[r] = mark(marks.forward[r]);
        line.backward[r] = mark(marks.backward[r]);
      }
      out_.picture.lines.push_back(std::move(line));
    }
  }

  void mark_gradients() {
    double scale = 0;
    for (const auto& [name, tensor] : truth_.raw) scale = std::max(scale, largest(tensor));
    for (size_t r = 0; r < ranks_.ranks.size(); ++r)
      for (const Part& part : unclipped(ranks_.ranks[r], 0)) {
        const auto at = truth_.raw.find(part.name);
        if (at == truth_.raw.end()) continue;
        const double near = kExact * std::max(largest(at->second), 1e-3 * scale);
        char& mark = out_.picture.line(module_of(part.name), ranks_.ranks.size()).gradients[r];
        if (!(largest(part.values.flatten() - comparison::cut(at->second, part.region).flatten()) <=
              near))
          mark = Picture::kWrong;
        else if (mark == Picture::kNotCompared)
          mark = Picture::kRight;
      }
  }

  // Tensors that are wrong. `found`: what a rank has of them.
  template <class Of>
  std::vector<comparison::Wrong> wrong_ones(const Whole& truth, double exact, const Of& found) {
    std::map<std::string, std::vector<comparison::Piece>> pieces;
    for (size_t r = 0; r < ranks_.ranks.size(); ++r)
      for (const Part& part : found(ranks_.ranks[r]))
        pieces[part.name].push_back({static_cast<int64_t>(r), part.region, part.values});
    std::vector<std::string> missing;
    std::vector<comparison::Wrong> out = comparison::wrong_tensors(
        truth, pieces, axes_, ranks_.ranks.front().accumulation, exact, missing);
    for (const std::string& name : missing)
      out_.problems.push_back("no rank has a gradient of " + name);
    return out;
  }

  void find_gradients() {
    auto groups =
        wrong_ones(truth_.raw, kExact, [](const Captured& rank) { return unclipped(rank, 0); });
    mark_gradients();
    explain(groups);
    if (out_.faults.empty() && groups.size() == 1 && groups.front().pattern.mend.empty() &&
        groups.front().names.size() == truth_.raw.size()) {
      const double off = worst_of(ranks_.raw, truth_.raw).difference;
      if (off > 1e-6 && off < 0.05)
        groups.front().pattern = {
            groups.front().pattern.text +
                text::format("; by no more than %.0e, as numbers of fewer digits would be", off),
            "something keeps or sums gradients in another dtype than the job asks for: see "
            "mp_policy.reduce_dtype and PrecisionPolicy::main_gradients"};
    }
    // A module that is wrong already spoils the gradients around it.
    if (!out_.faults.empty())
      std::erase_if(groups, [](const auto& group) { return group.pattern.mend.empty(); });
    for (auto& [pattern, names] : groups) {
      std::vector<std::string> modules;
      for (const std::string& name : names)
        if (modules.empty() || modules.back() != module_of(name))
          modules.push_back(module_of(name));
      out_.picture.turn(modules.front(), Picture::Part::gradients);
      if (pattern.mend.empty() && names.size() == 1 && has_ends(names.front())) {
        pattern.text +=
            "; stages of pp share it, and what one of them has of it is missing or "
            "counted twice";
        pattern.mend =
            "the gradients of a tied weight are summed over the stages that use it, "
            "once a step, and one of them counts in the norm (ShardGroups::copies)";
      }
      if (pattern.is_missing()) pattern.text += " behind " + text::first_few(modules, 4);
      out_.faults.push_back(
          {.what = (names.size() == 1 ? "the gradient of " : "the gradients of ") +
                   text::first_few(names, 4),
           .pattern = pattern.text,
           .mend = pattern.mend});
    }
  }

  // Whether ranks of several stages hold a parameter.
  bool has_ends(const std::string& name) const {
    std::set<int64_t> stages;
    for (size_t r = 0; r < ranks_.ranks.size(); ++r)
      for (const Part& part : ranks_.ranks[r].gradients.front())
        if (part.name == name) stages.insert(ranks_.coordinate(r, "pp"));
    return stages.size() > 1;
  }

  void explain(std::vector<comparison::Wrong>& groups) {
    const bool unknown = std::ranges::any_of(groups, [](const auto& group) {
      return group.pattern.mend.empty() || group.pattern.kind == comparison::Kind::other_factors ||
             group.pattern.kind == comparison::Kind::some_ranks;
    });
    size_t wrong = 0;
    for (const auto& [pattern, names] : groups) wrong += names.size();
    if (!unknown || wrong == 0) return;
    std::optional<comparison::Pattern> found = of_auxiliary(truth_, ranks_, again_);
    if (!found && wrong == truth_.raw.size()) found = of_micro_batches(truth_, ranks_, again_);
    if (!found) return;
    std::vector<std::string> names;
    for (const auto& group : groups)
      names.insert(names.end(), group.names.begin(), group.names.end());
    groups = {{*found, names}};
  }

  // The first step was right, but for its update, or a later one is not.
  void find_step() {
    Whole before;
    for (size_t s = 0; s < truth_.ranks.front().steps.size(); ++s) {
      auto gradients = [s](const Captured& rank) { return unclipped(rank, s); };
      auto moves = [s](const Captured& rank) { return moved(rank, s); };
      const std::string in = " in step " + std::to_string(s);
      Whole right = truth_.together(gradients).whole;
      auto groups = wrong_ones(right, kUpdate, gradients);
      if (s > 0 && !groups.empty()) {
        // What is too much is that of the step before, which was divided by other targets.
        const Whole found = ranks_.together(gradients).whole;
        double product = 0, squares = 0;
        for (const auto& [name, tensor] : right) {
          product += ((found.at(name) - tensor) * before.at(name)).sum().item<double>();
          squares += before.at(name).square().sum().item<double>();
        }
        Whole both = right;
        for (auto& [name, tensor] : both) tensor = tensor + before.at(name) * (product / squares);
        if (worst_of(found, both).difference <= kUpdate)
          groups.front().pattern = {
              "those of the step before are still in them",
              "begin_step() clears the gradients: what a step leaves must not reach the next"};
      }
      const bool update = groups.empty();
      if (update) groups = wrong_ones(truth_.together(moves).whole, kUpdate, moves);
      if (!groups.empty())
        out_.picture.turn(module_of(groups.front().names.front()), Picture::Part::gradients);
      for (const auto& [pattern, names] : groups)
        out_.faults.push_back(
            {.what = (update ? "the update" : "the gradient") +
                     std::string(names.size() == 1 ? " of " : "s of ") + text::first_few(names, 4) +
                     in,
             .pattern = pattern.text,
             .mend = update
                         ? "the optimizer moves update_groups(): nothing else writes values, and "
                           "all parameters are in them"
                         : pattern.mend});
      if (!groups.empty()) return;
      before = std::move(right);
    }
  }

  // What optimizers and buffers hold, where all parameters move as they should.
  void find_states() {
    const Whole found =
                    updates(only(ranks_.begin.whole, "buffer "), only(ranks_.end.whole, "buffer ")),
                right =
                    updates(only(truth_.begin.whole, "buffer "), only(truth_.end.whole, "buffer "));
    for (const auto& [name, tensor] : right) {
      const auto at = found.find(name);
      if (at == found.end() || largest(at->second - tensor) <= kUpdate * largest(tensor)) continue;
      std::vector<comparison::Piece> pieces;
      for (size_t r = 0; r < ranks_.ranks.size(); ++r)
        for (const Part& part : ranks_.ranks[r].states.back())
          if (part.name == name)
            for (const Part& before : ranks_.ranks[r].states.front())
              if (before.name == name)
                pieces.push_back({static_cast<int64_t>(r), part.region,
                                  part.values.to(at::kDouble) - before.values.to(at::kDouble)});
      const auto pattern = comparison::diagnose(
          tensor, pieces, axes_, ranks_.ranks.front().accumulation, kUpdate * largest(tensor));
      out_.faults.push_back(
          {.what = "the change of " + name,
           .pattern = pattern ? pattern->text : "",
           .mend = "buffers move once a step, after the optimizer, by what all ranks have counted "
                   "(Router::update_bias()): not in a micro-batch, nor when it is computed again"});
      out_.picture.turn(module_of(name.substr(name.find(' ') + 1)), Picture::Part::gradients);
    }
  }

  void find_evaluation() {
    const std::optional<Run::Written> moved = ranks_.written_by_evaluation();
    if (!moved) return;
    out_.faults.push_back({.what = "the evaluation writes to " + moved->name,
                           .pattern = "it is another after an evaluation than before it",
                           .mend = "what a forward counts or moves, it does in training alone "
                                   "(torch::nn::Module::is_training())"});
    out_.picture.turn(module_of(moved->name.substr(moved->name.find(' ') + 1)),
                      Picture::Part::forward);
  }

  void find_replicas() {
    const Joined& joined = ranks_.parted();
    if (joined.differ.empty()) return;
    Fault fault{.what = "replicas of " + joined.name +
                        (&joined == &ranks_.begin ? " before the first step" : ""),
                .ranks = {joined.other, joined.rank}};
    out_.picture.turn(module_of(joined.name.substr(joined.name.find(' ') + 1)),
                      Picture::Part::gradients);
    fault.pattern = "ranks " + std::to_string(joined.other) + " and " +
                    std::to_string(joined.rank) + " hold it differently";
    for (const comparison::Axis& axis : ranks_.ranks[static_cast<size_t>(joined.rank)].seen.axes)
      if (std::ranges::find(axis.ranks, joined.other) != axis.ranks.end())
        fault.pattern += ", which are ranks of " + axis.name;
    fault.mend =
        "replicas are alike to the bit: all of them compute the same from the same, or one "
        "computes and broadcasts";
    out_.faults.push_back(std::move(fault));
  }
  int64_t length_;
  const Run& truth_;
  const Run& ranks_;
  const Again &again_, &ranks_again_;
  Findings& out_;
  std::vector<std::vector<comparison::Axis>> axes_;  // of each rank
};

}  // namespace

void find_fault(const Request& request, const Run& truth, const Run& ranks, const Again& again,
                const Again& ranks_again, Findings& out) {
  Finding(request.job.length, truth, ranks, again, ranks_again, out).run();
}

}  // namespace meshwright::prove
