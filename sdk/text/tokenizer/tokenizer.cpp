#include "sdk/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <span>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/parts.h"

namespace meshwright::tokenizer {

// Places of a text: those of what was composed from it, and those in which nothing is special.

// From a part of a text as it is after composition back to the text.
class Places {
 public:
  // The part begins at `base`.
  Places(size_t base, std::vector<Recomposed> changed)
      : base_(base), changed_(std::move(changed)) {}
  // What was changed is not divided: a range that has some of it gets all.
  ByteRange source(ByteRange composed) const;

 private:
  size_t begin_of(size_t composed) const;
  size_t end_of(size_t composed) const;
  size_t base_;
  std::vector<Recomposed> changed_;
};

size_t Places::begin_of(size_t composed) const {
  auto after = std::upper_bound(
      changed_.begin(), changed_.end(), composed,
      [](size_t place, const Recomposed& it) { return place < it.composed_begin; });
  if (after == changed_.begin()) return base_ + composed;
  const Recomposed& last = *(after - 1);
  return base_ +
         (composed < last.composed_end ? last.begin : last.end + (composed - last.composed_end));
}

size_t Places::end_of(size_t composed) const {
  auto after = std::lower_bound(
      changed_.begin(), changed_.end(), composed,
      [](const Recomposed& it, size_t place) { return it.composed_begin < place; });
  if (after == changed_.begin()) return base_ + composed;
  const Recomposed& last = *(after - 1);
  return base_ +
         (composed <= last.composed_end ? last.end : last.end + (composed - last.composed_end));
}

ByteRange Places::source(ByteRange composed) const {
  size_t begin = begin_of(composed.begin);
  return {begin, composed.begin == composed.end ? begin : end_of(composed.end)};
}

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

namespace {

constexpr int64_t kMaxFile = 256 << 20;
// Pieces that are worth remembering within one text, and how many.
constexpr size_t kCachedPiece = 64, kCachedPieces = 1 << 16;

// Merges pieces, those that were seen before from memory: most words of a long text were. `begins`,
// if given: where in its piece each id begins.
class PieceEncoder {
 public:
  PieceEncoder(const Bpe& bpe, std::vector<int64_t>& out, std::vector<size_t>* begins)
      : bpe_(bpe), out_(out), begins_(begins) {}
  void encode(std::string_view piece) {
    if (piece.size() < 3 || piece.size() > kCachedPiece) return bpe_.encode(piece, out_, begins_);
    key_.assign(piece);
    if (auto known = seen_.find(key_); known != seen_.end()) {
      for (uint32_t i = 0; i < known->second.count; ++i)
        out_.push_back(out_[known->second.begin + i]);
      for (uint32_t i = 0; begins_ && i < known->second.count; ++i)
        begins_->push_back((*begins_)[known->second.begin + i]);
      return;
    }
    size_t begin = out_.size();
    bpe_.encode(piece, out_, begins_);
    if (seen_.size() < kCachedPieces)
      seen_.emplace(key_, Seen{begin, static_cast<uint32_t>(out_.size() - begin)});
  }

