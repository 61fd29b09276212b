// An error as a text that another process reads again, with all that it says.
#pragma once

#include <optional>
#include <string>

#include "meshwright/error.h"

namespace meshwright::base {

std::string error_text(const Error& error);
// nullopt: it is none of error_text(), as another version of the program may have sent.
std::optional<Error> error_in(const std::string& text);

}  // namespace meshwright::base
