#include "text_documents.h"

#include <algorithm>
#include <utility>

#include "meshwright/error.h"
#include "row.h"
#include "sdk/base/files/utf8.h"
#include "sdk/text/tokenizer/divide.h"

namespace meshwright::jsonl {

namespace {

constexpr std::string_view kWhite = " \t\r\n\v\f";
constexpr std::string_view kMark = "\xEF\xBB\xBF";  // U+FEFF, as some editors begin a file with it

bool is_white(std::string_view text) {
  return text.find_first_not_of(kWhite) == std::string_view::npos;
}

int64_t feeds_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

// Hands the lines over, each with where it begins and where the next one does.
template <class Take>
void each_line(std::string_view text, const Take& take) {
  for (size_t at = 0, next = 0; at < text.size(); at = next) {
    next = text.find('\n', at);
    next = next == std::string_view::npos ? text.size() : next + 1;
    take(at, next);
  }
}

std::string_view without_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Error at_line(const std::string& name, int64_t line, const std::string& what) {
  return at_row(Error(ErrorCode::bad_dataset, name + ":" + std::to_string(line) + ": " + what),
                name + ":" + std::to_string(line));
}

}  // namespace

bool is_rows_name(std::string_view path) {
  const std::string_view name = base::unpacked_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".json") || base::is_parquet_name(path);
}

TextPieces::TextPieces(std::vector<std::string> files, DocumentRules rules, tokenizer::Cuts cuts,
                       size_t piece, size_t most)
    : files_(std::move(files)), rules_(std::move(rules)), cuts_(cuts), piece_(piece), most_(most) {}

bool TextPieces::open_next() {
  if (next_file_ == files_.size()) return false;
  const std::string& path = files_[next_file_++];
  const std::string key = rules_.table + ".text_field";
  file_.emplace(path, ErrorCode::bad_dataset,
                base::Columns{{{rules_.text_field}}, key, "set " + key + " to a column of texts"});
  rows_ = is_rows_name(path) || file_->kind() == base::FileKind::parquet;
  at_end_ = within_ = false;
  in_file_ = 0;
  line_ = 1;
  told_ = 0;
  fill(kMark.size());
  if (buffer_.starts_with(kMark)) {
    buffer_.erase(0, kMark.size());
    offset_ += kMark.size();
    in_file_ += kMark.size();
  }
  return true;
}

void TextPieces::fill(size_t size) {
  if (at_end_ || buffer_.size() >= size) return;
  const size_t before = buffer_.size();
  buffer_.resize(size);
  const size_t got = file_->read(std::span(buffer_).subspan(before));
  buffer_.resize(before + got);
  at_end_ = before + got < size;
}

// Behind the last document that certainly ends in the buffer; 0: none does.
size_t TextPieces::boundary() const {
  const std::string_view text = buffer_;
  const Divide divide = rows_ ? Divide::line : rules_.divide;
  switch (divide) {
    case Divide::file:
      return 0;
    case Divide::line: {
      const size_t feed = text.rfind('\n');
      return feed == std::string_view::npos ? 0 : feed + 1;
    }
    case Divide::separator: {
      // From the left, as documents are divided: one that overlaps itself stands elsewhere from the
      // right. A line break behind it may still be to come.
      size_t end = 0;
      for (size_t at; (at = text.find(rules_.separator, end)) != std::string_view::npos;)
        end = at + rules_.separator.size();
      return end;
    }
    case Divide::blank_line:
      break;
  }
  // The last blank line that is whole.
  for (size_t end = text.rfind('\n'); end != std::string_view::npos && end > 0;) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    // At the beginning of what follows a cut it may be the rest of a line.
    if (is_white(text.substr(begin, end - begin)) && begin > 0) return end + 1;
    end = before;
  }
  return 0;
}

std::unique_ptr<TextPiece> TextPieces::cut(size_t at, bool ends) {
  auto out = std::make_unique<TextPiece>();
  out->file = next_file_ - 1;
  out->rows = rows_;
  out->packed = file_->packed();
  out->offset = offset_;
  out->in_file = in_file_;
  out->line = line_;
  out->begins = !within_;
  out->ends = ends;
  out->taken = file_->taken() - std::exchange(told_, file_->taken());
  out->text.assign(buffer_, 0, at);
  buffer_.erase(0, at);
  offset_ += at;
  in_file_ += at;
  line_ += feeds_in(out->text);
  within_ = !ends;
  return out;
}

std::unique_ptr<TextPiece> TextPieces::next() {
  for (size_t size = piece_;;) {
    if (!file_ && !open_next()) return nullptr;
    fill(size);
    if (at_end_) {
      // A document that was cut ends here, if only with nothing.
      const bool rest = !buffer_.empty() || within_;
      std::unique_ptr<TextPiece> last = rest ? cut(buffer_.size(), true) : nullptr;
      file_.reset();
      if (last) return last;
      continue;
    }
    if (const size_t at = boundary(); at > 0) return cut(at, true);
    // Not near the end, where a separator may begin or the next character has yet to come.
    constexpr size_t kLookAhead = 8;
    const size_t margin = std::max(kLookAhead, rules_.separator.size());
    if (!rows_ && cuts_.any() && buffer_.size() > 2 * margin) {
      const size_t at = tokenizer::cut_near(buffer_, 0, buffer_.size() - margin, cuts_);
      if (at <= buffer_.size() - margin) return cut(at, false);
    }
    // What is no text is not cut: whoever looks at the stretch says where.
    if (base::first_invalid(buffer_) + kLookAhead < buffer_.size())
      return cut(buffer_.size(), false);
    if (buffer_.size() >= most_)
      throw at_line(files_[next_file_ - 1], line_,
                    (rows_ ? "a row of more than " : "a document of more than ") +
                        std::to_string(most_ >> 20) +
                        " MiB, which this tokenizer cannot take in parts")
          .help("divide it: set " + rules_.table + ".documents = \"blank_line\" or \"line\"");
    size = 2 * buffer_.size();
  }
}

