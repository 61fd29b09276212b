#include "engine/train/resume_dtypes.h"
#include "engine/before/same_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/train/resume.h"
#include "engine/trainer/load_weights.h"
#include "meshwright/error.h"
#include "sdk/base/low_rank.h"

namespace meshwright::train {

namespace {

// Bits of the exponent and of the fraction; nullopt: no floating dtype.
std::optional<std::pair<int, int>> bits_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return std::pair(11, 52);
    case DType::float32:
      return std::pair(8, 23);
    case DType::bfloat16:
      return std::pair(8, 7);
    case DType::float16:
      return std::pair(5, 10);
    default:
      return std::nullopt;
  }
}

bool represents(DType now, DType then) {
  auto wide = bits_of(now), narrow = bits_of(then);
  return !wide || !narrow || (wide->first >= narrow->first && wide->second >= narrow->second);
}

}  // namespace

std::vector<std::string> check_dtypes(const checkpoint::Checkpoint& from,
                                      const std::vector<LocalTensor>& tensors) {
  std::map<std::pair<std::string, std::string>, const checkpoint::TensorRecord*> records;
  for (const checkpoint::TensorRecord& record : from.meta().tensors)
    records[{record.state, record.name}] = &record;
  const bool adapts = std::any_of(tensors.begin(), tensors.end(), [](const LocalTensor& tensor) {
    return low_rank_factor(tensor.name).has_value();
  });
  std::string wider, frozen, rounded;
  for (const LocalTensor& tensor : tensors) {
    auto found = records.find({tensor.state, tensor.name});
    if (tensor.state == "buffer" || found == records.end()) continue;
    const DType then = found->second->dtype;
    if (found->second->base) {  // read as at the beginning of the run
      if (rounded.empty() && tensor.frozen && from.meta().base && !represents(tensor.dtype, then))
        rounded = rounded_base(from.meta().base->path, then, tensor.dtype);
      continue;
    }
    const bool dropped = tensor.frozen && !tensor.state.empty();
    if (then == tensor.dtype || dropped) continue;
    std::string was(dtype_name(then)), now(dtype_name(tensor.dtype));
    std::string what = tensor.state.empty() ? "weights" : "optimizer state (" + tensor.state + ")";
    if (represents(tensor.dtype, then)) {
      if (wider.empty())
        wider = "the checkpoint holds " + what + " in " + was + ", this job in " + now +
                ": they go on as they are, in wider numbers";
      continue;
    }
    if (tensor.frozen && represents(tensor.dtype, found->second->export_dtype)) {
      frozen = "parameters that are frozen in this job go on in " + now +
               ", as the model computes with them: their main weights of " + was + " end here";
      continue;
    }
    int lost = bits_of(then)->second - bits_of(tensor.dtype)->second;
    Error error(ErrorCode::checkpoint_mismatch,
                from.folder().string() + ": it holds " + what + " in " + was + ", this job in " +
                    now + ", which would round them for good" +
                    (lost > 0 ? " (" + std::to_string(lost) + " bits of each fraction)"
                              : " (another range)"));
    const bool base = adapts && tensor.frozen && tensor.state.empty();
    const std::string key = base ? "lora.base_dtype" : "model.torch_dtype";
    error.key(key).help("set " + key + " = \"" + was + "\"");
    // The dtypes that optimizer.main_dtype takes: a checkpoint holds main weights in place of those
    // they are rounded to.
    if (!base && (then == DType::float32 || then == DType::float64))
      error.help("set optimizer.main_dtype = \"" + was +
                 "\" to keep them beside weights that are stored in " + now);
    throw error.help("to go on in " + now +
                     " all the same, with a fresh optimizer: " + before::way_by_export(from));
  }
  std::vector<std::string> out;
  for (std::string* said : {&wider, &frozen, &rounded})
    if (!said->empty()) out.push_back(std::move(*said));
  return out;
}

}  // namespace meshwright::train
