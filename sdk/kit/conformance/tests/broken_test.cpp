// Plugins that are wrong in one way each: exactly the case that is about it fails, and says what it
// is.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>

#include "meshwright/parallel/parallel.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"
#include "sdk/base/checks.h"
#include "sdk/base/conformance.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;
namespace conf = meshwright::conformance;

namespace {

// What a row of the table replaces; the strategy below is right wherever nothing is.
struct Hooks {
  std::function<void()> create;
  std::function<void(const StrategyConfig&, Diagnostics&)> validate;
  std::function<MeshPlan(const MeshRequest&)> plan_mesh;
  std::function<TpPlan(const ModelOutline&, const TpPlanRequest&)> translate;
  std::function<void(ShardingPlan&)> plan_sharding;
  std::function<std::unique_ptr<ParallelModel>()> parallelize;
  std::function<void*(uint32_t)> extension;
};
Hooks hooks;
int alive = 0;          // instances
bool orphaned = false;  // one of several went away

class Fake final : public ShardedStrategy {
 public:
  Fake() {
    if (hooks.create) hooks.create();
    if (alive++ == 0) orphaned = false;
  }
  ~Fake() override { orphaned = --alive > 0; }
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    ShardedStrategy::validate(config, diagnostics);
    if (hooks.validate) hooks.validate(config, diagnostics);
  }
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return hooks.plan_mesh ? hooks.plan_mesh(request) : plan_sharded_mesh(request);
  }
  TpPlan translate_tp_plan(const ModelOutline& outline,
                           const TpPlanRequest& request) const override {
    return hooks.translate ? hooks.translate(outline, request)
                           : Strategy::translate_tp_plan(outline, request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan out = fully_sharded_plan(request);
    if (hooks.plan_sharding) hooks.plan_sharding(out);
    return out;
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    return hooks.parallelize ? hooks.parallelize() : Strategy::parallelize(request);
  }
  void* extension(uint32_t id) override {
    return hooks.extension ? hooks.extension(id) : Strategy::extension(id);
  }
};

