// What a model writes, token by token with the text of each: for an application.
#pragma once

#include <functional>
#include <string>

#include "engine/train/step/continued.h"

namespace meshwright::generate {

// `tell`: hears notices. `token`: hears every new id and the text that it adds to the prompt's; at
// the end -1 with what was held back of a character that was not complete, if anything was. Models
// whose tokens have no text here give ids alone.
class TextPieces {
 public:
  using Token = std::function<void(int64_t id, const std::string& text)>;
  TextPieces(const Source& source, std::function<void(const std::string&)> tell, Token token)
      : with_text_(source.tokenizer() != nullptr || source.bytes()),
        text_(source, Text::Form::text),
        tell_(std::move(tell)),
        token_(std::move(token)) {}

  Listener listener() {
    return {.notice = [this](const std::string& text) { tell_("notice: " + text); },
            .begin =
                [this](int64_t, const std::vector<int64_t>& prompt) {
                  for (int64_t id : prompt)
                    if (with_text_) text_.add(id);
                },
            .token =
                [this](int64_t id, bool ends) {
                  token_(id, with_text_ && !ends ? text_.add(id) : std::string());
                }};
  }
  void finish() {
    if (const std::string rest = with_text_ ? text_.finish() : ""; !rest.empty()) token_(-1, rest);
  }

 private:
  bool with_text_;
  Text text_;
  std::function<void(const std::string&)> tell_;
  Token token_;
};

}  // namespace meshwright::generate
