// The rows of a JSON lines file: their tokens, and where they lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jsonl_gz {

struct RowFormat {
  std::string tokens_key, text_key;       // a list of ids, or text whose bytes are the tokens
  std::optional<int64_t> end_token;       // put behind every row
  std::optional<std::string> weight_key;  // of the row's targets; rows without it have 1
  int64_t vocabulary = 0;                 // 0: not known
};

struct Row {
  std::vector<int64_t> tokens;
  float weight = 1;
};

// `place`: "data.jsonl.gz:17". Throws meshwright::Error(bad_dataset | bad_token) that begins with
// it.
Row parse_row(std::string_view line, const RowFormat& format, const std::string& place);

}  // namespace jsonl_gz
