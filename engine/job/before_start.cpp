#include "engine/job/before_start.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <fstream>
#include <regex>
#include <span>
#include <sstream>
#include <utility>

#include "engine/config/sources.h"
#include "engine/job/plan.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::plan {

void warn_of_schedule(const Job& job, JobPlan& plan) {
  const Options &optimizer = job.config.table("optimizer"),
                &schedule = job.config.table("lr_scheduler");
  const double lr = optimizer.get_number("lr"), min_lr = schedule.get_number("min_lr");
  const Options& length = job.config.table("step_scheduler");
  const int64_t warmup = schedule.get_int("lr_warmup_steps"),
                steps = length.find_int("max_steps").value_or(plan.max_steps.value_or(0));
  const std::string style = schedule.get_string("lr_decay_style");
  if (lr == 0)
    plan.warnings.push_back("optimizer.lr = 0: no step changes a weight");
  else if (style != "constant" && min_lr >= lr)
    plan.warnings.push_back("lr_scheduler.min_lr = optimizer.lr = " + to_toml(lr) +
                            ": after the warm-up the learning rate never changes, " +
                            "although lr_decay_style is \"" + style +
                            "\"; lower lr_scheduler.min_lr, or set lr_scheduler.lr_decay_style = "
                            "\"constant\" if this is meant");
  if (steps > 0 && warmup > steps) {
    std::string text =
        "lr_scheduler.lr_warmup_steps = " + std::to_string(warmup) + " is longer than the run of " +
        (length.is_set("epochs") ? std::to_string(steps) + " steps"
                                 : "step_scheduler.max_steps = " + std::to_string(steps)) +
        ": the learning rate ends at " +
        text::short_number(lr * static_cast<double>(steps) / static_cast<double>(warmup)) +
        " and never reaches optimizer.lr = " + to_toml(lr);
    // The default may be too long for a trial of a few steps; whoever wrote a number down meant it
    // to be reached.
    (schedule.is_given("lr_warmup_steps") ? plan.warnings : plan.notices)
        .push_back(std::move(text));
  }
}

void check_positions(const Job& job, const ModelOutline& outline, const std::string& model,
                     JobPlan& plan) {
  const int64_t positions = outline.max_positions;
  if (positions <= 0) return;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    if (!(reads_data(table) || config::names_data(job.config, name)) ||
        table.get_int("seq_len") <= positions)
      continue;
    const std::string key = std::string(name) + ".seq_len", most = std::to_string(positions),
                      length = key + " = " + std::to_string(table.get_int("seq_len"));
    if (outline.positions_end)
      throw Error(
          ErrorCode::model_does_not_fit,
          length + " is above the " + most + " positions that " + model + " has weights for")
          .key(key)
          .help("set " + key + " = " + most);
    plan.warnings.push_back(
        length + " is above max_position_embeddings = " + most + " of " + model +
        ": its positions do not reach that far, and other programs cut such samples off; set " +
        key + " = " + most + " or raise max_position_embeddings in a copy of that file");
  }
}

namespace {

using NamedSize = std::pair<const char*, int64_t>;

// The product, or nullopt when it is above kMostRanks. Sizes below 1 count as 1.
std::optional<int64_t> bounded_product(std::span<const NamedSize> sizes) {
  int64_t product = 1;
  for (auto [name, size] : sizes) {
    size = std::max<int64_t>(size, 1);
    if (size > kMostRanks || product > kMostRanks / size) return std::nullopt;
    product *= size;
  }
  return product;
}

std::string setting(const char* name, int64_t value) {
  return std::string("set distributed.") + name + "_size = " + std::to_string(value);
}

}  // namespace

