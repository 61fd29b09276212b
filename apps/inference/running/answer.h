// A text while it is made: its tokens become letters as they come, until a stop text does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/stop_texts.h"
#include "engine/train/preflight/source.h"

namespace meshwright::generate {

class Answer {
 public:
  // `as_ids`: ids with commas in place of text, as where tokens have none. `show`: hears each
  // piece, always of whole characters. The source must outlive it.
  Answer(const Source& source, bool as_ids, std::vector<std::string> stop_texts,
         std::function<void(const std::string&)> show)
      : has_text_(!as_ids && (source.tokenizer() != nullptr || source.bytes())),
        letters_(source, has_text_ ? Text::Form::text : Text::Form::ids),
        stops_(std::move(stop_texts)),
        show_(std::move(show)) {}

  // Stands before the answer, and is shown; no stop text is looked for in it.
  void goes_on(const std::vector<int64_t>& prompt) {
    std::string all;
    for (int64_t id : prompt) all += letters_.add(id);
    put(all);
  }
  // Stands before the answer and is not shown: how the first letters are written depends on it.
  void follows(const std::vector<int64_t>& prompt) {
    for (int64_t id : prompt) letters_.add(id);
  }
  void add(int64_t id) { put(stops_.add(letters_.add(id))); }
  void finish() {
    put(stops_.add(letters_.finish()));
    put(stops_.finish());
  }

  bool has_text() const { return has_text_; }
  const std::string& text() const { return text_; }  // all that was shown
  const StopTexts& stops() const { return stops_; }

 private:
  void put(const std::string& piece) {
    text_ += piece;
    show_(piece);
  }
  bool has_text_;
  Text letters_;
  StopTexts stops_;
  std::function<void(const std::string&)> show_;
  std::string text_;
};

}  // namespace meshwright::generate
