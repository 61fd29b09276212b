// The header of token files, as llm.c writes it: 256 int32, of which magic, version and token count
// come first.
#pragma once

#include <cstdint>

#include "engine/data/token_files.h"

namespace meshwright::data {

constexpr int64_t kTokenHeader = 1024;
struct TokenMagic {
  int32_t magic, version;
  TokenType type;
};
constexpr TokenMagic kTokenMagics[] = {{20240520, 1, TokenType::uint16},
                                       {20240801, 7, TokenType::uint32}};
// Stands for a count that an int32 does not hold, which then follows as an int64. llm.c itself has
// no such files.
constexpr int32_t kLongCount = INT32_MIN;

}  // namespace meshwright::data
