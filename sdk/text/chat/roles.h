// Roles of messages: an answer is what has the role "assistant".
#pragma once

#include <string>
#include <string_view>

namespace meshwright::chat {

// The known role that was meant; "": none is near.
std::string role_meant(std::string_view role);
// One that chats have, or that the text of the template asks for by its name: templates have roles
// of their own. That is no excuse for one that means "assistant".
bool is_known_role(std::string_view role, std::string_view chat_template);

}  // namespace meshwright::chat
