#include "sdk/text/tokenizer/decoders.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/read_pattern.h"
#include "sdk/text/tokenizer/vocabulary.h"

namespace meshwright::tokenizer {

namespace {

constexpr std::string_view kKnown =
    "Sequence, ByteLevel, BPEDecoder, ByteFallback, Fuse, Metaspace, Replace, Strip, WordPiece, "
    "CTC";

using Stage = std::unique_ptr<DecodeStage>;

// `from` replaced by `to` from left to right. Nothing stands between all characters.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  if (from.empty()) {
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = character_at(text, at).bytes;
      out += to;
      out += text.substr(at, bytes);
      at += bytes;
    }
    return out += to;
  }
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += to;
    at = found + from.size();
  }
}

// What becomes of each token for itself.
class EachToken final : public DecodeStage {
 public:
  using Change = std::function<std::string(std::string_view token, bool first)>;
  EachToken(Stage next, Change change) : DecodeStage(std::move(next)), change_(std::move(change)) {}
  void put(std::string_view token) override {
    next().put(change_(token, first_));
    first_ = false;
  }

 private:
  Change change_;
  bool first_ = true;
};

// The same of a token that comes in parts and must be known whole.
class WholeToken final : public DecodeStage {
 public:
  WholeToken(Stage next, EachToken::Change change)
      : DecodeStage(std::move(next)), change_(std::move(change)) {}
  void put(std::string_view part) override { text_ += part; }
  void finish() override {
    next().put(change_(text_, true));
    next().finish();
  }

 private:
  EachToken::Change change_;
  std::string text_;
};

Stage change_tokens(Stage next, bool whole, EachToken::Change change) {
  if (whole) return std::make_unique<WholeToken>(std::move(next), std::move(change));
  return std::make_unique<EachToken>(std::move(next), std::move(change));
}

// Replaces a text that is not empty in a token that comes in parts.
class ReplacePart final : public DecodeStage {
 public:
  ReplacePart(Stage next, std::string_view from, std::string_view to)
      : DecodeStage(std::move(next)), from_(from), to_(to) {}
  void put(std::string_view part) override {
    waiting_ += part;
    std::string out;
    size_t at = 0;
    for (size_t found = 0; (found = waiting_.find(from_, at)) != std::string::npos;) {
      out.append(waiting_, at, found - at);
      out += to_;
      at = found + from_.size();
    }
    // What may go on to be it waits.
    size_t kept = std::min(waiting_.size() - at, from_.size() - 1);
    while (kept > 0 && !std::string_view(from_).starts_with(
                           std::string_view(waiting_).substr(waiting_.size() - kept)))
      --kept;
    out.append(waiting_, at, waiting_.size() - at - kept);
    waiting_.erase(0, waiting_.size() - kept);
    if (!out.empty()) next().put(out);
  }
  void finish() override {
    if (!waiting_.empty()) next().put(waiting_);
    next().finish();
  }

 private:
  std::string from_, to_, waiting_;
};

// Letters for bytes, all of whose bytes are one text.
class ByteLevel final : public Decoder {
 public:
  // all_letters: no token has a character that is none.
  explicit ByteLevel(bool all_letters) : all_letters_(all_letters) {}
  bool fuses() const override { return true; }

  Stage begin(Stage next, bool whole) const override {
    Stage bytes = std::make_unique<Bytes>(std::move(next));
    // Whether a token is one of letters is told by all of it.
    if (whole && !all_letters_)
      return std::make_unique<WholeToken>(
          std::move(bytes), [](std::string_view token, bool) { return std::string(token); });
    return bytes;
  }

 private:
  class Bytes final : public DecodeStage {
   public:
    using DecodeStage::DecodeStage;
    void put(std::string_view token) override {
      const std::optional<std::string> bytes = from_letters(token);
      hand(stream_.add(bytes ? std::string_view(*bytes) : token));
    }
    void finish() override {
      hand(stream_.finish());
      next().finish();
    }

   private:
    void hand(const std::string& text) {
      if (!text.empty()) next().put(text);
    }
    Utf8Stream stream_;
  };
  bool all_letters_;
};

class Fuse final : public Decoder {
 public:
  bool fuses() const override { return true; }
  Stage begin(Stage next, bool) const override { return next; }
};

// Runs of <0x..> become their bytes, each a U+FFFD where together they are no UTF-8.
class ByteFallback final : public Decoder {
 public:
  Stage begin(Stage next, bool whole) const override {
    Stage bytes = std::make_unique<Bytes>(std::move(next));
    if (whole)
      return std::make_unique<WholeToken>(
          std::move(bytes), [](std::string_view token, bool) { return std::string(token); });
    return bytes;
  }

 private:
  class Bytes final : public DecodeStage {
   public:
    using DecodeStage::DecodeStage;
    void put(std::string_view token) override {
      if (const auto byte = byte_of_token(token)) {
        waiting_.push_back(static_cast<char>(*byte));
        return;
      }
      flush();
      next().put(token);
    }
    void finish() override {
      flush();
      next().finish();
    }