namespace {

// Hands over the stretches of documents of a text file: [begin, end) of the piece.
template <class Take>
void each_stretch(const TextPiece& piece, const DocumentRules& rules, const Take& take) {
  const std::string_view text = piece.text;
  switch (rules.divide) {
    case Divide::file:
      return take(size_t{0}, text.size());
    case Divide::line:
      if (text.empty()) return take(size_t{0}, size_t{0});
      return each_line(text, [&](size_t begin, size_t next) { take(begin, next); });
    case Divide::blank_line: {
      size_t begin = 0, end = 0;
      bool any = false;
      each_line(text, [&](size_t at, size_t next) {
        // The rest of a line that was cut is none that is blank.
        const bool rest = at == 0 && !piece.begins;
        if (!rest && is_white(text.substr(at, next - at))) {
          if (any) take(begin, end);
          any = false;
          return;
        }
        if (!any) begin = at;
        any = true;
        end = next;
      });
      if (any || (text.empty() && !piece.begins)) take(begin, end);
      return;
    }
    case Divide::separator: {
      const std::string& mark = rules.separator;
      for (size_t begin = 0;;) {
        const size_t at = text.find(mark, begin);
        take(begin, std::min(at, text.size()));
        if (at == std::string_view::npos || at + mark.size() == text.size()) return;
        begin = at + mark.size();
      }
    }
  }
}

}  // namespace

void each_document(const TextPiece& piece, const DocumentRules& rules, const std::string& name,
                   const std::function<void(const DocumentPart&)>& take) {
  const std::string_view text = piece.text;
  if (const size_t at = base::first_invalid(text); at < text.size()) {
    if (const base::FileKind kind = base::kind_of(text);
        piece.packed && piece.in_file == 0 && kind != base::FileKind::plain)
      throw base::packed_within(name, kind, ErrorCode::bad_dataset);
    const int64_t line = piece.line + feeds_in(text.substr(0, at));
    throw at_line(name, line, "the text is not UTF-8 at byte " + std::to_string(piece.in_file + at))
        .help(piece.in_file + at < 4 ? "save it as UTF-8 (iconv -f UTF-16 -t UTF-8), or leave the "
                                       "file out: name the others by a pattern"
                                     : "save it as UTF-8, or leave the file out: name the others "
                                       "by a pattern");
  }
  if (piece.rows) {
    int64_t line = piece.line;
    each_line(text, [&](size_t begin, size_t next) {
      const int64_t here = line++;
      const std::string_view row = without_end(text.substr(begin, next - begin));
      if (is_white(row)) return;
      const chat::Value value = parse_row(row, name, here);
      const chat::Value* field = value.is_dict() ? value.get(rules.text_field) : nullptr;
      if (field == nullptr || !field->is_string())
        throw at_line(name, here, "the row has no string \"" + rules.text_field + "\"")
            .key(rules.table + ".text_field")
            .help("set " + rules.table + ".text_field to the field that holds the text")
            .help("chats and prompts with answers are read by a plugin: set " +
                  rules.table.substr(0, rules.table.rfind('.')) + ".plugin = \"jsonl\"");
      const std::string& said = field->as_string();
      if (!is_white(said)) take({said, piece.offset + begin, here, true, true});
    });
    return;
  }
  int64_t line = piece.line;
  size_t counted = 0;
  each_stretch(piece, rules, [&](size_t begin, size_t end) {
    DocumentPart part{{}, 0, 0, begin > 0 || piece.begins, end < text.size() || piece.ends};
    std::string_view said = text.substr(begin, end - begin);
    switch (rules.divide) {
      case Divide::file:
        break;
      case Divide::line:
        if (part.ends) said = without_end(said);
        break;
      case Divide::blank_line:
        if (part.ends) said = without_end(said);
        break;
      case Divide::separator:
        if (part.ends && (end < text.size() || text.ends_with(rules.separator)))
          said = without_end(said);
        if (part.begins && piece.in_file + begin > 0) {
          const size_t cut = said.starts_with("\r\n") ? 2 : said.starts_with('\n') ? 1 : 0;
          begin += cut;
          said.remove_prefix(cut);
        }
        break;
    }
    if (part.begins && part.ends && is_white(said)) return;
    line += feeds_in(text.substr(counted, begin - counted));
    counted = begin;
    part.text = said;
    part.offset = piece.offset + begin;
    part.line = line;
    take(part);
  });
}

}  // namespace meshwright::jsonl
