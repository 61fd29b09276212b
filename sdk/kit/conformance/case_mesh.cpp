// plan_mesh: answers that are layouts, that are the same every time, and refusals that help.
#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "sdk/base/shared_schemas.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

// Help lines that a program can follow: "set distributed.tp_size = 2", several joined by "and" or
// commas. Not for use outside the kit.

struct Setting {
  std::string text;
  struct Item {
    bool own = false;  // of the strategy's own table, else of [distributed]
    std::string key;
    OptionValue value;
  };
  std::vector<Item> items;
};

// Neither field is set when the line is advice in other words, or about keys that a mesh request
// does not hold.
struct SettingOrProblem {
  std::optional<Setting> setting;
  std::string problem;  // "names a key that does not exist: distributed.tp"
};

namespace {

constexpr std::array kSizes = {"dp_size", "dp_replicate_size", "tp_size",
                               "cp_size", "pp_size",           "ep_size"};

std::optional<OptionValue> parse_value(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    return OptionValue(text.substr(1, text.size() - 2));
  if (text == "true" || text == "false") return OptionValue(text == "true");
  int64_t integer = 0;
  double number = 0;
  const char *begin = text.data(), *end = begin + text.size();
  if (auto [at, error] = std::from_chars(begin, end, integer); error == std::errc() && at == end)
    return OptionValue(integer);
  if (auto [at, error] = std::from_chars(begin, end, number); error == std::errc() && at == end)
    return OptionValue(number);
  return std::nullopt;
}

}  // namespace

SettingOrProblem parse_setting(const std::string& help, const OptionSchema& own) {
  // The value ends at a blank, a comma or a bracket: "(dp is then 4)" may follow.
  static const std::regex item(R"re((distributed(?:\.[a-z0-9_]+)+) = ("[^"]*"|[^\s,;()\[\]]+))re");
  if (!help.starts_with("set ")) return {};
  Setting setting{help, {}};
  for (std::sregex_iterator it(help.begin(), help.end(), item), end; it != end; ++it) {
    std::string key = (*it)[1].str();
    std::optional<OptionValue> value = parse_value((*it)[2].str());
    if (!value) return {};
    std::string shared = key.substr(std::string("distributed.").size());
    if (key.starts_with(own.table + ".")) {
      std::string name = key.substr(own.table.size() + 1);
      if (own.find(name) == nullptr)
        return {std::nullopt, "names a key that does not exist: " + key};
      setting.items.push_back({true, name, *value});
    } else if (shared.find('.') != std::string::npos) {
      return {};  // another table
    } else if (distributed_schema().find(shared) == nullptr) {
      return {std::nullopt, "names a key that does not exist: " + key};
    } else if (std::find(kSizes.begin(), kSizes.end(), shared) != kSizes.end()) {
      setting.items.push_back({false, shared, *value});
    } else {
      return {};  // another strategy, or a key the mesh does not depend on
    }
  }
  if (setting.items.empty()) return {};
  return {std::move(setting), {}};
}

void apply(const Setting& setting, ParallelDims& dims) {
  for (const Setting::Item& item : setting.items) {
    if (item.own) {
      dims.own.emplace_back(item.key, item.value);
      continue;
    }
    const auto* size = std::get_if<int64_t>(&item.value);
    if (item.key == "dp_size") {
      dims.dp = size != nullptr ? std::optional(*size) : std::nullopt;
      continue;
    }
    int64_t* const sizes[] = {nullptr, &dims.dp_replicate, &dims.tp, &dims.cp, &dims.pp, &dims.ep};
    for (size_t i = 1; i < kSizes.size(); ++i)
      if (item.key == kSizes[i]) *sizes[i] = size != nullptr ? *size : 1;
  }
}

