// UTF-8 as base has it, and what the tokenizer knows of Unicode beside its patterns.
#pragma once

#include <cstdint>

#include "sdk/base/files/utf8.h"

namespace meshwright::tokenizer {

using base::append_utf8;
using base::Character;
using base::character_at;
using base::first_invalid;
using base::Utf8Stream;

// Unicode's White_Space.
bool is_space(int32_t code);

}  // namespace meshwright::tokenizer
