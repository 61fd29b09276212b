// Conversations in the form that a model has learnt them in: the folder's chat template, and the
// token that ends a turn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/preflight/source.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/store.h"
#include "sdk/text/chat/value.h"

namespace meshwright::generate {

struct Conversation {
  chat::Value messages = chat::Value::list();  // {"role": ..., "content": ...}, ...
  chat::Value tools = {};                      // none: there are none
};

chat::Value message_of(const std::string& role, const std::string& content);
// A list of messages, or an object with `messages` and perhaps `tools`, as a row of a data set has.
// Throws Error(bad_dataset), which says `where` it stands.
Conversation parse_messages(std::string_view text, const std::string& where);

class ChatFormat {
 public:
  // `requested`: a file, the name of one of the folder's templates, or "chatml". A folder without a
  // template takes that of `adapter`, if it has one. Throws Error(bad_template), and Error(usage)
  // without a tokenizer. The source must outlive it.
  ChatFormat(const Source& source, const std::optional<std::string>& requested,
             const std::optional<std::string>& adapter);

  // What the model answers behind: ids as of transformers' apply_chat_template with
  // add_generation_prompt, but that text of a message stays text where it looks like a special
  // token. Throws Error(bad_template) for what the template refuses, and Error(usage) for roles
  // that neither chats nor the template know.
  std::vector<int64_t> prompt(const Conversation& conversation) const;
  // The token that ends an answer; nothing: the template closes it with none.
  std::optional<int64_t> end_of_turn() const;
  // --stop, else what ends a text of this folder, and the end of a turn.
  std::vector<int64_t> stops(const Source& source, const Request& request) const;

 private:
  chat::ChatTemplate::Request request_for(const Conversation& conversation) const;
  chat::Store store_;
  const tokenizer::Tokenizer& tokenizer_;
  int64_t vocab_;
};

}  // namespace meshwright::generate
