// Where a long text may be cut so that the ids of its parts, one after the other, are those of the
// whole.
//
// A cut is made where every pattern in use ends a match anyway, whatever follows, and where no
// pattern looks back:
// * before a space that follows a letter or a digit;
// * after a line feed that stands alone between a character that is no white space and a letter or
// a digit. Patterns that are not known to keep to this (divides() compares them as texts), and
// added tokens that could lie across such a place, make a text whole. The tests hold the parts to
// the whole for every pattern listed.
#pragma once

#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/split.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

// Patterns whose matches end at every cut, and leave nothing between them: one of these, or
// GPT-2's, has to be among the steps.
std::span<const std::string_view> separating_patterns();
Cuts cuts_of(const std::vector<Step>& steps, const std::deque<AddedToken>& added);

// The last place in (begin, end] where `text` may be cut, else the first one behind `end`, else
// text.size(). `text` may be any bytes: where it is no valid UTF-8 it is not cut.
size_t cut_near(std::string_view text, size_t begin, size_t end, Cuts cuts);

}  // namespace meshwright::tokenizer
