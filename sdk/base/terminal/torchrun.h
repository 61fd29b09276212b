// What a rank can tell torchrun about its end.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "meshwright/error.h"

namespace meshwright::report {

using Variables = std::function<std::optional<std::string>(const std::string&)>;

// Writes the error to the file that torchrun names in TORCHELASTIC_ERROR_FILE, so that its summary
// of the failure says what happened
// ("traceback : error[E0212]: ..."). Does nothing without torchrun, or when the file is there
// already: the first error is the cause.
void tell_torchrun(const Error& error, const Variables& variables);

// torchrun starts the ranks again after any exit status but 0, and nothing that a rank does can
// stop it. For a failure that will come again (a mistake in the file, sizes that do not fit,
// numerics, data) a line that says so; empty when no attempt is left, or it may heal.
std::string vain_retries(int exit_status, const Variables& variables);

// Both, with the variables of this process; returns the line.
std::string last_words_for_torchrun(const Error& error);

}  // namespace meshwright::report
