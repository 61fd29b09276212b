// A kind of data set that a plugin brings: `dataset.plugin = "mine"`, with its options in
// [dataset.mine]; [validation_dataset] likewise. It gives samples by position. Which rank reads
// which, in what order, is the engine's: a data set knows nothing of ranks, and the same samples
// are read in the same step on any number of them. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace meshwright {

struct DatasetRequest {
  Options options;                // [dataset.NAME]
  std::string table = "dataset";  // or "validation_dataset": for messages
  std::string path;               // dataset.path; "": not set
  int64_t seq_len = 0;            // positions of a sample
  int64_t vocab_size = 0;         // tokens are below it; 0: not known
  uint64_t seed = 0;              // run.seed; of [validation_dataset] another one
  std::string pretrained;         // the folder of model.pretrained, with its tokenizer; "": none
  std::shared_ptr<const Later> later = {};
};

inline constexpr int64_t kNoTarget = -100;

// Where one sample is written; spans have seq_len elements. Position i sees tokens[0 .. i] of its
// document and predicts targets[i].
struct SampleView {
  std::span<int64_t> tokens;
  std::span<int64_t> targets;    // kNoTarget: no loss there
  std::span<int32_t> documents;  // not descending, from 0 on; empty unless has_documents()
  std::span<float> weights;  // of the targets in the loss, 0 or more; empty unless has_weights()
  std::shared_ptr<const Later> later = {};
};

// An open data set. const methods are called by several threads at once, and give the same answer
// every time.
class MESHWRIGHT_API SampleSource {
 public:
  SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;
  virtual ~SampleSource();
  virtual int64_t samples() const = 0;  // at least 1
  // Writes every element of the spans of `out`. Throws Error(bad_token | bad_dataset) with file and
  // place.
  virtual void read(int64_t sample, const SampleView& out) const = 0;
  virtual std::string describe() const = 0;  // "12 files, 34,567 rows"
  // Tells one data set from another: the same on every rank and host; another one where a sample is
  // another. A checkpoint is not continued with one that differs.
  virtual uint64_t fingerprint() const = 0;
  virtual bool has_documents() const;  // default: no, a sample is one document
  virtual bool has_weights() const;    // default: no, all are 1
  // Files that all ranks must have alike, which the engine compares. Default: none.
  virtual std::vector<std::string> files() const;
  // Lines that are told once, when a run starts: rows, what was cut or left out. Default: none.
  virtual std::vector<std::string> report() const;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

// Makes data sets. One instance for a process.
class MESHWRIGHT_API DatasetKind {
 public:
  DatasetKind() = default;
  DatasetKind(const DatasetKind&) = delete;
  DatasetKind& operator=(const DatasetKind&) = delete;
  virtual ~DatasetKind();
  // Rules between options that a schema cannot say, without reading data. Reports all of them.
  // Default: none.
  virtual void validate(const DatasetRequest& request, Diagnostics& diagnostics) const;
  // What takes long and is done once, a cache that the processes of a host share, say. Called in
  // every process before the ranks meet, when no other one waits for it with a limit. Throws as
  // open(). Default: nothing.
  virtual void prepare(const DatasetRequest& request) const;
  // Throws Error(bad_dataset) with file and place.
  virtual std::unique_ptr<SampleSource> open(const DatasetRequest& request) const = 0;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

}  // namespace meshwright
