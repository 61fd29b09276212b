// What `checkpoint ls` and `checkpoint verify` find behind a path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/source.h"
#include "meshwright/error.h"

namespace meshwright::checkpoint {

struct Listed {
  Found found;
  std::optional<Meta> meta;  // of those that are complete
  int64_t bytes = 0;         // of all files of those
  bool latest = false, best = false;
};

// The checkpoints of one run, by step.
struct Group {
  std::filesystem::path folder;  // that holds them
  std::vector<Listed> checkpoints;
};

// `path`: a checkpoint, a folder that holds checkpoints, a run's folder, or a folder of runs.
// Throws Error(no_checkpoint) when nothing is there.
std::vector<Group> list_checkpoints(const std::filesystem::path& path);

// Elements of all weights.
int64_t parameters_of(const Meta& meta);

// What differs between two checkpoints or folders of weights.

struct TensorDifference {
  std::string state, name;  // as SourceTensor
  DType dtype_a = DType::float32, dtype_b = DType::float32;
  std::vector<int64_t> shape_a, shape_b;
  int64_t elements = 0;
  // Only where the shapes are equal: elements with other bits, or, between two dtypes, another
  // value.
  int64_t differing = 0;
  double max_abs = 0;   // |a - b|; infinite where one is not finite and the other is something else
  double relative = 0;  // max_abs by the largest |value| among the elements that differ
  int64_t worst = -1;   // the element of max_abs, in row-major order
  bool same_shape() const { return shape_a == shape_b; }
  bool equal() const { return same_shape() && dtype_a == dtype_b && differing == 0; }
};

struct Difference {
  std::vector<TensorDifference> both;       // in the first one's order
  std::vector<std::string> only_a, only_b;  // as SourceTensor::text
  bool optimizer_compared = false;          // both have one
  bool optimizer_a = false, optimizer_b = false;
  bool equal() const;
};

// Compares by name, in bounded memory. `progress` hears the bytes of `a` that are done,
// diff_bytes() in all. Throws what Source::read throws.
Difference compare(Source& a, Source& b, const std::function<void(int64_t bytes)>& progress);
int64_t diff_bytes(const Source& a, const Source& b);

// Every byte of a checkpoint against its checksum, and every tensor against meta.json.

struct Verified {
  std::filesystem::path path;
  bool checksums = true;  // false: a Hugging Face folder, which has none; its structure was checked
  int64_t files = 0, bytes = 0, tensors = 0;
  std::vector<Error> damage;             // all of it, by file; empty: none
  std::vector<std::string> not_covered;  // files of the folder that meta.json does not list
  // Of a checkpoint with adapters alone: the folder of their model, and what is wrong with that;
  // "": nothing. No damage of the checkpoint.
  std::string base, base_problem;
};

// Reads the files one after the other, not through memory maps: a disk that fails is an error, not
// a signal. `progress` hears of bytes read and may throw. Damage to the point that nothing can be
// read is in `damage` too.
Verified verify_checkpoint(const std::filesystem::path& folder,
                           const std::function<void(int64_t bytes)>& progress);
// Headers, index, and that every tensor is in one file once.
Verified verify_weights(const std::filesystem::path& path);
// Bytes that verify_checkpoint will read; 0 when meta.json cannot be read.
int64_t verify_bytes(const std::filesystem::path& folder);

}  // namespace meshwright::checkpoint
