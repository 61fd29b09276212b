// What the files that read Automodel's YAML share.
#pragma once

#include <string>

#include "apps/migrate/migrator.h"

namespace meshwright::config {

// "meta-llama/Llama-3.2-1B", a name on the hub, as the folder into which it is downloaded; a path
// of this machine as it is, and what Automodel finds here counts as one.
std::string local_folder(const std::string& name);
// What to do about a name on the hub; empty for a path.
std::string download(const std::string& name);
// "AdamW" of "torch.optim.AdamW".
std::string class_of(const Leaf& target);
inline bool is_text(const Leaf* leaf) {
  return leaf != nullptr && leaf->value.kind == Value::Kind::string && !is_empty(leaf->value);
}

// [dataset], [validation_dataset] and packed_sequence. Whether the data never ends: it is mock.
bool automodel_data(Migrator& m);

}  // namespace meshwright::config
