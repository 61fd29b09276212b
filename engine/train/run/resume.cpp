#include "engine/train/run/resume.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <ranges>
#include <set>
#include <string_view>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/launch/rank_file.h"
#include "engine/launch/supervisor.h"
#include "engine/train/preflight/same_run.h"
#include "engine/train/run/reporter.h"
#include "engine/train/step/adapters.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/error.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::train {

void hold_to_first_attempt(int memory, const MadeOf& made_of) {
  const std::string now = base::json_text(made_of);
  const std::string then = launch::bytes_of(memory, "what the first attempt left");
  if (then.empty()) {
    if (::pwrite(memory, now.data(), now.size(), 0) != static_cast<ssize_t>(now.size()))
      throw Error(ErrorCode::internal,
                  std::string("what the run is made of cannot be kept for later attempts: ") +
                      std::strerror(errno));
    return;
  }
  const auto known = base::read_json_text<MadeOf>(then);
  for (const auto& one : made_of) {
    if (std::ranges::find(known, one) != known.end()) continue;
    throw Error(ErrorCode::checkpoint_mismatch,
                one.first +
                    " changed since the first attempt of this run, of which nothing was saved: "
                    "starting again would train another run")
        .help("put it back, or start the run again as it is now")
        .help("set checkpoint.every_steps to save earlier");
  }
}

namespace fs = std::filesystem;

std::unique_ptr<base::RunLock> lock_run(World& world, const fs::path& run,
                                        const std::function<void(const std::string&)>& say,
                                        const std::shared_ptr<LostFolder>& lost) {
  std::unique_ptr<base::RunLock> lock;
  std::function<void(const Error&)> hears;
  if (lost) hears = [lost](const Error& why) { lost->tell(why); };
  auto tell = [&](const std::string& text) {
    if (say) return say("notice: " + text);
    std::fprintf(stderr, "notice: %s\n", text.c_str());
  };
  agree_or_throw(world, [&] {
    if (world.rank() == 0 && !launch::launcher_owns_run_folder(run))
      lock = launch::own_run_folder(run, launch::process_environment(), tell, hears);
  });
  return lock;
}

ResumePoint begin_run(const Job& job, World& world, const fs::path& checkpoints) {
  ResumePoint out;
  const std::string choice = agree_or_throw(world, [&] {
    if (world.rank() != 0) return std::string();
    out.start = checkpoint::choose_start(job.table("checkpoint").get_string("resume"), checkpoints,
                                         checkpoint::restarted());
    return (out.start.own ? "1" : "0") + out.start.from.string();
  })[0];
  out.own = choice[0] == '1';
  agree_or_throw(world, [&] {
    if (choice.size() > 1) out.from = std::make_unique<checkpoint::Checkpoint>(choice.substr(1));
  });
  for (const std::string& told : out.start.told) world.notice(told);
  return out;
}

std::string set_aside(const ResumePoint& beginning, World& world, const fs::path& checkpoints) {
  std::string aside;
  agree_or_throw(world, [&] {
    if (world.rank() == 0) aside = checkpoint::set_aside(beginning.start, checkpoints);
  });
  return aside;
}

namespace {

// The first word of a command, as a shell takes it.
std::string program_of(const std::string& command) {
  bool quoted = false;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == '\'')
      quoted = !quoted;
    else if (command[i] == '\\' && !quoted)
      ++i;
    else if (command[i] == ' ' && !quoted)
      return command.substr(0, i);
  }
  return command.empty() ? "meshwright" : command;
}

}  // namespace

