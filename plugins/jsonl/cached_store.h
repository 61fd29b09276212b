// One store of tokens for all processes of a host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "token_store.h"

namespace meshwright::jsonl {

// Where stores are kept.
struct CachePlace {
  std::string folder;  // "": nowhere; every process makes its own in memory
  // A folder that cannot be written to is an error; else that is told, and it is as if there were
  // none.
  bool needed = true;
};

// The store FOLDER/KEY.mwtokens. Where it is absent or damaged, the first process that comes makes
// it by build() and the others wait for it; a process that dies over it leaves nothing that counts.
// `tell` hears a line on what takes its time. Throws what build() throws, and
// Error(output_unwritable).
std::shared_ptr<const TokenStore> cached_store(const CachePlace& place, const std::string& key,
                                               const std::function<std::vector<std::byte>()>& build,
                                               const std::function<void(const std::string&)>& tell);

// What the store of a key is called in its folder while this process writes it. The name tells the
// host, until it starts again, so that whoever holds the key's lock there knows what a dead one
// left.
std::string temporary_name(const std::string& key);

// $XDG_CACHE_HOME/meshwright, else ~/.cache/meshwright; nowhere if neither variable is set. Not
// needed.
CachePlace default_cache();

}  // namespace meshwright::jsonl
