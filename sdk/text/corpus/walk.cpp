#include "sdk/text/corpus/walk.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <span>
#include <utility>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/in_order.h"
#include "sdk/base/unpack/unpacked_file.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

// What one thread takes at a time: a part of a file that is one document, or whole lines.
struct Piece {
  const std::string* path = nullptr;
  std::shared_ptr<const base::MappedFile> mapped;  // whose bytes `text` is, or
  std::string unpacked;
  std::string_view text;
  size_t at = 0;     // in the text of its file
  int64_t line = 1;  // on which it begins
  int64_t taken = 0;
  bool last = false;  // of its file
  Documents documents = Documents::files;
  bool parquet = false;
  std::unique_ptr<PieceWork> work;
  int64_t met = 0;  // documents
};

Error damaged(const Piece& piece, size_t at, const std::string& what) {
  return Error(ErrorCode::bad_dataset,
               *piece.path + ": " + what + " at byte " + std::to_string(piece.at + at));
}

int64_t feeds_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

// A file cut into pieces, by one thread. One that is not packed is mapped.
class FilePieces {
 public:
  FilePieces(const std::string& path, const WalkOptions& options)
      : path_(path),
        options_(options),
        documents_(options.documents),
        file_(path, ErrorCode::bad_dataset,
              base::Columns{
                  {{options.text_key}}, "", "--documents json --text-key names another column"}) {
    if (file_.kind() == base::FileKind::parquet) documents_ = Documents::json_lines;
    if (file_.packed()) return;
    mapped_ = std::make_shared<const base::MappedFile>(path, ErrorCode::bad_dataset);
    rest_ = {reinterpret_cast<const char*>(mapped_->bytes().data()), mapped_->bytes().size()};
    at_end_ = true;
  }

  std::unique_ptr<Piece> next() {
    auto out = std::make_unique<Piece>();
    const size_t size = cut();
    if (size == 0) return nullptr;
    out->path = &path_;
    out->at = at_;
    out->line = line_;
    out->documents = documents_;
    out->parquet = file_.kind() == base::FileKind::parquet;
    out->mapped = mapped_;
    out->last = at_end_ && size == rest_.size();
    if (mapped_) {
      out->text = rest_.substr(0, size);
      rest_.remove_prefix(size);
      out->taken = static_cast<int64_t>(size);
    } else {
      out->unpacked.assign(buffer_, 0, size);
      buffer_.erase(0, size);
      rest_ = buffer_;
      out->text = out->unpacked;
      out->taken = file_.taken() - std::exchange(told_, file_.taken());
    }
    at_ += size;
    if (documents_ == Documents::json_lines) line_ += feeds_in(out->text);
    return out;
  }

 private:
  // How long the next piece is.
  size_t cut() {
    // What follows decides where a text may be cut.
    constexpr size_t kLookAhead = 8;
    for (size_t size = 2 * options_.piece + kLookAhead;; size *= 2) {
      if (!at_end_) fill(size);
      if (rest_.size() <= options_.piece && at_end_) return rest_.size();
      const size_t least = options_.piece;
      size_t end = rest_.size();
      if (documents_ == Documents::files) {
        end = cut_near(rest_, 0, least, options_.cuts);
      } else if (const size_t feed = least < end ? rest_.find('\n', least) : std::string_view::npos;
                 feed != std::string_view::npos) {
        // Whole lines: up to the first line feed behind the size of a piece.
        return feed + 1;
      }
      if (at_end_ || end + kLookAhead <= rest_.size()) return end;
    }
  }
  void fill(size_t size) {
    const size_t before = buffer_.size();
    if (before < size) {
      buffer_.resize(size);
      const size_t got = file_.read(std::span(buffer_).subspan(before));
      buffer_.resize(before + got);
      at_end_ = before + got < size;
    }
    rest_ = buffer_;
  }

  const std::string& path_;
  const WalkOptions& options_;
  Documents documents_;
  base::UnpackedFile file_;
  std::shared_ptr<const base::MappedFile> mapped_;
  std::string buffer_;  // of a packed file
  std::string_view rest_;
  bool at_end_ = false;
  size_t at_ = 0;
  int64_t line_ = 1, told_ = 0;
};

