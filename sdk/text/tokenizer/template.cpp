#include "sdk/text/tokenizer/template.h"

#include <algorithm>

namespace meshwright::tokenizer {

namespace {

std::vector<int64_t> read_ids(const Field& ids) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < ids.array().size(); ++i) out.push_back(ids.at(i).id());
  return out;
}

Template read_template(const Field& field) {
  Template out;
  Field single = field.at("single"), tokens = field.at("special_tokens");
  for (size_t i = 0; i < single.array().size(); ++i) {
    Field piece = single.at(i), token = piece.at("SpecialToken"), sequence = piece.at("Sequence");
    if (token.absent() == sequence.absent())
      piece.refuse("must be either a SpecialToken or a Sequence");
    if (token.absent()) {
      if (sequence.at("id").string() != "A")
        sequence.at("id").refuse("is " + shown(sequence.at("id").string()) +
                                 "; a single text is A");
      out.push_back({true, {}});
      continue;
    }
    Field listed = tokens.at(token.at("id").string());
    if (listed.absent())
      token.at("id").refuse("is " + shown(token.at("id").string()) +
                            ", which special_tokens lacks");
    out.push_back({false, read_ids(listed.at("ids"))});
  }
  // What a damaged file could make of one short text.
  if (out.size() > 64) single.refuse("has more than 64 pieces");
  if (std::count_if(out.begin(), out.end(), [](const TemplatePiece& piece) { return piece.text; }) >
      2)
    single.refuse("has the text more than twice");
  return out;
}

// ["[SEP]", 102]
int64_t read_pair(const Field& pair) {
  if (pair.array().size() != 2) pair.refuse("is not a pair of a token and its id");
  return pair.at(size_t{1}).id();
}

// BertProcessing and RobertaProcessing: one token before a text and one behind it.
Template read_ends(const Field& field) {
  return {{false, {read_pair(field.at("cls"))}}, {true, {}}, {false, {read_pair(field.at("sep"))}}};
}

bool is_text_alone(const Template& pieces) { return pieces.size() == 1 && pieces[0].text; }

}  // namespace

std::optional<Template> read_post_processor(const Field& post_processor) {
  std::optional<Template> out;
  each(post_processor, "processors", [&](const Field& field) {
    const std::string_view type = field.type();
    if (type == "ByteLevel") return;  // moves offsets only
    Template read;
    if (type == "TemplateProcessing")
      read = read_template(field);
    else if (type == "BertProcessing" || type == "RobertaProcessing")
      read = read_ends(field);
    else
      refuse_kind(field,
                  "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing");
    if (is_text_alone(read)) return;
    if (out) field.refuse("is the second that puts tokens around a text; there can be one");
    out = std::move(read);
  });
  return out;
}

}  // namespace meshwright::tokenizer