std::string finished_text(const fs::path& checkpoint, int64_t steps, int64_t max_steps,
                          const std::string& command, std::optional<int64_t> epochs) {
  const std::pair<std::string, const char*> ways[] = {
      {epochs ? "--set step_scheduler.epochs=" + std::to_string(2 * *epochs)
              : "--set step_scheduler.max_steps=" + std::to_string(2 * steps),
       "to train on"},
      {"--set run.name=another", "to train another run beside it"},
      {"--set checkpoint.resume=none",
       "to start this one afresh; what is there is kept under another name"}};
  size_t width = 0;
  for (const auto& [what, why] : ways) width = std::max(width, what.size());
  std::string out = "this run is finished: " + checkpoint.string() + " has " +
                    std::to_string(steps) + " steps, " +
                    (epochs ? "step_scheduler.epochs = " + std::to_string(*epochs)
                            : std::string("step_scheduler.max_steps")) +
                    " is " + std::to_string(max_steps) + "\n";
  for (const auto& [what, why] : ways) out += "  " + report::pad(what, width) + "   " + why + "\n";
  return out + "  " + program_of(command) + " generate " + checkpoint.string() +
         "   to let it write\n";
}

void leave_to_base(Saver::Settings& saving, const checkpoint::Checkpoint* from,
                   const std::string& pretrained, const ModelOutline& outline) {
  if (pretrained.empty() || (from != nullptr && !from->meta().base)) return;
  const weights::WeightFolder folder(pretrained);
  saving.facts.base = checkpoint::BaseRecord{fs::absolute(pretrained).lexically_normal().string(),
                                             checkpoint::fingerprint_of(folder)};
  if (from != nullptr) {
    // What trained in between is no longer the folder's.
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.base) saving.in_base.emplace(tensor.name, *tensor.base);
    return;
  }
  for (const ParameterOutline& parameter : outline.parameters)
    if (std::string name = weights::name_in(folder, outline.architecture, parameter);
        !name.empty() && !low_rank_factor(parameter.name))
      saving.in_base.emplace(parameter.name, std::move(name));
}

Error with_way_on(Error error, const fs::path& damaged) {
  if (error.code() != ErrorCode::bad_checkpoint) return error;
  const std::vector<checkpoint::Found> all = checkpoint::find_all(damaged.parent_path());
  for (const checkpoint::Found& one : std::views::reverse(all))
    if (one.problem.empty() && one.path != damaged)
      return error.key("checkpoint.resume")
          .help("set checkpoint.resume = \"" + one.path.string() + "\" to continue that one");
  return error.key("checkpoint.resume").help(before::kStartAfresh);
}

Error unsaved(Error error, bool ending, const fs::path& checkpoints) {
  // Neither room nor patience helps.
  if (error.code() == ErrorCode::replicas_differ) return error;
  // What an export reads has gone: nothing of the configuration is wrong, which the exit status of
  // a file that cannot be read says, so the launcher may start the run again.
  if (error.code() == ErrorCode::file_unreadable) {
    Error out(ErrorCode::output_unwritable, error.message());
    for (const std::string& help : error.helps()) out.help(help);
    for (const std::string& note : error.notes()) out.note(note);
    return out;
  }
  if (!ending)
    return error.help(
        "set checkpoint.on_failure = \"continue\" to train on when a checkpoint cannot be written");
  return error.help("once it can be written run the same command: it goes on from " +
                    checkpoint::next_start(checkpoints) + " and saves again");
}

std::string resume_text(const checkpoint::Checkpoint& from, const World& world,
                        const std::string& strategy, double ms) {
  const checkpoint::Meta& meta = from.meta();
  std::string out =
      "continues after step " + std::to_string(meta.step) + ": " + from.folder().string();
  if (meta.strategy != strategy || meta.world_size != world.size())
    out += ", saved by " + meta.strategy + " on " + text::counted(meta.world_size, "rank");
  return out +
         text::format("; %s read in %.2f s", report::human_bytes(from.bytes()).c_str(), ms / 1000);
}

uint64_t generator_seed(uint64_t seed, int64_t step, const plan::JobPlan& plan) {
  return (seed + static_cast<uint64_t>(step) * 0x2545f4914f6cdd1du) * 0x9e3779b97f4a7c15u +
         static_cast<uint64_t>(place_of_draws(plan));
}

