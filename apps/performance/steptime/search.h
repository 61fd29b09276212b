// Which layout of a model is fastest on so many ranks of a machine: all that sizes allow, by the
// step-time model. Pure; the strategies are told, not known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/performance/steptime/predict.h"

namespace meshwright::steptime {

// What a strategy says itself that a rank holds, over what its plan comes to.
struct OwnCount {
  // Bytes of states and of what is beside them, where a step is one micro-batch, and where several.
  double once = 1, waiting = 1;
  double updated = 1;  // what the rank's optimizer updates

  bool operator==(const OwnCount&) const = default;
};

// What a strategy can do and how it moves parameters, as its own plan of the model says.
struct Way {
  std::string strategy;
  // Of the strategy's own table, where they are not as the job has them:
  // "distributed.mine.level=1".
  std::vector<std::string> options;
  bool tp = false, cp = false, pp = false, ep = false, replicas = false;
  bool sequence = true;  // tensor parallelism that cuts activations along the sequence
  bool async = false;    // whose exchanges then lie beside the products, as the job asks
  bool whole = false;    // every rank holds the model
  int level = 3;         // of what is sharded: 3 parameters too, 2 gradients, 1 the optimizer
  bool rows = true;      // copies out of gathers and into reductions
  bool hidden = true;    // exchanges beside compute
  bool reshards = true;  // its plan gathers again in backward
  bool reshards_in_pipeline = false;  // the same where there are stages: for each pass
  bool reduces_each = false;          // gradients in every micro-batch
  double ahead = 1;                   // units gathered ahead
  double width = 2;                   // bytes of a gathered element
  double reduced = 4;                 // of a reduced one
  // Of stored weights, gradients and optimizer state, a parameter.
  double weights = 4, gradients = 4, optimizer = 8;
  double frozen = 0;          // of a stored weight that does not train; 0: as the others
  bool frozen_whole = false;  // every rank has these whole
  bool on_host = false;       // weights, gradients and states are on the host, not the device
  bool buckets = false;       // where `whole`: gradients lie in buckets for their reduction as well
  std::map<double, OwnCount> own = {};  // by the ranks of dp and cp; empty: its plan says it all

  bool operator==(const Way&) const = default;
};

// Where the ranks of cp change heads for tokens instead of gathering keys (ulysses).
enum class Exchange : uint8_t { never, where_it_sends_less, always };

struct Layout {
  std::string strategy;
  std::vector<std::string> options;  // of the way
  Job job;
  double less = 0;  // layers that the first and the last stage have less
  Prediction predicted = {};
  Memory memory = {};  // by sizes alone
  double use = 0;      // memory over what a rank may take

  double replicas() const { return job.replicas(); }
  // What layouts are ranked by: tight ones after comfortable ones that are within 5%.
  double score() const;
  // The same way at the same sizes.
  bool is_cut_as(const Layout& other) const;
};

// Layouts whose plans differ alike from what the model says of them.
struct LayoutKind {
  std::string strategy;
  std::vector<std::string> options;
  bool tp = false, cp = false, pp = false, ep = false, stages = false, sharded = false;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  Recompute recompute = Recompute::none;

  auto operator<=>(const LayoutKind&) const = default;
};
LayoutKind kind_of(const Layout& layout);

// What plans of a kind come to over what the model says, of memory also by the kind without its
// options.
using Said = std::map<LayoutKind, double>;
// 0: no plan says.
double said_of_time(const Said& takes, const Layout& layout);
double said_of_memory(const Said& counts, const Layout& layout);

struct SearchRequest {
  Machine machine;
  Shape shape;
  Job base;               // length, fusion, loss; sizes are the search's
  std::vector<Way> ways;  // of several that come to the same, the first is taken
  Exchange exchange = Exchange::never;
  double ranks = 1, global_batch = 1;
  double memory = 0;  // bytes that a rank may take
  // Where no plan of a kind is known: what its bytes may be over those that the model counts.
  double unknown = 1;
  // Of kinds of which plans are known, each at least: their bytes over what the model counts, also
  // of a kind without its options, and their seconds over the model's.
  Said counts = {}, takes = {};
  // Layouts whose plans are too large: others take their places.
  std::vector<Layout> left_out = {};
  // Sizes that stay: "tp_size", "cp_size", "pp_size", "ep_size", "dp_replicate_size",
  // "local_batch_size", "stages_per_rank".
  std::map<std::string, int64_t> fixed;
  std::optional<Recompute> recompute;
  // With several stages a rank, beside Interleaved1F1B: those that halve the backward. GPipe and
  // LoopedBFS are never faster than 1F1B and Interleaved1F1B and hold more.
  std::vector<PipelineSchedule> schedules;
  bool only_schedules = false;  // and nothing but these
  bool bounded = true;          // layouts that a lower bound rules out are not predicted; for tests
};

inline constexpr double kComfortable = 0.85;  // of what a rank may take

struct SearchResult {
  std::vector<Layout> best;  // fastest first; tight ones after comfortable ones within 5%
  int64_t enumerated = 0, fitting = 0;  // fitting: as far as is known
  int64_t predicted = 0;                // of those that fit; a lower bound ruled out the rest
  // By reason: sizes with all that would lie below them, and layouts.
  std::map<std::string, int64_t> rejected;
  std::optional<Layout> smallest;  // in memory, whether it fits or not
  std::vector<Layout> families;    // of each tp, cp, pp and ep that one
};

SearchResult search(const SearchRequest& request, size_t most);

// The job of one layout: what the way moves and keeps at the sizes that `job` has.
void lay_out(const Shape& shape, const Way& way, Job& job);

}  // namespace meshwright::steptime