// Takes pieces apart; the same for every thread.
class Reader {
 public:
  explicit Reader(const WalkOptions& options) : options_(options) {}

  void read(Piece& piece) const {
    const std::string_view text = piece.text;
    if (piece.mapped) piece.mapped->check_size();
    if (const size_t at = first_invalid(text); at < text.size()) {
      if (const base::FileKind kind = base::kind_of(text);
          !piece.mapped && piece.at == 0 && kind != base::FileKind::plain)
        throw base::packed_within(*piece.path, kind, ErrorCode::bad_dataset);
      throw damaged(piece, at, "the text is not UTF-8")
          .help("save it as UTF-8, or leave the file out");
    }
    if (piece.documents == Documents::files)
      return hand(piece, {text, piece.at == 0, piece.last, *piece.path, piece.at});
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = std::min(text.find('\n', at), text.size());
      std::string_view line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.find_first_not_of(" \t\r\v\f") == std::string_view::npos) continue;
      const size_t place = piece.at + at;
      if (piece.documents == Documents::lines)
        hand(piece, {line, true, true, *piece.path, place});
      else
        hand(piece, {json_text(piece, line, at), true, true, *piece.path, place});
    }
  }

 private:
  static void hand(Piece& piece, const TextPart& part) {
    piece.work->part(part);
    if (part.last) ++piece.met;
  }

  std::string json_text(const Piece& piece, std::string_view line, size_t at) const {
    auto refuse = [&](const std::string& what, size_t place) {
      const std::string number =
          std::to_string(piece.line + feeds_in(piece.text.substr(0, at))) + " ";
      if (piece.parquet)
        return Error(ErrorCode::bad_dataset, *piece.path + ": row " + number + what)
            .help("write the file again without the rows whose \"" + options_.text_key +
                  "\" is null or no string; --text-key names another column");
      return damaged(piece, at + place, "line " + number + what)
          .help("every line is a JSON object whose \"" + options_.text_key +
                "\" is a string; --text-key names another field")
          .help("--documents file takes the files as they are");
    };
    boost::json::value row;
    try {
      row = base::parse_strictly(line, {.depth = 32, .elements = 1 << 20});
    } catch (const base::JsonProblem& problem) {
      throw refuse(problem.what, static_cast<size_t>(problem.offset));
    }
    const boost::json::value* text =
        row.is_object() ? row.as_object().if_contains(options_.text_key) : nullptr;
    if (text == nullptr || !text->is_string())
      throw refuse("has no string \"" + options_.text_key + "\"", 0);
    return std::string(text->as_string());
  }

  const WalkOptions& options_;
};

}  // namespace

WalkCounts walk_files(const std::vector<std::string>& files, const WalkOptions& options,
                      const std::function<std::unique_ptr<PieceWork>(size_t thread)>& begin,
                      const std::function<void(PieceWork& work, int64_t bytes)>& take) {
  WalkCounts counts;
  Reader reader(options);
  const size_t most = 2 * static_cast<size_t>(options.threads) + 2;
  base::InOrder<Piece> crew(static_cast<size_t>(options.threads), [&](Piece& piece, size_t thread) {
    piece.work = begin(thread);
    reader.read(piece);
  });
  auto take_one = [&] {
    std::unique_ptr<Piece> piece = crew.take();
    take(*piece->work, piece->taken);
    counts.bytes += std::ssize(piece->text);
    counts.documents += piece->met;
  };
  for (const std::string& path : files) {
    FilePieces pieces(path, options);
    while (std::unique_ptr<Piece> piece = pieces.next()) {
      if (piece->documents == Documents::files && piece->text.size() > 2 * options.piece)
        counts.whole = std::max(counts.whole, static_cast<int64_t>(piece->text.size()));
      crew.give(std::move(piece));
      if (crew.under_way() >= most) take_one();
    }
  }
  while (crew.under_way() > 0) take_one();
  return counts;
}

}  // namespace meshwright::tokenizer