// The facts of this build as a plugin with one strategy would carry them, but for `changes`.
std::string facts_with(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> facts;
  std::istringstream lines{std::string(build_facts())};
  for (std::string line; std::getline(lines, line);)
    facts[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  facts["info.strategies"] = "fake";
  for (const auto& [key, value] : changes) facts[key] = value;
  std::string out;
  for (const auto& [key, value] : facts) out += key + "=" + value + "\n";
  return out;
}

// It only plans, although it overrides parallelize().
meshwright_strategy fake() {
  meshwright_strategy out = describe<Fake>({.name = "fake", .summary = "A strategy for tests"});
  out.capabilities = MESHWRIGHT_CAN_PLAN;
  return out;
}

// A whole plugin, right in everything, for a row to spoil.
struct Plugin {
  std::string facts = facts_with({});
  std::vector<meshwright_option> options = {bool_option("overlap", true, "A switch."),
                                            int_option("depth", "2", 0, "A whole number.")};
  std::vector<meshwright_strategy> strategies = {fake()};
  meshwright_plugin descriptor{sizeof(meshwright_plugin),
                               MESHWRIGHT_PLUGIN_MAGIC,
                               MESHWRIGHT_SDK_MAJOR,
                               MESHWRIGHT_SDK_MINOR,
                               "fake",
                               "1.0.0",
                               "The tests",
                               "Apache-2.0",
                               "A plugin for tests",
                               nullptr,
                               nullptr,
                               0,
                               nullptr};
  std::string file = "good";  // of the fixtures
  meshwright_extension loop{sizeof(meshwright_extension), 1, nullptr};

  std::map<std::string, conf::Report> check() {
    for (meshwright_strategy& strategy : strategies) {
      strategy.options = options.data();
      strategy.option_count = options.size();
    }
    descriptor.facts = facts.c_str();
    descriptor.strategies = strategies.data();
    descriptor.strategy_count = strategies.size();
    std::map<std::string, conf::Report> reports;
    for (const conf::Case& c : conf::cases()) {
      // data_test.cpp and training/model_test.cpp
      if (c.scope == conf::Scope::dataset || c.scope == conf::Scope::model) continue;
      reports.emplace(
          c.name,
          conf::run_case(
              c, {&descriptor, strategies.data(),
                  MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_" + file + ".so"}));
    }
    return reports;
  }
};

struct Broken {
  const char* about;  // the case that must fail
  const char* says;   // in one of its problems
  std::function<void(Plugin&)> spoil;
};

MeshPlan planned(const MeshRequest& request, const std::function<Error(const Error&)>& refusal) {
  try {
    return plan_sharded_mesh(request);
  } catch (const Error& error) {
    throw refusal(error);
  }
}

// Ranks beyond what the other cases look at, so that nothing but "mesh" sees it.
MeshPlan planned_otherwise_when_large(const MeshRequest& request,
                                      const std::function<void(MeshPlan&)>& change) {
  MeshPlan plan = plan_sharded_mesh(request);
  if (request.world_size > 16 && request.ranks.empty()) change(plan);
  return plan;
}

// As LibTorch calls its own.
}  // namespace
namespace c10 {
struct TornError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace c10
namespace {

const Broken kBroken[] = {
    {"abi", "a fact differs from the engine's: torch.version=0.1",
     [](Plugin& p) { p.facts = facts_with({{"torch.version", "0.1"}}); }},
    {"abi", "the facts do not list \"fake\"",
     [](Plugin& p) { p.facts = facts_with({{"info.strategies", "other"}}); }},
    {"abi", "the facts are not sorted", [](Plugin& p) { p.facts += "arch=x86_64\n"; }},
    {"symbols", "exports fixture_leak", [](Plugin& p) { p.file = "leak"; }},
    {"symbols", "exports meshwright_plugin_v1 0 times",
     [](Plugin& p) { p.file = "no_descriptor"; }},
    {"descriptor", "the license", [](Plugin& p) { p.descriptor.license = "do what you want"; }},
    {"descriptor", "the vendor is empty", [](Plugin& p) { p.descriptor.vendor = nullptr; }},
    {"descriptor", "the version \"1.0\"", [](Plugin& p) { p.descriptor.version = "1.0"; }},
    {"descriptor", "holds a line break", [](Plugin& p) { p.strategies[0].summary = "two\nlines"; }},
    {"descriptor", "does not say that it can plan",
     [](Plugin& p) { p.strategies[0].capabilities = 0; }},
    {"descriptor", "the strategy name fake stands twice",
     [](Plugin& p) { p.strategies.push_back(p.strategies[0]); }},
    {"descriptor", "the chain of extensions does not end",
     [](Plugin& p) {
       p.loop.next = &p.loop;
       p.descriptor.extensions = &p.loop;
     }},
    {"schema", "the older name depth is the name of another option",
     [](Plugin& p) { p.options[0] = with_aliases(p.options[0], "depth"); }},
    {"schema", "has a choice twice",
     [](Plugin& p) { p.options.push_back(choice_option("kind", "\"a\"", "a|b|a", "A word.")); }},
    {"schema", "has an empty choice",
     [](Plugin& p) { p.options.push_back(choice_option("kind", "\"a\"", "a||b", "A word.")); }},
    {"schema", "how",
     [](Plugin& p) {
       p.options.push_back(option("how", MESHWRIGHT_INT, "\"deep\"", "A default of another type."));
     }},
    {"lifecycle", "memory grew by",
     [](Plugin&) {
       static std::vector<std::unique_ptr<char[]>> kept;
       hooks.create = [] { kept.push_back(std::make_unique<char[]>(100)); };
     }},
    {"lifecycle", "after another instance was destroyed: std::runtime_error: gone left plan_mesh",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         if (orphaned) throw std::runtime_error("gone");
         return plan_sharded_mesh(request);
       };
     }},
    {"lifecycle", "gives an interface, but no version of the SDK has that id",
     [](Plugin&) { hooks.extension = [](uint32_t) -> void* { return &hooks; }; }},
    {"validate", "has no help line",
     [](Plugin&) {
       hooks.validate = [](const StrategyConfig& config, Diagnostics& diagnostics) {
         if (config.shared().sequence_parallel)
           diagnostics.add(
               Error(ErrorCode::option_refused, "no").key("distributed.sequence_parallel"));
       };
     }},
    {"validate", "names no key",
     [](Plugin&) {
       hooks.validate = [](const StrategyConfig& config, Diagnostics& diagnostics) {
         if (config.shared().sequence_parallel)
           diagnostics.add(Error(ErrorCode::option_refused, "no")
                               .help("set distributed.sequence_parallel = false"));
       };
     }},
    {"validate", "validate threw instead of reporting",
     [](Plugin&) {
       hooks.validate = [](const StrategyConfig& config, Diagnostics&) {
         if (config.shared().sequence_parallel) throw Error(ErrorCode::option_refused, "no");
       };
     }},
    {"validate", "std::out_of_range: off left validate",
     [](Plugin&) {
       hooks.validate = [](const StrategyConfig& config, Diagnostics&) {
         if (config.shared().sequence_parallel) throw std::out_of_range("off");
       };
     }},
    {"mesh", "its axes hold 2048 ranks, not 4096",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned_otherwise_when_large(request, [&](MeshPlan& plan) {
           if (!request.config.shared().sizes.dp && plan.dp % 2 == 0) {
             MeshRequest half = request;  // leaves out half of the ranks
             half.world_size /= 2;
             half.config.shared().sizes = {};
             plan = plan_sharded_mesh(half);
           }
         });
       };
     }},
    {"mesh", "dp is 4097, not 4096",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned_otherwise_when_large(request, [](MeshPlan& plan) { ++plan.dp; });
       };
     }},
    {"mesh", "it delegates to itself",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned_otherwise_when_large(request, [](MeshPlan& plan) {
           plan = {};
           plan.delegate_to = "fake";
         });
       };
     }},
    {"mesh", "fsdp_axes names nowhere",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned_otherwise_when_large(request,
                                             [](MeshPlan& plan) { plan.fsdp_axes = {"nowhere"}; });
       };
     }},
    {"mesh_pure", "a second call gave another answer",
     [](Plugin&) {
       static std::atomic<int> calls = 0;
       hooks.plan_mesh = [](const MeshRequest& request) {
         MeshPlan plan = plan_sharded_mesh(request);
         plan.notices.push_back("plan number " + std::to_string(++calls));
         return plan;
       };
     }},
    {"mesh_pure", "plan_mesh changed its request",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         MeshPlan plan = plan_sharded_mesh(request);
         if (request.ranks.empty()) const_cast<MeshRequest&>(request).ranks = {0};
         return plan;
       };
     }},
    {"mesh_refusal", "without a help line",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned(request, [](const Error& error) {
           return Error(error.code(), error.message()).key(error.key());
         });
       };
     }},
    {"mesh_refusal", "which is not a 3xx code",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned(request, [](const Error& error) {
           return Error(ErrorCode::out_of_range, error.message())
               .key("distributed.tp_size")
               .help("use fewer");
         });
       };
     }},
    {"mesh_refusal", "surely_no_key",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         return planned(request, [](const Error& error) {
           return Error(error.code(), error.message())
               .key("distributed.tp_size")
               .help("set distributed.surely_no_key = 1");
         });
       };
     }},
    {"mesh_refusal", "accepted, but these sizes cannot be",
     [](Plugin&) {
       hooks.plan_mesh = [](const MeshRequest& request) {
         if (std::set<int64_t>(request.ranks.begin(), request.ranks.end()).size() ==
             request.ranks.size())
           return plan_sharded_mesh(request);
         MeshRequest other = request;  // a rank that stands twice
         other.ranks = {0, 1, 2, 3};
         return plan_sharded_mesh(other);
       };
     }},
    {"tp_plan", "surely_no_plan_of_that_name",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, const TpPlanRequest& request) {
         if (request.choice.name == "surely_no_plan_of_that_name")
           throw std::runtime_error("unheard of");
         return select_tp_plan(outline, request);
       };
     }},
    {"tp_plan", "neither honoured nor refused",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, TpPlanRequest request) {
         if (request.choice.kind == TpPlanChoice::Kind::custom &&
             request.choice.patterns[0].second == "colwise")
           request.choice = {};
         return select_tp_plan(outline, request);
       };
     }},
    {"tp_plan", "accepted, although 8 heads do not divide by 3",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, TpPlanRequest request) {
         if (request.tp_size == 3) request.tp_size = 2;
         return select_tp_plan(outline, request);
       };
     }},
    {"tp_plan", "the engine would not run the plan: error[E0311]",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, const TpPlanRequest& request) {
         TpPlan plan = select_tp_plan(outline, request);
         if (request.choice.kind == TpPlanChoice::Kind::automatic)
           std::erase_if(plan.entries,
                         [](const TpEntry& entry) { return entry.pattern.ends_with("k_proj"); });
         return plan;
       };
     }},
    {"tp_plan", "c10::TornError: torn left translate_tp_plan",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, const TpPlanRequest& request) {
         if (request.tp_size == 3) throw c10::TornError("torn");
         return select_tp_plan(outline, request);
       };
     }},
    {"tp_plan", "names a module that does not exist: model.nowhere",
     [](Plugin&) {
       hooks.translate = [](const ModelOutline& outline, const TpPlanRequest& request) {
         TpPlan plan = select_tp_plan(outline, request);
         if (outline.architecture == "AcmeForCausalLM" && request.tp_size > 1) {
           plan.entries.push_back(plan.entries.front());
           plan.entries.back().pattern = "model.nowhere";
           plan.entries.back().modules = {"model.nowhere"};
         }
         return plan;
       };
     }},
    {"footprint", "an operation nobody knows: teleport",
     [](Plugin&) {
       hooks.plan_sharding = [](ShardingPlan& plan) {
         plan.own_cost.emplace().schedule = {
             {.axis = "dp_shard", .op = "teleport", .ranks = 2, .count = 1, .payload = 8}};
       };
     }},
    {"footprint", "a negative number of bytes",
     [](Plugin&) {
       hooks.plan_sharding = [](ShardingPlan& plan) {
         plan.own_cost.emplace().bytes.transient = INT64_MIN / 2;
       };
     }},
    {"footprint", "it places",
     [](Plugin&) { hooks.plan_sharding = [](ShardingPlan& plan) { plan.parameters.pop_back(); }; }},
    {"footprint", "the ranks of one copy hold",
     [](Plugin&) {
       hooks.plan_sharding = [](ShardingPlan& plan) {
         if (!plan.parameters.back().placement.empty() && plan.parameters.back().local_shape[0] > 0)
           --plan.parameters.back().local_shape[0];
       };
     }},
    {"parallelize", "parallelize should answer E0390",
     [](Plugin&) {
       hooks.parallelize = []() -> std::unique_ptr<ParallelModel> {
         throw Error(ErrorCode::internal, "not yet");
       };
     }},
    {"parallelize", "std::logic_error: not yet left parallelize",
     [](Plugin&) {
       hooks.parallelize = []() -> std::unique_ptr<ParallelModel> {
         throw std::logic_error("not yet");
       };
     }},
    {"parallelize", "but parallelize answers",
     [](Plugin&) { hooks.parallelize = [] { return std::unique_ptr<ParallelModel>(); }; }},
};

