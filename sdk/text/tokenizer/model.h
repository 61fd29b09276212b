// What makes ids of pieces of text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/tokenizer.h"
#include "sdk/text/tokenizer/vocabulary.h"

namespace meshwright::tokenizer {

// What a piece becomes is appended to `ids`, and to `ranges`, if given, where in the piece each of
// them stands.
struct ModelOut {
  std::vector<int64_t>& ids;
  std::vector<ByteRange>* ranges = nullptr;

  void put(uint32_t id, size_t begin, size_t end) {
    ids.push_back(id);
    if (ranges != nullptr) ranges->push_back({begin, end});
  }
};

// A piece that cannot be encoded: "lacks the token for unknown words".
struct ModelProblem {
  std::string what;
};

class Model {
 public:
  Model();
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  Vocabulary vocabulary;

  // `piece` is not empty. plain: it does not become a token that is kept out. Throws ModelProblem.
  virtual void encode(std::string_view piece, bool plain, ModelOut out) const = 0;
  // Once, after everything else is set.
  virtual void keep_out(const std::vector<uint32_t>& ids) = 0;
  // Whether pieces may be bytes, each of which stands for its letter (letter_of()), once
  // take_bytes() was called.
  virtual bool can_take_bytes() const { return false; }
  virtual void take_bytes() {}
  // Whether what stands on one side of such a place within a piece does not depend on the other.
  virtual bool allows(const CutPlaces&) const { return false; }

 protected:
  // Of this model among all of the process.
  uint64_t serial() const { return serial_; }

 private:
  uint64_t serial_;
};

// Throws Error(bad_tokenizer).
std::unique_ptr<Model> read_model(const Field& model);

// Of one kind of model each; the type was looked at.
std::unique_ptr<Model> read_bpe(const Field& model);
std::unique_ptr<Model> read_unigram(const Field& model);
std::unique_ptr<Model> read_word_piece(const Field& model);
std::unique_ptr<Model> read_word_level(const Field& model);

// The object of tokens and ids.
void read_vocabulary(const Field& field, Vocabulary& vocabulary);

}  // namespace meshwright::tokenizer
