// Texts as tokens: the kind "text" of the engine where there is a tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data/dataset_inspector.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/data/dataset_language.h"
#include "text_prepare.h"
#include "token_store.h"

namespace meshwright::jsonl {

class TextKind final : public DatasetKind, public DatasetInspector, public DatasetLanguage {
 public:
  void validate(const DatasetRequest& request, Diagnostics& found) const override;
  void prepare(const DatasetRequest& request) const override;
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override;
  void* extension(uint32_t id) override;

  // A row is a document.
  int64_t rows(const DatasetRequest& request) const override;
  DatasetRow row(const DatasetRequest& request, int64_t number) const override;
  std::vector<std::pair<std::string, int64_t>> numbers(
      const DatasetRequest& request) const override;
  std::vector<LanguageFile> language(const DatasetRequest& request) const override;

 private:
  // prepare() and open() of a process see the same files, and read them once.
  std::shared_ptr<const TokenStore> store_of(const TextOptions& options) const;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const TokenStore>> stores_;
};

}  // namespace meshwright::jsonl
