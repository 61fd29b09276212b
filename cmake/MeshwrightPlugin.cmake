# Filled by the ABI part: meshwright_add_plugin().
