// What a step reads: rows of a stream of samples, on the device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/mix.h"
#include "engine/data/read_ahead.h"
#include "engine/train/run/same_data.h"
#include "engine/train/step/logits.h"
#include "meshwright/data/dataset_language.h"
#include "meshwright/model/running_model.h"
#include "meshwright/nn/module.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// The micro-batches of one rank: number n has the rows at positions [first + n * stride, ... +
// rows) of the stream. There are `count` of them; where they come again, number `count` is
// number 0.
struct BatchOrder {
  int64_t first = 0, stride = 0, count = 0;
  bool again = false;
};

// What pads a row: what stands behind its last target, or a last document without targets.
struct Padding {
  bool told = false;  // rows are looked through for it, and MicroBatch::ends say where it begins
  // Of rows without documents what pads all of a micro-batch is left out, but for what makes their
  // length a multiple of this; 0: it stays.
  int64_t multiple = 0;
  // So many micro-batches, those of one call of a trainer, are of one length: number n * together
  // and those behind it. They are read at once.
  int64_t together = 1;
};

// Takes the targets from rows at positions from `samples` on, where the data set begins anew, so
// that each of that many samples counts once.
void leave_out_from(int64_t samples, HostBatch& batch);

class Batches {
 public:
  struct Settings {
    int64_t rows = 1, seq_len = 1;
    at::Device device = at::kCPU;
    int64_t workers = 0;  // threads that read ahead
    Padding padding = {};
    std::function<void()> while_waiting = {};
    // What the model makes of a micro-batch; empty: nothing. Its sample number is set.
    std::function<void(HostBatch&)> change = {};
    // Of a mix: the source of a position, for MicroBatch::sources; empty: they stay empty.
    std::function<size_t(int64_t position)> source_of = {};
  };
  Batches(data::SampleStream stream, BatchOrder order, Settings settings);
  // Until forget_before() lets go of it, the same one again: stages of a pipeline share it. Throws
  // the error of its first sample that has one.
  const MicroBatch& at(int64_t number);
  void forget_before(int64_t number);
  // How long at() has waited for samples since it was asked last, in ms.
  double take_waited_ms();

 private:
  struct Memory;
  struct Slot {
    std::shared_ptr<Memory> memory;
    std::shared_ptr<data::ReadAhead::Task> task;
    MicroBatch batch;  // once it was asked for
  };
  Slot begin(int64_t number);
  Slot& slot(int64_t number) { return slots_.at(static_cast<size_t>(number - begin_)); }
  // Of its first row.
  int64_t position_of(int64_t number) const {
    return order_.first + (order_.again ? number % order_.count : number) * order_.stride;
  }
  // What length is left of a micro-batch.
  int64_t find_padding(Memory& memory) const;
  void cut(Memory& memory, int64_t length) const;
  // Waits for the micro-batches of numbers [from, to), none of which was asked for yet, and cuts
  // them to one length.
  void read(int64_t from, int64_t to);
  void change(int64_t number, Memory& memory) const;
  MicroBatch move_to_device(const std::shared_ptr<Memory>& memory) const;
  std::vector<int64_t> sources(int64_t number) const;

  bool documents_, weights_;
  BatchOrder order_;
  Settings settings_;
  int64_t ahead_;  // micro-batches that are read before they are asked for
  data::ReadAhead reader_;
  std::deque<Slot> slots_;  // of the numbers from begin_ on
  int64_t begin_ = 0;
  double waited_ms_ = 0;
};

// The data that a run reads.
struct OpenData {
  data::DatasetConfig config;
  std::shared_ptr<const SampleSource> source;
  // nullptr: the data are no mix.
  std::shared_ptr<const data::Mix> mix() const {
    return std::dynamic_pointer_cast<const data::Mix>(source);
  }
};
struct RunData {
  OpenData train;
  std::vector<OpenData> validation;   // none; or one without a name; or those of its sets
  data::DataFingerprint fingerprint;  // of the training data
  std::vector<FileGroup> files;       // which all ranks must have alike
  std::vector<Fingerprint> fingerprints;
};
// What takes long, before the ranks meet. Of a run that is counted in epochs [dataset] is opened,
// too, for whose samples a plan waits; else no source is returned. Throws as the functions of
// data/dataset.h.
OpenData prepare_run_data(const Job& job, int64_t vocab, uint64_t seed);
// [dataset], and [validation_dataset] where it names data. `opened`: what prepare_run_data()
// returned. Throws as that.
RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed, OpenData opened);

// With which a model that learns these data is read later, where they are not the model's own (see
// DatasetLanguage). Throws Error(bad_dataset) for names that leave the folder.
std::vector<LanguageFile> language_of(const data::DatasetConfig& config);

// How samples of `data` that are padded are read for this model. What pads is told where nothing of
// it reaches a loss; it is left out where the model's angles do not follow from the length.
// `together`: micro-batches of one call of the trainer, which are of one length in a pipeline.
Padding padding_of(const Trainer& trainer, RunningModel& model, const data::DatasetConfig& data,
                   int64_t together);

// Throws Error(bad_module) for a model without attention cores: nothing of it would keep the
// documents of a sample apart.
void check_documents_reach(torch::nn::Module& model, const std::string& name,
                           const data::DatasetConfig& config);

}  // namespace meshwright::train
