#include "engine/train/checkpointing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>

#include "engine/base/clock.h"
#include "engine/base/mapped_file.h"
#include "engine/checkpoint/checksum.h"
#include "engine/plan/plan.h"
#include "engine/rendezvous/separators.h"
#include "engine/report/report.h"
#include "engine/train/resume_dtypes.h"
#include "engine/trainer/load_weights.h"
#include "engine/weights/experts.h"

namespace meshwright::train {

namespace fs = std::filesystem;
using at::Tensor;
using checkpoint::Meta;
using Clock = std::chrono::steady_clock;

namespace {

constexpr char kAfterSummary = '\x1d';

std::string file_name(const char* kind, int64_t rank, int64_t world) {
  char text[80];
  std::snprintf(text, sizeof text, "%s-%05lld-of-%05lld.safetensors", kind,
                static_cast<long long>(rank) + 1, static_cast<long long>(world));
  return text;
}

std::span<const std::byte> bytes_of(const Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

// The generators of a rank, by device.
std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world) {
  std::vector<std::pair<std::string, at::Generator>> out{
      {"cpu", at::detail::getDefaultCPUGenerator()}};
  if (world.device().is_cuda())
    out.emplace_back("cuda", at::globalContext().defaultGenerator(world.device()));
  return out;
}

// "name bytes hex..." a line; names have no blanks but in carried files, so they come last.
std::string encode(const std::vector<checkpoint::FileRecord>& files) {
  std::string out;
  for (const checkpoint::FileRecord& file : files) {
    out += std::to_string(file.bytes) + " ";
    for (uint64_t block : file.blocks) out += checkpoint::to_hex(block);
    out += " " + file.name + rendezvous::kRecordSeparator;
  }
  return out;
}

std::vector<checkpoint::FileRecord> decode_files(const std::string& text) {
  std::vector<checkpoint::FileRecord> out;
  for (size_t at = 0, end; (end = text.find(rendezvous::kRecordSeparator, at)) != std::string::npos;
       at = end + 1) {
    std::string line = text.substr(at, end - at);
    size_t first = line.find(' '), second = line.find(' ', first + 1);
    checkpoint::FileRecord file{line.substr(second + 1), std::stoll(line), {}};
    for (size_t digit = first + 1; digit < second; digit += 16) {
      uint64_t block = 0;
      checkpoint::parse_hex(std::string_view(line).substr(digit, 16), block);
      file.blocks.push_back(block);
    }
    out.push_back(std::move(file));
  }
  return out;
}

checkpoint::FileRecord copy_file(const fs::path& from, const fs::path& to,
                                 const std::string& name) {
  base::make_folders(to.parent_path());
  base::NewFile out(to);
  checkpoint::BlockChecksums sums;
  std::ifstream in(from, std::ios::binary);
  std::vector<char> buffer(checkpoint::kBlock);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    auto part = std::as_bytes(std::span(buffer.data(), static_cast<size_t>(in.gcount())));
    sums.add(part);
    out.append(part);
  }
  if (!in.eof()) throw Error(ErrorCode::file_unreadable, "cannot read " + from.string());
  out.finish();
  return {name, out.size(), sums.finish()};
}

}  // namespace

Saver::Saver(Trainer& trainer, Settings settings)
    : trainer_(trainer), settings_(std::move(settings)) {
  if (settings_.background) trainer_.before_update([this] { wait_for_snapshot(); });
}

Saver::~Saver() {
  if (settings_.background) trainer_.before_update({});
  if (worker_.joinable()) worker_.join();
}

// What this rank writes of the tensors of one kind: views of what trains.
std::vector<Saver::Entry> Saver::collect(std::string_view kind,
                                         const std::vector<LocalTensor>& held) {
  std::vector<Entry> out;
  for (size_t i = 0; i < held.size(); ++i) {
    const LocalTensor& h = held[i];
    const Region* share = shares_->share(i, trainer_.world().rank());
    if ((kind == "model") != h.state.empty() || share == nullptr) continue;
    Tensor values = h.local;
    if (!(*share == h.region)) {
      int64_t begin = as_run(*share, h.shape).begin - as_run(h.region, h.shape).begin;
      if (share->count() != h.region.count())
        values = values.contiguous().view({-1}).narrow(0, begin, share->count());
    }
    out.push_back(
        {{h.state.empty() ? h.name : h.state + "/" + h.name, h.dtype, share->stored_shape()},
         values.contiguous()});
  }
  return out;
}

