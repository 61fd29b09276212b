// One thing that `doctor` has to say.
#pragma once

#include <boost/describe/class.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::doctor {

enum class Level : uint8_t {
  ok,
  note,     // worth knowing
  warning,  // runs will be slower, or may fail later
  fault     // a run would fail: the exit status is that of `code`
};
const char* level_name(Level level);

struct Finding {
  std::string topic;  // "memory"
  Level level = Level::ok;
  std::string text;
  std::string fix = {};                // what to do; empty where there is nothing to do
  std::optional<ErrorCode> code = {};  // of a fault
  // Not known, and why, instead of a guess: text is "n/a: ..." then.
  static Finding unknown(std::string topic, const std::string& why);
  bool operator==(const Finding&) const = default;
};
BOOST_DESCRIBE_STRUCT(Finding, (), (topic, level, text, fix, code))

Finding finding_of(std::string topic, const Error& error);  // a fault, with the error's first help

boost::json::object to_json(const Finding& finding);

// The fault whose code decides the exit status, the worst: what keeps ranks apart before what loses
// one, before what does not fit, before what only this job's files have against them. Of several
// alike the first. nullptr: there is none.
const Finding* worst_fault(const std::vector<Finding>& findings);

}  // namespace meshwright::doctor