// Whether one answer of plan_mesh is a layout of the ranks that were asked for. Not for use outside
// the kit.
namespace {

// The kit's own arithmetic over a mesh's axes, so that the mesh is compared with something else
// than itself.
class Arithmetic {
 public:
  explicit Arithmetic(const Mesh& mesh) {
    for (const MeshAxis& axis : mesh.axes())
      names_.push_back(axis.name), sizes_.push_back(axis.size);
    for (const FlattenedAxis& axis : mesh.flattened()) flattened_[axis.name] = axis.axes;
  }
  std::vector<int64_t> coordinates(int64_t place) const {
    std::vector<int64_t> out(sizes_.size());
    for (size_t i = sizes_.size(); i-- > 0; place /= sizes_[i]) out[i] = place % sizes_[i];
    return out;
  }
  int64_t place(const std::vector<int64_t>& coordinates) const {
    int64_t out = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) out = out * sizes_[i] + coordinates[i];
    return out;
  }
  // Which real axes a name covers, outer first; empty when the mesh does not have them.
  std::vector<size_t> covered(const std::string& name) const {
    std::vector<std::string> parts = {name};
    if (auto it = flattened_.find(name); it != flattened_.end()) parts = it->second;
    std::vector<size_t> out;
    for (const std::string& part : parts) {
      auto it = std::find(names_.begin(), names_.end(), part);
      if (it == names_.end()) return {};
      out.push_back(static_cast<size_t>(it - names_.begin()));
    }
    return out;
  }
  // Row-major index of `coordinates` in the covered axes.
  int64_t index(const std::vector<int64_t>& coordinates, const std::vector<size_t>& axes) const {
    int64_t out = 0;
    for (size_t axis : axes) out = out * sizes_[axis] + coordinates[axis];
    return out;
  }
  int64_t size(const std::vector<size_t>& axes) const {
    int64_t out = 1;
    for (size_t axis : axes) out *= sizes_[axis];
    return out;
  }

 private:
  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
  std::map<std::string, std::vector<std::string>> flattened_;
};

class PlanChecker {
 public:
  PlanChecker(const ParallelDims& dims, const MeshPlan& plan, const std::string& self,
              Report& report)
      : dims_(dims), plan_(plan), self_(self), report_(report) {}

  void run() {
    if (!plan_.delegate_to.empty())
      delegation();
    else if (!plan_.device_mesh)
      no_mesh();
    else
      device_mesh();
  }

 private:
  void fail(const std::string& what) { report_.fail(describe(dims_) + ": " + what); }

  // Fails unless `value` is what was asked for.
  void expect(const std::string& what, int64_t value, int64_t wanted) {
    if (value != wanted)
      fail(what + " is " + std::to_string(value) + ", not " + std::to_string(wanted));
  }

  void delegation() {
    if (!text::is_identifier(text::normal(plan_.delegate_to)))
      fail("delegate_to names no strategy: \"" + plan_.delegate_to + "\"");
    if (text::normal(plan_.delegate_to) == text::normal(self_)) fail("it delegates to itself");
    if (plan_.device_mesh || plan_.moe_mesh || !plan_.fsdp_axes.empty())
      fail("a plan that delegates holds a mesh as well");
  }

  void no_mesh() {
    if (plan_.moe_mesh || !plan_.fsdp_axes.empty())
      fail("no device mesh, but an expert mesh or sharding axes");
    const std::pair<const char*, int64_t> sizes[] = {{"tp", dims_.tp},
                                                     {"cp", dims_.cp},
                                                     {"pp", dims_.pp},
                                                     {"ep", dims_.ep},
                                                     {"dp_replicate", dims_.dp_replicate}};
    for (const auto& [name, size] : sizes)
      if (size > 1)
        fail(std::string(name) + " " + std::to_string(size) +
             " was accepted without a mesh that has it");
    expect("dp", plan_.dp, dims_.places());
    if (dims_.dp && *dims_.dp > 0) expect("dp", plan_.dp, *dims_.dp);
  }

  void device_mesh() {
    const Mesh& mesh = *plan_.device_mesh;
    if (!layout(mesh, "device mesh")) return;
    for (const auto& [name, size] : std::initializer_list<std::pair<const char*, int64_t>>{
             {"tp", dims_.tp}, {"cp", dims_.cp}, {"pp", dims_.pp}})
      expect(std::string("size of ") + name, mesh.size(name), std::max<int64_t>(size, 1));
    if (dims_.dp_replicate > 1)
      expect("size of dp_replicate", mesh.size("dp_replicate"), dims_.dp_replicate);
    if (std::optional<int64_t> dp = mesh.find_size("dp")) expect("dp", plan_.dp, *dp);
    int64_t others = mesh.size("tp") * mesh.size("cp") * mesh.size("pp");
    expect("dp * tp * cp * pp", plan_.dp * others, mesh.size());
    if (dims_.dp && *dims_.dp > 0) expect("dp", plan_.dp, *dims_.dp);
    sharding_axes(mesh);
    if (dims_.ep > 1 && !plan_.moe_mesh) fail("ep was accepted, but there is no expert mesh");
    if (dims_.ep <= 1 && plan_.moe_mesh) fail("there is an expert mesh without ep");
    if (plan_.moe_mesh) expert_mesh(mesh);
  }

