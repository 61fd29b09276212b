#include "sdk/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/text/tokenizer/aligned.h"
#include "sdk/text/tokenizer/folder.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/parts.h"

namespace meshwright::tokenizer {

namespace {

constexpr int64_t kMaxFile = 256 << 20;

// Throws Error(internal) for parts of a text of `bytes` that do not ascend, overlap or leave it.
void check_parts(std::span<const ByteRange> parts, size_t bytes) {
  size_t done = 0;
  for (const ByteRange& part : parts) {
    if (part.begin < done || part.end < part.begin || part.end > bytes)
      throw Error(ErrorCode::internal, "plain parts of a text: [" + std::to_string(part.begin) +
                                           ", " + std::to_string(part.end) + ") after " +
                                           std::to_string(done) + ", of " + std::to_string(bytes) +
                                           " bytes");
    done = part.end;
  }
}

// Whether some byte of `range` is in one of the parts.
bool overlaps(std::span<const ByteRange> parts, ByteRange range) {
  auto part = std::upper_bound(parts.begin(), parts.end(), range.begin,
                               [](size_t place, const ByteRange& it) { return place < it.end; });
  for (; part != parts.end() && part->begin < range.end; ++part)
    if (part->begin < part->end) return true;
  return false;
}

// A text as it goes through the parts of a tokenizer.
class Run {
 public:
  Run(const Tokenizer::Parts& parts, std::string_view text, const RangeOptions& options,
      bool with_ranges)
      : parts_(parts),
        text_(text),
        options_(options),
        with_ranges_(with_ranges),
        tracked_(with_ranges || (parts.needs_begins && !parts.normalizers.empty())) {}

  Encoded encode(bool continues) {
    TokenFinder::Plain plain{
        [&](size_t begin, size_t end) { return overlaps(options_.plain, source(begin, end)); }};
    TokenFinder::Plain* const heeded = options_.plain.empty() ? nullptr : &plain;
    for (const TokenFinder::Part& part : parts_.verbatim.cut(text_, scratch_, heeded)) {
      const auto at = static_cast<size_t>(part.text.data() - text_.data());
      section_ = nullptr;
      if (part.token != nullptr) {
        put(*part.token, {at, at + part.text.size()});
        continue;
      }
      SplitContext context{scratch_, continues && at == 0};
      Aligned section;
      std::string_view whole = part.text;
      if (tracked_ || !parts_.normalizers.empty()) {
        section = Aligned(part.text, at, tracked_);
        for (const auto& normalizer : parts_.normalizers) normalizer->apply(section, context);
        whole = section.text;
      }
      section_ = tracked_ ? &section : nullptr;
      for (const TokenFinder::Part& inner : parts_.normalized.cut(whole, scratch_, heeded)) {
        const auto begin = static_cast<size_t>(inner.text.data() - whole.data());
        if (inner.token != nullptr) {
          put(*inner.token, source(begin, begin + inner.text.size()));
        } else {
          pre_tokenize(parts_.pre_tokenizers.steps,
                       {inner.text, tracked_ ? section.from.data() + begin : nullptr, at + begin},
                       context, [&](const Piece& piece) { take(piece); });
        }
      }
    }
    out_.kept_as_text = plain.kept;
    return std::move(out_);
  }

 private:
  ByteRange source(size_t begin, size_t end) const {
    return section_ != nullptr ? section_->source(begin, end) : ByteRange{begin, end};
  }

  void put(const AddedToken& token, ByteRange range) {
    out_.ids.push_back(token.id);
    if (with_ranges_) put_range(range);
  }

  void take(const Piece& piece) {
    const size_t before = in_piece_.size();
    parts_.model->encode(piece.text, !options_.plain.empty(),
                         {out_.ids, with_ranges_ ? &in_piece_ : nullptr});
    for (size_t i = before; i < in_piece_.size(); ++i)
      put_range({piece.from[in_piece_[i].begin].begin, piece.from[in_piece_[i].end - 1].end});
    in_piece_.clear();
  }

  void put_range(ByteRange range) {
    // A token may lie within the white space that the one before it took.
    if (!out_.ranges.empty()) range.end = std::max(range.end, out_.ranges.back().end);
    out_.ranges.push_back(range);
  }

