#include "sdk/text/corpus/walk.h"

#include <algorithm>
#include <boost/json/object.hpp>

#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/in_order.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

using File = std::shared_ptr<const base::MappedFile>;

std::string_view text_of(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// What one thread takes at a time: a part of a file that is one document, or whole lines.
struct Piece {
  File file;
  size_t begin = 0, end = 0;
  std::unique_ptr<PieceWork> work;
  int64_t documents = 0;
};

Error damaged(const base::MappedFile& file, size_t at, const std::string& what) {
  return Error(ErrorCode::bad_dataset,
               file.path() + ": " + what + " at byte " + std::to_string(at));
}

// Takes pieces apart; the same for every thread.
class Reader {
 public:
  explicit Reader(const WalkOptions& options) : options_(options) {}

  void read(Piece& piece) const {
    std::string_view whole = text_of(*piece.file),
                     text = whole.substr(piece.begin, piece.end - piece.begin);
    piece.file->check_size();
    if (size_t at = first_invalid(text); at < text.size())
      throw damaged(*piece.file, piece.begin + at, "the text is not UTF-8")
          .help(whole.starts_with("\x1F\x8B") || whole.starts_with("\x28\xB5\x2F\xFD")
                    ? "it is packed: unpack it first, by gzip -d or zstd -d"
                    : "save it as UTF-8, or leave the file out");
    const std::string& name = piece.file->path();
    if (options_.documents == Documents::files)
      return hand(piece, {text, piece.begin == 0, piece.end == whole.size(), name, piece.begin});
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = std::min(text.find('\n', at), text.size());
      std::string_view line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.find_first_not_of(" \t\r\v\f") == std::string_view::npos) continue;
      const size_t place = piece.begin + at;
      if (options_.documents == Documents::lines)
        hand(piece, {line, true, true, name, place});
      else
        hand(piece, {json_text(*piece.file, line, place), true, true, name, place});
    }
  }

 private:
  static void hand(Piece& piece, const TextPart& part) {
    piece.work->part(part);
    if (part.last) ++piece.documents;
  }

  std::string json_text(const base::MappedFile& file, std::string_view line, size_t at) const {
    auto refuse = [&](const std::string& what, size_t place) {
      std::string_view before = text_of(file).substr(0, at);
      return damaged(file, at + place,
                     "line " + std::to_string(std::count(before.begin(), before.end(), '\n') + 1) +
                         " " + what)
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
    auto bytes = static_cast<int64_t>(piece->end - piece->begin);
    take(*piece->work, bytes);
    counts.bytes += bytes;
    counts.documents += piece->documents;
  };
  for (const std::string& path : files) {
    auto file = std::make_shared<const base::MappedFile>(path, ErrorCode::bad_dataset);
    std::string_view text = text_of(*file);
    for (size_t at = 0; at < text.size();) {
      auto piece = std::make_unique<Piece>();
      piece->file = file;
      piece->begin = at;
      size_t end = at + options.piece;
      if (options.documents == Documents::files) {
        piece->end = cut_near(text, at, end, options.cuts);
        if (piece->end - at > 2 * options.piece)
          counts.whole = std::max(counts.whole, static_cast<int64_t>(piece->end - at));
      } else {
        // Whole lines: up to the first line feed behind the size of a piece.
        size_t feed = end < text.size() ? text.find('\n', end) : std::string_view::npos;
        piece->end = feed == std::string_view::npos ? text.size() : feed + 1;
      }
      at = piece->end;
      crew.give(std::move(piece));
      if (crew.under_way() >= most) take_one();
    }
  }
  while (crew.under_way() > 0) take_one();
  return counts;
}

}  // namespace meshwright::tokenizer
