// Text to token ids and back, as a Hugging Face tokenizer.json says: BPE (GPT-2, Llama 2 and 3,
// Mistral, Gemma, Qwen, ...), Unigram (T5, ALBERT, XLM-R), WordPiece (BERT) and WordLevel, with all
// parts of such a file.
//
//   Tokenizer tokenizer = Tokenizer::load("models/Qwen3-0.6B/tokenizer.json");
//   std::vector<int64_t> ids = tokenizer.encode("Hello");
//   std::string text = tokenizer.decode(ids);
//
// Ids are those of the `tokenizers` library. Immutable after load: every method may be called from
// several threads at once.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::tokenizer {

// Kinds of places where a text may be cut.
struct Cuts {
  bool at_spaces = false, at_lines = false;
  bool any() const { return at_spaces || at_lines; }
};

// Bytes of a text from `begin` up to `end`.
struct ByteRange {
  size_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Ids and where they come from.
struct Encoded {
  std::vector<int64_t> ids;
  // Of each id, in bytes of the text that was given, as the `tokenizers` library has them; neither
  // begins nor ends descend (but where a template repeats the text). An id of the template has an
  // empty one. Bytes may be in several: a space put before a word stands for the word's first
  // character; where characters are changed together (a letter and its marks, by NFC), what became
  // of them is told apart no further, so each of its ids has all their bytes; and white space that
  // an added token takes may hold another one. Bytes may be in none: what a normalizer takes away,
  // white space between words. Within a character ids of its bytes have each their own, where the
  // library gives each the character.
  std::vector<ByteRange> ranges;
  int64_t kept_as_text = 0;  // special tokens that were found in a plain part, and read as text
};

struct RangeOptions {
  bool special = false;  // with what the tokenizer's template puts around a text
  // Ascending, not overlapping, else Error(internal). Where one of them overlaps the text of a
  // token with `special: true`, if only partly, that token is not looked for, and where there is a
  // plain part no model makes such a token of the text. All else is as ever: other added tokens are
  // found, and tokens outside take white space as they do. Merges never make a special token, in no
  // part, unless it is a single byte or character.
  std::span<const ByteRange> plain = {};
};

class Tokenizer {
 public:
  // A tokenizer.json, or what else folder.h knows. Throws Error(bad_tokenizer) that names file and
  // place when the file is damaged or of a kind that is not read here.
  static Tokenizer load(const std::filesystem::path& file);
  // `name` stands for the file in messages.
  static Tokenizer parse(std::string_view json, const std::string& name);
  // What parse() makes of a tokenizer.json, of the value that such a text stands for: readers of
  // other files write theirs as one.
  static Tokenizer from_value(const boost::json::value& value, const std::string& name);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text` is UTF-8, else Error(usage). special: with what the file's template puts around a text
  // (a beginning-of-text token, say).
  std::vector<int64_t> encode(std::string_view text, bool special = true) const;
  // The ids of encode() where no part is plain.
  Encoded encode_ranges(std::string_view text, const RangeOptions& options) const;
  // Bytes that are no UTF-8 become U+FFFD, and ids that nothing has give nothing, both as in the
  // reference.
  std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;
  // As the file has it, once it is normalized.
  std::optional<std::string_view> token_of(int64_t id) const;

  // Ids that the file's template puts before and after a text; nothing when it repeats or drops the
  // text.
  struct Frame {
    std::vector<int64_t> before, after;
  };
  std::optional<Frame> frame() const;
  // Where a text may be cut (cut_near() of divide.h) so that encode(part, false) of the first part
  // and encode_rest() of the others give the ids of the whole.
  Cuts cuts() const;
  std::vector<int64_t> encode_rest(std::string_view text) const;

  std::optional<int64_t> id_of(std::string_view token) const;
  // The texts of added tokens with `special: true`; they live as long as the tokenizer.
  std::vector<std::string_view> special_tokens() const;
  int64_t size() const;  // one above the largest id
  // What the file asks for and is not done here, each in a sentence for its user.
  const std::vector<std::string>& notes() const;
  struct Parts;

 private:
  friend class TextStream;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  Encoded run(std::string_view text, const RangeOptions& options, bool with_ranges,
              bool continues) const;
  Encoded framed(const Encoded& text, bool special, size_t bytes) const;
  std::unique_ptr<const Parts> parts_;
};

// Text as its tokens come: characters whose bytes are not all there wait, and so does what the
// decoder has to know the next token for. What add() and finish() gave together is what decode()
// gives. The tokenizer must outlive it.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = false);
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();
  std::string add(int64_t id);
  std::string finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace meshwright::tokenizer
