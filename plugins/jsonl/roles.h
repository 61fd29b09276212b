// Roles of messages: an answer is what has the role "assistant", so that one that is mistyped is
// not learnt.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "token_store.h"

namespace meshwright::jsonl {

// The known role that was meant; "": none is near.
std::string role_meant(std::string_view role);
// One that chats have, or that the text of the template asks for by its name: templates have roles
// of their own. That is no excuse for one that means "assistant".
bool is_known_role(std::string_view role, std::string_view chat_template);
// `3 messages of roles that are not known: "asistant" 2 (did you mean "assistant"?), ...`; "": all
// are known.
std::string tell_roles(const StoreCounts& counts);
// `"a" 12, "b" 3, others 2`, each of the first with what `remark` says of it.
std::string tell_names(
    const StoreCounts::Names& names, const std::function<std::string(const std::string&)>& remark =
                                         [](const std::string&) { return std::string(); });

}  // namespace meshwright::jsonl
