// Checkpoints for tests, written as ranks would write them but without any.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/plain_text.h"

namespace meshwright::checkpoint {

struct MadeTensor {
  std::string state, name;
  DType dtype = DType::float32, export_dtype = DType::float32;
  std::vector<int64_t> shape;
  std::vector<std::byte> values;  // of the whole, row-major
  std::optional<FusedRows> fused = std::nullopt;
  std::string file_name = {};
  bool transposed = false;
};

enum class Layout : uint8_t { rows, columns, runs };

// The parts of a tensor over some ranks. Ranks may get nothing.
inline std::vector<Region> split(const std::vector<int64_t>& shape, size_t ranks, Layout layout) {
  std::vector<Region> out;
  auto cut = [&](int64_t total, size_t rank) {
    return total * static_cast<int64_t>(rank) / static_cast<int64_t>(ranks);
  };
  int64_t elements = Region::whole(shape).count();
  size_t dim = layout == Layout::columns && shape.size() > 1 ? 1 : 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (shape.empty() || layout == Layout::runs) {
      out.push_back(Region::run(cut(elements, rank), cut(elements, rank + 1)));
      continue;
    }
    Region box = Region::whole(shape);
    box.offsets[dim] = cut(shape[dim], rank);
    box.sizes[dim] = cut(shape[dim], rank + 1) - box.offsets[dim];
    out.push_back(std::move(box));
  }
  return out;
}

// Writes everything but meta.json, and returns what belongs there. `files`: contents by name,
// config.json and source/... for example.
inline Meta make_files(const std::filesystem::path& folder, size_t ranks,
                       const std::vector<MadeTensor>& tensors, Layout layout,
                       const std::map<std::string, std::string>& files = {}) {
  base::make_folders(folder);
  Meta meta;
  meta.step = step_of(folder.filename().string()).value_or(3);
  meta.created = "2026-01-02T03:04:05Z";
  meta.program = "0.1.0";
  meta.strategy = "fsdp2";
  meta.plugin_version = "0.1.0";
  meta.architecture = "LlamaForCausalLM";
  meta.optimizer = "adamw";
  meta.world_size = static_cast<int64_t>(ranks);
  meta.axes = {"dp_replicate", "dp_shard"};
  meta.mesh_shape = {1, meta.world_size};
  struct Part {
    weights::TensorSpec spec;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, std::vector<Part>> parts;  // by file
  auto name_of = [&](const char* kind, size_t rank) {
    return text::format("%s-%05zu-of-%05zu.safetensors", kind, rank + 1, ranks);
  };
  std::map<std::string, size_t> index;
  for (const char* kind : {"model", "optimizer"})
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::string name = name_of(kind, rank);
      index[name] = meta.files.size();
      meta.files.push_back({name, 0, {}});
      parts[name];
    }
  for (const MadeTensor& made : tensors) {
    TensorRecord record{made.state,        made.name,  made.dtype,     made.shape,     {},
                        made.export_dtype, made.fused, made.file_name, made.transposed};
    std::vector<Region> regions = split(made.shape, ranks, layout);
    auto size = static_cast<size_t>(dtype_size(made.dtype));
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (regions[rank].count() == 0) continue;
      std::string file = name_of(made.state.empty() ? "model" : "optimizer", rank),
                  key = made.state.empty() ? made.name : made.state + "/" + made.name;
      Part part{{key, made.dtype, regions[rank].stored_shape()},
                std::vector<std::byte>(static_cast<size_t>(regions[rank].count()) * size)};
      for_each_overlap(made.shape, regions[rank], Region::whole(made.shape),
                       [&](int64_t here, int64_t there, int64_t count) {
                         std::memcpy(part.bytes.data() + static_cast<size_t>(here) * size,
                                     made.values.data() + static_cast<size_t>(there) * size,
                                     static_cast<size_t>(count) * size);
                       });
      parts[file].push_back(std::move(part));
      record.pieces.push_back({index[file], key, regions[rank]});
    }
    meta.tensors.push_back(std::move(record));
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::string file = name_of("optimizer", rank);
    parts[file].push_back(
        {{"rng/cpu", DType::int8, {16}}, std::vector<std::byte>(16, static_cast<std::byte>(rank))});
    meta.generators.push_back({static_cast<int64_t>(rank), "cpu", index[file], "rng/cpu"});
  }
  for (const auto& [name, list] : parts) {
    std::vector<weights::TensorSpec> specs;
    for (const Part& part : list) specs.push_back(part.spec);
    BlockChecksums sums;
    weights::SafetensorsWriter writer(folder / name, specs, {},
                                      [&](std::span<const std::byte> bytes) { sums.add(bytes); });
    for (size_t i = 0; i < list.size(); ++i) writer.append(i, list[i].bytes);
    writer.finish();
    meta.files[index[name]] = {name, writer.size(), sums.finish()};
  }
  for (const auto& [name, contents] : files) {
    base::make_folders((folder / name).parent_path());
    base::write_durably(folder / name, contents);
    BlockChecksums sums;
    sums.add(std::as_bytes(std::span(contents)));
    meta.files.push_back({name, std::ssize(contents), sums.finish()});
  }
  return meta;
}

inline Meta make_checkpoint(const std::filesystem::path& folder, size_t ranks,
                            const std::vector<MadeTensor>& tensors, Layout layout,
                            const std::map<std::string, std::string>& files = {}) {
  Meta meta = make_files(folder, ranks, tensors, layout, files);
  base::write_durably(folder / "meta.json", to_json(meta));
  return meta;
}

template <class T>
MadeTensor made(std::string state, std::string name, DType dtype, std::vector<int64_t> shape,
                const std::vector<T>& values) {
  auto bytes = std::as_bytes(std::span(values));
  return {std::move(state),
          std::move(name),
          dtype,
          dtype,
          std::move(shape),
          {bytes.begin(), bytes.end()}};
}

}  // namespace meshwright::checkpoint
