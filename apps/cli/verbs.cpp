#include "apps/cli/verb.h"

namespace meshwright::cli {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      train_verb(),
      plan_verb(),
      validate_verb(),
      config_show_verb(),
      config_schema_verb(),
      config_explain_verb(),
      config_migrate_verb(),
      plugins_list_verb(),
      plugins_inspect_verb(),
      plugins_check_verb(),
      plugins_new_verb(),
      checkpoint_ls_verb(),
      checkpoint_verify_verb(),
      checkpoint_export_verb(),
      checkpoint_diff_verb(),
      checkpoint_now_verb(),
      generate_verb(),
      evaluate_verb(),
      tokenize_verb(),
      dataset_show_verb(),
      dataset_stats_verb(),
      report_verb(),
      completion_verb(),
      man_verb(),
      env_verb(),
      doctor_verb(),
      calibrate_verb(),
  };
  return table;
}

}  // namespace meshwright::cli
