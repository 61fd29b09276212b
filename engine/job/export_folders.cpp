#include "engine/job/export_folders.h"

#include <filesystem>
#include <string>

#include "engine/checkpoint/weights/export.h"
#include "engine/config/config.h"

namespace meshwright::plan {

void check_exports(const config::Config& config, Diagnostics& diagnostics) {
  const Options &lora = config.table("lora"), &model = config.table("model");
  const std::string asked = config.table("checkpoint").get_string("export"),
                    pretrained = model.get_string("pretrained");
  if (asked == "none" || pretrained.empty() ||
      (lora.get_int("r") > 0 && lora.get_string("export") == "none"))
    return;
  const std::filesystem::path folder = config::run_folder(config.table("run"));
  // An export takes the second one away even where it writes none: it may be of another step.
  for (const char* name : {kExportFolder, kAdapterExportFolder}) try {
      if (!weights::would_replace(folder / name, pretrained)) continue;
      diagnostics.add(Error(ErrorCode::output_unwritable,
                            "checkpoint.export = " + to_toml(asked) + " would take away " +
                                pretrained + ", the model that the run begins with: it replaces " +
                                (folder / name).string())
                          .key("model.pretrained")
                          .at(model.origin("pretrained"))
                          .help("set run.name to another name")
                          .help("set checkpoint.export = \"none\""));
      return;
    } catch (const Error&) {
      return;  // no name of a folder, which is said elsewhere
    }
}

}  // namespace meshwright::plan