void check_rank_limits(const Job& job, std::optional<int64_t> world) {
  const std::string most = std::to_string(kMostRanks);
  if (world && *world > kMostRanks)
    throw Error(ErrorCode::out_of_range, "a world of " + std::to_string(*world) +
                                             " ranks; at most " + most + " can be planned")
        .help("--world-size " + most)
        .help("--world-size 131072");
  const ParallelSizes& s = job.config.shared.sizes;
  std::array<NamedSize, 4> sizes = {
      {{"tp", s.tp},
       {"cp", s.cp},
       {"pp", s.pp},
       s.dp ? NamedSize{"dp", *s.dp} : NamedSize{"dp_replicate", s.dp_replicate}}};
  auto error = [&](ErrorCode code, const std::string& message, const char* name) {
    const Options& table = job.config.table("distributed");
    const std::string key = std::string(name) + "_size";
    return Error(code, message).key("distributed." + key).at(table.origin(key));
  };
  if (s.ep > kMostRanks)
    throw error(ErrorCode::ep_not_divisor,
                "ep_size " + std::to_string(s.ep) + " is more than the " + most +
                    " ranks that can be planned",
                "ep")
        .help(setting("ep", 1))
        .help("leave distributed.ep_size out");
  if (bounded_product(sizes)) return;
  auto largest = std::ranges::max_element(
      sizes, [](const NamedSize& a, const NamedSize& b) { return a.second < b.second; });
  std::string product;
  for (auto [name, size] : sizes)
    if (size > 1)
      product += (product.empty() ? "" : " * ") + std::string(name) + ' ' + std::to_string(size);
  Error refusal =
      error(s.dp ? ErrorCode::world_mismatch : ErrorCode::world_not_divisible,
            product + " is more than the " + most + " ranks that can be planned", largest->first);
  const char* name = largest->first;
  largest->second = 1;
  if (std::optional<int64_t> rest = bounded_product(sizes);
      rest && (!world || (*world % *rest == 0 && (!s.dp || *world == *rest))))
    throw refusal.help(setting(name, 1))
        .help(std::string("leave distributed.") + name + "_size out");
  throw refusal.help(
      "leave distributed.dp_size, tp_size, cp_size and pp_size out: every rank then shards the "
      "parameters");
}

// Sequence parallelism on paper: whether samples divide, and what it saves.

bool reads_data(const Options& table) {
  return table.is_set("path") || table.is_set("plugin") || table.is_given("seq_len") ||
         (table.is_given("kind") && table.get_string("kind") == "mock");
}

void check_sequence(const Job& job, const TpPlan& tp) {
  const SharedOptions& shared = job.config.shared;
  int64_t ranks = shared.sizes.tp;
  if (ranks <= 1 || !cuts_sequence(tp)) return;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    int64_t length = table.get_int("seq_len");
    // Tensor parallelism cuts what context parallelism has left of a sample.
    const ContextSplit split(length, shared.sizes.cp, context_balance(shared.context));
    if (!(reads_data(table) || config::names_data(job.config, name)) || split.rows() % ranks == 0)
      continue;
    const std::string key = std::string(name) + ".seq_len", tp_size = std::to_string(ranks);
    const bool shared_out = shared.sizes.cp > 1;
    Error error(
        ErrorCode::model_does_not_fit,
        (shared_out ? "the " + std::to_string(split.rows()) + " tokens that a rank of cp has of " +
                          key + " = " + std::to_string(length) + " do not divide"
                    : key + " = " + std::to_string(length) + " does not divide") +
            " by distributed.tp_size = " + tp_size +
            ": under sequence parallelism each tensor-parallel rank holds an equal part of "
            "a sample");
    error.key(key).at(table.origin("seq_len"));
    // Each of the chunks of a rank is a multiple of the ranks of tp.
    const int64_t step = ranks * (shared_out ? split.chunks() : 1);
    int64_t down = length / step * step, up = 0;
    if (down > 0) error.help("set " + key + " = " + std::to_string(down));
    if (!__builtin_add_overflow(down, step, &up))
      error.help("set " + key + " = " + std::to_string(up));
    if (job.config.shared.sequence_parallel && tp.source != "custom")
      error.help("set distributed.sequence_parallel = false");
    throw error;
  }
}

std::optional<int64_t> other_activations(const JobPlan& plan, const StrategyConfig& config,
                                         const ModelOutline& part) {
  if (config.shared().sizes.tp <= 1 || !plan.footprint || plan.footprint->bytes.activations == 0 ||
      plan.tp.source == "custom")
    return {};
  if (plan.workload.seq_len % config.shared().sizes.tp != 0) return {};
  StrategyConfig other = config;
  other.shared().sequence_parallel = !config.shared().sequence_parallel;
  other.shared().enable_async_tensor_parallel = false;  // it needs sequence parallelism
  const Strategy& strategy = *plan.strategy.strategy;
  try {
    Diagnostics diagnostics;
    strategy.validate(other, diagnostics);
    if (!diagnostics.ok()) return {};
    TpPlan tp = strategy.translate_tp_plan(
        *plan.outline,
        {other.shared().sizes.tp, other.shared().sequence_parallel, other.shared().tp_plan});
    if (cuts_sequence(tp) == cuts_sequence(plan.tp)) return {};  // it has no effect on this model
    const ShardingRequest asked{part, plan.mesh, tp, other, plan.workload, plan.rank};
    return footprint_here(plan, asked, strategy.plan_sharding(asked)).bytes.activations;
  } catch (const std::exception&) {
    return {};  // what cannot be has no cost
  }
}