 private:
  struct Seen {
    size_t begin;  // in the output, which only grows
    uint32_t count;
  };
  const Bpe& bpe_;
  std::vector<int64_t>& out_;
  std::vector<size_t>* begins_;
  std::string key_;
  std::unordered_map<std::string, Seen> seen_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  base::MappedFile bytes(file.string(), ErrorCode::bad_tokenizer);
  if (bytes.size() > kMaxFile) refuse(file.string(), "the file", "is larger than 256 MiB");
  return parse({reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size()},
               file.string());
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
  Field root(parts->name, &value, "");
  if (Field version = root.at("version"); !version.absent() && version.string() != "1.0")
    version.refuse("is " + shown(version.string()) + "; \"1.0\" is read here");
  read_model(root.at("model"), parts->bpe);
  parts->composes = read_normalizer(root.at("normalizer"));
  parts->steps = read_pre_tokenizer(root.at("pre_tokenizer"));
  parts->around = read_post_processor(root.at("post_processor"));
  parts->added = read_added_tokens(root.at("added_tokens"), parts->bpe.vocabulary);
  std::vector<std::string_view> tokens = parts->bpe.vocabulary.tokens();
  for (const AddedToken& token : parts->added) tokens.push_back(token.content);
  parts->stripped = read_decoder(root.at("decoder"), tokens);
  std::vector<uint32_t> special;
  for (AddedToken& token : parts->added) {
    token.matched = token.normalized && parts->composes ? compose(token.content) : token.content;
    const size_t index = parts->added_by_id.size();  // no id is there twice
    parts->added_by_id[token.id] = &token;
    parts->added_by_content[token.content] = &token;
    if (!(token.normalized ? parts->normalized : parts->verbatim).add(token))
      root.at("added_tokens")
          .at(index)
          .refuse("is the same as an earlier one once it is normalized");
    if (token.special) special.push_back(token.id);
  }
  parts->bpe.keep_out(special);
  Tokenizer out(std::move(parts));
  for (const TemplatePiece& piece : out.parts_->around.value_or(Template{}))
    for (int64_t id : piece.ids)
      if (id >= out.size())
        refuse(name, "post_processor",
               "puts in the id " + std::to_string(id) + ", which no token has");
  return out;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool special) const {
  return run(text, {.special = special}, false).ids;
}

Encoded Tokenizer::encode_ranges(std::string_view text, const RangeOptions& options) const {
  check_parts(options.plain, text.size());
  return run(text, options, true);
}

Encoded Tokenizer::run(std::string_view text, const RangeOptions& options, bool with_ranges) const {
  if (size_t at = first_invalid(text); at < text.size())
    throw Error(ErrorCode::usage, "the text is not UTF-8 at byte " + std::to_string(at))
        .help("save the text as UTF-8");
  Encoded out;
  std::vector<size_t> begins;  // of each id in its piece
  PatternScratch scratch;
  PieceEncoder pieces(parts_->bpe, out.ids, with_ranges ? &begins : nullptr);
  Places places(0, {});
  auto put_range = [&](size_t begin, size_t end) {
    ByteRange range = places.source({begin, end});
    // A token may lie within the white space that the one before it took.
    if (!out.ranges.empty()) range.end = std::max(range.end, out.ranges.back().end);
    out.ranges.push_back(range);
  };
  auto put = [&](const TokenFinder::Part& part, size_t at) {
    out.ids.push_back(part.token->id);
    if (!with_ranges) return;
    begins.push_back(0);
    put_range(at, at + part.text.size());
  };
  size_t inner_begin = 0;
  const std::function<void(const SplitPiece&)> take = [&](const SplitPiece& piece) {
    size_t first = out.ids.size();
    pieces.encode(piece.bytes);
    if (!with_ranges) return;
    auto place = [&](size_t in_piece) {
      return inner_begin + piece.begin + (std::max(in_piece, piece.added) - piece.added);
    };
    for (size_t i = first; i < begins.size(); ++i)
      put_range(place(begins[i]),
                place(i + 1 < begins.size() ? begins[i + 1] : piece.bytes.size()));
  };
  auto offset = [](std::string_view part, std::string_view whole) {
    return static_cast<size_t>(part.data() - whole.data());
  };
  TokenFinder::Plain plain{[&](size_t begin, size_t end) {
    return overlaps(options.plain, places.source({begin, end}));
  }};
  TokenFinder::Plain* const heeded = options.plain.empty() ? nullptr : &plain;
  try {
    for (const TokenFinder::Part& part : parts_->verbatim.cut(text, scratch, heeded)) {
      const size_t begin = offset(part.text, text);
      places = Places(begin, {});
      if (part.token) {
        put(part, 0);
        continue;
      }
      std::string composed;
      std::string_view whole = part.text;
      if (parts_->composes) {
        whole = composed = compose(part.text);
        if (with_ranges) places = Places(begin, recomposed(part.text, whole));
      }
      for (const TokenFinder::Part& inner : parts_->normalized.cut(whole, scratch, heeded)) {
        inner_begin = offset(inner.text, whole);
        if (inner.token) {
          put(inner, inner_begin);
        } else {
          pre_tokenize(parts_->steps, inner.text, scratch, take);
        }
      }
    }
  } catch (const PatternProblem& problem) {
    refuse(parts_->name, "a pattern of pre_tokenizer",
           problem.what + " (at byte " + std::to_string(problem.offset) + " of a piece of it)");
  }
  out.kept_as_text = plain.kept;
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

std::string Tokenizer::bytes_of(int64_t id, bool skip_special) const {
  if (id < 0 || id > INT32_MAX) return "";
  std::string_view token;
  if (auto added = parts_->added_by_id.find(static_cast<uint32_t>(id));
      added != parts_->added_by_id.end()) {
    token = added->second->matched;
  } else if (auto known = parts_->bpe.vocabulary.token_of(static_cast<uint32_t>(id))) {
    token = *known;
  }
  if (skip_special)
    if (auto it = parts_->added_by_content.find(token);
        it != parts_->added_by_content.end() && it->second->special)
      return "";
  return from_letters(token).value_or(std::string(token));
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

int64_t Tokenizer::stripped() const { return parts_->stripped; }

std::string TextStream::without_first(std::string text) {
  if (stripped_ == 0 || text.empty()) return text;
  const size_t spaces = std::min(text.find_first_not_of(' '), text.size()),
               taken = std::min(spaces, static_cast<size_t>(stripped_));
  stripped_ = taken < text.size() ? 0 : stripped_ - static_cast<int64_t>(taken);
  return text.substr(taken);
}

Cuts Tokenizer::cuts() const { return cuts_of(parts_->steps, parts_->added); }

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  if (auto added = parts_->added_by_content.find(token); added != parts_->added_by_content.end())
    return added->second->id;
  return parts_->bpe.vocabulary.find(token);
}

int64_t Tokenizer::size() const {
  int64_t largest = parts_->bpe.vocabulary.largest_id();
  for (const AddedToken& token : parts_->added) largest = std::max<int64_t>(largest, token.id);
  return largest + 1;
}

}  // namespace meshwright::tokenizer
