// meta.json of a checkpoint: what lies where, of which run and layout it is, and checksums of
// everything.
//
// A checkpoint is a folder step_00000050/ with
//   model-00001-of-00002.safetensors      one per rank that has something to write: its part of
//                                         the weights, under their names; of a run with adapters
//                                         only those that train, the others stay where they are
//                                         (Meta::base)
//   optimizer-00001-of-00002.safetensors  its part of the optimizer's state, as
//                                         "<state>/<name>", and its generators as "rng/<device>"
//   config.json, source/...               the model's, and the other files of the Hugging Face
//                                         folder it came from
//   config.resolved.toml                  every setting of the run that saved it
//   meta.json                             written last
// Every byte of every file but meta.json is covered by the checksum of its 1 MiB block, and
// meta.json by its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/outline.h"
#include "meshwright/region.h"

namespace meshwright::checkpoint {

inline constexpr int64_t kBlock =
    1 << 20;  // bytes one checksum covers; the last block of a file may be shorter
inline constexpr int64_t kMetaVersion = 1;

struct FileRecord {
  std::string name;  // in the checkpoint's folder; "source/tokenizer.json"
  int64_t bytes = 0;
  std::vector<uint64_t> blocks;  // XXH3-64 of each block
};

// A part of a tensor in a file of its rank.
struct Piece {
  size_t file = 0;  // in Meta::files
  std::string key;  // the tensor's name there
  Region region;    // of the whole
};

struct TensorRecord {
  std::string state;  // "" for weights; "exp_avg", "exp_avg_sq", "momentum" for the optimizer's
  std::string name;   // the parameter's
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // together every element exactly once
  // Weights: the dtype in an export, taken from the Hugging Face folder that the run started from;
  // without one the dtype that is stored.
  DType export_dtype = DType::float32;
  // Set for a fused parameter and its states. They are stored as in memory, groups interleaved; a
  // Hugging Face folder has the parts whole.
  std::optional<FusedRows> fused = std::nullopt;
  // How a Hugging Face folder has it, where that is another name (StoredAs::names, the first) or
  // columns first; of the states of a parameter as well.
  std::string file_name = {};
  bool transposed = false;
  // A state of the optimizer: the updates of this parameter, where it has had fewer than
  // Meta::optimizer_steps since it was frozen in the beginning.
  std::optional<int64_t> steps = std::nullopt;
  // A weight that stayed as it was: its tensor in the folder of Meta::base, of experts the first
  // one's. It has no pieces, and dtypes as that folder.
  std::optional<std::string> base = std::nullopt;
};

// The folder that a run with adapters started from.
struct BaseRecord {
  std::string path;         // absolute
  std::string fingerprint;  // fingerprint_of() it
};

// A generator's state as opaque bytes.
struct GeneratorRecord {
  int64_t rank = 0;
  std::string device;  // "cpu", "cuda"
  size_t file = 0;
  std::string key;
};

// The lowest validation loss of a run so far, and after how many steps it was found.
struct BestLoss {
  int64_t step = 0;
  double loss = 0;
};

// What the next steps of a run are judged by (run.skip_step_above_z), and scaled.
struct StepHistory {
  std::vector<double> losses, grad_norms;  // of the last steps with an update, oldest first
  int64_t left_out = 0;                    // steps without an update, of all
  int64_t in_a_row = 0;                    // of these the last ones
  // Where the loss scale adapts: as it is (0: it does not), and steps since it last changed.
  double loss_scale = 0;
  int64_t even_steps = 0;
};

// A source of a mix of data sets, as the samples before Meta::samples were read.
struct MixedSource {
  std::string name, fingerprint;
  int64_t share = 0;  // from position `first` on, against the shares of the others
  int64_t read = 0;   // samples before that position
};
struct MixRecord {
  int64_t first = 0;
  std::vector<MixedSource> sources;  // in the order in which they are dealt out
};

struct Meta {
  int64_t step = 0;     // steps done
  std::string created;  // "2026-11-21T12:00:00Z"
  std::string program;  // "0.1.0"
  // Layout
  std::string strategy, plugin_version;
  int64_t world_size = 1;
  std::vector<std::string> axes;  // of the mesh; empty: none
  std::vector<int64_t> mesh_shape;
  int64_t data_parallel = 1;
  // Model
  std::string architecture;
  // fingerprint_of() the folder that the run began from; empty: it began from none, or `base` says.
  std::string pretrained;
  std::optional<BaseRecord> base;  // holds some of the weights; absent: they are all here
  // Optimizer
  std::string optimizer;  // "adamw", "sgd"
  int64_t optimizer_steps = 0;
  // Data: the next sample's position in the endless order that these fix.
  int64_t samples = 0, seq_len = 0;
  std::string data_fingerprint;
  bool shuffle = true;
  uint64_t seed = 0;
  std::optional<MixRecord> mix = {};  // of [[dataset.mix]]
  // Schedule, as it was: it may be another one after resuming.
  int64_t max_steps = 0;
  double lr = 0;
  std::optional<BestLoss> best;  // of runs that keep it
  StepHistory history;           // of checkpoints of before: empty
  std::vector<TensorRecord>
      tensors;  // weights first, in the model's order; then each state in the same order
  std::vector<GeneratorRecord> generators;
  std::vector<FileRecord> files;

  const TensorRecord* find(std::string_view state, std::string_view name) const;  // nullptr: none
  std::vector<std::string> states() const;  // of the optimizer, in order
};

// Whether the pieces hold every element exactly once. All must fit the shape.
bool covers(const TensorRecord& tensor);

// The text of meta.json, its own checksum at the end.
std::string to_json(const Meta& meta);
// Checked as a whole: checksum, types, names that stay in the folder, regions that cover every
// tensor exactly once. Throws Error(bad_checkpoint) naming `path` and byte or entry.
Meta parse_meta(std::string_view text, const std::string& path);

// The parts of meta.json's text that its writer and its reader share.

inline constexpr std::string_view kMetaFormat = "meshwright checkpoint";
// The file ends with this key, 16 hexadecimal digits and kMetaEnd. The digits are the checksum of
// all that stands before the key.
inline constexpr std::string_view kChecksumKey = ",\n  \"checksum\": \"", kMetaEnd = "\"\n}\n";

// The tensor's name in the files that hold its pieces.
inline std::string key_of(const TensorRecord& tensor) {
  return tensor.state.empty() ? tensor.name : tensor.state + "/" + tensor.name;
}

}  // namespace meshwright::checkpoint
