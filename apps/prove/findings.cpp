#include "apps/prove/findings.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::prove {

namespace json = boost::json;

namespace {

// JSON has no word for what is not finite.
json::value number(double value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}
double number_of(const json::value& value) {
  return value.is_null() ? HUGE_VAL : value.to_number<double>();
}

std::string text_of(const json::object& object, const char* key) {
  return std::string(object.at(key).as_string());
}

json::array texts(const std::vector<std::string>& all) {
  json::array out;
  for (const std::string& one : all) out.emplace_back(one);
  return out;
}
std::vector<std::string> texts_of(const json::object& object, const char* key) {
  std::vector<std::string> out;
  for (const json::value& one : object.at(key).as_array()) out.emplace_back(one.as_string());
  return out;
}

std::string digits(double value) {
  return std::isfinite(value) ? text::format("%.1e", value) : "not finite";
}

}  // namespace

bool Findings::ok() const {
  return problems.empty() && faults.empty() && std::ranges::all_of(rows, [](const Row& row) {
           return row.ok() || !row.not_compared.empty();
         });
}

json::object Findings::json() const {
  json::array found, wrong;
  for (const Row& row : rows)
    found.push_back(json::object{{"what", row.what},
                                 {"difference", number(row.difference)},
                                 {"tolerance", row.tolerance},
                                 {"where", row.where},
                                 {"not_compared", row.not_compared},
                                 {"ok", row.ok()}});
  for (const Fault& fault : faults)
    wrong.push_back(json::object{{"what", fault.what},
                                 {"pattern", fault.pattern},
                                 {"mend", fault.mend},
                                 {"ranks", json::array(fault.ranks.begin(), fault.ranks.end())},
                                 {"difference", number(fault.difference)}});
  json::array brought;
  for (const OwnParameter& one : own)
    brought.push_back(json::object{{"name", one.name}, {"how", one.how}, {"ok", one.ok}});
  return {{"dtypes", dtypes},
          {"ok", ok()},
          {"own_parameters", std::move(brought)},
          {"picture", picture.json()},
          {"rows", std::move(found)},
          {"faults", std::move(wrong)},
          {"problems", texts(problems)},
          {"modules", modules},
          {"modules_not_compared", texts(modules_left)},
          {"seconds", seconds}};
}

Findings Findings::of(const json::object& from) {
  Findings out;
  out.dtypes = text_of(from, "dtypes");
  for (const json::value& value : from.at("rows").as_array()) {
    const json::object& row = value.as_object();
    out.rows.push_back({text_of(row, "what"), number_of(row.at("difference")),
                        number_of(row.at("tolerance")), text_of(row, "where"),
                        text_of(row, "not_compared")});
  }
  for (const json::value& value : from.at("faults").as_array()) {
    const json::object& fault = value.as_object();
    Fault one{.what = text_of(fault, "what"),
              .pattern = text_of(fault, "pattern"),
              .mend = text_of(fault, "mend"),
              .difference = number_of(fault.at("difference"))};
    for (const json::value& rank : fault.at("ranks").as_array())
      one.ranks.push_back(rank.to_number<int64_t>());
    out.faults.push_back(std::move(one));
  }
  for (const json::value& value : from.at("own_parameters").as_array()) {
    const json::object& one = value.as_object();
    out.own.push_back({text_of(one, "name"), text_of(one, "how"), one.at("ok").as_bool()});
  }
  out.picture = Picture::of(from.at("picture").as_object());
  out.problems = texts_of(from, "problems");
  out.modules = from.at("modules").to_number<int64_t>();
  out.modules_left = texts_of(from, "modules_not_compared");
  out.seconds = from.at("seconds").to_number<double>();
  return out;
}

std::string Findings::text(const report::Style& style) const {
  std::string out = "\nin " + dtypes + ":\n\n";
  std::vector<std::vector<std::string>> cells = {{"", "difference", "tolerance", "", ""}};
  for (const Row& row : rows) {
    const bool compared = row.not_compared.empty();
    cells.push_back({row.what, compared ? digits(row.difference) : "",
                     compared ? digits(row.tolerance) : "",
                     row.ok()    ? report::paint(style, report::Tone::green, "ok")
                     : !compared ? report::paint(style, report::Tone::yellow, "not compared")
                                 : report::paint(style, report::Tone::red, "WRONG"),
                     !compared  ? row.not_compared
                     : row.ok() ? ""
                                : row.where});
  }
  constexpr size_t kRight[] = {1, 2};
  if (!rows.empty()) out += report::table(style, cells, kRight);
  if (!own.empty()) {
    std::vector<std::vector<std::string>> brought = {{"the model's own, over tp", "", ""}};
    for (const OwnParameter& one : own)
      brought.push_back({one.name, one.how,
                         one.ok ? report::paint(style, report::Tone::green, "right")
                                : report::paint(style, report::Tone::red, "WRONG")});
    out += "\n" + report::table(style, brought, {});
  }
  for (const std::string& problem : problems)
    out += report::paint(style, report::Tone::red, "ended: ") + problem + "\n";
  for (const Fault& fault : faults) {
    out += "\n" + report::paint(style, report::Tone::red, fault.what);
    if (fault.difference > 0) out += ": off by " + digits(fault.difference);
    if (!fault.pattern.empty()) out += "\n  " + fault.pattern;
    if (!fault.mend.empty()) out += "\n  help: " + fault.mend;
    out += "\n";
  }
  if (!faults.empty())
    if (const std::string shown = picture.text(style); !shown.empty()) out += "\n" + shown;
  return out;
}

}  // namespace meshwright::prove
