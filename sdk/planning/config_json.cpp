#include "meshwright/model/config_json.h"

#include <algorithm>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/model_fields.h"
#include "sdk/base/plain_text.h"

namespace meshwright {

struct ConfigJson::Object {
  struct Document {
    std::string text;
    boost::json::object root;
  };
  std::shared_ptr<const Document> document;
  const boost::json::object* fields;  // of the document
  std::vector<std::string> path;      // of this object in it
  std::string name;

  // nullptr: absent.
  const boost::json::value* member(std::string_view field) const {
    return fields->if_contains(boost::json::string_view(field.data(), field.size()));
  }
  // nullptr: absent or null.
  const boost::json::value* find(std::string_view field) const {
    const boost::json::value* value = member(field);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
};

namespace {

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{4} << 20;

// The line of the member at that path of keys in a text that is JSON; 0: not found, which a key
// written with escapes is.
int64_t line_of(std::string_view text, const std::vector<std::string>& path) {
  std::vector<std::string_view> keys;  // of the objects around a place; a list's is empty
  int64_t line = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == '{' || c == '[') keys.emplace_back();
    if (c == '}' || c == ']') keys.pop_back();
    if (c != '"') continue;
    const size_t begin = i + 1;
    for (++i; text[i] != '"'; ++i)
      if (text[i] == '\\') ++i;
    const size_t next = text.find_first_not_of(" \t\r\n", i + 1);
    if (next == std::string_view::npos || text[next] != ':') continue;
    keys.back() = text.substr(begin, i - begin);
    if (std::ranges::equal(keys, path)) return line;
  }
  return 0;
}

std::optional<int64_t> whole(const boost::json::value& value) {
  if (const int64_t* i = value.if_int64()) return *i;
  if (const uint64_t* u = value.if_uint64())
    return *u <= INT64_MAX ? std::optional(static_cast<int64_t>(*u)) : std::nullopt;
  if (const double* d = value.if_double();
      d != nullptr && std::floor(*d) == *d && std::abs(*d) < 1e15)
    return static_cast<int64_t>(*d);
  return std::nullopt;
}

std::string brief(const boost::json::value& value) {
  return boost::json::serialize(value).substr(0, 60);
}

std::string bound_text(double value) { return text::format("%g", value); }

}  // namespace

ConfigJson::ConfigJson(std::shared_ptr<const Object> object) : object_(std::move(object)) {}
const std::string& ConfigJson::name() const { return object_->name; }

ConfigJson ConfigJson::read(const std::string& file_or_folder) {
  if (file_or_folder.empty())
    throw Error(ErrorCode::missing_key, "this model family needs the config.json of a model")
        .key("model.config")
        .help("set model.config = \"config.json\" for random weights of that shape")
        .help("set model.pretrained to a Hugging Face folder, to start from its weights");
  std::filesystem::path file = file_or_folder;
  std::error_code failed;
  if (std::filesystem::is_directory(file, failed)) file /= "config.json";
  if (const std::string* handed = base::handed_config(file_or_folder))
    return parse(*handed, file.string());
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::file_unreadable,
                 "cannot read the model's configuration " + file.string() + ": " + why)
        .key("model.config")
        .help("name a Hugging Face config.json, or a folder that holds one");
  };
  if (!std::filesystem::is_regular_file(file, failed)) throw refuse("no such file");
  if (std::filesystem::file_size(file, failed) > kMaxBytes) throw refuse("larger than 4 MiB");
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw refuse("it cannot be read");
  return parse(text.str(), file.string());
}

