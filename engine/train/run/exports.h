// The folders for Hugging Face that a run makes of its checkpoints.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/export.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// What checkpoint.export and lora.export say, in the run's folder. Of the rank that leads.
class Exports {
 public:
  Exports(const Job& job, const std::filesystem::path& run);
  // Makes them of this checkpoint, in place of those before. Throws what checkpoint::Source and
  // checkpoint::export_folder() throw.
  void write(const std::filesystem::path& checkpoint);
  // Lines on what was written last: where it is, and what adapters alone lack of the model.
  const std::vector<std::string>& told() const { return told_; }

 private:
  std::filesystem::path adapter_folder_;
  std::vector<std::pair<std::filesystem::path, checkpoint::ExportForm>> wanted_;
  std::vector<std::string> told_;
};

}  // namespace meshwright::train