std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world) {
  std::vector<std::pair<std::string, at::Generator>> out{
      {"cpu", at::detail::getDefaultCPUGenerator()}};
  if (world.device().is_cuda())
    out.emplace_back("cuda", at::globalContext().defaultGenerator(world.device()));
  return out;
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

namespace {

// By state and name.
using Records = std::map<std::pair<std::string, std::string>, const checkpoint::TensorRecord*>;
Records records_of(const checkpoint::Checkpoint& from) {
  Records out;
  for (const checkpoint::TensorRecord& record : from.meta().tensors)
    out[{record.state, record.name}] = &record;
  return out;
}

// Bits of the exponent and of the fraction; nullopt: no floating dtype.
std::optional<std::pair<int, int>> bits_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return std::pair(11, 52);
    case DType::float32:
      return std::pair(8, 23);
    case DType::bfloat16:
      return std::pair(8, 7);
    case DType::float16:
      return std::pair(5, 10);
    default:
      return std::nullopt;
  }
}

// Whether all values of `then` are some of `now`.
bool represents(DType now, DType then) {
  auto wide = bits_of(now), narrow = bits_of(then);
  return !wide || !narrow || (wide->first >= narrow->first && wide->second >= narrow->second);
}

// What there is to say when this job holds weights or states in other dtypes than the checkpoint
// does. Throws Error(checkpoint_mismatch) when it holds some in dtypes that do not represent all of
// the checkpoint's values: they would be rounded for good, and no later run could bring them back.
// What is frozen now has no main weights and no state: it goes on as the model has computed with
// it, in the dtype in which that was stored.
std::vector<std::string> check_dtypes(const checkpoint::Checkpoint& from,
                                      const std::vector<LocalTensor>& tensors) {
  const Records records = records_of(from);
  const bool adapts = std::ranges::any_of(
      tensors, [](const LocalTensor& tensor) { return low_rank_factor(tensor.name).has_value(); });
  std::string wider, frozen, rounded;
  for (const LocalTensor& tensor : tensors) {
    auto found = records.find({tensor.state, tensor.name});
    if (tensor.state == "buffer" || found == records.end()) continue;
    const DType then = found->second->dtype;
    if (found->second->base) {  // read as at the beginning of the run
      if (rounded.empty() && tensor.frozen && from.meta().base && !represents(tensor.dtype, then))
        rounded = rounded_base(from.meta().base->path, then, tensor.dtype);
      continue;
    }
    const bool dropped = tensor.frozen && !tensor.state.empty();
    if (then == tensor.dtype || dropped) continue;
    std::string was(dtype_name(then)), now(dtype_name(tensor.dtype));
    std::string what = tensor.state.empty() ? "weights" : "optimizer state (" + tensor.state + ")";
    if (represents(tensor.dtype, then)) {
      if (wider.empty())
        wider = "the checkpoint holds " + what + " in " + was + ", this job in " + now +
                ": they go on as they are, in wider numbers";
      continue;
    }
    if (tensor.frozen && represents(tensor.dtype, found->second->export_dtype)) {
      frozen = "parameters that are frozen in this job go on in " + now +
               ", as the model computes with them: their main weights of " + was + " end here";
      continue;
    }
    int lost = bits_of(then)->second - bits_of(tensor.dtype)->second;
    Error error(ErrorCode::checkpoint_mismatch,
                from.folder().string() + ": it holds " + what + " in " + was + ", this job in " +
                    now + ", which would round them for good" +
                    (lost > 0 ? " (" + std::to_string(lost) + " bits of each fraction)"
                              : " (another range)"));
    const bool base = adapts && tensor.frozen && tensor.state.empty();
    const std::string key = base ? "lora.base_dtype" : "model.torch_dtype";
    error.key(key).help("set " + key + " = \"" + was + "\"");
    // The dtypes that optimizer.main_dtype takes: a checkpoint holds main weights in place of those
    // they are rounded to.
    if (!base && (then == DType::float32 || then == DType::float64))
      error.help("set optimizer.main_dtype = \"" + was +
                 "\" to keep them beside weights that are stored in " + now);
    throw error.help("to go on in " + now +
                     " all the same, with a fresh optimizer: " + before::way_by_export(from));
  }
  std::vector<std::string> out;
  for (std::string* said : {&wider, &frozen, &rounded})
    if (!said->empty()) out.push_back(std::move(*said));
  return out;
}

