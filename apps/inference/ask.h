// What `generate` and `chat` are asked for: a text to go on with, or a conversation to answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/train/preflight/source.h"

namespace meshwright::generate {

// The command line.
struct Ask : Request {
  std::optional<std::string> chat;           // what the user says
  std::optional<std::string> messages;       // a file of messages
  std::optional<std::string> system;         // said before the others
  std::optional<std::string> chat_template;  // a file or a name, in place of the folder's own
  std::optional<std::string> prompts, out;   // files of rows
  int64_t batch = 8;                         // of how many rows at most a token is made at once
  bool conversations = false;                // some of `prompts` are
  int width = 80;                            // of the terminal that shows how far it is
  bool colour = false, unicode = true;
  std::vector<std::string> stop_texts;
  std::set<std::string> given;  // flags of sampling: their values are the user's

  bool of_messages() const { return chat || messages || conversations; }
};

// Options of sampling as the folder's generation_config.json has them. For a conversation they are
// taken where the user gave none; a text goes on as ever. Gives what there is to tell about it; "":
// nothing. Throws Error(bad_model_config) for values that a conversation cannot take.
std::string take_generation_config(const Source& source, Ask& ask, bool conversation);

// Throws Error(usage) where more than one says what is asked.
void check_ways(const Ask& ask);
// Throws Error(usage) for options of conversations, where there are none: `why`; "": it says so.
void refuse_for_texts(const Ask& ask, const std::string& why);

struct Conversation;
// --system before the messages. Throws Error(usage) where `where` has one already.
void put_system(Conversation& conversation, const std::optional<std::string>& system,
                const std::string& where);

// What the model reads, and what ends what it writes.
struct Asked {
  std::vector<int64_t> prompt;
  std::vector<int64_t> stops;
};
// Throws Error(usage | bad_token | bad_tokenizer | bad_template | bad_dataset | file_unreadable).
// Not with `prompts`: read_prompts().
Asked asked_of(const Source& source, const Ask& ask);

// Throws Error(usage) for stop texts that are empty or no UTF-8, and where there is no text.
void check_stop_texts(const Source& source, const Ask& ask);

// A conversation whose lines come one after another.
struct ChatHere {
  Ask ask;
  // The user's next line, without its end; nothing: no more come.
  std::function<std::optional<std::string>()> line;
  std::function<void(const std::string& text)> show;  // a piece of an answer; "\n" ends it
  std::function<void(const std::string& text)> tell;  // a line beside the answers
  // Whether the user wants the answer to end here; asked behind every token.
  std::function<bool()> interrupted;
  std::function<void()> ready;  // the model is loaded
};

}  // namespace meshwright::generate