   private:
    void flush() {
      if (waiting_.empty()) return;
      if (first_invalid(waiting_) == waiting_.size()) {
        next().put(waiting_);
      } else {
        for (size_t i = 0; i < waiting_.size(); ++i) next().put("\uFFFD");
      }
      waiting_.clear();
    }
    std::string waiting_;
  };
};

class Metaspace final : public Decoder {
 public:
  Metaspace(std::string sign, bool prepends) : sign_(std::move(sign)), prepends_(prepends) {}
  Stage begin(Stage next, bool whole) const override {
    if (whole) return std::make_unique<ReplacePart>(std::move(next), sign_, prepends_ ? "" : " ");
    return change_tokens(std::move(next), false, [this](std::string_view token, bool first) {
      return replaced(token, sign_, first && prepends_ ? "" : " ");
    });
  }

 private:
  std::string sign_;
  bool prepends_;
};

class Replace final : public Decoder {
 public:
  Replace(ReadPattern read, std::string content)
      : read_(std::move(read)), content_(std::move(content)) {}
  Stage begin(Stage next, bool whole) const override {
    if (whole && read_.literal && !read_.source.empty())
      return std::make_unique<ReplacePart>(std::move(next), read_.source, content_);
    return change_tokens(std::move(next), whole,
                         [this](std::string_view token, bool) { return change(token); });
  }

 private:
  std::string change(std::string_view token) const {
    if (token.empty()) return "";
    PatternScratch scratch;
    Matches matches(read_.pattern, token, scratch);
    std::string out;
    size_t done = 0;
    while (auto found = matches.next()) {
      out += token.substr(done, found->begin - done);
      out += content_;
      done = found->end;
    }
    return out += token.substr(done);
  }
  ReadPattern read_;
  std::string content_;
};

// One character from the ends of a token.
class Strip final : public Decoder {
 public:
  Strip(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  Stage begin(Stage next, bool whole) const override {
    if (whole) return std::make_unique<Part>(std::move(next), *this);
    return change_tokens(std::move(next), false, [this](std::string_view token, bool) {
      for (size_t i = 0; i < start_ && token.starts_with(content_); ++i)
        token.remove_prefix(content_.size());
      for (size_t i = 0; i < stop_ && token.ends_with(content_); ++i)
        token.remove_suffix(content_.size());
      return std::string(token);
    });
  }

 private:
  class Part final : public DecodeStage {
   public:
    Part(Stage next, const Strip& strip)
        : DecodeStage(std::move(next)), strip_(strip), left_(strip.start_) {}
    void put(std::string_view part) override {
      for (; left_ > 0 && part.starts_with(strip_.content_); --left_)
        part.remove_prefix(strip_.content_.size());
      if (part.empty()) return;
      left_ = 0;
      size_t run = 0;
      while (part.ends_with(strip_.content_)) {
        part.remove_suffix(strip_.content_.size());
        ++run;
      }
      std::string out;
      if (!part.empty()) {
        append(out, waiting_);
        waiting_ = 0;
        out += part;
      }
      waiting_ += run;
      if (waiting_ > strip_.stop_) {
        append(out, waiting_ - strip_.stop_);
        waiting_ = strip_.stop_;
      }
      if (!out.empty()) next().put(out);
    }

   private:
    void append(std::string& out, size_t count) const {
      for (; count > 0; --count) out += strip_.content_;
    }
    const Strip& strip_;
    size_t left_, waiting_ = 0;  // that may still be taken from the beginning, and from the end
  };
  std::string content_;
  size_t start_, stop_;
};

// Spaces before signs and shortened words, as in English.
std::string cleaned(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  std::string out(text);
  for (const auto& [from, to] : kChanges)
    if (out.find(from) != std::string::npos) out = replaced(out, from, to);
  return out;
}

class WordPiece final : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  Stage begin(Stage next, bool whole) const override {
    return change_tokens(std::move(next), whole, [this](std::string_view token, bool first) {
      std::string out;
      if (!first && token.starts_with(prefix_)) {
        token.remove_prefix(prefix_.size());
      } else if (!first) {
        out = " ";
      }
      out += token;
      return cleanup_ ? cleaned(out) : out;
    });
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// The sign that ends a word becomes a space, but at the end of all.
class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  Stage begin(Stage next, bool whole) const override {
    if (whole)
      return change_tokens(std::move(next), true, [this](std::string_view token, bool) {
        return replaced(token, suffix_, "");
      });
    return std::make_unique<Words>(std::move(next), suffix_);
  }

 private:
  class Words final : public DecodeStage {
   public:
    Words(Stage next, const std::string& suffix) : DecodeStage(std::move(next)), suffix_(suffix) {}
    void put(std::string_view token) override {
      if (last_) next().put(replaced(*last_, suffix_, " "));
      last_ = std::string(token);
    }
    void finish() override {
      if (last_) next().put(replaced(*last_, suffix_, ""));
      next().finish();
    }

