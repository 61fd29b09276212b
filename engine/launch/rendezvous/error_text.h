// An error as a text that another process reads again: code, message, key, place in the file, helps
// and notes.
#pragma once

#include <string>

#include "meshwright/error.h"

namespace meshwright::rendezvous {

std::string encode_error(const Error& error);
// A text that is not one of encode_error(), as another version of the program may send it, becomes
// the message of Error(rank_failed).
Error decode_error(const std::string& text);

// "rank 1 (node7)", for a message that other ranks read.
std::string name_here(int64_t rank);

}  // namespace meshwright::rendezvous
