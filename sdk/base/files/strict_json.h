// Untrusted JSON: bounded, and with one meaning. Numbers with a point are the nearest double, which
// Boost.JSON's own reader misses by a bit at times.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::base {

struct JsonBounds {
  size_t depth = 8;
  size_t elements = 4096;  // of an array
};

struct JsonProblem {
  int64_t offset = 0;  // in the text
  std::string what;    // "is not valid JSON: ...", "lists \"a\" twice"
};

// Every object has at most a million members with keys of at most 4096 bytes, none of them twice.
// Throws JsonProblem.
boost::json::value parse_strictly(std::string_view text, const JsonBounds& bounds);
// What this program has written for another of its processes: of any length, and texts may hold any
// bytes, as names of files do. Throws JsonProblem.
boost::json::value parse_own(std::string_view text);

}  // namespace meshwright::base
