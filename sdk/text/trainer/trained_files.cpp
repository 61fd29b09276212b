#include "sdk/text/trainer/trained_files.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

namespace meshwright::tokenizer {

namespace json = boost::json;

namespace {

json::object bytes_step(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json::object pre_tokenizer(WordPattern pattern) {
  // GPT-2's is the step's own.
  if (pattern == WordPattern::gpt2) return bytes_step(false, true);
  return {
      {"type", "Sequence"},
      {"pretokenizers", json::array{json::object{{"type", "Split"},
                                                 {"pattern", {{"Regex", pattern_text(pattern)}}},
                                                 {"behavior", "Isolated"},
                                                 {"invert", false}},
                                    bytes_step(false, false)}}};
}

json::object piece(std::string_view kind, std::string_view id, int type) {
  return {{kind, json::object{{"id", id}, {"type_id", type}}}};
}

// A beginning before a text, and before each of two.
json::value post_processor(const TokenRoles& roles, int64_t id) {
  if (!roles.bos) return nullptr;
  const std::string& bos = *roles.bos;
  return json::object{
      {"type", "TemplateProcessing"},
      {"single", json::array{piece("SpecialToken", bos, 0), piece("Sequence", "A", 0)}},
      {"pair", json::array{piece("SpecialToken", bos, 0), piece("Sequence", "A", 0),
                           piece("SpecialToken", bos, 1), piece("Sequence", "B", 1)}},
      {"special_tokens",
       json::object{{bos, json::object{{"id", bos},
                                       {"ids", json::array{id}},
                                       {"tokens", json::array{json::string(bos)}}}}}}};
}

void lay_out(const json::value& value, size_t depth, std::string& out) {
  auto begin_line = [&](size_t deep) { out += '\n' + std::string(2 * deep, ' '); };
  bool first = true;
  auto next = [&] {
    if (!first) out += ',';
    first = false;
    begin_line(depth + 1);
  };
  if (const json::object* object = value.if_object(); object != nullptr && !object->empty()) {
    out += '{';
    for (const auto& [key, item] : *object) {
      next();
      out += json::serialize(key) + ": ";
      lay_out(item, depth + 1, out);
    }
    begin_line(depth);
    out += '}';
  } else if (const json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    out += '[';
    for (const json::value& item : *array) {
      next();
      lay_out(item, depth + 1, out);
    }
    begin_line(depth);
    out += ']';
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

std::string laid_out(const json::value& value) {
  std::string out;
  lay_out(value, 0, out);
  return out;
}

json::object tokenizer_json(const TrainedBpe& trained, const TrainerOptions& options,
                            WordPattern pattern, const TokenRoles& roles) {
  json::array added;
  int64_t bos = 0;
  for (size_t id = 0; id < options.special.size(); ++id) {
    added.push_back(json::object{{"id", id},
                                 {"content", options.special[id]},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
    if (roles.bos == options.special[id]) bos = static_cast<int64_t>(id);
  }
  json::object vocab;
  vocab.reserve(trained.tokens.size());
  for (size_t id = 0; id < trained.tokens.size(); ++id) vocab.emplace(trained.tokens[id], id);
  json::array merges;
  merges.reserve(trained.merges.size());
  for (const auto& [left, right] : trained.merges)
    merges.push_back(
        json::array{json::string(trained.tokens[left]), json::string(trained.tokens[right])});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer(pattern)},
          {"post_processor", post_processor(roles, bos)},
          {"decoder", bytes_step(true, true)},
          {"model", json::object{{"type", "BPE"},
                                 {"dropout", nullptr},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false},
                                 {"vocab", std::move(vocab)},
                                 {"merges", std::move(merges)}}}};
}

json::object tokenizer_config(const TokenRoles& roles) {
  json::object out{{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false}};
  if (roles.max_length) out["model_max_length"] = *roles.max_length;
  if (roles.bos) out["bos_token"] = *roles.bos;
  if (roles.eos) out["eos_token"] = *roles.eos;
  if (roles.pad) out["pad_token"] = *roles.pad;
  return out;
}

}  // namespace meshwright::tokenizer
