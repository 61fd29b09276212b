// What both sides of `meshwright chat` have said, and the lines that are no message but a command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "apps/inference/chat_format.h"

namespace meshwright::generate {

class Dialogue {
 public:
  // `tell`: hears what a command has done, a line each.
  Dialogue(const std::optional<std::string>& system, std::function<void(const std::string&)> tell);

  enum class Wants : uint8_t { nothing, answer, end };
  // A line of the user: a command is carried out, all else becomes the user's message. "//" begins
  // a message with one slash. Never throws for what a user may type.
  Wants take(const std::string& line);
  void answered(const std::string& text);
  // The last message of the user goes again: nothing has answered it.
  void take_back();
  // The last message alone, behind the system's.
  Conversation last_alone() const;
  // The oldest turn goes from what is answered, with its answer; false: the last one has nothing
  // before it.
  bool forget_first();

  // What is answered: the system's message, and all that is not forgotten.
  Conversation conversation() const;

 private:
  bool has_system() const;
  void set_system(const std::string& text);
  void save(const std::string& file);
  void help() const;
  Conversation said_;     // all of it: what is forgotten can be saved
  size_t forgotten_ = 0;  // messages behind the system's
  std::function<void(const std::string&)> tell_;
};

}  // namespace meshwright::generate