// From here on the entries are copies. What only the optimizer changes is copied by the worker, the
// rest (buffers, which a forward may change, and what lies on a device) at once.
void Saver::prepare_snapshot(std::vector<Entry>& entries) {
  snapshots_.resize(entries.size());
  originals_.assign(entries.size(), Tensor());
  for (size_t i = 0; i < entries.size(); ++i) {
    Tensor &kept = snapshots_[i], values = entries[i].values.view({-1});
    if (!kept.defined() || kept.numel() != values.numel() ||
        kept.scalar_type() != values.scalar_type())
      kept = at::empty({values.numel()},
                       values.options().device(at::kCPU).pinned_memory(values.is_cuda()));
    if (values.is_cpu() && entries[i].spec.name.rfind("buffer/", 0) != 0)
      originals_[i] = values;
    else
      kept.copy_(values);
    entries[i].values = kept;
  }
  copied_ = false;
}

void Saver::snapshot() {
  for (size_t i = 0; i < originals_.size(); ++i)
    if (originals_[i].defined())
      std::memcpy(snapshots_[i].mutable_data_ptr(), originals_[i].const_data_ptr(),
                  originals_[i].nbytes());
  copied_ = true;
  copied_.notify_all();
}

void Saver::wait_for_snapshot() {
  if (copied_) return;
  Clock::time_point begin = Clock::now();
  copied_.wait(false);
  report_.pause_ms += base::ms_since(begin);
}

void Saver::save(int64_t samples, double lr) {
  finish();
  c10::NoGradGuard no_grad;
  began_ = Clock::now();
  World& world = trainer_.world();
  bool leader = world.rank() == 0;
  report_ = {};
  report_.step = trainer_.next_step();
  Agreement begun = agree(world, outcome_of([&] {
                            if (leader)
                              publication_ = std::make_unique<checkpoint::Publication>(
                                  settings_.folder, report_.step);
                            return std::string();
                          }));
  if (begun.error) return end(std::move(begun.error));
  held_ = local_state(trainer_.model(), optimizer_of(trainer_), trainer_.module());
  if (!shares_ || shared_ != held_.size()) {
    shares_ = std::make_unique<Shares>(world, held_);
    shared_ = held_.size();
  }
  meta_ = settings_.facts;
  meta_.step = report_.step;
  meta_.samples = samples;
  meta_.lr = lr;
  meta_.created = base::utc_now();
  meta_.program = MESHWRIGHT_VERSION;
  meta_.strategy = trainer_.plan().strategy.info->name;
  meta_.plugin_version = trainer_.plan().strategy.plugin->version;
  meta_.world_size = world.size();
  meta_.data_parallel = trainer_.data_parallel_size();
  meta_.axes.clear();
  meta_.mesh_shape.clear();
  if (const std::optional<Mesh>& mesh = trainer_.plan().mesh.device_mesh)
    for (const MeshAxis& axis : mesh->axes()) {
      meta_.axes.push_back(axis.name);
      meta_.mesh_shape.push_back(axis.size);
    }
  meta_.optimizer = optimizer_of(trainer_).name();
  meta_.optimizer_steps = optimizer_of(trainer_).steps;
  std::vector<Entry> model = collect("model", held_), optimizer = collect("optimizer", held_);
  std::vector<Entry> generators;
  for (auto& [device, generator] : generators_of(world)) {
    std::unique_lock lock(generator.mutex());
    Tensor state = generator.get_state().clone();
    lock.unlock();
    generators.push_back({{"rng/" + device, DType::int8, {state.numel()}}, state});
  }
  if (settings_.background) {
    std::vector<Entry> all = std::move(model);
    size_t weights = all.size();
    std::move(optimizer.begin(), optimizer.end(), std::back_inserter(all));
    prepare_snapshot(all);
    model.assign(std::make_move_iterator(all.begin()),
                 std::make_move_iterator(all.begin() + static_cast<int64_t>(weights)));
    optimizer.assign(std::make_move_iterator(all.begin() + static_cast<int64_t>(weights)),
                     std::make_move_iterator(all.end()));
  }
  std::move(generators.begin(), generators.end(), std::back_inserter(optimizer));
  phase_ = Phase::writing;
  // Before the next update changes the values; what lies on a device is read while nobody computes
  // with it.
  bool at_once = !world.device().is_cpu();
  auto digest = [this] {
    digests_ = replica_digests(shares_->replicas(), held_, trainer_.world().rank());
  };
  if (at_once) digest();
  start([this, at_once, digest, model = std::move(model), optimizer = std::move(optimizer)] {
    // The next update waits for the snapshot, whatever happens here.
    Outcome digested = outcome_of([&] {
      if (!at_once) digest();
      return std::string();
    });
    if (settings_.background) snapshot();
    if (digested.error) throw *digested.error;
    return summary_of(digests_) + kAfterSummary + write_files(model, optimizer);
  });
  if (!settings_.background) return finish();
  report_.pause_ms += base::ms_since(began_);
}

