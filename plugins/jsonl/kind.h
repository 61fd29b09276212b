// The kind of data set.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "meshwright/data/dataset_kind.h"
#include "prepare.h"
#include "token_store.h"

namespace meshwright::jsonl {

class JsonlKind final : public DatasetKind {
 public:
  void validate(const DatasetRequest& request, Diagnostics& found) const override;
  void prepare(const DatasetRequest& request) const override;
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override;

 private:
  // prepare() and open() of a process see the same files, and read them once.
  std::shared_ptr<const TokenStore> store_of(const JsonlOptions& options) const;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const TokenStore>> stores_;
};

}  // namespace meshwright::jsonl