// What a job says about experts, against what its model has.

namespace {

// Whether [distributed.moe] reshard_after_forward changes what the strategy plans: some read it
// without expert parallelism, others never.
bool reshard_works(const JobPlan& plan, const ShardingRequest& cost, const StrategyConfig& config) {
  StrategyConfig other = config;
  other.shared().moe.reshard_after_forward = !config.shared().moe.reshard_after_forward;
  const ShardingRequest asked{cost.outline, cost.mesh, cost.tp, other, cost.workload, cost.rank};
  const Footprint changed = footprint_of(asked, plan.strategy.strategy->plan_sharding(asked));
  const std::vector<UnitCost>& before = plan.footprint->units;
  if (changed.units.size() != before.size()) return true;
  for (size_t i = 0; i < before.size(); ++i)
    if (changed.units[i].reshards != before[i].reshards) return true;
  return false;
}

// Whether all_gather, at which the host waits for no device, sends experts no more rows than
// all_to_all does in the mean, (ep - 1) a token beside k (ep - 1) / ep, and has memory for at most
// twice as many: for as many as may come.
bool gather_costs_little(int64_t ep, const MoeOutline& moe) {
  const int64_t active = moe.active_experts;
  return ep > 1 && ep <= active && ep * std::min(active, moe.experts / ep) <= 2 * active;
}

}  // namespace

void choose_dispatcher(const Job& job, MemoryFacts::Where where, JobPlan& plan,
                       StrategyConfig& config) {
  if (where != MemoryFacts::Where::device || job.model || !plan.mesh.moe_mesh ||
      !plan.outline->moe ||
      job.config.table("distributed.moe").get_string("dispatcher") != "auto" ||
      !gather_costs_little(plan.mesh.moe_mesh->size("ep"), *plan.outline->moe))
    return;
  config.shared().moe.dispatcher = plan.shared.moe.dispatcher = TokenDispatcher::all_gather;
  plan.notices.push_back(
      "tokens reach experts by all_gather, which keeps no host waiting for a device; "
      "distributed.moe.dispatcher = \"all_to_all\" needs less memory");
}

void tell_idle_moe(const Job& job, const ShardingRequest& cost, const StrategyConfig& config,
                   JobPlan& plan) {
  if (!config.shared().moe_given) return;
  if (!plan.outline->moe) {
    plan.notices.push_back("[distributed.moe] has no effect: " + plan.outline->architecture +
                           " has no experts");
    return;
  }
  const Options& moe = job.config.table("distributed.moe");
  if (!config.shared().moe.ignore_router_for_ac &&
      config.shared().activation_checkpointing == ActivationCheckpointing::none)
    plan.notices.push_back(
        "distributed.moe.ignore_router_for_ac has no effect with "
        "distributed.activation_checkpointing = \"none\"");
  if (moe.is_given("reshard_after_forward") && config.shared().moe.reshard_after_forward &&
      !reshard_works(plan, cost, config))
    plan.notices.push_back(
        "distributed.moe.reshard_after_forward has no effect under this job's strategy and sizes");
}

// What the ranks of a host need, against what it has: a rank that the kernel kills says nothing.

namespace {

namespace fs = std::filesystem;

// What a rank needs beside its tensors: the program and LibTorch (a lone rank of a model of 0.1 MB
// peaks at 163 MiB), its threads and its end of the connections.
constexpr int64_t kProcess = int64_t{200} << 20;
// From this part of the memory on, files in the page cache and other programs matter.
constexpr double kNear = 0.9;

// The number in a file that holds nothing else; "max" and unreadable files are no bound.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (!(in >> value) || value <= 0) return std::nullopt;
  return value;
}

// The smallest limit from `group` up to the root of the hierarchy. A container sees its own cgroup
// as the root whatever the path says, so the root is asked too.
std::optional<int64_t> smallest_limit(const fs::path& hierarchy, std::string group,
                                      const char* file) {
  std::optional<int64_t> out;
  while (true) {
    std::string relative = group.substr(group.find_first_not_of('/') == std::string::npos
                                            ? group.size()
                                            : group.find_first_not_of('/'));
    if (std::optional<int64_t> limit = number_in(hierarchy / relative / file);
        limit && (!out || *limit < *out))
      out = limit;
    if (relative.empty()) return out;
    size_t slash = relative.rfind('/');
    group = slash == std::string::npos ? "" : relative.substr(0, slash);
  }
}

