#include <algorithm>
#include <cstdio>

#include "sdk/text/tokenizer/bytes.h"
#include "sdk/text/tokenizer/parts.h"

namespace meshwright::tokenizer {

namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

void read_vocabulary(const Field& field, Vocabulary& vocabulary) {
  const json::object& entries = field.object();
  if (entries.empty()) field.refuse("is empty");
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.key().size();
  vocabulary.reserve(entries.size(), bytes);
  for (const auto& entry : entries) {
    std::string_view token(entry.key().data(), entry.key().size());
    if (!entry.value().is_int64() || entry.value().get_int64() < 0 ||
        entry.value().get_int64() > INT32_MAX)
      (void)Field(field.file(), &entry.value(), field.place() + "[" + shown(token) + "]").id();
    vocabulary.add(token, static_cast<uint32_t>(entry.value().get_int64()));
  }
  if (auto same = vocabulary.seal())
    field.refuse("gives " + shown(same->first) + " and " + shown(same->second) + " the same id");
}

// A merge's halves; "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> halves(const Field& field, const json::value& merge,
                                                     size_t index) {
  auto bad = [&](const char* what) {
    refuse(field.file(), field.place() + "[" + std::to_string(index) + "]", what);
  };
  if (const json::array* pair = merge.if_array()) {
    if (pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string())
      bad("is not a pair of strings");
    return {view((*pair)[0].get_string()), view((*pair)[1].get_string())};
  }
  if (!merge.is_string()) bad("is neither a string nor a pair of strings");
  std::string_view text = view(merge.get_string());
  size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    bad("is not two tokens with one space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Field& field, Bpe& bpe) {
  const json::array& merges = field.array();
  bpe.merges = MergeTable(merges.size());
  uint32_t rank = 0;
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (merges[i].kind() != merges[0].kind())
      refuse(field.file(), field.place() + "[" + std::to_string(i) + "]",
             "is written in another way than the first");
    if (merges[i].is_string() && view(merges[i].get_string()).starts_with("#version"))
      continue;  // a line of merges.txt
    auto [left, right] = halves(field, merges[i], i);
    joined.assign(left);
    joined += right;
    auto id_of = [&](std::string_view token) {
      auto id = bpe.vocabulary.find(token);
      if (!id)
        refuse(field.file(), field.place() + "[" + std::to_string(i) + "]",
               "needs the token " + shown(token) + ", which model.vocab lacks");
      return *id;
    };
    uint32_t a = id_of(left), b = id_of(right);
    bpe.merges.set(a, b, {rank++, id_of(joined)});
  }
}

// Older files leave the type out; then the fields tell.
std::string kind_of(const Field& model) {
  if (!model.at("type").absent()) return std::string(model.type());
  return model.at("merges").absent()
             ? (model.object().contains("max_input_chars_per_word") ? "WordPiece" : "unknown")
             : "BPE";
}

}  // namespace

void read_model(const Field& model, Bpe& bpe) {
  std::string kind = kind_of(model);
  if (kind != "BPE")
    model.refuse("is of the kind " + shown(kind) + "; only byte-level BPE is read here");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    Field field = model.at(key);
    if (!field.absent() && !field.string().empty())
      field.refuse("is " + shown(field.string()) + ", which byte-level BPE does not have");
  }
  if (Field dropout = model.at("dropout"); !dropout.absent()) {
    const json::value& value = *model.object().if_contains("dropout");
    if (!value.is_number()) dropout.refuse("must be null or 0");
    if (value.to_number<double>() != 0) dropout.refuse("is not 0: tokens would be drawn by chance");
  }
  read_vocabulary(model.at("vocab"), bpe.vocabulary);
  bpe.fuse_unknown = model.at("fuse_unk").boolean_or(false);
  bpe.ignore_merges = model.at("ignore_merges").boolean_or(false);
  size_t lacking = 0;
  uint8_t first = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    bpe.byte_ids[byte] = bpe.vocabulary.find(letter_of(static_cast<uint8_t>(byte)));
    if (!bpe.byte_ids[byte] && lacking++ == 0) first = static_cast<uint8_t>(byte);
  }
  if (lacking == 256)
    model.at("vocab").refuse(
        "has a token for none of the 256 bytes, so this is not byte-level BPE");
  read_merges(model.at("merges"), bpe);
  if (lacking == 0) return;
  // To the library a letter that the vocabulary lacks is its own bytes, where it has tokens for all
  // of them; where it lacks one, falling back changes nothing.
  const bool falls_back =
      model.at("byte_fallback").boolean_or(false) &&
      std::any_of(bpe.byte_ids.begin(), bpe.byte_ids.end(), [&](const auto& id) {
        const std::string_view letter = letter_of(static_cast<uint8_t>(&id - bpe.byte_ids.data()));
        return !id && std::all_of(letter.begin(), letter.end(), [&](char byte) {
          char token[8];
          std::snprintf(token, sizeof token, "<0x%02X>", static_cast<unsigned>(byte) & 0xffU);
          return bpe.vocabulary.find(token).has_value();
        });
      });
  std::string which = "byte " + std::to_string(first) +
                      (lacking > 1 ? " and " + std::to_string(lacking - 1) + " more" : "");
  if (falls_back)
    model.at("byte_fallback")
        .refuse("is true and model.vocab has no token for " + which +
                "; falling back to <0x..> tokens is not read here");
  Field unknown = model.at("unk_token");
  if (unknown.absent()) return;
  bpe.unknown = bpe.vocabulary.find(unknown.string());
  if (!bpe.unknown)
    unknown.refuse("is " + shown(unknown.string()) +
                   ", which model.vocab lacks, and it has no token for " + which);
}

}  // namespace meshwright::tokenizer
