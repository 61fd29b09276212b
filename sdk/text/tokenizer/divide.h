// Where a long text may be cut so that the ids of its parts, one after the other, are those of the
// whole.
//
// A cut is made
// * before a space that follows a letter or a digit;
// * after a line feed that stands alone between a character that is no white space and a letter or
// a digit.
// Every part of a tokenizer says which of these it leaves right: what it does on either side must
// not depend on the other. Patterns that are not known to end a match there and to look back over
// no such place are compared as texts; added tokens that could lie across one make a text whole. A
// model that takes all of a text at once is asked whether anything of it spans the two characters.
// The tests hold the parts to the whole.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

// Places as they look at some stage of the way from a text to its ids.
struct CutPlaces {
  bool at_spaces = true, at_lines = true;
  bool separated = false;  // pieces end at every one of them
  bool bare = true;        // what stands before the space is no white space
  bool prefixed = false;   // a text that begins elsewhere would get a prefix
  // What the space has become, each of one character: any of these may stand behind the cut.
  std::vector<std::string> spaces = {" "};
  static CutPlaces none() { return {false, false, false, true, false, {}}; }
  bool as_they_were() const { return bare && spaces == std::vector<std::string>{" "}; }
  bool any() const { return at_spaces || at_lines; }
};

// Takes away those that an added token could lie across, or whose spaces or neighbours it looks at.
Cuts heed_added(const CutPlaces& places, const std::deque<AddedToken>& added);

// The last place in (begin, end] where `text` may be cut, else the first one behind `end`, else
// text.size(). `text` may be any bytes: where it is no valid UTF-8 it is not cut.
size_t cut_near(std::string_view text, size_t begin, size_t end, Cuts cuts);

}  // namespace meshwright::tokenizer