// A checkpoint that is not of this job, with what else to do.
Error mismatch(const checkpoint::Checkpoint& from, const std::string& what) {
  return Error(ErrorCode::checkpoint_mismatch, from.folder().string() + ": " + what)
      .key("checkpoint.resume")
      .help(
          "set run.name to another name to train this job beside the one that made the checkpoint")
      .help(before::kStartAfresh);
}

// This rank's part of a tensor to fill, with the mean of these of the checkpoint; with none: zeros.
struct Match {
  std::vector<const checkpoint::TensorRecord*> records;
  const LocalTensor* tensor;
};

void fill(checkpoint::Checkpoint& from, const Match& match) {
  const LocalTensor& tensor = *match.tensor;
  if (match.records.size() == 1)
    return read_into(from, *match.records[0], tensor.region, tensor.local);
  at::Tensor sum = at::zeros(tensor.local.sizes(), tensor.local.options().dtype(at::kDouble)),
             one = at::empty_like(tensor.local);
  for (const checkpoint::TensorRecord* record : match.records) {
    read_into(from, *record, tensor.region, one);
    sum.add_(one);
  }
  if (!match.records.empty()) sum.div_(static_cast<double>(match.records.size()));
  tensor.local.copy_(sum);
}

// What a checkpoint may lack: the strategy's own states, and values of this replica's own, in whose
// place those of the first one serve.
struct Optionals {
  std::set<std::string> states;
  std::string suffix;               // own_suffix()
  std::set<std::string> missing;    // found out: of the states
  std::set<std::string> optimizer;  // its states, as far as the checkpoint has any of them
  bool thawed = false;              // found out: a parameter had none of them, and now has
  std::set<std::string> resized;    // found out: what to tell of states with other replicas
};

// What this job does not take of the replicas, told once; "": it takes all there is.
std::string tell_of_replicas(Trainer& trainer, const checkpoint::Checkpoint& from) {
  const std::string axis = trainer.model().independent_axis();
  const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
  std::set<std::string> numbers;  // "@1": of all replicas but the first
  for (const checkpoint::TensorRecord& record : from.meta().tensors)
    if (record.state.starts_with('@')) numbers.insert(record.state);
  const int64_t then = 1 + std::ssize(numbers), now = axis.empty() || !mesh ? 1 : mesh->size(axis);
  if (then == now) return "";
  const std::string said =
      "the checkpoint holds " + text::counted(then, "replica") +
      (then == 1 ? "" : " with values of their own") + ", this job " + std::to_string(now) +
      (now == 1 ? ": it goes on from the first one"
                : ": those without values of their own start as the first one");
  if (trainer.world().rank() == 0) trainer.world().notice(said);
  return said;
}

// What to tell where a state goes on with another number of replicas.
std::string resized_text(const std::string& state, int64_t then, const StateReplica& now) {
  using Resize = StateReplica::Resize;
  return "the checkpoint holds " + state + " of " + text::counted(then, "replica") +
         ", this job has " + std::to_string(now.count) + ": " +
         (now.resize == Resize::mean    ? "each begins with their mean"
          : now.resize == Resize::zeros ? "each begins with zeros"
                                        : "those without one of their own begin as the first one");
}

