#include "sdk/text/corpus/corpus.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "sdk/base/beside.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

using File = std::shared_ptr<const base::MappedFile>;

std::string_view text_of(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// What one thread encodes at a time: a part of a file that is one document, or whole lines.
struct Piece {
  File file;
  size_t begin = 0, end = 0;
  std::vector<int64_t> ids;
  int64_t documents = 0, young = 0;
  std::exception_ptr failure;
  bool done = false;
};

Error damaged(const base::MappedFile& file, size_t at, const std::string& what) {
  return Error(ErrorCode::bad_dataset,
               file.path() + ": " + what + " at byte " + std::to_string(at));
}

// Encodes pieces; the same for every thread.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const CorpusOptions& options)
      : tokenizer_(tokenizer), options_(options), frame_(tokenizer.frame()) {}
  // Files as documents can be cut; a template that repeats the text keeps them whole.
  Cuts cuts() const { return frame_ ? tokenizer_.cuts() : Cuts{}; }

  void encode(Piece& piece) const {
    std::string_view whole = text_of(*piece.file),
                     text = whole.substr(piece.begin, piece.end - piece.begin);
    piece.file->check_size();
    if (size_t at = first_invalid(text); at < text.size())
      throw damaged(*piece.file, piece.begin + at, "the text is not UTF-8")
          .help("save it as UTF-8, or leave the file out");
    if (options_.documents == Documents::files)
      return part(piece, text, piece.begin == 0, piece.end == whole.size());
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = std::min(text.find('\n', at), text.size());
      std::string_view line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.find_first_not_of(" \t\r\v\f") == std::string_view::npos) continue;
      if (options_.documents == Documents::lines)
        part(piece, line, true, true);
      else
        part(piece, json_text(*piece.file, line, piece.begin + at), true, true);
    }
  }

 private:
  void part(Piece& piece, std::string_view text, bool first, bool last) const {
    auto add = [&](const std::vector<int64_t>& ids) {
      piece.ids.insert(piece.ids.end(), ids.begin(), ids.end());
    };
    if (frame_ && options_.special && first) add(frame_->before);
    add(first ? tokenizer_.encode(text, options_.special && !frame_)
              : tokenizer_.encode_rest(text));
    piece.young += young_characters(text);
    if (!last) return;
    if (frame_ && options_.special) add(frame_->after);
    if (options_.document_end) piece.ids.push_back(*options_.document_end);
    ++piece.documents;
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

  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  std::optional<Tokenizer::Frame> frame_;
};

// Threads that take the next piece each; pieces are given back in their order.
class Crew {
 public:
  Crew(const Encoder& encoder, int threads) : encoder_(encoder) {
    threads_ = detail::helpers(static_cast<size_t>(threads), [this] { work(); });
    if (threads_.empty()) threads_.emplace_back([this] { work(); });  // throws: there must be one
  }
  ~Crew() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    threads_.clear();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t under_way() const { return order_.size(); }  // of the calling thread
  void give(std::unique_ptr<Piece> piece) {
    order_.push_back(std::move(piece));
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(order_.back().get());
    }
    changed_.notify_all();
  }
  // The oldest piece, once it is done. Throws what encoding it threw.
  std::unique_ptr<Piece> take() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return order_.front()->done; });
    }
    std::unique_ptr<Piece> piece = std::move(order_.front());
    order_.pop_front();
    if (piece->failure) std::rethrow_exception(piece->failure);
    return piece;
  }

 private:
  void work() {
    for (;;) {
      Piece* piece = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
        if (ending_) return;
        piece = waiting_.front();
        waiting_.pop_front();
      }
      try {
        encoder_.encode(*piece);
      } catch (...) {
        piece->failure = std::current_exception();
      }
      {
        std::lock_guard lock(mutex_);
        piece->done = true;
      }
      changed_.notify_all();
    }
  }

  const Encoder& encoder_;
  std::deque<std::unique_ptr<Piece>> order_;  // of the calling thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> waiting_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace

CorpusCounts encode_files(
    const Tokenizer& tokenizer, const std::vector<std::string>& files, const CorpusOptions& options,
    const std::function<void(std::span<const int64_t> ids, int64_t bytes)>& take) {
  CorpusCounts counts;
  Encoder encoder(tokenizer, options);
  const Cuts cuts = encoder.cuts();
  const size_t most = 2 * static_cast<size_t>(options.threads) + 2;
  Crew crew(encoder, options.threads);
  auto take_one = [&] {
    std::unique_ptr<Piece> piece = crew.take();
    auto bytes = static_cast<int64_t>(piece->end - piece->begin);
    take(piece->ids, bytes);
    counts.tokens += static_cast<int64_t>(piece->ids.size());
    counts.bytes += bytes;
    counts.documents += piece->documents;
    counts.young += piece->young;
  };
  for (const std::string& path : files) {
    auto file = std::make_shared<const base::MappedFile>(path, ErrorCode::bad_dataset);
    std::string_view text = text_of(*file);
    for (size_t begin = 0; begin < text.size();) {
      auto piece = std::make_unique<Piece>();
      piece->file = file;
      piece->begin = begin;
      size_t end = begin + options.piece;
      if (options.documents == Documents::files) {
        piece->end = cut_near(text, begin, end, cuts);
        if (piece->end - begin > 2 * options.piece)
          counts.whole = std::max(counts.whole, static_cast<int64_t>(piece->end - begin));
      } else {
        // Whole lines: up to the first line feed behind the size of a piece.
        size_t feed = end < text.size() ? text.find('\n', end) : std::string_view::npos;
        piece->end = feed == std::string_view::npos ? text.size() : feed + 1;
      }
      begin = piece->end;
      crew.give(std::move(piece));
      if (crew.under_way() >= most) take_one();
    }
  }
  while (crew.under_way() > 0) take_one();
  return counts;
}

}  // namespace meshwright::tokenizer
