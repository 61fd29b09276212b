#include "sdk/base/files/json_codec.h"

#include <algorithm>
#include <charconv>

namespace meshwright::base::codec {

namespace {

// "\"files\"[0].\"name\""
std::string text_of(const Place& place) {
  if (place.in == nullptr) return std::string(place.key);
  const std::string outer = place.in->in == nullptr ? "" : text_of(*place.in);
  if (place.key.data() == nullptr) return outer + "[" + std::to_string(place.index) + "]";
  return outer + (outer.empty() ? "\"" : ".\"") + std::string(place.key) + "\"";
}

}  // namespace

void refuse(const Place& place, const std::string& what) {
  throw JsonProblem{0, text_of(place) + " " + what};
}

void refuse_keys(const Place& place, const boost::json::object& object,
                 const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : object)
    if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end())
      refuse(place, "has \"" + std::string(key) + "\", which this version does not know");
  refuse(place, "lists a key twice");
}

double read_double(const boost::json::value& from, const Place& place) {
  if (from.is_number()) return from.to_number<double>();
  double out = 0;
  if (const boost::json::string* digits = from.if_string()) {
    const char* end = digits->data() + digits->size();
    if (const auto read = std::from_chars(digits->data(), end, out);
        read.ec == std::errc() && read.ptr == end)
      return out;
  }
  refuse(place, "needs a number");
}

std::string double_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace meshwright::base::codec