  const Tokenizer::Parts& parts_;
  std::string_view text_;
  const RangeOptions& options_;
  const bool with_ranges_, tracked_;
  PatternScratch scratch_;
  const Aligned* section_ = nullptr;  // what the text between two tokens became
  std::vector<ByteRange> in_piece_;
  Encoded out_;
};

// Told rather than applied: what becomes of a long text is for who asks.
std::vector<std::string> notes_of(const Field& root) {
  std::vector<std::string> out;
  if (const Field truncation = root.at("truncation"); !truncation.absent()) {
    const Field length = truncation.at("max_length");
    out.push_back(
        "the tokenizer's file cuts texts" +
        (length.absent() ? std::string() : " to " + std::to_string(length.id()) + " tokens") +
        " (truncation); here they are encoded as a whole");
  }
  if (!root.at("padding").absent())
    out.emplace_back(
        "the tokenizer's file fills texts up (padding); here nothing is added to them");
  return out;
}

Cuts cuts_of(const Tokenizer::Parts& parts) {
  CutPlaces places;
  for (const auto& normalizer : parts.normalizers)
    if (places.any()) normalizer->heed(places);
  for (const auto& step : parts.pre_tokenizers.steps)
    if (places.any()) step->heed(places);
  if (!places.any() || (!places.separated && !parts.model->allows(places))) return {};
  return heed_added(places, parts.added);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  base::MappedFile bytes(file.string(), ErrorCode::bad_tokenizer);
  if (bytes.size() > kMaxFile) refuse(file.string(), "the file", "is larger than 256 MiB");
  const std::string_view text(reinterpret_cast<const char*>(bytes.bytes().data()),
                              bytes.bytes().size());
  if (const std::optional<boost::json::value> other = of_other_file(file, text))
    return from_value(*other, file.string());
  return parse(text, file.string());
}

Tokenizer Tokenizer::parse(std::string_view text, const std::string& name) {
  boost::json::value parsed;
  try {
    parsed = base::parse_strictly(text, {.depth = 24, .elements = 1 << 20});
  } catch (const base::JsonProblem& problem) {
    refuse(name, "the file", problem.what + " (at byte " + std::to_string(problem.offset) + ")");
  }
  return from_value(parsed, name);
}

Tokenizer Tokenizer::from_value(const boost::json::value& value, const std::string& name) {
  auto parts = std::make_unique<Parts>();
  parts->name = name;
  const Field root(parts->name, &value, "");
  if (const Field version = root.at("version"); !version.absent() && version.string() != "1.0")
    version.refuse("is " + shown(version.string()) + "; \"1.0\" is read here");
  parts->model = read_model(root.at("model"));
  parts->normalizers = read_normalizer(root.at("normalizer"));
  parts->pre_tokenizers =
      read_pre_tokenizer(root.at("pre_tokenizer"), parts->model->can_take_bytes());
  if (parts->pre_tokenizers.bytes) parts->model->take_bytes();
  for (const auto& step : parts->pre_tokenizers.steps)
    parts->needs_begins = parts->needs_begins || step->needs_begins();
  parts->around = read_post_processor(root.at("post_processor"));
  parts->added = read_added_tokens(root.at("added_tokens"), parts->model->vocabulary);
  parts->notes = notes_of(root);
  std::vector<std::string_view> tokens = parts->model->vocabulary.tokens();
  std::vector<uint32_t> special;
  PatternScratch scratch;
  for (AddedToken& token : parts->added) {
    token.matched = token.content;
    if (token.normalized) {
      SplitContext context{scratch};
      Aligned content(token.content, 0, false);
      for (const auto& normalizer : parts->normalizers) normalizer->apply(content, context);
      token.matched = std::move(content.text);
    }
    tokens.push_back(token.matched);
    const size_t index = parts->added_by_id.size();  // no id is there twice
    parts->added_by_id[token.id] = &token;
    parts->added_by_content[token.content] = &token;
    if (!(token.normalized ? parts->normalized : parts->verbatim).add(token))
      root.at("added_tokens")
          .at(index)
          .refuse(token.matched.empty() ? "is nothing once it is normalized"
                                        : "is the same as an earlier one once it is normalized");
    if (token.special) special.push_back(token.id);
  }
  parts->decoders = read_decoder(root.at("decoder"), tokens);
  parts->model->keep_out(special);
  parts->cuts = cuts_of(*parts);
  for (const TemplatePiece& piece : parts->around.value_or(Template{}))
    for (int64_t id : piece.ids)
      if (id >= parts->size())
        refuse(name, "post_processor",
               "puts in the id " + std::to_string(id) + ", which no token has");
  return Tokenizer(std::move(parts));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool special) const {
  return run(text, {.special = special}, false, false).ids;
}

Encoded Tokenizer::encode_ranges(std::string_view text, const RangeOptions& options) const {
  check_parts(options.plain, text.size());
  return run(text, options, true, false);
}

std::vector<int64_t> Tokenizer::encode_rest(std::string_view text) const {
  return run(text, {}, false, true).ids;
}

Encoded Tokenizer::run(std::string_view text, const RangeOptions& options, bool with_ranges,
                       bool continues) const {
  if (size_t at = first_invalid(text); at < text.size())
    throw Error(ErrorCode::usage, "the text is not UTF-8 at byte " + std::to_string(at))
        .help("save the text as UTF-8");
  Encoded out;
  try {
    out = Run(*parts_, text, options, with_ranges).encode(continues);
  } catch (const PatternProblem& problem) {
    refuse(parts_->name, "a pattern of normalizer or pre_tokenizer",
           problem.what + " (at byte " + std::to_string(problem.offset) + " of a piece of it)");
  } catch (const ModelProblem& problem) {
    refuse(parts_->name, "model", problem.what);
  }
  if (parts_->around) return framed(out, options.special, text.size());
  return out;
}

// With what the template puts around a text of `bytes`, or leaves of it.
Encoded Tokenizer::framed(const Encoded& text, bool special, size_t bytes) const {
  Encoded out;
  out.kept_as_text = text.kept_as_text;
  size_t done = 0;
  for (const TemplatePiece& piece : *parts_->around) {
    if (!piece.text && !special) continue;
    const std::vector<int64_t>& ids = piece.text ? text.ids : piece.ids;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    if (piece.text) {
      out.ranges.insert(out.ranges.end(), text.ranges.begin(), text.ranges.end());
      done = bytes;
    } else if (text.ranges.size() == text.ids.size()) {
      out.ranges.insert(out.ranges.end(), ids.size(), ByteRange{done, done});
    }
  }
  return out;
}

std::optional<std::string_view> Tokenizer::token_of(int64_t id) const {
  if (id < 0 || id > INT32_MAX) return std::nullopt;
  if (auto added = parts_->added_by_id.find(static_cast<uint32_t>(id));
      added != parts_->added_by_id.end())
    return added->second->matched;
  return parts_->model->vocabulary.token_of(static_cast<uint32_t>(id));
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  TextStream stream(*this, skip_special);
  std::string out;
  for (int64_t id : ids) out += stream.add(id);
  return out + stream.finish();
}

std::optional<Tokenizer::Frame> Tokenizer::frame() const {
  Frame out;
  if (!parts_->around) return out;
  bool seen = false;
  for (const TemplatePiece& piece : *parts_->around) {
    if (piece.text && seen) return std::nullopt;
    seen = seen || piece.text;
    std::vector<int64_t>& side = seen ? out.after : out.before;
    side.insert(side.end(), piece.ids.begin(), piece.ids.end());
  }
  return seen ? std::optional(std::move(out)) : std::nullopt;
}

std::vector<std::string_view> Tokenizer::special_tokens() const {
  std::vector<std::string_view> out;
  for (const AddedToken& token : parts_->added)
    if (token.special) out.push_back(token.content);
  return out;
}

Cuts Tokenizer::cuts() const { return parts_->cuts; }

const std::vector<std::string>& Tokenizer::notes() const { return parts_->notes; }

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  if (auto added = parts_->added_by_content.find(token); added != parts_->added_by_content.end())
    return added->second->id;
  return parts_->model->vocabulary.find(token);
}

int64_t Tokenizer::size() const { return parts_->size(); }

int64_t Tokenizer::Parts::size() const {
  int64_t largest = model->vocabulary.largest_id();
  for (const AddedToken& token : added) largest = std::max<int64_t>(largest, token.id);
  return largest + 1;
}

struct TextStream::Parts {
  const Tokenizer& tokenizer;
  bool skip_special;
  std::string text;  // what has come and was not taken
  std::unique_ptr<DecodeStage> stage;

  std::string take() { return std::exchange(text, {}); }
  template <class Do>
  std::string run(const Do& act) {
    try {
      act();
    } catch (const PatternProblem& problem) {
      refuse(tokenizer.parts_->name, "a pattern of decoder", problem.what);
    }
    return take();
  }
};

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special)
    : parts_(new Parts{tokenizer, skip_special, {}, {}}) {
  parts_->stage = begin_decoding(tokenizer.parts_->decoders, parts_->text);
}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::string TextStream::add(int64_t id) {
  const std::optional<std::string_view> token = parts_->tokenizer.token_of(id);
  if (!token) return "";
  if (parts_->skip_special) {
    const auto& added = parts_->tokenizer.parts_->added_by_content;
    if (const auto it = added.find(*token); it != added.end() && it->second->special) return "";
  }
  return parts_->run([&] { parts_->stage->put(*token); });
}

std::string TextStream::finish() {
  return parts_->run([&] { parts_->stage->finish(); });
}

}  // namespace meshwright::tokenizer
