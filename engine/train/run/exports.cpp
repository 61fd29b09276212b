#include "engine/train/run/exports.h"

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/job/export_folders.h"

namespace meshwright::train {

namespace fs = std::filesystem;

// The adapters lie beside hf/ where both forms are wanted.
Exports::Exports(const Job& job, const fs::path& run)
    : adapter_folder_(run / plan::kAdapterExportFolder) {
  using enum checkpoint::ExportForm;
  const Options& lora = job.table("lora");
  const std::string wanted = lora.get_int("r") > 0 ? lora.get_string("export") : "merged";
  if (job.table("checkpoint").get_string("export") == "none" || wanted == "none") return;
  wanted_ = {{run / plan::kExportFolder, wanted == "adapter" ? adapter : merged}};
  if (wanted == "both") wanted_.emplace_back(adapter_folder_, adapter);
}

void Exports::write(const fs::path& checkpoint) {
  if (wanted_.empty()) return;
  // Before the other one, so that no failure leaves adapters beside a model of another step, nor
  // another lora.export those of before.
  try {
    weights::remove_folder(adapter_folder_);
  } catch (const Error&) {
    if (wanted_.size() > 1) throw;  // else what somebody else has put there may stay
  }
  checkpoint::Source source(checkpoint);
  std::vector<std::string> told;
  std::string lacks;
  for (const auto& [folder, form] : wanted_) {
    checkpoint::export_folder(source, folder, {.form = form});
    told.push_back("exported for Hugging Face: " + folder.string());
    if (form == checkpoint::ExportForm::adapter) lacks = checkpoint::trained_whole_text(source);
  }
  if (!lacks.empty())
    told.push_back("notice: " + lacks + "; lora.export = \"merged\" writes the whole model");
  told_ = std::move(told);
}

}  // namespace meshwright::train
