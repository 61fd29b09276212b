// A file of prompts, each of which a model goes on with or answers: JSON Lines whose rows have
// `prompt` (a text), `tokens` (ids) or `messages` (a conversation).
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <vector>

#include "apps/inference/ask.h"

namespace meshwright::generate {

struct Prompts {
  struct Row {
    boost::json::object columns;  // as the file has them
    std::vector<int64_t> prompt;
    bool conversation = false;
  };
  std::vector<Row> rows;
  std::vector<int64_t> stops, turn_stops;  // of texts, and of conversations
  bool conversations = false;              // some are
};

// `ask.prompts`. Throws what asked_of() throws, with the line, and Error(bad_dataset).
Prompts read_prompts(const Source& source, const Ask& ask);

}  // namespace meshwright::generate
