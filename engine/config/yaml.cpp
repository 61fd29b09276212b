#include "engine/config/yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <iterator>

#include "engine/config/interpolate.h"
#include "engine/config/syntax.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr int kMostValues = 20000;  // aliases counted each time they are used

Place place_of(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {Origin::Source::file, mark.line + 1, mark.column + 1};
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  Error refuse(const std::string& what, const Place& place) const {
    return Error(ErrorCode::bad_foreign_config, file_ + ": " + what)
        .at({Origin::Source::file, file_, place.line, place.column});
  }

  Value read(const YAML::Node& node, int depth) {
    Place place = place_of(node.Mark());
    if (depth > kMaxDepth)
      throw refuse("values are nested deeper than " + std::to_string(kMaxDepth) + " levels", place);
    if (++values_ > kMostValues)
      throw refuse(
          "more than " + std::to_string(kMostValues) + " values, counting each use of an alias",
          place);
    Value out;
    out.place = place;
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        out.kind = Value::Kind::string;
        out.text = "none";
        break;
      case YAML::NodeType::Scalar:
        scalar(node, out);
        break;
      case YAML::NodeType::Sequence:
        out.kind = Value::Kind::list;
        for (const YAML::Node& item : node) out.items.push_back(read(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        map(node, out, depth);
        break;
    }
    return out;
  }

 private:
  void map(const YAML::Node& node, Value& out, int depth) {
    std::vector<Value> merged;
    for (const auto& pair : node) {
      Place place = place_of(pair.first.Mark());
      if (!pair.first.IsScalar()) throw refuse("a key is no plain word", place);
      std::string key = pair.first.Scalar();
      Value value = read(pair.second, depth + 1);
      if (key == "<<" && value.is_table()) {
        merged.push_back(std::move(value));
      } else if (key == "<<" && value.kind == Value::Kind::list) {
        std::move(value.items.begin(), value.items.end(), std::back_inserter(merged));
      } else {
        if (out.find(key) != nullptr)
          throw refuse("the key \"" + key + "\" stands twice in one mapping", place);
        out.entries.push_back({key, place, std::move(value)});
      }
    }
    for (Value& source : merged)
      for (Entry& entry : source.entries)
        if (out.find(entry.key) == nullptr) out.entries.push_back(std::move(entry));
  }

  // A quoted scalar is a string; a plain one what it looks like.
  static void scalar(const YAML::Node& node, Value& out) {
    const std::string& text = node.Scalar();
    const std::string lower = text::lower(text);
    out.kind = Value::Kind::string;
    out.text = text;
    if (node.Tag() == "!") return;
    if (lower == "true" || lower == "yes" || lower == "on" || lower == "false" || lower == "no" ||
        lower == "off") {
      out.kind = Value::Kind::boolean;
      out.boolean = lower == "true" || lower == "yes" || lower == "on";
      return;
    }
    const char *begin = text.data() + (text.starts_with('+') ? 1 : 0),
               *end = text.data() + text.size();
    int64_t integer = 0;
    if (auto [at, failed] = std::from_chars(begin, end, integer);
        failed == std::errc() && at == end) {
      out.kind = Value::Kind::integer;
      out.integer = integer;
      return;
    }
    double number = 0;
    bool digit = text.find_first_of("0123456789") != std::string::npos;
    if (auto [at, failed] = std::from_chars(begin, end, number);
        digit && failed == std::errc() && at == end && std::isfinite(number)) {
      out.kind = Value::Kind::number;
      out.number = number;
    }
  }

  const std::string& file_;
  int values_ = 0;
};

}  // namespace

Value parse_yaml(std::string_view text, const std::string& file) {
  Reader reader(file);
  if (text.size() > kMaxFileBytes)
    throw reader.refuse("larger than " + std::to_string(kMaxFileBytes) + " bytes", {});
  if (!is_valid_utf8(text)) throw reader.refuse("the file is not UTF-8", {});
  try {
    // yaml-cpp itself refuses what is nested so deep that it would exhaust the stack.
    YAML::Node root = YAML::Load(std::string(text));
    Place place = place_of(root.Mark());
    if (!root.IsMap())
      throw reader.refuse("the file holds no keys: a mapping is expected at its top", place);
    return reader.read(root, 0);
  } catch (const YAML::Exception& problem) {
    throw reader.refuse("no valid YAML: " + problem.msg, place_of(problem.mark));
  }
}

}  // namespace meshwright::config
