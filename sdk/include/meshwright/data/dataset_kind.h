// A kind of data set that a plugin brings: `dataset.plugin = "mine"`, with its options in
// [dataset.mine] ([validation_dataset.mine]). It gives samples by position; the engine's sampler
// chooses which rank reads which, so a data set knows nothing of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace meshwright {

struct DatasetRequest {
  Options options;                // [dataset.<name>]
  std::string table = "dataset";  // or "validation_dataset": for messages
  std::string path;               // dataset.path; "": not set
  int64_t seq_len = 0;            // positions a sample
  int64_t vocab_size = 0;         // tokens are below it; 0: not known
  uint64_t seed = 0;              // run.seed; of [validation_dataset] another one
  std::string pretrained;         // the folder of model.pretrained, with its tokenizer; "": none
};

// One sample; all spans have seq_len elements. Position i sees tokens[0 .. i] of its document and
// predicts targets[i].
struct SampleView {
  std::span<int64_t> tokens;
  std::span<int64_t> targets;    // kNoTarget: no loss there
  std::span<int32_t> documents;  // ascending; empty where the data set has none
  std::span<float> weights;      // of the targets in the loss; empty where it has none
};
inline constexpr int64_t kNoTarget = -100;

// An open data set. Reading is const and safe from several threads.
class MESHWRIGHT_API SampleSource {
 public:
  SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;
  virtual ~SampleSource();
  virtual int64_t samples() const = 0;
  // Writes all of `out`. Throws Error(bad_token | bad_dataset) with file and place.
  virtual void read(int64_t sample, const SampleView& out) const = 0;
  virtual std::string describe() const = 0;  // "12 files, 34,567 rows"
  // Tells one data set from another: the same on every rank and host, another one where a sample
  // differs.
  virtual uint64_t fingerprint() const = 0;
  virtual bool has_documents() const;  // default: no
  virtual bool has_weights() const;    // default: no
  // Files that all ranks must have alike. Default: none.
  virtual std::vector<std::string> files() const;
};

class MESHWRIGHT_API DatasetKind {
 public:
  DatasetKind() = default;
  DatasetKind(const DatasetKind&) = delete;
  DatasetKind& operator=(const DatasetKind&) = delete;
  virtual ~DatasetKind();
  // Rules between options that a schema cannot say. Reports all of them. Default: none.
  virtual void validate(const DatasetRequest& request, Diagnostics& diagnostics) const;
  // Throws Error(bad_dataset) naming file and place.
  virtual std::unique_ptr<SampleSource> open(const DatasetRequest& request) const = 0;
  // Growth between epochs: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

}  // namespace meshwright
