#include "engine/train/run/saver.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <system_error>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/weights/read_region.h"
#include "engine/job/plan.h"
#include "engine/train/run/resume.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/host/quiet_writes.h"
#include "sdk/base/plain_text.h"

namespace meshwright::checkpoint {

BOOST_DESCRIBE_STRUCT(FileRecord, (), (name, bytes, blocks))

}  // namespace meshwright::checkpoint

namespace meshwright::train {

namespace fs = std::filesystem;
using at::Tensor;
using Clock = std::chrono::steady_clock;

std::string rank_file_name(const char* kind, int64_t rank, int64_t world) {
  return text::format("%s-%05lld-of-%05lld.safetensors", kind, static_cast<long long>(rank) + 1,
                      static_cast<long long>(world));
}

checkpoint::FileRecord write_rank_file(const RankFile& file, HostReads& values,
                                       const fs::path& folder, const std::string& name) {
  checkpoint::BlockChecksums sums;
  std::vector<weights::TensorSpec> specs;
  for (const FileEntry& entry : file.entries) specs.push_back(entry.spec);
  weights::SafetensorsWriter writer(folder / name, std::move(specs), {{"format", "pt"}},
                                    [&](auto bytes) { sums.add(bytes); });
  for (size_t i = 0; i < file.entries.size(); ++i) {
    // In pieces that are still in the cache when they are written after their checksum.
    constexpr size_t kPiece = 1 << 20;
    values.next([&](std::span<const std::byte> rest) {
      for (; !rest.empty(); rest = rest.subspan(std::min(kPiece, rest.size())))
        writer.append(i, rest.first(std::min(kPiece, rest.size())));
    });
  }
  writer.finish();
  return {name, writer.size(), sums.finish()};
}

void Snapshot::prepare(std::vector<RankFile>& files) {
  size_t count = 0;
  for (const RankFile& file : files) count += file.entries.size();
  copies_.resize(count);
  originals_.assign(count, Tensor());
  copied_.reset();
  std::optional<at::Device> device;
  size_t i = 0;
  for (RankFile& file : files)
    for (FileEntry& entry : file.entries) {
      Tensor &copy = copies_[i], values = entry.values.view({-1});
      if (!copy.defined() || copy.numel() != values.numel() ||
          copy.scalar_type() != values.scalar_type())
        copy = at::empty({values.numel()},
                         values.options().device(at::kCPU).pinned_memory(values.is_cuda()));
      if (values.is_cpu() && entry.spec.name.rfind("buffer/", 0) != 0)
        originals_[i] = values;
      else
        copy.copy_(values, /*non_blocking=*/values.is_cuda());
      if (values.is_cuda()) device = values.device();
      entry.values = copy;
      ++i;
    }
  if (device) {
    copied_.emplace(device->type());
    copied_->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
  }
  taken_ = std::ranges::none_of(originals_, [](const Tensor& one) { return one.defined(); });
}

void Snapshot::take() {
  for (size_t i = 0; i < originals_.size(); ++i)
    if (originals_[i].defined())
      std::memcpy(copies_[i].mutable_data_ptr(), originals_[i].const_data_ptr(),
                  originals_[i].nbytes());
  taken_ = true;
  taken_.notify_all();
  if (!copied_) return;
  // This thread's own device may be another one.
  const c10::DeviceGuard guard(copied_->device());
  copied_->synchronize();
}

double Snapshot::wait() const {
  if (taken_) return 0;
  const Clock::time_point begin = Clock::now();
  taken_.wait(false);
  return base::ms_since(begin);
}

namespace {

// What a rank tells the others that it has written.
struct Written {
  std::vector<uint64_t> summary;
  std::string files;  // their records, which are many, and only rank 0 reads
};
BOOST_DESCRIBE_STRUCT(Written, (), (summary, files))

}  // namespace

Saver::Saver(Trainer& trainer, Settings settings)
    : trainer_(trainer), settings_(std::move(settings)) {
  if (settings_.background)
    trainer_.before_update([this] { report_.pause_ms += snapshot_.wait(); });
}

Saver::~Saver() {
  if (settings_.background) trainer_.before_update({});
  if (worker_.joinable()) worker_.join();
}

const std::string* Saver::left_to_base(const LocalTensor& tensor) const {
  const auto found = settings_.in_base.find(tensor.name);
  return tensor.frozen && tensor.state.empty() && found != settings_.in_base.end() ? &found->second
                                                                                   : nullptr;
}

// What this rank writes of the tensors of one kind: views of what trains.
RankFile Saver::collect(const char* kind) const {
  const bool weights = std::string_view(kind) == "model";
  RankFile out{kind, {}};
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const LocalTensor& tensor = tensors_[i];
    const Region* share = shares_->share(i, trainer_.world().rank());
    if (weights != tensor.state.empty() || share == nullptr || left_to_base(tensor) != nullptr)
      continue;
    Tensor values = tensor.local;
    if (!(*share == tensor.region)) {
      int64_t begin =
          as_run(*share, tensor.shape).begin - as_run(tensor.region, tensor.shape).begin;
      if (share->count() != tensor.region.count())
        values = values.contiguous().view({-1}).narrow(0, begin, share->count());
    }
    out.entries.push_back({{tensor.state.empty() ? tensor.name : tensor.state + "/" + tensor.name,
                            tensor.dtype, share->stored_shape()},
                           values.contiguous()});
  }
  return out;
}

