// Adapters of a folder that `generate` is given beside its model: which of its tensors lie beside
// which weight. Links no LibTorch.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/adapters.h"
#include "engine/job/adapters.h"
#include "engine/train/preflight/source.h"
#include "meshwright/outline.h"

namespace meshwright::generate {

// Weights of Linears by the names that files have for their modules.
using LinearsInFile = std::map<std::string, const ParameterOutline*, std::less<>>;

class Adapter {
 public:
  struct Weight {
    std::string name;                 // in the model
    checkpoint::AdapterPair factors;  // among the tensors of the file
  };
  // `folder`: one that peft wrote, or an export of adapters. Reads what its adapter_config.json
  // says and the headers of its tensors. `merged`: they join the weights. Throws
  // Error(file_unreadable | weights_mismatch | bad_safetensors) where there is no such folder, or
  // one that does not fit the model.
  // `of`: the folder of the model, empty where it is a checkpoint.
  Adapter(std::filesystem::path folder, const ModelOutline& model, bool merged,
          const std::filesystem::path& of = {});

  const std::filesystem::path& folder() const { return folder_; }
  bool merged() const { return merged_; }
  checkpoint::Source& file() { return *file_; }
  // That the folder names another model, which is here too; empty: it does not.
  const std::string& notice() const { return notice_; }
  // nullptr: no adapter lies beside it.
  const Weight* find(std::string_view parameter) const;
  // Of a job that runs them beside the model, as --set takes them; nothing where they are merged.
  std::vector<std::string> settings() const;

 private:
  void check_tensor(const std::string& name, const std::vector<int64_t>& shape, size_t at) const;
  void pair_up(const ModelOutline& model, const plan::AdapterFolder& read);
  StringMap differing(double (*number)(const plan::AdapterSize&), double all) const;
  // Every tensor is of a module that the folder's configuration names, and these have theirs.
  void check_targets(const LinearsInFile& linears, const plan::AdapterTargets& targets) const;
  Error mismatch(const std::string& what) const;
  Error inconsistent(const std::string& what) const;
  Error other_shape(const checkpoint::SourceTensor& tensor, const std::string& name,
                    const std::vector<int64_t>& wanted) const;
  std::filesystem::path folder_;
  bool merged_;
  plan::Adapters counts_;  // r, alpha and what differs from them alone
  std::string base_;       // the model that the folder names
  std::string notice_;
  std::unique_ptr<checkpoint::Source> file_;
  std::vector<Weight> weights_;  // sorted by name
};

// What --adapter names. Throws what Adapter() throws, and Error(usage) for --merge without it or a
// checkpoint that has adapters of its own.
std::optional<Adapter> adapter_of(const Source& source, const Request& request);

}  // namespace meshwright::generate
