// The rows of files, encoded once and kept beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/unpack/unpacked_file.h"
#include "token_store.h"

namespace meshwright::jsonl {

// A file that is read from its beginning to its end; not mapped: it is empty.
struct DataFile {
  std::string path;
  std::optional<base::MappedFile> mapped;
  uint64_t before = 0;                       // bytes of the files in front of it
  std::optional<std::string> unpacked = {};  // what text() is, where the file is packed

  std::string_view text() const;
};

enum class Packed : uint8_t { as_it_is, unpacked };
// Throws Error(bad_dataset) for one that cannot be read, or that is unpacked to more than 1 GiB.
// `columns`: of Parquet, which are unpacked.
std::vector<DataFile> open_files(const std::vector<std::string>& paths, Packed packed,
                                 const base::Columns& columns = {});

// What editors, systems and version control keep beside files: .git, ._x.jsonl,
// .ipynb_checkpoints/chats-checkpoint.jsonl.
bool is_hidden(const std::string& file, const std::string& folder);

// Where stores are kept.
struct CachePlace {
  std::string folder;  // "": nowhere; every process makes its own in memory
  // A folder that cannot be written to is an error; else that is told, and it is as if there were
  // none.
  bool needed = true;
  std::string key = {};  // the setting that names another folder, for what is told
};

// How a store is made: as a file of a name, finished and synced, or in memory.
struct StoreMaker {
  std::function<void(const std::string& file)> write;
  std::function<std::shared_ptr<const TokenStore>()> in_memory;
};
using Tell = std::function<void(const std::string&)>;

// The store FOLDER/KEY.mwtokens. Where it is absent or damaged, the first process that comes makes
// it and the others wait for it; a process that dies over it leaves nothing that counts. `tell`
// hears a line on what takes its time. Throws what `make` throws, and Error(output_unwritable).
std::shared_ptr<const TokenStore> cached_store(const CachePlace& place, const std::string& key,
                                               const StoreMaker& make, const Tell& tell);
// The same of one that `build` makes in memory, once.
std::shared_ptr<const TokenStore> cached_store(const CachePlace& place, const std::string& key,
                                               const std::function<std::vector<std::byte>()>& build,
                                               const Tell& tell);

// What the store of a key is called in its folder while this process writes it. The name tells the
// host, until it starts again, so that whoever holds the key's lock there knows what a dead one
// left.
std::string temporary_name(const std::string& key);

// $XDG_CACHE_HOME/meshwright, else ~/.cache/meshwright; nowhere if neither variable is set. Not
// needed.
CachePlace default_cache();
// What a setting of that key says: "auto", "none" or a folder.
CachePlace cache_place(const std::string& said, const std::string& key);

}  // namespace meshwright::jsonl