void Saver::start(std::function<std::string()> work) {
  worked_ = false;
  if (!settings_.background) {
    outcome_ = outcome_of(work);
    worked_ = true;
    return;
  }
  worker_ = std::thread([this, work = std::move(work)] {
    outcome_ = outcome_of(work);
    worked_ = true;
  });
}

std::string Saver::write_files(const std::vector<Entry>& model,
                               const std::vector<Entry>& optimizer) const {
  fs::path folder = checkpoint::temporary_folder(settings_.folder, report_.step);
  World& world = trainer_.world();
  std::vector<checkpoint::FileRecord> out;
  for (const auto& [kind, entries] :
       {std::pair("model", &model), std::pair("optimizer", &optimizer)}) {
    if (entries->empty()) continue;
    checkpoint::BlockChecksums sums;
    std::string name = file_name(kind, world.rank(), world.size());
    std::vector<weights::TensorSpec> specs;
    for (const Entry& entry : *entries) specs.push_back(entry.spec);
    weights::SafetensorsWriter writer(folder / name, std::move(specs), {{"format", "pt"}},
                                      [&](auto bytes) { sums.add(bytes); });
    for (size_t i = 0; i < entries->size(); ++i) {
      Tensor host = (*entries)[i].values.cpu();
      // In pieces that are still in the cache when they are written after their checksum.
      constexpr size_t kPiece = 1 << 20;
      for (auto rest = bytes_of(host); !rest.empty();
           rest = rest.subspan(std::min(kPiece, rest.size())))
        writer.append(i, rest.first(std::min(kPiece, rest.size())));
    }
    writer.finish();
    out.push_back({name, writer.size(), sums.finish()});
  }
  if (world.rank() == 0)
    for (const auto& [name, source] : settings_.carried)
      out.push_back(copy_file(source, folder / name, name));
  return encode(out);
}