  // The mesh lays out exactly the ranks asked for, one to one, and every axis splits them into
  // groups its members agree on.
  bool layout(const Mesh& mesh, const std::string& what) {
    Arithmetic arithmetic(mesh);
    std::set<std::string> names;
    int64_t product = 1;
    for (const MeshAxis& axis : mesh.axes()) {
      if (std::ranges::find(axis_names(), axis.name) == axis_names().end())
        fail(what + ": \"" + axis.name + "\" is not an axis name");
      if (!names.insert(axis.name).second) fail(what + ": axis " + axis.name + " stands twice");
      if (axis.size < 1)
        fail(what + ": axis " + axis.name + " has size " + std::to_string(axis.size));
      product *= axis.size;
    }
    if (product != dims_.places()) {
      fail(what + ": its axes hold " + std::to_string(product) + " ranks, not " +
           std::to_string(dims_.places()));
      return false;
    }
    std::unordered_map<int64_t, int64_t> place_of;
    for (int64_t place = 0; place < product; ++place) {
      int64_t rank = mesh.rank_at(place);
      std::vector<int64_t> coordinates = mesh.coordinates(rank);
      if (!place_of.emplace(rank, place).second || mesh.place_of(rank) != place ||
          coordinates != arithmetic.coordinates(place) || arithmetic.place(coordinates) != place) {
        fail(what + ": rank " + std::to_string(rank) + " and its coordinates are not one to one");
        return false;
      }
    }
    for (int64_t i = 0; i < product; ++i) {
      int64_t rank = dims_.ranks.empty() ? i : dims_.ranks[static_cast<size_t>(i)];
      if (!place_of.contains(rank)) {
        fail(what + ": rank " + std::to_string(rank) + " has no place");
        return false;
      }
    }
    size_t problems = report_.problem_count();
    for (const MeshAxis& axis : mesh.axes()) groups(mesh, arithmetic, place_of, axis.name, what);
    for (const FlattenedAxis& axis : mesh.flattened()) {
      if (names.contains(axis.name))
        fail(what + ": flattened axis " + axis.name + " has the name of another axis");
      groups(mesh, arithmetic, place_of, axis.name, what);
    }
    return report_.problem_count() == problems;
  }

  void groups(const Mesh& mesh, const Arithmetic& arithmetic,
              const std::unordered_map<int64_t, int64_t>& place_of, const std::string& axis,
              const std::string& what) {
    std::vector<size_t> covered = arithmetic.covered(axis);
    int64_t size = arithmetic.size(covered);
    if (covered.empty() || mesh.find_size(axis) != size) {
      fail(what + ": the size of axis " + axis + " is not that of the axes it covers");
      return;
    }
    std::set<int64_t> seen;
    int64_t count = 0;
    bool sound = true;
    mesh.for_each_group(axis, [&](std::span<const int64_t> group) {
      ++count;
      sound = sound && static_cast<int64_t>(group.size()) == size;
      std::vector<int64_t> first;
      for (size_t i = 0; sound && i < group.size(); ++i) {
        auto place = place_of.find(group[i]);
        if (place == place_of.end() || !seen.insert(group[i]).second) {
          sound = false;
          break;
        }
        std::vector<int64_t> coordinates = arithmetic.coordinates(place->second);
        sound = arithmetic.index(coordinates, covered) == static_cast<int64_t>(i);
        for (size_t c : covered) coordinates[c] = 0;
        if (i == 0) first = coordinates;
        sound = sound && coordinates == first;
      }
      // A few members are asked themselves: they must see the same group and their own place in it.
      for (size_t i : {size_t{0}, group.size() / 2, group.size() - 1})
        if (sound && count <= 3) {
          std::vector<int64_t> own = mesh.group(group[i], axis);
          sound = std::equal(own.begin(), own.end(), group.begin(), group.end()) &&
                  mesh.coordinate(group[i], axis) == static_cast<int64_t>(i);
        }
    });
    if (!sound || static_cast<int64_t>(seen.size()) != mesh.size() || count * size != mesh.size() ||
        mesh.group_count(axis) != count)
      fail(what + ": the groups of axis " + axis +
           " do not split the ranks, or their members do not agree");
  }

