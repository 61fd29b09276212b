#include "sdk/text/tokenizer/tekken.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sdk/base/files/json_codec.h"
#include "sdk/text/tokenizer/charsmap.h"
#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace json = boost::json;

namespace {

constexpr size_t kMostTokens = 1 << 20, kLongestToken = 1024, kMostPairs = 1 << 23;

// Those of files that list none, as mistral-common has them.
constexpr const char* kFirstSpecials[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};

// By rank; those that the file only counts are <SPECIAL_20> and so on.
std::vector<std::string> special_tokens(const Field& root) {
  const Field listed = root.at("special_tokens"), config = root.at("config");
  std::vector<std::string> out;
  if (listed.absent()) {
    out.assign(std::begin(kFirstSpecials), std::end(kFirstSpecials));
  } else {
    out.resize(listed.array().size());
    std::vector<bool> seen(out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const Field rank = listed.at(i).at("rank");
      if (rank.id() >= out.size() || seen[rank.id()])
        rank.refuse("is " + std::to_string(rank.id()) +
                    "; the ranks of special tokens are each of the numbers from 0 on");
      seen[rank.id()] = true;
      out[rank.id()] = std::string(listed.at(i).at("token_str").string());
    }
  }
  if (const Field count = config.at("default_num_special_tokens"); !count.absent()) {
    if (count.id() < out.size() || count.id() > kMostTokens)
      count.refuse("is " + std::to_string(count.id()) + " where " + std::to_string(out.size()) +
                   " special tokens are listed");
    while (out.size() < count.id()) out.push_back("<SPECIAL_" + std::to_string(out.size()) + ">");
  }
  return out;
}

// The tokens that texts become, by rank, without those that only fill the vocabulary up.
std::vector<std::string> tokens_of(const Field& root, size_t specials) {
  const Field vocab = root.at("vocab"), size = root.at("config").at("default_vocab_size");
  size_t count = vocab.array().size();
  if (!size.absent()) {
    if (size.id() < specials)
      size.refuse("is " + std::to_string(size.id()) + ", fewer than the " +
                  std::to_string(specials) + " special tokens");
    count = std::min<size_t>(count, size.id() - specials);
  }
  std::vector<std::string> out;
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Field bytes = vocab.at(i).at("token_bytes");
    std::optional<std::string> token = from_base64(bytes.string());
    if (!token || token->empty() || token->size() > kLongestToken)
      bytes.refuse("is not base64 of 1 to " + std::to_string(kLongestToken) + " bytes");
    out.push_back(std::move(*token));
  }
  return out;
}

// A token is merged of any two others that it consists of; of several pairs of one token those with
// lower ranks first.
json::array merges_of(const std::vector<std::string>& tokens,
                      const std::unordered_map<std::string_view, size_t>& ranks,
                      const std::string& name) {
  json::array out;
  for (const std::string& token : tokens) {
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      auto left = ranks.find(std::string_view(token).substr(0, cut)),
           right = ranks.find(std::string_view(token).substr(cut));
      if (left != ranks.end() && right != ranks.end())
        pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    if (out.size() + pairs.size() > kMostPairs)
      refuse(name, "vocab", "gives more than 8,388,608 merges");
    for (const auto& [left, right] : pairs)
      out.push_back(json::array{json::string(to_letters(tokens[left])),
                                json::string(to_letters(tokens[right]))});
  }
  return out;
}

}  // namespace

json::value of_tekken(std::string_view text, const std::string& name) {
  json::value parsed;
  try {
    parsed = base::parse_strictly(text, {.depth = 24, .elements = kMostTokens});
  } catch (const base::JsonProblem& problem) {
    refuse(name, "the file", problem.what + " (at byte " + std::to_string(problem.offset) + ")");
  }
  const Field root(name, &parsed, "");
  const std::string_view pattern = root.at("config").at("pattern").string();
  const std::vector<std::string> specials = special_tokens(root),
                                 tokens = tokens_of(root, specials.size());
  std::unordered_map<std::string_view, size_t> ranks;
  json::object vocab;
  vocab.reserve(tokens.size() + specials.size());
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    if (!ranks.emplace(tokens[rank], rank).second)
      root.at("vocab").at(rank).refuse("is the same token as an earlier one");
    vocab[to_letters(tokens[rank])] = static_cast<int64_t>(rank + specials.size());
  }
  json::array added;
  for (size_t id = 0; id < specials.size(); ++id) {
    if (vocab.contains(specials[id]))
      root.at("special_tokens")
          .refuse("has the token " + shown(specials[id]) + ", which is there already");
    vocab[specials[id]] = static_cast<int64_t>(id);
    added.push_back(json::object{{"id", static_cast<int64_t>(id)},
                                 {"content", specials[id]},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
  }
  auto bytes_step = [](bool add_prefix_space, bool trim_offsets, bool use_regex) {
    return json::object{{"type", "ByteLevel"},
                        {"add_prefix_space", add_prefix_space},
                        {"trim_offsets", trim_offsets},
                        {"use_regex", use_regex}};
  };
  return json::object{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       json::object{
           {"type", "Sequence"},
           {"pretokenizers", json::array{json::object{{"type", "Split"},
                                                      {"pattern", json::object{{"Regex", pattern}}},
                                                      {"behavior", "Isolated"},
                                                      {"invert", false}},
                                         bytes_step(false, true, false)}}}},
      {"post_processor", bytes_step(true, false, true)},
      {"decoder", bytes_step(true, true, true)},
      {"model", json::object{{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", true},
                             {"vocab", std::move(vocab)},
                             {"merges", merges_of(tokens, ranks, name)}}}};
}

}  // namespace meshwright::tokenizer
