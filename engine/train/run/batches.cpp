#include "engine/train/run/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/config/sources.h"
#include "engine/job/job.h"
#include "engine/job/plan.h"
#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/rotary.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/words.h"

namespace meshwright::train {

using at::Tensor;

// On the host, pinned where a device copies from it; the copy goes on while the host reads the next
// rows, and the allocator of pinned memory keeps these until then.
struct Batches::Memory {
  Tensor ids;  // tokens, targets and positions one behind the other, for one copy
  Tensor tokens, targets, documents, positions, weights;
  std::vector<int64_t> ends;  // MicroBatch::ends
};

namespace {

// From 0 in each document.
void fill_positions(const Tensor& documents, const Tensor& positions) {
  const auto* document = documents.const_data_ptr<int32_t>();
  auto* out = positions.mutable_data_ptr<int64_t>();
  const int64_t length = documents.size(1);
  for (int64_t i = 0; i < documents.numel(); ++i)
    out[i] = i % length == 0 || document[i] != document[i - 1] ? 0 : out[i - 1] + 1;
}

// Each row's first `length` values, one row behind the other, in the same memory.
template <class T>
Tensor shortened(const Tensor& rows, int64_t length) {
  const int64_t from = rows.size(-1), count = rows.numel() / from;
  T* values = rows.mutable_data_ptr<T>();
  for (int64_t row = 1; row < count; ++row)
    std::copy_n(values + row * from, length, values + row * length);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.back() = length;
  return rows.view({-1}).narrow(0, 0, count * length).view(sizes);
}

}  // namespace

void leave_out_from(int64_t samples, HostBatch& batch) {
  for (int64_t row = std::max<int64_t>(samples - batch.sample, 0); row < batch.targets.size(0);
       ++row)
    batch.targets.select(0, row).fill_(kNoTarget);
}

Batches::Batches(data::SampleStream stream, BatchOrder order, Settings settings)
    : documents_(stream.has_documents()),
      weights_(stream.has_weights()),
      order_(order),
      settings_(std::move(settings)),
      // Every thread has a row to read while the rows of a micro-batch are used.
      ahead_(settings_.workers == 0
                 ? 0
                 : 1 + (settings_.workers + settings_.rows - 1) / settings_.rows),
      reader_(
          std::move(stream),
          {.seq_len = settings_.seq_len, .rows = settings_.rows, .workers = settings_.workers}) {
  for (int64_t i = 0; i < ahead_ && (order_.again || i < order_.count); ++i)
    slots_.push_back(begin(i));
}

Batches::Slot Batches::begin(int64_t number) {
  Slot slot;
  slot.memory = std::make_shared<Memory>();
  auto room = [&](at::ScalarType type, int64_t many) {
    return at::empty({many, settings_.rows, settings_.seq_len},
                     at::TensorOptions(type).pinned_memory(!settings_.device.is_cpu()));
  };
  Memory& memory = *slot.memory;
  data::BatchMemory raw;
  memory.ids = room(at::kLong, documents_ ? 3 : 2);
  memory.tokens = memory.ids.select(0, 0);
  memory.targets = memory.ids.select(0, 1);
  raw.tokens = memory.tokens.mutable_data_ptr<int64_t>();
  raw.targets = memory.targets.mutable_data_ptr<int64_t>();
  if (documents_) {
    memory.documents = room(at::kInt, 1).select(0, 0);
    memory.positions = memory.ids.select(0, 2);
    raw.documents = memory.documents.mutable_data_ptr<int32_t>();
  }
  if (weights_) {
    memory.weights = room(at::kFloat, 1).select(0, 0);
    raw.weights = memory.weights.mutable_data_ptr<float>();
  }
  raw.owner = slot.memory;
  slot.task = reader_.begin(position_of(number), std::move(raw));
  return slot;
}

int64_t Batches::find_padding(Memory& memory) const {
  if (!settings_.padding.told) return settings_.seq_len;
  const bool documents = memory.documents.defined();
  const auto length = static_cast<size_t>(settings_.seq_len);
  const auto* targets = memory.targets.const_data_ptr<int64_t>();
  std::span<const int32_t> of_row;
  int64_t longest = 1;
  for (int64_t row = 0; row < settings_.rows; ++row) {
    const int64_t first = row * settings_.seq_len;
    if (documents) of_row = {memory.documents.const_data_ptr<int32_t>() + first, length};
    memory.ends.push_back(
        static_cast<int64_t>(data::padding_begin({targets + first, length}, of_row)));
    longest = std::max(longest, memory.ends.back());
  }
  const int64_t multiple = settings_.padding.multiple;
  if (multiple == 0 || documents) return settings_.seq_len;
  return std::min((longest + multiple - 1) / multiple * multiple, settings_.seq_len);
}

void Batches::cut(Memory& memory, int64_t length) const {
  if (length == settings_.seq_len) return;
  memory.ids = shortened<int64_t>(memory.ids, length);
  memory.tokens = memory.ids.select(0, 0);
  memory.targets = memory.ids.select(0, 1);
  if (memory.weights.defined()) memory.weights = shortened<float>(memory.weights, length);
}

void Batches::change(int64_t number, Memory& memory) const {
  if (!settings_.change) return;
  HostBatch batch;
  batch.tokens = memory.tokens;
  batch.targets = memory.targets;
  batch.sample = position_of(number);
  settings_.change(batch);
  for (auto [changed, mine] :
       {std::pair(&batch.tokens, &memory.tokens), std::pair(&batch.targets, &memory.targets)}) {
    if (changed->is_same(*mine)) continue;
    if (changed->sizes() != mine->sizes() || changed->scalar_type() != at::kLong)
      throw Error(ErrorCode::plugin_nonconforming,
                  "change_batch() of the model changed the shape or the type of tokens or targets")
          .help("leave them int64 [rows, length]");
    mine->copy_(*changed);
  }
}

MicroBatch Batches::move_to_device(const std::shared_ptr<Memory>& memory) const {
  auto moved = [&](const Tensor& host) {
    return host.defined() && !settings_.device.is_cpu()
               ? host.to(settings_.device, /*non_blocking=*/true)
               : host;
  };
  if (memory->documents.defined()) fill_positions(memory->documents, memory->positions);
  const Tensor ids = moved(memory->ids);
  MicroBatch out{.tokens = ids.select(0, 0),
                 .targets = ids.select(0, 1),
                 .documents = moved(memory->documents),
                 .positions = memory->positions.defined() ? ids.select(0, 2) : Tensor(),
                 .weights = moved(memory->weights),
                 .host_targets = memory->targets.const_data_ptr<int64_t>(),
                 .host = memory,
                 .ends = memory->ends};
  if (memory->weights.defined()) out.host_weights = memory->weights.const_data_ptr<float>();
  if (memory->documents.defined()) out.host_documents = memory->documents.const_data_ptr<int32_t>();
  return out;
}

std::vector<int64_t> Batches::sources(int64_t number) const {
  std::vector<int64_t> out;
  for (int64_t row = 0; settings_.source_of && row < settings_.rows; ++row)
    out.push_back(static_cast<int64_t>(settings_.source_of(position_of(number) + row)));
  return out;
}

const MicroBatch& Batches::at(int64_t number) {
  const int64_t together = settings_.padding.together, first = number / together * together;
  int64_t end = first + together;
  if (!order_.again) end = std::min(end, order_.count);
  const int64_t wanted = order_.again ? end + ahead_ : std::min(end + ahead_, order_.count);
  while (begin_ + static_cast<int64_t>(slots_.size()) < wanted)
    slots_.push_back(begin(begin_ + static_cast<int64_t>(slots_.size())));
  const Slot& one = slot(number);
  if (!one.batch.tokens.defined()) read(std::max(first, begin_), end);
  return one.batch;
}

void Batches::read(int64_t from, int64_t to) {
  int64_t length = 1;
  for (int64_t number = from; number < to; ++number) {
    const auto since = std::chrono::steady_clock::now();
    reader_.wait(slot(number).task, settings_.while_waiting);
    waited_ms_ += base::ms_since(since);
    length = std::max(length, find_padding(*slot(number).memory));
  }
  for (int64_t number = from; number < to; ++number) {
    Slot& one = slot(number);
    cut(*one.memory, length);
    change(number, *one.memory);
    one.batch = move_to_device(one.memory);
    one.batch.sources = sources(number);
    one.memory.reset();
    one.task.reset();
  }
}

void Batches::forget_before(int64_t number) {
  for (; begin_ < number && !slots_.empty(); ++begin_) slots_.pop_front();
  if (slots_.empty()) begin_ = std::max(begin_, number);
}

double Batches::take_waited_ms() { return std::exchange(waited_ms_, 0); }

namespace {

// The data of a validation is of another seed.
data::DatasetConfig config_of(const Job& job, const std::string& table, int64_t vocab,
                              uint64_t seed) {
  return data::dataset_config(job.impl(), table, vocab, table == "dataset" ? seed : seed + 1);
}

// Told to all ranks, which must have them alike: "training data", of one with a name
// "training data web".
void add_to(RunData& run, const data::DatasetConfig& config, const SampleSource& source,
            std::string what) {
  if (!config.name.empty()) what += " " + config.name;
  run.files.push_back({config.key(), "files of the " + what, source.files()});
  run.fingerprints.push_back(
      {config.key(), what, checkpoint::to_hex(data::fingerprint_of(config, source))});
}

// Those that are read one by one: of sets each.
std::vector<data::DatasetConfig> validation_configs(const Job& job, int64_t vocab, uint64_t seed) {
  if (!config::names_data(job.impl().config, "validation_dataset")) return {};
  data::DatasetConfig config = config_of(job, "validation_dataset", vocab, seed);
  if (!config.sources.empty()) return std::move(config.sources);
  return {std::move(config)};
}

// The setting with which a sample is one document.
std::string one_document_each(const data::DatasetConfig& config) {
  if (!config.plugin) return "set " + config.table + ".packing = false";
  const OptionSchema& schema = config.plugin->options.schema();
  const meshwright_option* packing = schema.find("packing");
  return packing != nullptr && packing->choices != nullptr &&
                 std::ranges::count(text::split(packing->choices, '|'), "none") > 0
             ? "set " + schema.table + ".packing = \"none\""
             : "read data whose samples are one document each";
}

}  // namespace

OpenData prepare_run_data(const Job& job, int64_t vocab, uint64_t seed) {
  OpenData out{config_of(job, "dataset", vocab, seed), nullptr};
  data::prepare_data(out.config);
  for (const data::DatasetConfig& one : validation_configs(job, vocab, seed)) try {
      data::prepare_data(one);
    } catch (const Error& error) {
      throw data::named(error, one);
    }
  if (data::counts_epochs(job.impl())) out.source = data::open_samples(out.config);
  return out;
}

std::vector<LanguageFile> language_of(const data::DatasetConfig& config) {
  // Of a mix: a template that a source chose is what its chats were written with; else the first
  // source's files.
  std::vector<LanguageFile> all;
  for (const data::DatasetConfig& one : config.sources)
    for (LanguageFile& file : language_of(one)) {
      const auto same = std::ranges::find(all, file.name, &LanguageFile::name);
      if (same == all.end())
        all.push_back(std::move(file));
      else if (file.path.empty())
        *same = std::move(file);
    }
  if (std::ranges::any_of(all, [](const LanguageFile& one) { return one.path.empty(); }))
    std::erase_if(all, [](const LanguageFile& one) {  // of another template
      return one.name.starts_with("additional_chat_templates/");
    });
  if (!config.plugin) return all;
  const auto* language =
      static_cast<DatasetLanguage*>(config.plugin->kind->extension(kDatasetLanguage));
  if (language == nullptr) return {};
  std::vector<LanguageFile> out = language->language(data::request_of(config));
  for (const LanguageFile& file : out) {
    const std::filesystem::path name = file.name;
    if (name.empty() || name.is_absolute() || name != name.lexically_normal() ||
        *name.begin() == "..")
      throw Error(ErrorCode::bad_dataset, "the plugin " + config.plugin->name + " wants \"" +
                                              file.name + "\" saved, which is no name in a folder");
  }
  return out;
}

Padding padding_of(const Trainer& trainer, RunningModel& model, const data::DatasetConfig& data,
                   int64_t together) {
  // The engine's own data is not padded.
  const bool pads = data.plugin || std::ranges::any_of(data.sources, [](const auto& one) {
                      return one.plugin.has_value();
                    });
  if (!pads || !model.generates() || model.changes_batches()) return {};
  const ParallelSizes& sizes = trainer.plan().shared.sizes;
  bool by_length = false;  // alike on all stages: what has no parameters lies on each
  for (const auto& module : model.module()->modules())
    if (const auto rotary = std::dynamic_pointer_cast<RotaryEmbeddingImpl>(module))
      by_length = by_length || rotary->follows_length();
  // Stages of a pipeline send each other hidden states of one size in a run. Each of them reads all
  // of its micro-batches, and so knows their longest without asking.
  const bool whole = by_length || (sizes.pp > 1 && !trainer.plan().outline);
  return {.told = true,
          .multiple = whole ? 0 : std::lcm(int64_t{8}, 2 * sizes.cp * sizes.tp),
          .together = sizes.pp > 1 ? together : 1};
}

void check_documents_reach(torch::nn::Module& model, const std::string& name,
                           const data::DatasetConfig& config) {
  for (const auto& module : model.modules())
    if (std::dynamic_pointer_cast<AttentionCoreImpl>(module)) return;
  throw Error(ErrorCode::bad_module, name +
                                         " has no attention core, so tokens would see those of "
                                         "other documents of their sample")
      .key(config.plugin ? config.key() : config.table + ".packing")
      .help("let attention call a meshwright::AttentionCore (meshwright/nn/attention.h)")
      .help(one_document_each(config));
}

RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed, OpenData opened) {
  RunData out;
  if (!opened.source) opened.config = config_of(job, "dataset", vocab, seed);
  if (!opened.source) opened.source = data::open_samples(opened.config);
  if (const auto mix = opened.mix()) {
    for (const data::Mix::Source& one : mix->sources())
      add_to(out, one.config, *one.samples, "training data");
  } else {
    add_to(out, opened.config, *opened.source, "training data");
  }
  out.fingerprint = data::fingerprints_of(opened.config, *opened.source);
  out.train = std::move(opened);
  for (data::DatasetConfig& one : validation_configs(job, vocab, seed)) try {
      out.validation.push_back({one, data::open_samples(one)});
      add_to(out, one, *out.validation.back().source, "validation data");
    } catch (const Error& error) {
      throw data::named(error, one);
    }
  return out;
}

}  // namespace meshwright::train
