#include "engine/models/config_json.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/models/net_config.h"
#include "meshwright/error.h"
#include "sdk/base/plain_text.h"

namespace meshwright::outlines {

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
  ConfigJson out;
  out.object_ = std::move(value.get_object());
  out.name_ = std::move(name);
  return out;
}

const boost::json::value* ConfigJson::find(std::string_view field) const {
  const boost::json::value* value =
      object_.if_contains(boost::json::string_view(field.data(), field.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

const boost::json::value& ConfigJson::required(std::string_view field) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) fail(field, "is missing");
  return *value;
}

void ConfigJson::fail(std::string_view field, const std::string& what) const {
  throw Error(ErrorCode::bad_model_config, name_ + ": " + std::string(field) + " " + what)
      .key("model.config");
}

bool ConfigJson::is_null(std::string_view field) const {
  const boost::json::value* value =
      object_.if_contains(boost::json::string_view(field.data(), field.size()));
  return value != nullptr && value->is_null();
}

bool ConfigJson::has(std::string_view field) const { return find(field) != nullptr; }

namespace {

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

std::string number_text(double value) { return text::format("%g", value); }

}  // namespace

int64_t ConfigJson::integer(std::string_view field, int64_t low, int64_t high,
                            std::optional<int64_t> fallback) const {
  if (fallback && !has(field)) return *fallback;
  const boost::json::value& value = required(field);
  std::optional<int64_t> number = whole(value);
  if (!number) fail(field, "must be a whole number, found " + brief(value));
  if (*number < low || *number > high)
    fail(field, "= " + std::to_string(*number) + " is out of range (" + std::to_string(low) +
                    " to " + std::to_string(high) + ")");
  return *number;
}

double ConfigJson::number(std::string_view field, double low, double high,
                          std::optional<double> fallback) const {
  if (fallback && !has(field)) return *fallback;
  const boost::json::value& value = required(field);
  if (!value.is_number()) fail(field, "must be a number, found " + brief(value));
  double number = value.to_number<double>();
  if (!(number >= low && number <= high))
    fail(field, "= " + brief(value) + " is out of range (" + number_text(low) + " to " +
                    number_text(high) + ")");
  return number;
}

bool ConfigJson::boolean(std::string_view field, bool fallback) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail(field, "must be true or false, found " + brief(*value));
  return value->get_bool();
}

std::string ConfigJson::string(std::string_view field, const std::string& fallback) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(field, "must be a string, found " + brief(*value));
  return std::string(value->get_string());
}

std::vector<std::string> ConfigJson::strings(std::string_view field) const {
  std::vector<std::string> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(field, "must be a list of strings");
  for (const boost::json::value& item : value->get_array()) {
    if (!item.is_string()) fail(field, "must be a list of strings");
    out.emplace_back(item.get_string());
  }
  return out;
}

bool ConfigJson::is_list(std::string_view field) const {
  const boost::json::value* value = find(field);
  return value != nullptr && value->is_array();
}

std::vector<int64_t> ConfigJson::integers(std::string_view field, int64_t low, int64_t high) const {
  std::vector<int64_t> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(field, "must be a list of whole numbers");
  for (const boost::json::value& item : value->get_array()) {
    std::optional<int64_t> number = whole(item);
    if (!number || *number < low || *number > high)
      fail(field, "must be a list of whole numbers from " + std::to_string(low) + " to " +
                      std::to_string(high));
    out.push_back(*number);
  }
  return out;
}

std::vector<double> ConfigJson::numbers(std::string_view field, double low, double high) const {
  std::vector<double> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  auto refuse = [&] {
    fail(field, "must be a list of numbers from " + number_text(low) + " to " + number_text(high));
  };
  if (!value->is_array()) refuse();
  for (const boost::json::value& item : value->get_array()) {
    double number = item.is_number() ? item.to_number<double>() : low - 1;
    if (!(number >= low && number <= high)) refuse();
    out.push_back(number);
  }
  return out;
}

ConfigJson ConfigJson::object(std::string_view field) const {
  const boost::json::value* value = find(field);
  if (value == nullptr || !value->is_object()) fail(field, "must be an object");
  ConfigJson out;
  out.object_ = value->get_object();
  out.name_ = name_ + ": " + std::string(field);
  return out;
}

