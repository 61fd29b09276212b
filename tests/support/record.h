// What prove said of each job of the sample, as a file of lines, and docs/support.md made of it.
#pragma once

#include <string>
#include <vector>

#include "tests/support/matrix.h"

namespace meshwright::support {

enum class State { proven, refused, differs, not_tried };

struct Proof {
  State state = State::not_tried;
  CoveringRow row;
  std::string why = {};  // refused: the code; else in words
};

// "refused | strategy: ddp, tp: 2 | E0306"
std::string text_of(const Proof& proof);
struct Record {
  std::vector<Proof> proofs;
  std::vector<std::string> unknown;  // lines that name a value which is no more
};
Record read_record(const std::string& text);
std::string text_of(const std::vector<Proof>& proofs);

// Of the job with the fewest values beside the pair; nullptr: no job has both.
const Proof* proof_of(const std::vector<Proof>& proofs, const CoveringPair& pair);

std::string page_of(const std::vector<Proof>& proofs);

}  // namespace meshwright::support
