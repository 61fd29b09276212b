// What a search over layouts asks the strategies, and how layouts are written down. Of this folder
// alone.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/performance/forecast/search.h"

namespace meshwright::forecast {

// A model with its adapters and what is frozen, and in what it is trained.
struct Trained {
  ModelOutline outline;
  Workload work;      // storage and states of the optimizer
  double frozen = 0;  // bytes of a frozen element as it is stored; 0: all train
};
// Throws Error(missing_key) for a job without a model, and what its plan would throw for adapters
// and groups.
Trained trained_model(plan::Job& job);

// Each strategy as the job has it, and as options of its own table that the file leaves open, or
// that are `free`, would have it; the job's own first. On so many `ranks` they say what they hold,
// where their plans do not. Throws Error(usage) for a key of `free` that is none of these options.
std::vector<steptime::Way> strategy_ways(plan::Job& job, Trained model,
                                         const std::set<std::string>& free, int64_t ranks);

// "fsdp2 tp8 pp4 v2 ZBVZeroBubble dp2 level=1": as the table has it.
std::string layout_text(const steptime::Layout& layout);
// "distributed.mine.level=1" there: the strategy stands in front.
std::string option_text(const std::string& option);
// "61.0 GiB"
std::string bytes_text(double bytes);
// As distributed.activation_checkpointing takes it.
const char* recompute_word(steptime::Recompute recompute);
// What is predicted of a layout, held against what a rank may take here, which --max-memory may
// make less than the machine has.
Forecast limited(const Found& found, Forecast forecast);
// How much longer it takes than the first: 0.1 is 10%.
double behind(const Found& found, const steptime::Layout& layout);

// What --set takes to make this layout of the job: every setting that says how it is cut, those of
// the file that would say otherwise among them.
std::vector<std::string> settings_of(const plan::Job& job, const steptime::Layout& layout,
                                     double layers, double global_batch);
// "--set a=1 --set b=2"
std::string set_line(const std::vector<std::string>& settings);

// A layout as `plan` with its settings would say it, or why there is no such plan.
struct PlannedLayout {
  std::optional<Forecast> forecast;
  std::optional<Error> refused;
};
PlannedLayout plan_layout(const plan::Job& job, const Reload& reload,
                          const steptime::SearchRequest& request,
                          const std::vector<std::string>& settings);

// The model may count more than plans: of a pipeline it takes every pass in flight for a whole one,
// of others it is some percent off. A layout of a kind that no plan is known of is taken to hold
// less, so that its plan is made and tells.
inline constexpr double kUnknownKind = 1 / 1.15;

// What is searched, and the layouts of `request` that are planned: the `most` best of them, fastest
// first. The answer may be empty. `any`: one that fits is enough, whichever it is.
Found planned_layouts(const plan::Job& job, const Reload& reload,
                      const steptime::SearchRequest& request, size_t most, bool any = false);

// What `plan` says of the sizes that are fixed, with 1 for the others, and of `more` settings, the
// job's own strategy first. nullopt: nothing, as some strategy plans them.
std::optional<Error> said_by_plan(const plan::Job& job, const Reload& reload,
                                  const steptime::SearchRequest& request,
                                  const std::vector<std::string>& more = {});

// What a refusal proposes: the search with it, and how a user says so.
struct Proposal {
  steptime::SearchRequest request;
  std::string text;
};
// A help of a plan as the search takes it, by the flag that was given; nullopt: it says something
// that is none of the search's.
std::optional<Proposal> proposal_of(const std::string& help, const Wanted& wanted,
                                    const steptime::SearchRequest& request);
// Whether the search finds something with it.
bool finds_layout(const plan::Job& job, const Reload& reload,
                  const steptime::SearchRequest& request);

// Whether something of it fits by the model: less to do than to plan it.
bool may_fit(steptime::SearchRequest request);

// A layout in the words of the table: tp, cp, pp and ep are 1 where they are not named, the rest is
// then free.
struct LayoutWords {
  // "tp", "cp", "pp", "ep"; "v", "dp", "replicas", and "micro", its samples, if named
  std::map<std::string, double> sizes;
  double micro_batches = 0;  // 0: as many as the batch makes
  std::optional<steptime::Recompute> recompute;
  std::string strategy;
  std::optional<PipelineSchedule> schedule;
  std::vector<std::string> options;  // "level=1"
};
// Sizes by their keys of SearchRequest::fixed, and as these words have them.
inline constexpr std::pair<const char*, const char*> kSizeWords[] = {
    {"tp_size", "tp"},
    {"cp_size", "cp"},
    {"pp_size", "pp"},
    {"ep_size", "ep"},
    {"stages_per_rank", "v"},
    {"dp_replicate_size", "replicas"},
    {"local_batch_size", "micro"}};
// Throws Error(usage) with the words that are known.
LayoutWords words_of(const std::string& asked, const steptime::SearchRequest& request);
Why why_of(const plan::Job& job, const Wanted& wanted, const steptime::SearchRequest& request,
           const LayoutWords& words, const Found& found);
// Of the sizes that are refused for memory, those that would be fastest.
std::vector<RefusedFamily> refused_families(const steptime::SearchRequest& request,
                                            const std::vector<steptime::Layout>& families);

// Of the first layouts, how many crossovers_of compares.
inline constexpr size_t kMostAlternatives = 10;
// What would put another of these first, by predictions with one constant of their machine off at a
// time. Only `best`, its memory, and `forecasts` are read.
std::vector<Crossover> crossovers_of(const Found& found);

// Why nothing was found, with what would have to change.
[[noreturn]] void refuse_search(const plan::Job& job, const Wanted& wanted,
                                const steptime::SearchRequest& request, const Found& found);

}  // namespace meshwright::forecast