std::string gib(int64_t bytes) { return report::human_bytes(bytes); }

}  // namespace

HostMemory host_memory(const fs::path& root) {
  HostMemory out;
  std::ifstream info(root / "proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemTotal: %" SCNd64, &kib) == 1 ||
        std::sscanf(line.c_str(), "SwapTotal: %" SCNd64, &kib) == 1)
      out.bytes += kib * 1024;
  }
  out.limit = "this machine has";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':'),
           second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1),
                group = line.substr(second + 1);
    std::optional<int64_t> limit;
    if (controllers.empty()) limit = smallest_limit(root / "sys/fs/cgroup", group, "memory.max");
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      limit = smallest_limit(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    if (limit && (out.bytes == 0 || *limit < out.bytes))
      out = {*limit, "the memory cgroup of this process allows"};
  }
  return out;
}

void check_room_of_ranks(int64_t ranks, const HostMemory& memory, const std::string& flag) {
  const int64_t most = std::max<int64_t>(memory.bytes / kProcess, 1);  // this process is one
  if (memory.bytes == 0 || ranks <= most) return;
  throw Error(ErrorCode::memory_exceeded, text::counted(ranks, "rank") + " of " + gib(kProcess) +
                                              " each, for the process itself, do not fit: " +
                                              memory.limit + " " + gib(memory.bytes))
      .key(flag)
      .help(flag + " " + std::to_string(most));
}

MemoryNeed memory_need(const Bytes& bytes) {
  int64_t kept = bytes.weights + bytes.gradients + bytes.optimizer + kProcess;
  return {kept, kept + bytes.transient + bytes.activations};
}

void check_memory(const JobPlan& plan, int64_t ranks, const HostMemory& memory,
                  const std::vector<std::string>& strategies, const Replan& replan,
                  Diagnostics& diagnostics) {
  if (!plan.footprint || memory.bytes == 0 || ranks < 1) return;
  const Bytes& bytes = plan.footprint->bytes;
  const MemoryNeed need = memory_need(bytes);
  // In doubles: a plan may ask for more than fits into 64 bits of bytes on one host.
  auto all = [&](int64_t one) { return static_cast<double>(one) * static_cast<double>(ranks); };
  const auto room = static_cast<double>(memory.bytes);
  auto as_bytes = [](double value) { return gib(static_cast<int64_t>(std::min(value, 9e18))); };
  const std::string each = ranks == 1 ? "" : "each ", has = memory.limit + " " + gib(memory.bytes);
  const std::string parts = gib(bytes.weights) + " of weights, " + gib(bytes.gradients) +
                            " of gradients, " + gib(bytes.optimizer) + " of optimizer state and " +
                            gib(kProcess) + " for the process itself";
  if (all(need.kept) <= room) {
    if (all(need.peak) <= kNear * room) return;
    diagnostics.warning("the " + text::counted(ranks, "rank") + " of this host may need " +
                        as_bytes(all(need.peak)) + " (" + each + parts + ", " +
                        gib(bytes.transient) + " of gathered parameters, about " +
                        gib(bytes.activations) + " of activations), and " + has +
                        ": if the kernel kills a rank, this is why");
    return;
  }
  Error error(ErrorCode::memory_exceeded,
              "the " + text::counted(ranks, "rank") + " of this host would keep " +
                  as_bytes(all(need.kept)) + " (" + each + parts + "), but " + has);
  error.key("model.config");
  auto fits = [&](const std::vector<std::string>& sets, int64_t world) -> std::optional<int64_t> {
    std::optional<Bytes> other = replan(sets, world);
    if (!other) return std::nullopt;
    MemoryNeed one = memory_need(*other);
    return all(one.peak) <= kNear * room ? std::optional(one.peak) : std::nullopt;
  };
  for (const std::string& name : strategies)
    if (std::optional<int64_t> one = fits({"distributed.strategy=" + name}, plan.world_size))
      error.help("set distributed.strategy = \"" + name + "\": " + gib(*one) + " a rank");
  if (plan.workload.storage == DType::float32)
    if (std::optional<int64_t> one = fits({"model.torch_dtype=bfloat16"}, plan.world_size))
      error.help("set model.torch_dtype = \"bfloat16\": " + gib(*one) + " a rank");
  if (ranks > 1 && ranks == plan.world_size && room >= static_cast<double>(need.peak) / kNear) {
    auto fewer = static_cast<int64_t>(kNear * room / static_cast<double>(need.peak));
    // Fewer ranks help where each holds everything; where they share it out, each would hold more.
    for (int64_t count = std::min(fewer, ranks - 1); count >= 1; count /= 2) {
      std::optional<Bytes> other = replan({}, count);
      if (!other ||
          static_cast<double>(memory_need(*other).peak) * static_cast<double>(count) > kNear * room)
        continue;
      error.help("start it with " + text::counted(count, "rank") + ": " +
                 gib(memory_need(*other).peak) + " a rank");
      break;
    }
  }
  for (int64_t hosts = 2; hosts <= 4096; hosts *= 2)
    if (std::optional<int64_t> one = fits({}, plan.world_size * hosts)) {
      error.help("start it on " + std::to_string(hosts) + " times as many hosts like this one (" +
                 text::counted(plan.world_size * hosts, "rank") + "): " + gib(*one) + " a rank");
      break;
    }
  if (error.helps().empty())
    error.help(
        "use a smaller model or batch; ranks on more hosts of this size share out the same bytes, "
        "if the batch divides by them");
  diagnostics.add(std::move(error));
}

