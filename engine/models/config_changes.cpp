#include "engine/models/config_changes.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/models/net_config.h"
#include "meshwright/error.h"
#include "sdk/base/model_fields.h"

namespace meshwright::outlines {

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

}  // namespace

std::vector<ConfigChange> changes_of_file(std::string_view before, std::string_view now) {
  const json::object was = fields_of(before), is = fields_of(now);
  std::vector<ConfigChange> out;
  for (const Changed& field : changed_fields(was, is))
    if (!base::is_of_no_model(field.path.front())) out.push_back(change_of(field));
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
