// Saving a run: the safetensors files that one rank writes, and the checkpoint that all publish.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/train/run/host_reads.h"
#include "engine/train/run/kept_files.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/rank_agreement.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// A tensor of a file. The values are contiguous and on any device.
struct FileEntry {
  weights::TensorSpec spec;
  at::Tensor values;
};

struct RankFile {
  const char* kind;  // "model", "optimizer"
  std::vector<FileEntry> entries;
};

// "model-00001-of-00002.safetensors"
std::string rank_file_name(const char* kind, int64_t rank, int64_t world);

// Gives the checksums of its blocks. `values` reads those of its entries next.
checkpoint::FileRecord write_rank_file(const RankFile& file, HostReads& values,
                                       const std::filesystem::path& folder,
                                       const std::string& name);

// Copies of what a save writes, so that training goes on beside the writing. The memory of the
// copies is kept for the next save.
class Snapshot {
 public:
  // From here on the entries are copies. Of what lies on the host, what only the optimizer changes
  // is copied by take(), buffers, which a forward may change, at once. What lies on a device is
  // copied by its stream: before all that is launched there afterwards, and nobody waits here.
  void prepare(std::vector<RankFile>& files);
  // In the thread that writes. After it the copies are whole.
  void take();
  // In the thread that trains: returns once an update may change the values, and the milliseconds
  // that took.
  double wait() const;

 private:
  std::vector<at::Tensor> originals_, copies_;  // an undefined original is copied without take()
  std::optional<c10::Event> copied_;            // comes after a device's copies
  std::atomic<bool> taken_ = true;              // the originals
};

// How a save went; the same on every rank but for the times.
struct SaveReport {
  int64_t step = 0;                          // steps done
  std::optional<checkpoint::BestLoss> best;  // as it was told to save()
  std::filesystem::path path;
  int64_t bytes = 0;
  double pause_ms = 0;  // that training waited
  double total_ms = 0;  // from the beginning until it was published
  std::optional<Error> error;
};

// Writes checkpoints of a trainer: every rank its own shards, published together or not at all.
// With `background` the values are copied while the next step computes (only its update has to wait
// for that; a device copies before it computes, and nothing waits) and written beside training,
// which costs the memory of what this rank writes; a save that is still under way is waited for
// when the next one begins. Only one per trainer at a time.
class Saver {
 public:
  struct Settings {
    std::filesystem::path folder;  // of checkpoints; made when absent
    checkpoint::Retention keep;
    bool background = false;
    // What is known of the run and does not change: architecture, data, schedule, seed, export
    // dtypes by name.
    checkpoint::Meta facts;
    std::vector<std::pair<std::string, DType>> export_dtypes;
    // How a mix of data sets is read at a position; empty: the data are none.
    std::function<checkpoint::MixRecord(int64_t samples)> mix;
    // Weights that facts.base holds, by parameter, with their tensors there. Those that do not
    // train are left to it.
    std::map<std::string, std::string> in_base;
    KeptFiles kept;  // rank 0
    // Rank 0, after each publication, in the background too.
    std::function<void(const std::filesystem::path& checkpoint)> published;
    // Every rank, once a save has ended; may throw, which then leaves save(), after_step() or
    // finish().
    std::function<void(const SaveReport&)> done;
  };
  Saver(Trainer& trainer, Settings settings);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Collective. Refuses replicas that differ (kept_files.h). `samples`: the position of the next
  // sample; `lr`: of the last step; `best`: of runs that keep it.
  void save(int64_t samples, double lr, std::optional<checkpoint::BestLoss> best = {},
            SaveReason reason = SaveReason::asked);
  // Around every Trainer::step: a background save moves on once all ranks have written.
  void before_step();
  void after_step(const StepResult& result);  // collective
  // Collective. Waits for what is under way.
  void finish();
  bool busy() const { return phase_ != Phase::idle; }  // a background save is under way
  int64_t last_step() const { return last_; }          // of the last good save; -1: none

 private:
  enum class Phase : uint8_t { idle, writing, publishing };
  // The base model's tensor that a tensor is left to; nullptr: it is written.
  const std::string* left_to_base(const LocalTensor& tensor) const;
  RankFile collect(const char* kind) const;
  checkpoint::Meta describe(int64_t samples, double lr) const;
  void write(std::vector<RankFile> files);
  void start(std::function<std::string()> work);
  void settle();
  void end(std::optional<Error> error);
  std::string write_files(const std::vector<RankFile>& files) const;
  std::string publish(const std::vector<std::string>& written);
  std::vector<checkpoint::TensorRecord> tensor_records(
      const std::map<std::string, size_t>& file_index) const;

  Trainer& trainer_;
  Settings settings_;
  std::unique_ptr<Shares> shares_;
  bool with_states_ = false;  // of the optimizer, in the shares
  std::vector<LocalTensor> tensors_;
  ReplicaDigests digests_;  // of this save
  Snapshot snapshot_;
  Phase phase_ = Phase::idle;
  checkpoint::Meta meta_;
  SaveReport report_;
  std::unique_ptr<checkpoint::Publication> publication_;  // rank 0
  std::thread worker_;
  std::atomic<bool> worked_ = false;
  Outcome outcome_;
  std::chrono::steady_clock::time_point began_;
  int64_t last_ = -1;
};

}  // namespace meshwright::train