// What this rank reads. Throws when the checkpoint lacks a tensor of the job, or has it in another
// form.
std::vector<Match> match_tensors(const checkpoint::Checkpoint& from,
                                 const std::vector<LocalTensor>& tensors,
                                 const ModelOutline& outline, Optionals& optional) {
  const Records records = records_of(from);
  // A parameter that its groups froze then, or its program, has no state.
  auto was_frozen = [&](const std::string& name) {
    return records.contains({"", name}) &&
           std::ranges::none_of(optional.optimizer, [&](const std::string& state) {
             return records.contains({state, name});
           });
  };
  std::vector<Match> out;
  for (const LocalTensor& tensor : tensors) {
    auto found = records.find({tensor.state, tensor.name});
    if (tensor.replica || (found == records.end() && !optional.suffix.empty()))
      found = records.find({kind_of(tensor.state), tensor.name});
    std::string what =
        tensor.state.empty() ? "parameter " + tensor.name : tensor.state + " of " + tensor.name;
    if (found == records.end()) {
      bool frozen = tensor.region.count() == 0 && !tensor.state.empty();
      if (frozen) continue;  // its state
      if (optional.states.contains(kind_of(tensor.state))) {
        optional.missing.insert(kind_of(tensor.state));
        continue;
      }
      if (optional.optimizer.contains(kind_of(tensor.state)) && was_frozen(tensor.name)) {
        optional.thawed = true;
        continue;
      }
      throw mismatch(from, "it has no " + what + ", which the model of this job needs");
    }
    const checkpoint::TensorRecord& record = *found->second;
    if (record.shape != tensor.shape)
      throw mismatch(from, what + " has the shape " + report::shape_text(record.shape) +
                               ", in this job " + report::shape_text(tensor.shape));
    if (tensor.state != "buffer" && record.fused != fused_rows(outline, tensor.name))
      throw mismatch(from, what + " has its rows in another order than the model of this job");
    std::vector<const checkpoint::TensorRecord*> wanted{&record};
    if (tensor.replica) {
      auto of = [&](int64_t replica) {
        const auto at = records.find({of_replica(record.state, replica), tensor.name});
        return at == records.end() ? nullptr : at->second;
      };
      int64_t then = 1;
      while (of(then) != nullptr) ++then;
      wanted.clear();
      for (int64_t replica : detail::begins_as(*tensor.replica, then))
        wanted.push_back(of(replica));
      if (then != tensor.replica->count)
        optional.resized.insert(resized_text(record.state, then, *tensor.replica));
    }
    if (tensor.local.defined() && tensor.local.numel() > 0)
      out.push_back({std::move(wanted), &tensor});
  }
  return out;
}

// Optimizer::began after this checkpoint. `states`: those of the optimizer that it has. A parameter
// with none of them was frozen: it begins now, if it trains at all.
std::map<std::string, int64_t> beginnings(const checkpoint::Meta& meta,
                                          const std::set<std::string>& states) {
  std::map<std::string, int64_t> out;
  if (states.empty()) return out;
  for (const checkpoint::TensorRecord& record : meta.tensors)
    if (record.state.empty()) out[record.name] = meta.optimizer_steps;
  for (const checkpoint::TensorRecord& record : meta.tensors)
    if (states.contains(record.state))
      out[record.name] = meta.optimizer_steps - record.steps.value_or(meta.optimizer_steps);
  std::erase_if(out, [](const auto& parameter) { return parameter.second == 0; });
  return out;
}

// Throws when the checkpoint has a parameter that the job does not have.
// `tensors`: of this rank's stages, if the model is cut into some.
void check_parameters(const checkpoint::Checkpoint& from, const std::vector<LocalTensor>& tensors,
                      const ModelOutline& outline) {
  std::set<std::string> known;
  for (const ParameterOutline& parameter : outline.parameters) known.insert(parameter.name);
  for (const LocalTensor& tensor : tensors)
    if (tensor.state.empty()) known.insert(tensor.name);
  for (const checkpoint::TensorRecord& record : from.meta().tensors)
    if (record.state.empty() && !known.contains(record.name))
      throw mismatch(from, "it has the parameter " + record.name +
                               ", which the model of this job does not have");
}

// Of an axis of the mesh that the checkpoint comes from.
int64_t size_in(const checkpoint::Meta& meta, std::string_view axis) {
  for (size_t i = 0; i < meta.axes.size() && i < meta.mesh_shape.size(); ++i)
    if (meta.axes[i] == axis) return meta.mesh_shape[i];
  return 1;
}