  void sharding_axes(const Mesh& mesh) {
    for (const std::string& axis : plan_.fsdp_axes)
      if (!mesh.has_axis(axis)) {
        fail("fsdp_axes names " + axis + ", which the mesh does not have");
        return;
      }
    if (plan_.fsdp_axes.empty()) return;
    Answer<Mesh> sub = ask(
        [&] { return mesh.submesh(std::span(plan_.fsdp_axes), mesh.rank_at(mesh.size() - 1)); });
    if (!sub.value)
      fail("fsdp_axes are no sub-mesh: " + (sub.error ? one_line(*sub.error) : sub.foreign));
  }

  void expert_mesh(const Mesh& mesh) {
    const Mesh& experts = *plan_.moe_mesh;
    std::string names;
    for (const MeshAxis& axis : experts.axes()) names += axis.name + " ";
    if (names != "pp ep_shard ep ") {
      fail("the axes of the expert mesh are " + names + "instead of pp ep_shard ep");
      return;
    }
    if (!layout(experts, "expert mesh")) return;
    expect("size of ep", experts.size("ep"), dims_.ep);
    expect("size of pp in the expert mesh", experts.size("pp"), mesh.size("pp"));
    if (!mesh.has_axis("pp")) return;
    for (int64_t place = 0; place < experts.size(); ++place) {
      int64_t rank = experts.rank_at(place);
      if (experts.coordinate(rank, "pp") == mesh.coordinate(rank, "pp")) continue;
      fail("rank " + std::to_string(rank) +
           " is in another pipeline stage in the expert mesh than in the device mesh");
      return;
    }
  }

  const ParallelDims& dims_;
  const MeshPlan& plan_;
  const std::string& self_;
  Report& report_;
};

}  // namespace

// Adds what is wrong to `report`, each problem led by the sizes. `self` is the strategy that
// answered.
void check_plan(const ParallelDims& dims, const MeshPlan& plan, const std::string& self,
                Report& report) {
  PlanChecker(dims, plan, self, report).run();
}

