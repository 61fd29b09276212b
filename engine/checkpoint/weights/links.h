// Links in folders that somebody else packed.
#pragma once

#include <filesystem>
#include <optional>

namespace meshwright::weights {

// Where `file` of `folder` really lies when a link leads it out of the folder: whoever packed it
// would choose which of our files is read. nullopt for what stays inside, for what Hugging Face's
// download cache makes (models--A--B/snapshots/<revision>/NAME -> models--A--B/blobs/<hash>), and
// for a link that leads nowhere, which opening it tells.
std::optional<std::filesystem::path> leads_out(const std::filesystem::path& folder,
                                               const std::filesystem::path& file);

}  // namespace meshwright::weights
