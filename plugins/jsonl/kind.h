// The kind of data set.
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
#include "packed_source.h"
#include "prepare.h"
#include "token_store.h"

namespace meshwright::jsonl {

class JsonlKind final : public DatasetKind, public DatasetInspector, public DatasetLanguage {
 public:
  void validate(const DatasetRequest& request, Diagnostics& found) const override;
  void prepare(const DatasetRequest& request) const override;
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override;
  void* extension(uint32_t id) override;

  int64_t rows(const DatasetRequest& request) const override;
  DatasetRow row(const DatasetRequest& request, int64_t number) const override;
  std::vector<std::pair<std::string, int64_t>> numbers(
      const DatasetRequest& request) const override;
  std::vector<LanguageFile> language(const DatasetRequest& request) const override;

 private:
  // prepare() and open() of a process see the same files, and read them once.
  std::shared_ptr<const TokenStore> store_of(const JsonlOptions& options) const;
  // Packs once: numbers() is asked of what is open already.
  std::unique_ptr<PackedSource> packed(const DatasetRequest& request) const;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const TokenStore>> stores_;
  // By fingerprint and vocabulary.
  mutable std::map<std::pair<uint64_t, int64_t>, SampleCounts> counts_;
};

}  // namespace meshwright::jsonl