namespace {

// Sizes that are tried, and those that are named.
constexpr size_t kMostTried = 8, kMostNamed = 3;

// What the job has of the size that `key` names; nullopt: it is no size.
std::optional<int64_t> size_of(const std::string& key, const ParallelSizes& sizes) {
  const std::pair<const char*, int64_t> known[] = {
      {"distributed.tp_size", sizes.tp},
      {"distributed.cp_size", sizes.cp},
      {"distributed.pp_size", sizes.pp},
      {"distributed.ep_size", sizes.ep},
      {"distributed.dp_replicate_size", sizes.dp_replicate}};
  for (const auto& [name, size] : known)
    if (key == name) return std::max<int64_t>(size, 1);
  return std::nullopt;
}

}  // namespace

std::vector<std::string> settings_in(const std::string& help) {
  // The value ends at a blank, a comma, a colon or a bracket: what it comes to may follow.
  static const std::regex setting(R"re(([a-z_]+(?:\.[a-z0-9_]+)+) = ("[^"]*"|[^\s,;:()\[\]]+))re");
  std::vector<std::string> out;
  if (!help.starts_with("set ")) return out;
  for (std::sregex_iterator it(help.begin(), help.end(), setting), end; it != end; ++it)
    out.push_back((*it)[1].str() + "=" + (*it)[2].str());
  return out;
}

std::optional<int64_t> world_in(const std::string& help) {
  const std::string start = "use a world size of ";
  if (!help.starts_with(start)) return std::nullopt;
  const auto out = text::to_number(std::string_view(help).substr(start.size()));
  return out && *out > 0 ? out : std::nullopt;
}

Error with_tried_help(const Error& error, const ParallelSizes& sizes, int64_t world,
                      const IsPlanned& is_planned) {
  std::vector<std::string> kept;
  size_t tried = 0, planned = 0;
  for (const std::string& help : error.helps()) {
    const std::vector<std::string> sets = settings_in(help);
    const std::optional<int64_t> other = world_in(help);
    if (!sets.empty() || other) {
      ++tried;
      if (!is_planned(sets, other.value_or(world))) continue;
      ++planned;
    }
    kept.push_back(help);
  }
  if (planned == tried) return error;
  if (const std::optional<int64_t> asked = size_of(error.key(), sizes); planned == 0 && asked) {
    std::vector<int64_t> others = text::divisors_near(world, *asked);
    std::erase(others, *asked);
    if (others.size() > kMostTried) others.resize(kMostTried);
    for (const int64_t size : others) {
      if (planned == kMostNamed) break;
      const std::string value = std::to_string(size);
      if (!is_planned({error.key() + "=" + value}, world)) continue;
      kept.insert(kept.begin() + static_cast<std::ptrdiff_t>(planned),
                  "set " + error.key() + " = " + value);
      ++planned;
    }
  }
  if (planned == 0) return error;
  Error out(error.code(), error.message());
  out.key(error.key()).at(error.origin());
  for (const std::string& key : error.keys())
    if (key != error.key()) out.about(key);
  for (const std::string& help : kept) out.help(help);
  for (const std::string& note : error.notes()) out.note(note);
  return out;
}

}  // namespace meshwright::plan
