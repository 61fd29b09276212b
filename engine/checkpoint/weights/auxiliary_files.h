// Links in folders that somebody else packed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::weights {

// Where `file` of `folder` really lies when a link leads it out of the folder: whoever packed it
// would choose which of our files is read. nullopt for what stays inside, for what Hugging Face's
// download cache makes (models--A--B/snapshots/<revision>/NAME -> models--A--B/blobs/<hash>), and
// for a link that leads nowhere, which opening it tells.
std::optional<std::filesystem::path> leads_out(const std::filesystem::path& folder,
                                               const std::filesystem::path& file);

// Files of a Hugging Face folder that a run hands on to what it saves: tokenizer, generation
// settings, licence, whatever else is there.

// The file that marks a folder as an export of ours (export.h), which each export has of its own.
inline constexpr const char* kExportMarker = ".meshwright-export";

struct CarriedFile {
  std::string name;  // in the folder, with '/': "tokenizer.json", "1_Pooling/config.json"
  std::filesystem::path path;
  int64_t bytes = 0;
};

struct Carried {
  std::vector<CarriedFile> files;    // sorted by name
  std::vector<std::string> notices;  // one line for each kind of file that stays behind
};

// All regular files, in sub-folders too, but for weights in any format, their indices, formats that
// may hold pickles, hidden files, links that lead out of the folder (those of the download cache
// are followed), config.json at the top, which is handled on its own, and what goes beyond 4 levels
// of folders, 1000 files or 1 GiB in all. Throws Error(file_unreadable) when the folder cannot be
// listed.
Carried carried_files(const std::filesystem::path& folder);
// The same for a folder that only holds a config.json among other things: the files by the names
// that tokenizers and their settings always have, and generation_config.json. Empty when the folder
// has no tokenizer.
Carried carried_beside(const std::filesystem::path& folder);
// What a file of that name is that stays behind, by its name and its folders' alone: "weights in
// formats that may hold programs"; "": it is carried along. For lists that somebody else may have
// written: nothing else is taken from a checkpoint's source/.
std::string left_behind(std::string_view name);
// Whether its first bytes are those of a pickle, an archive or a program, whatever its name says.
bool may_hold_program(const std::filesystem::path& file);
// Whether a file of such a folder belongs to its tokenizer or templates; `name` as in CarriedFile.
bool is_of_tokenizer(std::string_view name);
// The notice that a tokenizer beside this config.json stays behind, for a run on the bytes of
// texts; nullopt when there is none.
std::optional<std::string> tokenizer_of_no_use(const std::filesystem::path& config);

}  // namespace meshwright::weights
