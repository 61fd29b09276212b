#include "apps/doctor/finding.h"

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <utility>

namespace meshwright::doctor {

namespace {

constexpr const char* kNames[] = {"ok", "note", "warning", "fault"};

}  // namespace

const char* level_name(Level level) { return kNames[static_cast<size_t>(level)]; }

Finding Finding::unknown(std::string topic, const std::string& why) {
  return {std::move(topic), Level::ok, "n/a: " + why};
}

Finding finding_of(std::string topic, const Error& error) {
  Finding out{std::move(topic), Level::fault, error.message()};
  if (!error.helps().empty()) out.fix = error.helps().front();
  out.code = error.code();
  return out;
}

boost::json::object to_json(const Finding& finding) {
  boost::json::object out{{"topic", finding.topic},
                          {"level", level_name(finding.level)},
                          {"text", finding.text},
                          {"fix", nullptr},
                          {"code", nullptr}};
  if (!finding.fix.empty()) out["fix"] = finding.fix;
  if (finding.code) out["code"] = code_string(*finding.code);
  return out;
}

const Finding* worst_fault(const std::vector<Finding>& findings) {
  constexpr std::array kWorstFirst = {1, 4, 6, 3, 5, 7, 2};  // exit statuses
  auto rank = [&](const Finding& finding) {
    const int status = exit_status(finding.code.value_or(ErrorCode::internal));
    return std::find(kWorstFirst.begin(), kWorstFirst.end(), status) - kWorstFirst.begin();
  };
  const Finding* worst = nullptr;
  for (const Finding& finding : findings)
    if (finding.level == Level::fault && (worst == nullptr || rank(finding) < rank(*worst)))
      worst = &finding;
  return worst;
}

}  // namespace meshwright::doctor
