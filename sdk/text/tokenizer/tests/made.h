// Tokenizers that are made for a test, and texts of pieces that are hard for them.
#pragma once

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>
#include <string>
#include <vector>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer::made {

const std::string kFolder = MESHWRIGHT_SOURCE_DIR "/tests/data/tokenizers/";

// The fixtures, of every kind.
const std::vector<std::string> kStyles = {"gpt2",  "llama3", "qwen2",  "llama2", "mistral",
                                          "gemma", "t5",     "albert", "bert"};

inline std::string file_of(const std::string& name) { return base::read_file(kFolder + name); }

inline boost::json::object json_of(const std::string& style) {
  return boost::json::parse(file_of(style + ".json")).as_object();
}

inline Tokenizer from(const boost::json::object& file) {
  return Tokenizer::parse(boost::json::serialize(file), "made here");
}

// One more added token, with what differs from a plain one.
inline void add(boost::json::object& file, const std::string& content,
                const boost::json::object& rest) {
  boost::json::object one = {{"id", 0},         {"content", content}, {"single_word", false},
                             {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                             {"special", false}};
  for (const auto& [key, value] : rest) one[key] = value;
  auto next = static_cast<int64_t>(file["model"].at("vocab").as_object().size());
  for (const boost::json::value& known : file["added_tokens"].as_array())
    next = std::max(next, known.at("id").as_int64() + 1);
  one["id"] = next;
  file["added_tokens"].as_array().push_back(one);
}

// The 256 letters and "ab", and what merges it.
inline boost::json::object smallest(bool prefix = false) {
  boost::json::object vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[letter_of(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  return {{"version", "1.0"},
          {"added_tokens", boost::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", prefix}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
}

inline std::string random_text(std::mt19937& random, size_t pieces) {
  static const std::vector<std::string> kPieces = text::split(
      "the# a#ing#'LL#\n#\r\n#  # # #\t#12#3.14#\u00e9#e\u0301#word# word #I'm#--#!#/#"
      "世界#。#\u0301#\u0323#👩‍👩‍👧#\u00a0#\u3000#한#\u1112#\u1161#\u11ab#"
      "각#A#Ж#\u0958#\U0001D15E#\u212b#\u0344#का#ि#cafe\u0301!#caf\u00e9!#"
      "<|im_end|>#<|im_start|>#<|endoftext|>#<|eot_id|>#<think>#<pad>#<|begin_of_text|>#"
      "<|im_#end|>#<#|>#pad># in#'s#7#é#…#.#ß#\u1100\u1161#'#_#Bc#ж#x#Ǆ#ʰ#٣#\u200d#"
      "१#\u2581#<s>#</s>#[MASK]#\uff21\uff76\uff9e#ﬁ#½#\u0001#<0x41>#\U0001F600\U0001F600",
      '#');
  std::string out;
  for (size_t i = 0; i < pieces; ++i) out += kPieces[random() % kPieces.size()];
  return out;
}

}  // namespace meshwright::tokenizer::made
