// Texts that end an answer wherever they come up, across the borders of tokens, too.
//
//   StopTexts stops({"\n\n"});
//   show(stops.add(piece));        // what of it, and of what waited, may be shown
//   if (stops.met()) ...           // the answer ends before the stop text, which is never shown
//   show(stops.finish());          // what waited for a stop text that did not come
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshwright::generate {

class StopTexts {
 public:
  // None is empty; all are UTF-8.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}
  // Whole characters; nothing comes any more once one is met.
  std::string add(std::string_view piece);
  std::string finish();
  bool met() const { return !met_.empty(); }
  const std::string& which() const { return met_; }  // "": none yet

 private:
  std::vector<std::string> texts_;
  std::string waiting_;  // the end of what came, with which a stop text may begin
  std::string met_;
};

}  // namespace meshwright::generate
