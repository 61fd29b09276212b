// The conformance kit: what a strategy plugin must do to be one, as cases that anybody can run on
// their own library.
//
//   meshwright plugins check ./libacme.so
//
// A case is a function over a judged plugin. The runner (conformance.h) gives each its own
// process, so that a crash or a hang is a result and not the end of the run; tests call run_case()
// in their own process. Nothing here depends on the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/components.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/options.h"
#include "plugin_at_work.h"

namespace meshwright {
struct ModelRequest;  // meshwright/model/model_family.h
}

namespace meshwright::conformance {

enum class Verdict : uint8_t { ok, failed, skipped };

// What one case found. Problems beyond kMaxProblems are counted, not kept.
class Report {
 public:
  static constexpr size_t kMaxProblems = 6;

  void fail(std::string problem);
  // A case that does not apply; `why` is one plain line.
  void skip(std::string why);
  // What was looked at, shown beside "ok": "312 planned, 88 refused". A case that looked at nothing
  // has shown nothing: it is told as skipped.
  void note(std::string text, int64_t looked_at);

  Verdict verdict() const;
  const std::vector<std::string>& problems() const { return problems_; }
  size_t problem_count() const { return count_; }
  const std::string& why_skipped() const { return skipped_; }
  const std::string& note() const { return note_; }
  bool full() const { return count_ >= kMaxProblems; }

 private:
  std::vector<std::string> problems_;
  size_t count_ = 0;
  std::string skipped_, note_;
};

// What a case looks at. `path` is empty for a plugin that is linked into the program.
struct Subject {
  const meshwright_plugin* plugin = nullptr;
  const meshwright_strategy* strategy = nullptr;  // null in library cases
  std::filesystem::path path = {};
  const meshwright_component* dataset = nullptr;  // null but in cases about data
  // What a job asks the data set for; nullptr: no job was named, only what needs none is looked at.
  const DatasetRequest* request = nullptr;
  const meshwright_component* model = nullptr;  // null but in cases about models
  // What a job asks the model family for; nullptr: no job was named, its defaults are taken.
  const ModelRequest* model_request = nullptr;
  // Values of the strategy's own table that all of its jobs have.
  std::vector<std::pair<std::string, OptionValue>> settings = {};
  // Whose code the strategy is, for what is told of its faults; nullptr: it is told by its name.
  const detail::PluginCode* code = nullptr;
};

enum class Scope : uint8_t { library, strategy, dataset, model };

struct Case {
  std::string_view name;
  Scope scope;
  std::string_view summary;  // one line: what holds when it passes
  void (*run)(const Subject&, Report&);
};

// All cases, in the order they run. The first, "abi", is what the loader's judgement becomes; it
// has passed when a Subject exists.
std::span<const Case> cases();
const Case* find_case(std::string_view name);
// Runs one case here. Whatever the case itself lets through becomes a problem.
Report run_case(const Case& c, const Subject& subject);

// One case in a process of its own: a crash, a hang or an exit in the middle is a result.
//
// The child answers on a pipe that nothing else writes to (descriptor kAnswerFd), so that a plugin
// may print what it likes.

inline constexpr int kAnswerFd = 3;

// What a child process tells its parent, in order: "verdict", then "problem", "note", "why", or
// what the program adds.
using Fields = std::vector<std::pair<std::string, std::string>>;

struct ChildResult {
  int exit_status = -1;  // -1 when it did not exit by itself
  int signal = 0;        // that ended it
  bool timed_out = false;
  std::string output;  // stdout and stderr together, the first 64 KiB
  Fields fields;       // its answer, as far as it came
  double seconds = 0;
};

// `arguments[0]` is the program. The child leads a process group of its own; the whole group is
// killed after `seconds`, and what is left of it when the child ends. Throws std::runtime_error
// when it cannot be started. `hear`: gets each field of the answer as it comes.
using Hear = std::function<void(const Fields::value_type& field)>;
ChildResult run_child(const std::vector<std::string>& arguments, double seconds,
                      const Hear& hear = {});

// A case as its parent sees it.
struct Outcome {
  Verdict verdict = Verdict::failed;
  std::vector<std::string> lines;  // problems; or the note, or why it was skipped
  ChildResult child;
};
Outcome run_case_in_child(const std::vector<std::string>& arguments, double seconds);

// The child's side. prepare_child: no core dumps, and an end with its parent. answer: false when
// nobody listens on kAnswerFd.
void prepare_child();
bool answer(const Fields& fields);
Fields fields_of(const Report& report);
std::vector<std::string> values_of(const Fields& fields, const std::string& name);

}  // namespace meshwright::conformance