const char* word(conf::Verdict verdict) {
  return verdict == conf::Verdict::ok       ? "ok"
         : verdict == conf::Verdict::failed ? "failed"
                                            : "skipped";
}

}  // namespace

TEST_CASE("a case that found nothing to look at is not ok") {
  conf::Report report;
  report.note("0 plans", 0);
  CHECK(std::string(word(report.verdict())) == "skipped");
  CHECK(report.why_skipped() == "it found nothing to look at: 0 plans");
  report.note("1 plan", 1);
  CHECK(report.note() == "1 plan");
}

TEST_CASE("a plugin that is right passes every case") {
  Plugin plugin;
  for (const auto& [name, report] : plugin.check()) {
    CAPTURE(name);
    for (const std::string& problem : report.problems()) MESSAGE(problem);
    CHECK(std::string(word(report.verdict())) == "ok");
  }
}

TEST_CASE("what is wrong in one way fails the one case that is about it, which says so") {
  std::set<std::string> seen;
  for (const Broken& broken : kBroken) {
    std::string about = broken.about, says = broken.says;
    CAPTURE(about);
    CAPTURE(says);
    Plugin plugin;
    hooks = {};
    broken.spoil(plugin);
    std::map<std::string, conf::Report> reports = plugin.check();
    hooks = {};
    // Nothing else can be asked of a strategy whose options cannot be made.
    const bool unsound = says == "how";
    for (const auto& [name, report] : reports) {
      std::string problems;
      for (const std::string& problem : report.problems()) problems += "\n  " + problem;
      INFO(name, problems);
      if (name == about) {
        CHECK(report.verdict() == conf::Verdict::failed);
        CHECK(problems.find(says) != std::string::npos);
      } else {
        CHECK(report.verdict() != conf::Verdict::failed);
        if (!unsound) CHECK(report.verdict() == conf::Verdict::ok);
      }
    }
    seen.insert(about);
  }
  for (const conf::Case& c : conf::cases())
    if (c.scope != conf::Scope::dataset && c.scope != conf::Scope::model)
      CHECK_MESSAGE(seen.contains(std::string(c.name)), std::string(c.name));
}
