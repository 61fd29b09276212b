#include "apps/inference/stop_texts.h"

#include <algorithm>
#include <utility>

namespace meshwright::generate {

std::string StopTexts::add(std::string_view piece) {
  if (met()) return {};
  std::string all = std::exchange(waiting_, {});
  all += piece;
  size_t end = std::string::npos;
  for (const std::string& text : texts_)
    if (const size_t at = all.find(text); at < end) {
      end = at;
      met_ = text;
    }
  if (met()) {
    all.resize(end);
    return all;
  }
  // The longest end that goes on to be one.
  size_t wait = 0;
  for (const std::string& text : texts_)
    for (size_t size = std::min(text.size() - 1, all.size()); size > wait; --size)
      if (std::string_view(all).substr(all.size() - size) == std::string_view(text).substr(0, size))
        wait = size;
  waiting_ = all.substr(all.size() - wait);
  all.resize(all.size() - wait);
  return all;
}

std::string StopTexts::finish() { return std::exchange(waiting_, {}); }

}  // namespace meshwright::generate
