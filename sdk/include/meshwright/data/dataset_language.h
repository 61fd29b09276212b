// The files with which a model that learns a kind of data is read and asked later: tokenizer and
// chat template, where the data set's are others than those of model.pretrained. A kind that has
// them gives them as extension kDatasetLanguage; checkpoints and exports carry them along in place
// of the model's files of these names. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/data/dataset_kind.h"

namespace meshwright {

inline constexpr uint32_t kDatasetLanguage = 2;  // of DatasetKind::extension()

struct LanguageFile {
  std::string name;  // in a Hugging Face folder: "chat_template.jinja"
  std::string path;  // the file to copy; "": `text` is what it holds
  std::string text = {};
  std::shared_ptr<const Later> later = {};
};

class DatasetLanguage {
 public:
  // Pure. Names occur once. Throws Error as DatasetKind::open().
  virtual std::vector<LanguageFile> language(const DatasetRequest& request) const = 0;

 protected:
  ~DatasetLanguage() = default;
};

}  // namespace meshwright