// Sets this rank's generators to the states that the checkpoint has of them; returns whether it has
// any.
bool restore_generators(const World& world, checkpoint::Checkpoint& from) {
  bool restored = false;
  for (auto& [device, generator] : generators_of(world))
    for (const checkpoint::GeneratorRecord& record : from.meta().generators) {
      if (record.rank != world.rank() || record.device != device) continue;
      std::string state = from.read_generator(record);
      at::Tensor bytes = at::empty({static_cast<int64_t>(state.size())}, at::kByte);
      std::copy(state.begin(), state.end(),
                reinterpret_cast<char*>(bytes.mutable_data_ptr<uint8_t>()));
      std::lock_guard lock(generator.mutex());
      try {
        generator.set_state(bytes);
      } catch (const c10::Error&) {
        throw mismatch(from, "the state of the generator of " + device +
                                 " is not one that this LibTorch takes");
      }
      restored = true;
    }
  return restored;
}

// The states of its own that the model lacks in the checkpoint, and whether generators were
// restored.
struct Read {
  std::set<std::string> missing;
  bool generators = false;
};

// All that a rank does by itself.
Read read_own(Trainer& trainer, checkpoint::Checkpoint& from) {
  const checkpoint::Meta& meta = from.meta();
  World& world = trainer.world();
  ParallelModel& model = trainer.model();
  Optimizer& optimizer = optimizer_of(trainer);
  before::refuse_other_optimizer(from, optimizer.name());
  optimizer.in_use = true;
  optimizer.steps = meta.optimizer_steps;
  if (meta.optimizer_steps > 0) optimizer.allocate(model.update_groups());
  const std::vector<LocalTensor> tensors = local_state(trainer);
  Optionals optional;
  for (const StateTensor& tensor : model.state_tensors()) optional.states.insert(tensor.state);
  optional.suffix = own_suffix(trainer);
  for (const Optimizer::State& state : optimizer.state())
    for (const checkpoint::TensorRecord& record : meta.tensors)
      if (record.state == state.name) optional.optimizer.insert(state.name);
  const std::vector<Match> matches = match_tensors(from, tensors, trainer.outline(), optional);
  check_parameters(from, tensors, trainer.outline());
  optimizer.began = beginnings(meta, optional.optimizer);
  optimizer.set_classes(
      classes_begun(model, trainer.stages() != nullptr ? &trainer.stages()->outline() : nullptr,
                    optimizer.classes(), optimizer.began));
  if (optional.thawed)
    world.notice(
        "parameters that were frozen in the checkpoint train in this job: their optimizer state "
        "starts at zero, as in a new run");
  // Of this rank's parts: lines_of_all_ranks() says once what several tell.
  for (const std::string& said : check_dtypes(from, tensors)) world.notice(said);
  for (const std::string& said : optional.resized) world.notice(said);
  for (const Match& match : matches) fill(from, match);
  optimizer.round_weights(model.update_groups());
  trainer.set_next_step(meta.step);
  monitor_of(trainer).restore(meta.history);
  // On ranks that draw alike and others as theirs did. Those of a pipeline are at other stages.
  const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
  auto as_before = [&](std::string_view axis) {
    return size_in(meta, axis) == (mesh ? mesh->size(axis) : 1);
  };
  const bool generators = meta.world_size == world.size() &&
                          meta.data_parallel == trainer.data_parallel_size() && as_before("cp") &&
                          as_before("pp") && restore_generators(world, from);
  return {std::move(optional.missing), generators};
}

}  // namespace

bool load_checkpoint(Trainer& trainer, checkpoint::Checkpoint& from) {
  c10::NoGradGuard no_grad;
  Read read;
  // What follows may be a collective: it begins where all ranks have read their parts.
  agree_or_throw(trainer.world(), [&] { read = read_own(trainer, from); });
  const std::string differing = tell_of_replicas(trainer, from);
  trainer.tell_written({ValuesWritten::By::checkpoint,
                        monitor_of(trainer).updates(from.meta().step),
                        {read.missing.begin(), read.missing.end()},
                        differing.empty()});
  return read.generators;
}

}  // namespace meshwright::train

namespace meshwright {

void Trainer::load(const std::string& path) {
  std::optional<checkpoint::Checkpoint> from;
  train::agree_or_throw(*world_, [&] {
    from.emplace(checkpoint::resolve(path));
    before::check_scale(*from, plan_->lora, plan_->adapter_config);
  });
  train::load_checkpoint(*this, *from);
}

}  // namespace meshwright