// Rank 0: meta.json of what all ranks wrote, and the renames.
std::string Saver::publish(const std::vector<std::string>& written) {
  std::map<std::string, size_t> index;
  int64_t bytes = 0;
  meta_.files.clear();
  for (const std::string& text : written)
    for (checkpoint::FileRecord& file : decode_files(text)) {
      index[file.name] = meta_.files.size();
      bytes += file.bytes;
      meta_.files.push_back(std::move(file));
    }
  std::map<std::string, DType> dtypes(settings_.export_dtypes.begin(),
                                      settings_.export_dtypes.end());
  meta_.tensors.clear();
  for (size_t i = 0; i < held_.size(); ++i) {
    const LocalTensor& h = held_[i];
    checkpoint::TensorRecord tensor{h.state, h.name, h.dtype, h.shape, {}, h.stored};
    for (int64_t rank = 0; rank < meta_.world_size; ++rank)
      if (const Region* share = shares_->share(i, rank))
        tensor.pieces.push_back(
            {index.at(file_name(h.state.empty() ? "model" : "optimizer", rank, meta_.world_size)),
             "", *share});
    if (tensor.pieces.empty() && !h.state.empty()) continue;  // the state of a frozen parameter
    if (h.state != "buffer") tensor.fused = fused_rows(trainer_.outline(), h.name);
    auto found = dtypes.find(h.name);
    if (found == dtypes.end())
      found = dtypes.find(weights::first_file_name(settings_.facts.architecture, h.name));
    if (h.state.empty() && found != dtypes.end()) tensor.export_dtype = found->second;
    meta_.tensors.push_back(std::move(tensor));
  }
  meta_.generators.clear();
  for (int64_t rank = 0; rank < meta_.world_size; ++rank)
    for (const auto& [device, generator] : generators_of(trainer_.world()))
      meta_.generators.push_back({rank, device,
                                  index.at(file_name("optimizer", rank, meta_.world_size)),
                                  "rng/" + device});
  fs::path path = publication_->publish(meta_, settings_.keep);
  if (settings_.published) settings_.published(path);
  return std::to_string(bytes);
}

void Saver::before_step() {
  if (phase_ == Phase::idle || !worked_) return;
  trainer_.vote(outcome_.error ? RankSignal::background_failed : RankSignal::background_done);
}

void Saver::after_step(const StepResult& result) {
  if (phase_ == Phase::idle) return;
  if (result.votes(RankSignal::background_done) + result.votes(RankSignal::background_failed) ==
      trainer_.world().size())
    settle();
}

void Saver::finish() {
  while (phase_ != Phase::idle) settle();
}

// Collective: all ranks have done their part of the phase, or have failed in it.
void Saver::settle() {
  Clock::time_point begin = Clock::now();
  if (worker_.joinable()) worker_.join();
  World& world = trainer_.world();
  Agreement all = agree(world, outcome_);
  outcome_ = {};
  if (all.error) return end(std::move(all.error));
  if (phase_ == Phase::writing) {
    std::vector<std::string> summaries;
    for (std::string& text : all.texts) {
      size_t split = text.find(kAfterSummary);
      summaries.push_back(text.substr(0, split));
      text.erase(0, split + 1);
    }
    if (std::optional<Error> differ =
            find_differing(world, shares_->replicas(), held_, digests_, summaries, meta_.strategy))
      return end(std::move(differ));
    phase_ = Phase::publishing;
    if (world.rank() == 0)
      start([this, texts = std::move(all.texts)] { return publish(texts); });
    else
      worked_ = true;
    report_.pause_ms += base::ms_since(begin);
    return;
  }
  report_.bytes = std::stoll(all.texts[0]);
  report_.path = settings_.folder / checkpoint::step_name(report_.step);
  report_.pause_ms += base::ms_since(begin);
  end(std::nullopt);
}

void Saver::end(std::optional<Error> error) {
  phase_ = Phase::idle;
  publication_.reset();
  report_.total_ms = base::ms_since(began_);
  if (!settings_.background) report_.pause_ms = report_.total_ms;
  if (!error) {
    last_ = report_.step;
    // From now on they are copied from here: where they came from may go.
    for (auto& [name, source] : settings_.carried) source = report_.path / name;
  }
  report_.error = std::move(error);
  if (settings_.done)
    settings_.done(report_);
  else if (report_.error)
    throw *report_.error;
}

namespace {

Error mismatch(const checkpoint::Checkpoint& from, const std::string& what) {
  return Error(ErrorCode::checkpoint_mismatch, from.folder().string() + ": " + what)
      .key("checkpoint.resume")
      .help(
          "set run.name to another name to train this job beside the one that made the checkpoint")
      .help(
          "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another "
          "name");
}

}  // namespace