   private:
    const std::string& suffix_;
    std::optional<std::string> last_;
  };
  std::string suffix_;
};

// Of tokens that stand there several times in a row one is left.
class Ctc final : public Decoder {
 public:
  Ctc(std::string padding, std::string delimiter, bool cleanup)
      : padding_(std::move(padding)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  Stage begin(Stage next, bool whole) const override {
    Stage once = std::make_unique<Once>(std::move(next), *this);
    if (whole)
      return std::make_unique<WholeToken>(
          std::move(once), [](std::string_view token, bool) { return std::string(token); });
    return once;
  }

 private:
  class Once final : public DecodeStage {
   public:
    Once(Stage next, const Ctc& ctc) : DecodeStage(std::move(next)), ctc_(ctc) {}
    void put(std::string_view token) override {
      if (last_ == token) return;
      last_ = std::string(token);
      std::string out = replaced(token, ctc_.padding_, "");
      if (ctc_.cleanup_) out = replaced(cleaned(out), ctc_.delimiter_, " ");
      if (!out.empty()) next().put(out);
    }

   private:
    const Ctc& ctc_;
    std::optional<std::string> last_;
  };
  std::string padding_, delimiter_;
  bool cleanup_;
};

// Without any decoder.
class Join final : public Decoder {
 public:
  Stage begin(Stage next, bool) const override {
    return change_tokens(std::move(next), false, [](std::string_view token, bool first) {
      return (first ? "" : " ") + std::string(token);
    });
  }
};

class End final : public DecodeStage {
 public:
  explicit End(std::string& out) : DecodeStage(nullptr), out_(out) {}
  void put(std::string_view token) override { out_ += token; }
  void finish() override {}

 private:
  std::string& out_;
};

std::unique_ptr<Decoder> read_metaspace(const Field& field) {
  const Field prefix = field.at("add_prefix_space");
  std::string sign;
  append_utf8(sign, field.at("replacement").character());
  const std::string scheme =
      field.at("prepend_scheme").string_or(prefix.boolean_or(true) ? "always" : "never");
  return std::make_unique<Metaspace>(sign, scheme != "never");
}

std::unique_ptr<Decoder> read_strip(const Field& field) {
  std::string content;
  append_utf8(content, field.at("content").character());
  return std::make_unique<Strip>(content, field.at("start").id(), field.at("stop").id());
}

// Whether every token that a decoder is given is one of letters for bytes.
void keep_letters(const Field& field, bool has_bytes, bool& letters) {
  const std::string_view type = field.type();
  if (type == "Fuse") return;
  if (type == "ByteFallback") {
    letters = letters && !has_bytes;
  } else if (type == "Replace") {
    const Field literal = field.at("pattern").at("String");
    // What has a character that is no letter stands in no text of letters.
    const bool never =
        !literal.absent() && !literal.string().empty() && !from_letters(literal.string());
    letters = letters && (never || from_letters(field.at("content").string()));
  } else {
    letters = false;
  }
}

std::unique_ptr<Decoder> read_one(const Field& field, bool letters) {
  const std::string_view type = field.type();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(letters);
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Metaspace") return read_metaspace(field);
  if (type == "Replace")
    return std::make_unique<Replace>(read_pattern(field.at("pattern")),
                                     std::string(field.at("content").string()));
  if (type == "Strip") return read_strip(field);
  if (type == "WordPiece")
    return std::make_unique<WordPiece>(field.at("prefix").string_or("##"),
                                       field.at("cleanup").boolean_or(true));
  if (type == "BPEDecoder")
    return std::make_unique<BpeDecoder>(field.at("suffix").string_or("</w>"));
  if (type == "CTC")
    return std::make_unique<Ctc>(field.at("pad_token").string_or("<pad>"),
                                 field.at("word_delimiter_token").string_or("|"),
                                 field.at("cleanup").boolean_or(true));
  refuse_kind(field, kKnown);
}

}  // namespace

Decoders read_decoder(const Field& decoder, const std::vector<std::string_view>& tokens) {
  Decoders out;
  if (decoder.absent()) {
    out.push_back(std::make_unique<Join>());
    return out;
  }
  bool letters = std::all_of(tokens.begin(), tokens.end(), [](std::string_view token) {
    return from_letters(token).has_value();
  });
  const bool has_bytes = std::any_of(tokens.begin(), tokens.end(), [](std::string_view token) {
    return byte_of_token(token).has_value();
  });
  each(decoder, "decoders", [&](const Field& field) {
    if (out.size() >= 64) field.refuse("is the 65th of its kind; 64 are read here");
    out.push_back(read_one(field, letters));
    keep_letters(field, has_bytes, letters);
  });
  return out;
}

Stage begin_decoding(const Decoders& decoders, std::string& out) {
  std::vector<bool> whole;  // of each
  bool fused = false;
  for (const auto& decoder : decoders) {
    whole.push_back(fused);
    fused = fused || decoder->fuses();
  }
  Stage stage = std::make_unique<End>(out);
  for (size_t i = decoders.size(); i > 0; --i)
    stage = decoders[i - 1]->begin(std::move(stage), whole[i - 1]);
  return stage;
}

}  // namespace meshwright::tokenizer