// What meta.json says of this save before anything is written.
checkpoint::Meta Saver::describe(int64_t samples, double lr) const {
  const plan::JobPlan& plan = trainer_.plan();
  checkpoint::Meta meta = settings_.facts;
  meta.step = report_.step;
  meta.samples = samples;
  if (settings_.mix) meta.mix = settings_.mix(samples);
  meta.lr = lr;
  meta.best = report_.best;
  meta.created = base::utc_now();
  meta.program = MESHWRIGHT_VERSION;
  meta.strategy = plan.strategy.info->name;
  meta.plugin_version = plan.strategy.plugin->version;
  meta.world_size = trainer_.world().size();
  meta.data_parallel = trainer_.data_parallel_size();
  meta.axes.clear();
  meta.mesh_shape.clear();
  if (const std::optional<Mesh>& mesh = plan.mesh.device_mesh)
    for (const MeshAxis& axis : mesh->axes()) {
      meta.axes.push_back(axis.name);
      meta.mesh_shape.push_back(axis.size);
    }
  meta.optimizer = optimizer_of(trainer_).name();
  meta.optimizer_steps = optimizer_of(trainer_).steps;
  meta.history = monitor_of(trainer_).history();
  return meta;
}

void Saver::save(int64_t samples, double lr, std::optional<checkpoint::BestLoss> best,
                 SaveReason reason) {
  finish();
  c10::NoGradGuard no_grad;
  trainer_.before_save(reason);
  began_ = Clock::now();
  World& world = trainer_.world();
  report_ = {};
  report_.step = trainer_.next_step();
  report_.best = best;
  Agreement begun = agree(world, outcome_of([&] {
                            if (world.rank() == 0)
                              publication_ = std::make_unique<checkpoint::Publication>(
                                  settings_.folder, report_.step);
                            return std::string();
                          }));
  if (begun.error) return end(std::move(begun.error));
  const std::vector<LocalTensor> mine = local_state(trainer_);
  // The optimizer has states from its first step on; on all ranks, if it has any.
  const bool with_states = optimizer_of(trainer_).steps > 0;
  if (!shares_ || with_states_ != with_states) {
    shares_ = std::make_unique<Shares>(world, mine);
    with_states_ = with_states;
  }
  tensors_ = shares_->in_order(mine);
  meta_ = describe(samples, lr);
  std::vector<RankFile> files{collect("model"), collect("optimizer")};
  if (settings_.background) snapshot_.prepare(files);
  for (const auto& [device, generator] : generators_of(world)) {
    Tensor state = state_of(generator);
    files.back().entries.push_back({{"rng/" + device, DType::int8, {state.numel()}}, state});
  }
  phase_ = Phase::writing;
  write(std::move(files));
  if (!settings_.background) return finish();
  report_.pause_ms += base::ms_since(began_);
}

void Saver::write(std::vector<RankFile> files) {
  // Before the next update changes the values; what lies on a device is read while nobody computes
  // with it.
  const bool at_once = !trainer_.world().device().is_cpu();
  auto digest = [this] {
    digests_ = replica_digests(shares_->replicas(), tensors_, trainer_.world().rank());
  };
  if (at_once) digest();
  start([this, at_once, digest, files = std::move(files)] {
    // The next update waits for the snapshot, whatever happens here.
    Outcome digested = outcome_of([&] {
      if (!at_once) digest();
      return std::string();
    });
    if (settings_.background) snapshot_.take();
    if (digested.error) throw *digested.error;
    return base::json_text(Written{summary_of(digests_), write_files(files)});
  });
}

void Saver::start(std::function<std::string()> work) {
  worked_ = false;
  const auto run = [this, work = std::move(work)] {
    outcome_ = outcome_of(work);
    worked_ = true;
  };
  try {
    if (settings_.background) return void(worker_ = std::thread(run));
  } catch (const std::system_error&) {  // no thread is to be had: training waits, the save is made
  }
  run();
}

std::string Saver::write_files(const std::vector<RankFile>& files) const {
  const fs::path folder = checkpoint::temporary_folder(settings_.folder, report_.step);
  World& world = trainer_.world();
  // Those of all files together, so that a batch may hold the end of one and the beginning of the
  // next.
  std::vector<Tensor> tensors;
  for (const RankFile& file : files)
    for (const FileEntry& entry : file.entries) tensors.push_back(entry.values);
  HostReads values(std::move(tensors));
  std::vector<checkpoint::FileRecord> out;
  for (const RankFile& file : files)
    if (!file.entries.empty())
      out.push_back(write_rank_file(file, values, folder,
                                    rank_file_name(file.kind, world.rank(), world.size())));
  if (world.rank() == 0)
    for (const KeptFile& kept : settings_.kept.all()) out.push_back(write_kept(kept, folder));
  return base::json_text(out);
}