namespace {

constexpr int64_t kMaxWorld = 4096;
constexpr int kRequests = 400;

using MeshAnswer = Answer<MeshPlan>;

MeshAnswer plan(Strategy& strategy, const MeshRequest& request) {
  return ask([&] { return strategy.plan_mesh(request); });
}

// Plain data parallelism over 1 .. 16 and 4,096 ranks, then random sizes.
std::vector<ParallelDims> dims_to_try(const meshwright_strategy& strategy, uint64_t seed,
                                      int spoilt_percent) {
  std::vector<ParallelDims> out;
  for (int64_t world : {1, 2, 3, 4, 6, 8, 16, 4096}) {
    ParallelDims dims;
    dims.world = world;
    out.push_back(dims);
  }
  Random random(seed);
  while (out.size() < kRequests) {
    out.push_back(random_dims(random,
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

void check_refusal(const ParallelDims& dims, const Error& error, Report& report) {
  std::string lead = describe(dims) + ": refused by " + one_line(error);
  if (static_cast<int>(error.code()) / 100 != 3) report.fail(lead + ", which is not a 3xx code");
  if (error.key().empty() && dims.ranks.empty()) report.fail(lead + ", which names no key");
  if (error.helps().empty()) report.fail(lead + ", without a help line");
}

// A request's refusals, followed through the first setting each of them advises, end in a plan.
void follow_help(Strategy& strategy, const Subject& subject, ParallelDims dims,
                 const MeshAnswer& first, Report& report) {
  OptionSchema own = own_schema(*subject.strategy);
  std::string trail = describe(dims);
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
    apply(*advice, dims);
    Answer<MeshRequest> request = ask([&] { return make_request(subject, dims); });
    if (!request.value)
      return report.fail(trail + ": the advised value is refused: " + one_line(*request.error));
    answer = plan(strategy, *request.value);
    if (answer.error && one_line(*answer.error) == failure)
      return report.fail(trail + ": the help changes nothing: " + failure);
  }
  if (!answer.foreign.empty()) report.fail(trail + ": " + answer.foreign + " left plan_mesh");
}

// Sizes no layout can have, whatever the strategy.
std::vector<ParallelDims> impossible() {
  auto dims = [](int64_t world, const std::function<void(ParallelDims&)>& set) {
    ParallelDims w;
    w.world = world;
    set(w);
    return w;
  };
  return {
      dims(8, [](ParallelDims& w) { w.tp = 3; }),
      dims(8, [](ParallelDims& w) { w.tp = 2, w.cp = 3; }),
      dims(6, [](ParallelDims& w) { w.pp = 4; }),
      dims(8, [](ParallelDims& w) { w.tp = 16; }),
      dims(8, [](ParallelDims& w) { w.dp = 2, w.tp = 2; }),
      dims(8, [](ParallelDims& w) { w.dp = 8, w.tp = 2; }),
      dims(8, [](ParallelDims& w) { w.dp = 5; }),
      dims(8, [](ParallelDims& w) { w.dp_replicate = 3; }),
      dims(8, [](ParallelDims& w) { w.ep = 3; }),
      dims(8, [](ParallelDims& w) { w.ep = 16; }),
      dims(1, [](ParallelDims& w) { w.ep = 2; }),
      dims(4096, [](ParallelDims& w) { w.tp = 4097; }),
      dims(8, [](ParallelDims& w) { w.ranks = {0, 1, 2}, w.dp = 2, w.tp = 2; }),
      dims(8, [](ParallelDims& w) { w.ranks = {0, 1, 1, 2}, w.dp = 2, w.tp = 2; }),
      dims(8, [](ParallelDims& w) { w.ranks = {0, 1, 1, 2}; }),
      dims(1, [](ParallelDims& w) { w.tp = int64_t{1} << 62; }),
      dims(int64_t{1} << 40,
           [](ParallelDims& w) { w.tp = int64_t{1} << 40, w.cp = int64_t{1} << 40; }),
  };
}

// What the strategy answers to these sizes; anything that leaves it but an Error is a failure.
MeshAnswer ask_for_mesh(Strategy& strategy, const Subject& subject, const ParallelDims& dims,
                        Report& report) {
  MeshAnswer answer = plan(strategy, make_request(subject, dims));
  if (!answer.foreign.empty())
    report.fail(describe(dims) + ": " + answer.foreign +
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
  for (const ParallelDims& dims : dims_to_try(about, 1, 10)) {
    if (report.full()) return;
    MeshAnswer answer = ask_for_mesh(*strategy, subject, dims, report);
    if (answer.error) {
      ++refused;
      if (first_refusal.empty()) first_refusal = describe(dims) + ": " + one_line(*answer.error);
    }
    if (!answer.value) continue;
    check_plan(dims, *answer.value, about.name, report);
    ++(answer.value->delegate_to.empty() ? planned : delegated);
    if (answer.value->delegate_to.empty()) largest = std::max(largest, dims.places());
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
  for (const ParallelDims& dims : dims_to_try(about, 2, 10)) {
    if (dims.world > 512 || requests.size() == 120) continue;
    requests.push_back(make_request(subject, dims));
    names.push_back(describe(dims));
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
  auto look = [&](const ParallelDims& dims, bool must_refuse) {
    MeshAnswer answer = ask_for_mesh(*strategy, subject, dims, report);
    if (answer.error) {
      ++refused;
      check_refusal(dims, *answer.error, report);
      if (dims.ranks.empty()) ++followed, follow_help(*strategy, subject, dims, answer, report);
    }
    // Whoever hands the job on leaves the refusal to the other strategy.
    if (answer.value && must_refuse && answer.value->delegate_to.empty())
      report.fail(describe(dims) + ": accepted, but these sizes cannot be");
  };
  for (const ParallelDims& dims : impossible())
    if (!report.full()) look(dims, true);
  for (const ParallelDims& dims : dims_to_try(about, 3, 60))
    if (!report.full()) look(dims, false);
  report.note(
      std::to_string(refused) + " refused, the help of " + std::to_string(followed) + " followed",
      refused);
}

}  // namespace meshwright::conformance
