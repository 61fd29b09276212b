// One store of tokens for all processes of a host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "token_store.h"

namespace meshwright::jsonl {

// The store FOLDER/KEY.mwtokens. Where it is absent or damaged, the first process that comes makes
// it by build() and the others wait for it; a process that dies over it leaves nothing that counts.
// `tell` hears a line on what takes its time. folder "": made in memory, by every process.
// Throws what build() throws, and Error(output_unwritable).
std::shared_ptr<const TokenStore> cached_store(const std::string& folder, const std::string& key,
                                               const std::function<std::vector<std::byte>()>& build,
                                               const std::function<void(const std::string&)>& tell);

// $XDG_CACHE_HOME/meshwright, else ~/.cache/meshwright; "" where neither variable is set.
std::string default_cache_folder();

}  // namespace meshwright::jsonl