// Rank 0: meta.json of what all ranks wrote, and the renames.
std::string Saver::publish(const std::vector<std::string>& written) {
  std::map<std::string, size_t> index;
  int64_t bytes = 0;
  meta_.files.clear();
  for (const std::string& text : written)
    for (auto& file : base::read_json_text<std::vector<checkpoint::FileRecord>>(text)) {
      index[file.name] = meta_.files.size();
      bytes += file.bytes;
      meta_.files.push_back(std::move(file));
    }
  meta_.tensors = tensor_records(index);
  meta_.generators.clear();
  for (int64_t rank = 0; rank < meta_.world_size; ++rank)
    for (const auto& [device, generator] : generators_of(trainer_.world()))
      meta_.generators.push_back({rank, device,
                                  index.at(rank_file_name("optimizer", rank, meta_.world_size)),
                                  "rng/" + device});
  fs::path path = publication_->publish(meta_, settings_.keep);
  if (settings_.published) settings_.published(path);
  return std::to_string(bytes);
}

// Where the parts of every tensor lie. `file_index`: the place of each file in Meta::files.
std::vector<checkpoint::TensorRecord> Saver::tensor_records(
    const std::map<std::string, size_t>& file_index) const {
  std::map<std::string, DType> dtypes(settings_.export_dtypes.begin(),
                                      settings_.export_dtypes.end());
  Optimizer& optimizer = optimizer_of(trainer_);
  const std::vector<Optimizer::State> states = optimizer.state();
  auto is_of_optimizer = [&](const std::string& state) {
    return std::ranges::find(states, kind_of(state), &Optimizer::State::name) != states.end();
  };
  std::vector<checkpoint::TensorRecord> out;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const LocalTensor& tensor = tensors_[i];
    checkpoint::TensorRecord record{tensor.state, tensor.name, tensor.dtype,
                                    tensor.shape, {},          tensor.stored};
    const char* kind = tensor.state.empty() ? "model" : "optimizer";
    const std::string* base = left_to_base(tensor);
    for (int64_t rank = 0; rank < meta_.world_size && base == nullptr; ++rank)
      if (const Region* share = shares_->share(i, rank))
        record.pieces.push_back(
            {file_index.at(rank_file_name(kind, rank, meta_.world_size)), "", *share});
    if (record.pieces.empty() && !tensor.state.empty()) continue;  // a frozen parameter's state
    auto found = dtypes.find(tensor.name);
    if (const ParameterOutline* parameter = trainer_.outline().find_parameter(tensor.name);
        parameter != nullptr && tensor.state != "buffer") {
      record.fused = parameter->fused;
      record.transposed = parameter->stored.transposed;
      const std::vector<std::string>& names = parameter->stored.names;
      if (!names.empty() && names[0] != tensor.name) record.file_name = names[0];
      for (const std::string& name : names)
        if (found == dtypes.end()) found = dtypes.find(name);
    }
    if (found == dtypes.end())
      found = dtypes.find(weights::first_file_name(settings_.facts.architecture, tensor.name));
    if (const auto late = optimizer.began.find(tensor.name);
        late != optimizer.began.end() && is_of_optimizer(tensor.state))
      record.steps = meta_.optimizer_steps - late->second;
    if (tensor.state.empty() && found != dtypes.end()) record.export_dtype = found->second;
    if (base != nullptr) {
      record.base = *base;
      record.dtype = record.export_dtype;
    }
    out.push_back(std::move(record));
  }
  return out;
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
    std::vector<std::vector<uint64_t>> summaries;
    for (std::string& text : all.texts) {
      auto written = base::read_json_text<Written>(text);
      summaries.push_back(std::move(written.summary));
      text = std::move(written.files);
    }
    if (std::optional<Error> differ = find_differing(world, shares_->replicas(), tensors_, digests_,
                                                     summaries, meta_.strategy))
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
  if (!error) last_ = report_.step;
  report_.error = std::move(error);
  if (settings_.done)
    settings_.done(report_);
  else if (report_.error)
    throw *report_.error;
}

}  // namespace meshwright::train

namespace meshwright {

void Trainer::save(const std::string& folder) {
  const base::QuietWrites quiet;
  train::Saver::Settings settings;
  settings.folder = folder;
  settings.keep.newest = 1 << 30;
  settings.facts.architecture = outline_->architecture;
  settings.facts.max_steps = max_steps_;
  if (!plan_->adapter_config.empty())
    settings.kept.add(std::string(checkpoint::kAdapterConfig), plan_->adapter_config);
  train::Saver saver(*this, std::move(settings));
  saver.save(step_ * accumulation_ * local_batch_ * dp_, 0);
}

}  // namespace meshwright
