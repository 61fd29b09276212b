// What the log of the fake device has in a line that tells of a fault, of the program's or of the
// fake (README.md says what each means). A new line of that kind belongs here, and in README.md.
#pragma once

#include <array>
#include <string_view>

namespace fake_device_jobs {

inline constexpr std::array<std::string_view, 11> kWrongLines{
    "RACE",           "HOST ACCESS",           "fault at",
    "STRAY KERNEL",   "operator failed",       "outside every allocation",
    "tensor lies at", "is not there",          "cannot be captured here",
    "nccl WRONG",     "communicators are left"};

}  // namespace fake_device_jobs
