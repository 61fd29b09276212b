// Small models on paper, made by hand so that nothing but the SDK is needed. Not for use outside
// the kit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/outline.h"
#include "meshwright/strategy.h"
#include "sdk/base/checks.h"
#include "sdk/base/conformance.h"
#include "sdk/base/words.h"
#include "sdk/kit/comparison/one_line.h"

namespace meshwright::conformance {

// Odd on purpose: the vocabulary divides by nothing, the layers by three.
struct ModelShape {
  std::string architecture = "LlamaForCausalLM";
  int64_t hidden = 64, ffn = 176, heads = 8, kv_heads = 4, layers = 3, vocab = 257;
  bool tied = false;
  int64_t experts =
      0;  // above 0: each layer has a router and this many experts in place of its MLP
};

ModelOutline make_outline(const ModelShape& shape);

// What the cases share: a strategy's instance, calls that catch everything, seeded random requests.
// Not for use outside the kit.

// What create() makes. Throws std::runtime_error with the plugin's message when it fails.
void* make_or_throw(void* (*create)(meshwright_status*));

// One instance, made and destroyed through its descriptor. Throws as make_or_throw().
template <class About, class Made>
class MadeBy {
 public:
  explicit MadeBy(const About& about)
      : about_(about), made_(static_cast<Made*>(make_or_throw(about.create))) {}
  MadeBy(const MadeBy&) = delete;
  MadeBy& operator=(const MadeBy&) = delete;
  ~MadeBy() { about_.destroy(made_); }
  Made& operator*() const { return *made_; }
  Made* operator->() const { return made_; }

 private:
  const About& about_;
  Made* made_;
};
struct Instance : MadeBy<meshwright_strategy, Strategy> {
  explicit Instance(const Subject& subject) : MadeBy(*subject.strategy) {
    tp::register_plans(*subject.strategy);
  }
};

// An object of a plugin does not answer an id that it cannot know: another one than it thinks of
// may get it in a later version of the SDK.
template <class Made>
void check_unknown_extension(Made& made, Report& report) {
  constexpr uint32_t kNobodys = kOwnExtensions - 1;
  if (made.extension(kNobodys) != nullptr)
    report.fail("extension(" + std::to_string(kNobodys) +
                ") gives an interface, but no version of the SDK has that id");
}

// What came out of a hook: a value, an Error, or something that may not leave a plugin.
template <class T>
struct Answer {
  std::optional<T> value;
  std::optional<Error> error;
  std::string foreign;  // "std::runtime_error: what()", or ""
};

// Inside a catch block: the exception in flight as words.
std::string describe_foreign_exception();

template <class F>
auto ask(F&& hook) -> Answer<decltype(hook())> {
  Answer<decltype(hook())> answer;
  try {
    answer.value.emplace(hook());
  } catch (const Error& error) {
    answer.error = error;
  } catch (...) {
    answer.foreign = describe_foreign_exception();
  }
  return answer;
}

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class Range>
  const auto& pick(const Range& range) {
    return range[static_cast<size_t>(below(static_cast<int64_t>(range.size())))];
  }

 private:
  uint64_t state_;
};

// The strategy's own table, as the engine makes it.
OptionSchema own_schema(const meshwright_strategy& strategy);
// The same of whatever the subject is about.
OptionSchema schema_of(const Subject& subject);
// Bytes that this process has in use.
size_t bytes_in_use();
// That nothing grows when one after the other is made and destroyed, a hundred times.
void check_growth(const std::function<void()>& make, Report& report);
// Each option of the schema with a value or without.
Options random_options(const OptionSchema& schema, Random& random);
// That validate() reports whatever it has to say.
void check_answers(const std::function<void()>& validate, Report& report);

// A value the option takes, and one of each TOML form.
OptionValue random_value(const meshwright_option& option, Random& random);
std::vector<OptionValue> one_of_each_form();

// What somebody may ask a strategy for.
struct ParallelDims {
  int64_t world = 1;
  std::optional<int64_t> dp;
  int64_t dp_replicate = 1, tp = 1, cp = 1, pp = 1, ep = 1;
  std::vector<int64_t> ranks;
  std::vector<std::pair<std::string, OptionValue>> shared,
      own;  // further keys of [distributed] and of the strategy's table

  int64_t places() const { return ranks.empty() ? world : static_cast<int64_t>(ranks.size()); }
};
std::string describe(const ParallelDims& dims);  // "world 8, tp 2, shard_group_size = 4"
// Through the same schemas and readers as a file's values. Throws Error when a value does not fit
// its schema.
StrategyConfig make_config(const Subject& subject, const ParallelDims& dims);
MeshRequest make_request(const Subject& subject, const ParallelDims& dims);
// Sizes whose product fills the world, now and then spoilt; up to `max_world` ranks.
ParallelDims random_dims(Random& random, int64_t max_world, int spoilt_percent);
void randomize_own(const meshwright_strategy& strategy, ParallelDims& dims, Random& random);
// Keys of [distributed] other than the strategy and the sizes.
void randomize_shared(ParallelDims& dims, Random& random);

// Everything in a request, or in a plan, as text: equal texts, equal values.
std::string fingerprint(const MeshRequest& request);
std::string fingerprint(const MeshPlan& plan);

// "error[E0301]: message (note)".
using comparison::one_line;

}  // namespace meshwright::conformance
