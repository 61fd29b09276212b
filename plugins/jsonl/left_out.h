// What of a chat its template does not write.
#pragma once

#include "sdk/chat/chat_template.h"
#include "token_store.h"

namespace meshwright::jsonl {

// Adds to `counts` the calls of tools and the tools of `request` that are not in `rendered`, which
// `chat` made of it: a text is the same without them. Messages are dicts.
void count_left_out(const chat::ChatTemplate& chat, const chat::ChatTemplate::Request& request,
                    const chat::ChatTemplate::Rendered& rendered, StoreCounts& counts);

}  // namespace meshwright::jsonl