bool load_checkpoint(Trainer& trainer, checkpoint::Checkpoint& from) {
  c10::NoGradGuard no_grad;
  const Meta& meta = from.meta();
  ParallelModel& model = trainer.model();
  Optimizer& optimizer = optimizer_of(trainer);
  if (meta.optimizer != optimizer.name())
    throw mismatch(from, "it holds the state of the optimizer " + meta.optimizer +
                             ", this job's is " + optimizer.name())
        .help("set optimizer.name = \"" + meta.optimizer + "\"");
  std::map<std::pair<std::string, std::string>, const checkpoint::TensorRecord*> records;
  size_t weights = 0;
  for (const checkpoint::TensorRecord& tensor : meta.tensors) {
    records[{tensor.state, tensor.name}] = &tensor;
    weights += tensor.state.empty();
  }
  optimizer.steps = meta.optimizer_steps;
  if (meta.optimizer_steps > 0) optimizer.allocate(model.update_groups());
  std::vector<LocalTensor> held = local_state(model, optimizer, trainer.module());
  size_t wanted = 0;
  for (const LocalTensor& h : held) wanted += h.state.empty();
  std::vector<std::pair<const checkpoint::TensorRecord*, const LocalTensor*>> reads;
  for (const LocalTensor& h : held) {
    auto found = records.find({h.state, h.name});
    std::string what = h.state.empty() ? "parameter " + h.name : h.state + " of " + h.name;
    if (found == records.end()) {
      if (h.region.count() == 0 && !h.state.empty()) continue;  // the state of a frozen parameter
      throw mismatch(from, "it has no " + what + ", which the model of this job needs");
    }
    if (found->second->shape != h.shape)
      throw mismatch(from, what + " has the shape " + report::shape_text(found->second->shape) +
                               ", in this job " + report::shape_text(h.shape));
    if (h.state != "buffer" && found->second->fused != fused_rows(trainer.outline(), h.name))
      throw mismatch(from, what + " has its rows in another order than the model of this job");
    if (h.local.defined() && h.local.numel() > 0) reads.emplace_back(found->second, &h);
  }
  if (weights != wanted) {
    std::vector<std::string> known;
    for (const LocalTensor& h : held) known.push_back(h.state.empty() ? h.name : "");
    for (const checkpoint::TensorRecord& tensor : meta.tensors)
      if (tensor.state.empty() && std::find(known.begin(), known.end(), tensor.name) == known.end())
        throw mismatch(from, "it has the parameter " + tensor.name +
                                 ", which the model of this job does not have");
  }
  if (std::string wider = check_dtypes(from, held); !wider.empty() && trainer.world().rank() == 0)
    trainer.world().notice(wider);
  for (const auto& [record, h] : reads) read_into(from, *record, h->region, h->local);
  optimizer.round_weights(model.update_groups());
  model.after_optimizer_step();
  trainer.set_next_step(meta.step);
  World& world = trainer.world();
  if (meta.world_size != world.size() || meta.data_parallel != trainer.data_parallel_size())
    return false;
  bool restored = false;
  for (auto& [device, generator] : generators_of(world))
    for (const checkpoint::GeneratorRecord& record : meta.generators)
      if (record.rank == world.rank() && record.device == device) {
        std::string state = from.read_generator(record);
        Tensor bytes = at::empty({static_cast<int64_t>(state.size())}, at::kByte);
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

}  // namespace meshwright::train

namespace meshwright {

void Trainer::save(const std::string& folder) {
  train::Saver::Settings settings;
  settings.folder = folder;
  settings.keep = 1 << 30;
  settings.facts.architecture = outline_->architecture;
  settings.facts.max_steps = max_steps_;
  train::Saver saver(*this, std::move(settings));
  saver.save(step_ * accumulation_ * local_batch_ * dp_, 0);
}

void Trainer::load(const std::string& path) {
  train::agree_or_throw(*world_, train::outcome_of([&] {
    checkpoint::Checkpoint from(checkpoint::resolve(path));
    train::load_checkpoint(*this, from);
    return std::string();
  }));
}

}  // namespace meshwright