namespace {

namespace json = boost::json;
using Path = std::vector<std::string>;

// A field with another value; nullptr: it is not there.
struct Changed {
  Path path;
  const json::value *before, *now;
};

// A number is the same however it is written.
bool same_value(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (!a.is_array() || !b.is_array()) return a == b;
  return std::ranges::equal(a.get_array(), b.get_array(), same_value);
}

void collect(const json::object& before, const json::object& now, Path& path,
             std::vector<Changed>& out) {
  auto compare = [&](std::string_view key, const json::value* was, const json::value* is) {
    path.emplace_back(key);
    if (was != nullptr && is != nullptr && was->is_object() && is->is_object())
      collect(was->get_object(), is->get_object(), path, out);
    else if (was == nullptr || is == nullptr || !same_value(*was, *is))
      out.push_back({path, was, is});
    path.pop_back();
  };
  for (const auto& [key, value] : before)
    compare({key.data(), key.size()}, &value, now.if_contains(key));
  for (const auto& [key, value] : now)
    if (!before.contains(key)) compare({key.data(), key.size()}, nullptr, &value);
}

json::object fields_of(std::string_view text) {
  ConfigJson::parse(text, "config.json");  // what is none is refused in its words
  return json::parse(json::string_view(text.data(), text.size())).as_object();
}

// They point into both objects.
std::vector<Changed> changed_fields(const json::object& before, const json::object& now) {
  std::vector<Changed> out;
  Path path;
  collect(before, now, path, out);
  return out;
}

// As people write it: 1e-06, where the serializer has 1E-6.
std::string value_text(const json::value& value) {
  if (!value.is_double()) return json::serialize(value);
  if (const double whole = std::trunc(value.get_double());
      whole == value.get_double() && std::abs(whole) < 1e15)
    return std::to_string(static_cast<int64_t>(whole));
  char text[32];
  const auto [end, failed] = std::to_chars(text, text + sizeof text, value.get_double());
  return {text, failed == std::errc() ? end : text};
}

ConfigChange change_of(const Changed& field) {
  ConfigChange out;
  for (const std::string& part : field.path) out.field += (out.field.empty() ? "" : ".") + part;
  if (field.before != nullptr) out.before = value_text(*field.before);
  if (field.now != nullptr) out.now = value_text(*field.now);
  return out;
}

// The file of before with this one field as it is now.
std::string with(const json::object& before, const Changed& field) {
  json::object all = before;
  json::object* holder = &all;
  for (size_t i = 0; i + 1 < field.path.size(); ++i)
    holder = &holder->at(field.path[i]).get_object();
  if (field.now != nullptr)
    (*holder)[field.path.back()] = *field.now;
  else
    holder->erase(field.path.back());
  return json::serialize(all);
}

bool same_experts(const std::optional<MoeFamily>& a, const std::optional<MoeFamily>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  auto numbers = [](const MoeOutline& one) {
    return std::tuple(one.experts, one.active_experts, one.intermediate_size, one.shared_experts);
  };
  return numbers(a->sizes) == numbers(b->sizes) && a->sparse == b->sparse &&
         a->experts_first == b->experts_first;
}

bool same_family(const DecoderFamily& a, const DecoderFamily& b) {
  auto numbers = [](const DecoderFamily& one) {
    const DecoderSizes& s = one.sizes;
    return std::tuple(s.vocab, s.hidden, s.intermediate, s.layers, s.heads, s.kv_heads, s.head_dim,
                      s.tied, one.mlp_bias, one.fused, one.four_norms, one.beside);
  };
  auto attention = [](const AttentionShape& one) {
    return std::tuple(one.qkv_bias, one.output_bias, one.qk_norms, one.output);
  };
  return a.architecture == b.architecture && numbers(a) == numbers(b) &&
         attention(a.attention) == attention(b.attention) && same_experts(a.moe, b.moe);
}

bool same_rope(const RopeConfig& a, const RopeConfig& b) {
  auto numbers = [](const RopeConfig& one) {
    // How far a model reaches has a part in the angles of one type alone.
    const int64_t reach = one.type == RopeType::dynamic ? one.max_positions : 0;
    return std::tuple(one.type, one.theta, one.factor, one.low_frequency_factor,
                      one.high_frequency_factor, one.original_positions, one.short_factors,
                      one.long_factors, one.beta_fast, one.beta_slow, one.truncate,
                      one.attention_factor, reach, one.dim);
  };
  return numbers(a) == numbers(b);
}

bool same_layer(const LayerConfig& a, const LayerConfig& b) {
  return a.window == b.window && a.rope == b.rope;
}

std::string_view one_name(std::string_view activation) {
  return activation == "swish" ? "silu" : activation;
}

// All of NetConfig but how weights begin.
bool computes_the_same(const NetConfig& a, const NetConfig& b) {
  auto numbers = [](const NetConfig& net) {
    return std::tuple(net.norm_epsilon, net.norms_plus_one, one_name(net.activation),
                      net.attention_scale, net.attention_dropout, net.embedding_scale,
                      net.logit_softcap, net.padding_row, net.moe.normalised,
                      net.moe.balance_coefficient);
  };
  return same_family(a.family, b.family) && std::ranges::equal(a.ropes, b.ropes, same_rope) &&
         std::ranges::equal(a.layers, b.layers, same_layer) && numbers(a) == numbers(b);
}

std::optional<NetConfig> net_of_file(std::string_view text) {
  try {
    return read_net_config(ConfigJson::parse(text, "config.json"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// What libraries write beside a model, and what the tokens mean to whoever makes text.
constexpr std::string_view kOfNoModel[] = {"_attn_implementation",
                                           "_commit_hash",
                                           "_name_or_path",
                                           "auto_map",
                                           "bos_token_id",
                                           "cache_implementation",
                                           "dtype",
                                           "eos_token_id",
                                           "id2label",
                                           "label2id",
                                           "task_specific_params",
                                           "tokenizer_class",
                                           "torch_dtype",
                                           "torchscript",
                                           "transformers_version",
                                           "use_cache"};

}  // namespace

std::vector<ConfigChange> changes_of_file(std::string_view before, std::string_view now) {
  const json::object was = fields_of(before), is = fields_of(now);
  std::vector<ConfigChange> out;
  for (const Changed& field : changed_fields(was, is))
    if (std::ranges::find(kOfNoModel, field.path.front()) == std::end(kOfNoModel))
      out.push_back(change_of(field));
  return out;
}

std::vector<ConfigChange> changes_of_model(std::string_view before, std::string_view now) {
  const std::optional<NetConfig> was = net_of_file(before), is = net_of_file(now);
  if (!was || !is) return changes_of_file(before, now);
  if (computes_the_same(*was, *is)) return {};
  // Each for itself; fields that belong together may only make sense, or a difference, together.
  const json::object fields = fields_of(before), others = fields_of(now);
  std::vector<ConfigChange> out;
  for (const Changed& field : changed_fields(fields, others)) {
    const std::optional<NetConfig> other = net_of_file(with(fields, field));
    if (!other || !computes_the_same(*was, *other)) out.push_back(change_of(field));
  }
  return out.empty() ? changes_of_file(before, now) : out;
}

}  // namespace meshwright::outlines
