// What `meshwright dataset show`, `dataset stats` and the start of `train` (numbers) ask of a kind
// of data set beside its samples: rows as people see them, and numbers for programs. A kind that
// has it gives it as extension kDatasetInspector. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data/dataset_kind.h"

namespace meshwright {

inline constexpr uint32_t kDatasetInspector = 1;  // of DatasetKind::extension()

// A row before it is cut or packed.
struct DatasetRow {
  struct Token {
    int64_t id = 0;
    size_t begin = 0, end = 0;  // its bytes of `text`
    bool target = false;
  };
  std::string place;  // "data/chats.jsonl:17"
  std::string text;
  std::vector<Token> tokens;
  std::shared_ptr<const Later> later = {};
};

// All methods as those of DatasetKind: pure, and throw Error.
class DatasetInspector {
 public:
  virtual int64_t rows(const DatasetRequest& request) const = 0;
  // From 0 on. Throws Error(usage) for one that is not there.
  virtual DatasetRow row(const DatasetRequest& request, int64_t number) const = 0;
  // Names of numbers ("targets") with their values, in the order to be shown.
  virtual std::vector<std::pair<std::string, int64_t>> numbers(
      const DatasetRequest& request) const = 0;

 protected:
  ~DatasetInspector() = default;
};

}  // namespace meshwright