ConfigJson ConfigJson::parse(std::string_view text, std::string name) {
  boost::json::parse_options options;
  options.max_depth = 32;
  boost::json::error_code failed;
  boost::json::parser parser({}, options);
  size_t read = parser.write_some(text.data(), text.size(), failed);
  size_t rest = failed ? read : text.find_first_not_of(" \t\r\n", read);
  if (!failed && rest < text.size()) failed = boost::json::error::extra_data;
  if (failed) {
    std::string_view before = text.substr(0, std::min(rest, text.size()));
    auto line = 1 + std::count(before.begin(), before.end(), '\n');
    size_t column = before.size() -
                    (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
    Error error(ErrorCode::bad_model_config, name + " is not JSON: " + failed.message() +
                                                 " at line " + std::to_string(line) + ", column " +
                                                 std::to_string(column));
    // Python writes these words for numbers that JSON does not have.
    std::string_view word = text.substr(std::min(text.find_last_of(" \t\r\n:,[", rest) + 1, rest));
    for (const char* python : {"Infinity", "-Infinity", "NaN"})
      if (word.starts_with(python))
        error.help(
            std::string(python) +
            " is no number of JSON, though Python writes it: put one in its place (1e308 for "
            "Infinity), or null where the field may be left out");
    throw error.key("model.config");
  }
  boost::json::value value = parser.release();
  if (!value.is_object())
    throw Error(ErrorCode::bad_model_config, name + " holds no JSON object").key("model.config");
  auto document = std::make_shared<const Object::Document>(
      Object::Document{std::string(text), std::move(value.get_object())});
  const boost::json::object* root = &document->root;
  return ConfigJson(
      std::make_shared<const Object>(Object{std::move(document), root, {}, std::move(name)}));
}

void ConfigJson::refuse(std::string_view field, const std::string& what) const {
  std::vector<std::string> path = object_->path;
  path.emplace_back(field);
  const int64_t line = line_of(object_->document->text, path);
  throw Error(ErrorCode::bad_model_config,
              name() + ": " + path.back() + " " + what +
                  (line > 0 ? " (line " + std::to_string(line) + ")" : std::string()))
      .key("model.config");
}

void ConfigJson::expect_only(std::initializer_list<std::string_view> fields) const {
  for (const auto& member : *object_->fields) {
    const std::string field(member.key());
    if (base::is_of_no_model(field) || field == "architectures" || field == "model_type" ||
        std::ranges::find(fields, field) != fields.end())
      continue;
    const std::string near =
        nearest_name(field, std::vector<std::string>(fields.begin(), fields.end()));
    refuse(field, "is no field of this model" +
                      (near.empty() ? std::string() : "; did you mean " + near + "?"));
  }
}

bool ConfigJson::has(std::string_view field) const { return object_->find(field) != nullptr; }

bool ConfigJson::is_null(std::string_view field) const {
  const boost::json::value* value = object_->member(field);
  return value != nullptr && value->is_null();
}

int64_t ConfigJson::integer(std::string_view field, int64_t low, int64_t high,
                            std::optional<int64_t> fallback) const {
  const boost::json::value* value = object_->find(field);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) refuse(field, "is missing");
  std::optional<int64_t> number = whole(*value);
  if (!number) refuse(field, "must be a whole number, found " + brief(*value));
  if (*number < low || *number > high)
    refuse(field, "= " + std::to_string(*number) + " is out of range (" + std::to_string(low) +
                      " to " + std::to_string(high) + ")");
  return *number;
}

double ConfigJson::number(std::string_view field, double low, double high,
                          std::optional<double> fallback) const {
  const boost::json::value* value = object_->find(field);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) refuse(field, "is missing");
  if (!value->is_number()) refuse(field, "must be a number, found " + brief(*value));
  double number = value->to_number<double>();
  if (!(number >= low && number <= high))
    refuse(field, "= " + brief(*value) + " is out of range (" + bound_text(low) + " to " +
                      bound_text(high) + ")");
  return number;
}

bool ConfigJson::boolean(std::string_view field, bool fallback) const {
  const boost::json::value* value = object_->find(field);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) refuse(field, "must be true or false, found " + brief(*value));
  return value->get_bool();
}

std::string ConfigJson::string(std::string_view field, const std::string& fallback) const {
  const boost::json::value* value = object_->find(field);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(field, "must be a string, found " + brief(*value));
  return std::string(value->get_string());
}

std::vector<std::string> ConfigJson::strings(std::string_view field) const {
  std::vector<std::string> out;
  const boost::json::value* value = object_->find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) refuse(field, "must be a list of strings");
  for (const boost::json::value& item : value->get_array()) {
    if (!item.is_string()) refuse(field, "must be a list of strings");
    out.emplace_back(item.get_string());
  }
  return out;
}

bool ConfigJson::is_list(std::string_view field) const {
  const boost::json::value* value = object_->find(field);
  return value != nullptr && value->is_array();
}

std::vector<int64_t> ConfigJson::integers(std::string_view field, int64_t low, int64_t high) const {
  std::vector<int64_t> out;
  const boost::json::value* value = object_->find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) refuse(field, "must be a list of whole numbers");
  for (const boost::json::value& item : value->get_array()) {
    std::optional<int64_t> number = whole(item);
    if (!number || *number < low || *number > high)
      refuse(field, "must be a list of whole numbers from " + std::to_string(low) + " to " +
                        std::to_string(high));
    out.push_back(*number);
  }
  return out;
}

std::vector<double> ConfigJson::numbers(std::string_view field, double low, double high) const {
  std::vector<double> out;
  const boost::json::value* value = object_->find(field);
  if (value == nullptr) return out;
  auto wrong = [&] {
    refuse(field, "must be a list of numbers from " + bound_text(low) + " to " + bound_text(high));
  };
  if (!value->is_array()) wrong();
  for (const boost::json::value& item : value->get_array()) {
    double number = item.is_number() ? item.to_number<double>() : low - 1;
    if (!(number >= low && number <= high)) wrong();
    out.push_back(number);
  }
  return out;
}

ConfigJson ConfigJson::object(std::string_view field) const {
  const boost::json::value* value = object_->find(field);
  if (value == nullptr || !value->is_object()) refuse(field, "must be an object");
  Object inner = *object_;
  inner.fields = &value->get_object();
  inner.path.emplace_back(field);
  inner.name += ": " + inner.path.back();
  return ConfigJson(std::make_shared<const Object>(std::move(inner)));
}

}  // namespace meshwright
