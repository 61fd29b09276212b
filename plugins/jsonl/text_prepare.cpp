#include "text_prepare.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>

#include "meshwright/error.h"
#include "prepare.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/in_order.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"
#include "sdk/text/tokenizer/normalize.h"
#include "store_file.h"

namespace meshwright::jsonl {

namespace fs = std::filesystem;

namespace {

void list_texts(const DatasetRequest& request, TextOptions& out) {
  out.files = base::list_files(request.path, out.path_key, "");
  std::error_code failed;
  if (fs::is_directory(request.path, failed)) {
    const auto rest = std::stable_partition(
        out.files.begin(), out.files.end(),
        [&](const std::string& file) { return !is_hidden(file, request.path); });
    out.left_out.assign(rest, out.files.end());
    out.files.erase(rest, out.files.end());
    if (out.files.empty())
      throw Error(ErrorCode::bad_dataset, request.path + ": all files in it are hidden")
          .key(out.path_key)
          .help("name them by a pattern: set " + out.path_key + " = \"" +
                (fs::path(request.path) / ".*").string() + "\"");
  }
}

DocumentRules rules_of(const DatasetRequest& request, const std::string& table) {
  const Options& given = request.options;
  DocumentRules out{.text_field = given.get_string("text_field"), .table = table};
  const std::string divide = given.get_string("documents");
  if (divide == "line") out.divide = Divide::line;
  if (divide == "blank_line") out.divide = Divide::blank_line;
  if (!given.is_set("separator")) return out;
  out.separator = given.get_string("separator");
  if (out.separator.empty())
    throw Error(ErrorCode::bad_choice, table + ".separator is empty")
        .key(table + ".separator")
        .at(given.origin("separator"))
        .help("set " + table + ".separator = \"<|endoftext|>\"")
        .help("set " + table + ".separator = \"none\"");
  if (out.divide != Divide::file)
    throw Error(ErrorCode::conflict, table + ".documents = \"" + divide +
                                         "\" and a separator: documents are divided by one of them")
        .key(table + ".separator")
        .at(given.origin("separator"))
        .help("set " + table + ".separator = \"none\"")
        .help("set " + table + ".documents = \"file\"");
  out.divide = Divide::separator;
  return out;
}

}  // namespace

TextOptions TextOptions::read(const DatasetRequest& request) {
  const Options& given = request.options;
  TextOptions out;
  out.table = request.options.schema().table;
  out.path_key = request.table + ".path";
  out.tokenizer_key = request.table + ".tokenizer";
  out.rules = rules_of(request, out.table);
  list_texts(request, out);
  out.folder = request.pretrained;
  if (!tokenizer::tokenizer_file(out.folder))
    throw Error(ErrorCode::bad_tokenizer, out.folder + " " + tokenizer::kNoTokenizer)
        .key(out.tokenizer_key)
        .help("name the folder of a Hugging Face tokenizer: set " + out.tokenizer_key +
              " = \"models/Qwen3-0.6B\"")
        .help("set " + out.tokenizer_key + " = \"bytes\" to learn the bytes of the texts");
  out.document_end = given.get_string("document_end");
  out.cache = cache_place(given.get_string("cache"), out.table + ".cache");
  const int64_t threads = given.get_int("threads");
  out.threads = threads > 0 ? static_cast<int>(threads)
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const char* name : {"text_field", "documents", "separator", "document_end"})
    if (given.is_set(name))
      out.key += std::string(name) + " = " + to_toml(given.value(name)) + "\n";
  return out;
}

std::vector<std::string> TextOptions::language_files() const {
  JsonlOptions same;
  same.folder = folder;
  return same.language_files();
}

std::vector<std::string> TextOptions::all_files() const {
  std::vector<std::string> out = files;
  for (std::string& file : language_files()) out.push_back(std::move(file));
  return out;
}

TextEncoder::TextEncoder(const TextOptions& options)
    : language_(Language::read(options.folder, "", options.table)),
      frame_(language_->tokenizer.frame()) {
  if (options.document_end == "auto") {
    if (language_->eos) end_ = language_->eos->id;
  } else if (options.document_end != "none") {
    end_ = language_->tokenizer.id_of(options.document_end);
    if (!end_)
      throw Error(ErrorCode::bad_tokenizer, options.table + ".document_end = \"" +
                                                options.document_end + "\": the tokenizer of " +
                                                options.folder + " has no such token")
          .key(options.table + ".document_end")
          .help("set " + options.table +
                ".document_end = \"auto\": the eos_token that the tokenizer's folder names")
          .help("set " + options.table + ".document_end = \"none\"");
  }
}

void TextEncoder::encode(const DocumentPart& part, std::vector<int64_t>& to) const {
  auto add = [&](const std::vector<int64_t>& ids) { to.insert(to.end(), ids.begin(), ids.end()); };
  if (frame_ && part.begins) add(frame_->before);
  const tokenizer::Tokenizer& tokenizer = language_->tokenizer;
  if (!part.text.empty())
    add(part.begins ? tokenizer.encode(part.text, /*special=*/!frame_)
                    : tokenizer.encode_rest(part.text));
  if (frame_ && part.ends) add(frame_->after);
}

namespace {

// What one thread encodes at a time.
struct TextWork {
  std::unique_ptr<TextPiece> piece;
  size_t bytes = 0;  // of its text
  std::vector<int64_t> ids;
  struct Part {
    size_t end;  // of its ids
    uint64_t row;
    bool begins, ends;
  };
  std::vector<Part> parts;
  int64_t young = 0;
};

using Took = std::function<void(const TextWork&, const Preparation&)>;

// All documents of all files, in order, handed to `took` by this thread.
void encode_texts(const TextOptions& options, const TextEncoder& encoder, const Took& took) {
  base::InOrder<TextWork> crew(static_cast<size_t>(options.threads), [&](TextWork& work, size_t) {
    each_document(*work.piece, options.rules, options.files[work.piece->file],
                  [&](const DocumentPart& part) {
                    encoder.encode(part, work.ids);
                    work.young += tokenizer::young_characters(part.text);
                    work.parts.push_back({work.ids.size(), part.offset, part.begins, part.ends});
                  });
    work.piece->text = {};
  });
  Preparation at;
  std::error_code failed;
  for (const std::string& file : options.files)
    if (const uintmax_t size = fs::file_size(file, failed); !failed)
      at.total += static_cast<int64_t>(size);
  // Of many threads the pieces are smaller: all together are some 100 MiB.
  TextPieces pieces(options.files, options.rules, encoder.cuts(),
                    options.threads > 16 ? size_t{1} << 18 : size_t{1} << 20);
  // Documents that cannot be cut are pieces of any size.
  constexpr size_t kMostWaiting = size_t{512} << 20;
  size_t waiting = 0;
  auto take = [&] {
    const std::unique_ptr<TextWork> work = crew.take();
    waiting -= work->bytes;
    at.bytes += work->piece->taken;
    took(*work, at);
  };
  const size_t most = 2 * static_cast<size_t>(options.threads) + 2;
  while (std::unique_ptr<TextPiece> piece = pieces.next()) {
    auto work = std::make_unique<TextWork>();
    work->bytes = piece->text.size();
    waiting += work->bytes;
    work->piece = std::move(piece);
    crew.give(std::move(work));
    while (crew.under_way() >= most || (waiting > kMostWaiting && crew.under_way() > 1)) take();
  }
  while (crew.under_way() > 0) take();
}

// Puts encoded documents into a store, each with its end.
class Filling {
 public:
  Filling(StoreFile& file, std::optional<int64_t> end) : file_(file), end_(end) {}
  void take(const TextWork& work) {
    size_t begin = 0;
    for (const TextWork::Part& part : work.parts) {
      const std::span<const int64_t> ids = std::span(work.ids).subspan(begin, part.end - begin);
      begin = part.end;
      if (part.begins) {
        row_ = part.row;
        last_ = -1;
      }
      file_.add(ids);
      if (!ids.empty()) last_ = ids.back();
      if (!part.ends) continue;
      if (end_ && last_ != *end_ && last_ >= 0) file_.add(std::span(&*end_, 1));
      if (!file_.end_document(row_)) continue;
      ++counts.rows;
      counts.endless_texts += end_ ? 0 : 1;
    }
    counts.young += work.young;
  }
  StoreCounts counts;

 private:
  StoreFile& file_;
  std::optional<int64_t> end_;
  uint64_t row_ = 0;
  int64_t last_ = -1;  // of the document that is under way
};

// Sizes and times of files: whoever writes to one changes them.
std::vector<std::pair<int64_t, int64_t>> stamps_of(const TextOptions& options) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const std::string& file : options.all_files()) {
    struct stat info{};
    if (::stat(file.c_str(), &info) != 0) info = {};
    out.emplace_back(info.st_size, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec);
  }
  return out;
}

// A store that was begun and cannot be written on: no error that is made up for in memory.
struct OutOfRoom {
  Error error;
};

OutOfRoom out_of_room(const Error& error, const StoreFile& file, const Preparation& at,
                      const fs::path& folder) {
  std::error_code failed;
  const fs::space_info space = fs::space(folder, failed);
  auto megabytes = [](double bytes) { return text::format("%.1f MB", bytes / 1e6); };
  std::string said = error.message();
  if (at.bytes > 0)
    said += "; the tokens of these files need about " +
            megabytes(static_cast<double>(file.bytes()) * static_cast<double>(at.total) /
                      static_cast<double>(at.bytes)) +
            " in " + folder.string();
  if (!failed) said += ", where " + megabytes(static_cast<double>(space.available)) + " are free";
  return {Error(error.code(), said)};
}

// Everything into `file`; `folder`: where it lies.
void fill(const TextOptions& options, const TextEncoder& encoder, StoreFile& file,
          const fs::path& folder, const Tell& tell) {
  const auto begin = std::chrono::steady_clock::now();
  const auto progress = telling_progress(tell);
  Filling filling(file, encoder.end());
  Preparation done;
  auto writing = [&](const auto& write) {
    try {
      write();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::output_unwritable) throw;
      throw out_of_room(error, file, done, folder);
    }
  };
  encode_texts(options, encoder, [&](const TextWork& work, const Preparation& at) {
    done = at;
    writing([&] { filling.take(work); });
    progress(at);
  });
  if (filling.counts.rows == 0)
    throw Error(ErrorCode::bad_dataset,
                options.files.front() + (options.files.size() > 1 ? " and others hold" : " holds") +
                    " no text: there is no document that is not blank")
        .key(options.path_key)
        .help("name files that hold text: set " + options.path_key + " = \"data/*.txt\"");
  writing([&] { file.finish(filling.counts); });
  const double seconds = base::ms_since(begin) / 1000;
  if (seconds < 1) return;
  tell(text::format(
           "tokenized %.1f MB in %.1f s, %.1f MB/s: ", static_cast<double>(done.bytes) / 1e6,
           seconds, static_cast<double>(done.bytes) / 1e6 / seconds) +
       text::counted(filling.counts.rows, "document"));
}

constexpr uint64_t kMostInMemory = uint64_t{1} << 30;

Error too_large_for_memory(const TextOptions& options) {
  return Error(ErrorCode::bad_dataset,
               "the tokens have more than 1 GiB, and without a cache each process would hold all "
               "of them in its memory")
      .key(options.table + ".cache")
      .help("set " + options.table + ".cache to a folder that has room for them")
      .help("set " + options.table + ".cache = \"auto\"");
}

}  // namespace

std::shared_ptr<const TokenStore> text_store(const TextOptions& options, const Tell& tell) {
  const auto stamps = stamps_of(options);
  const auto [key, parts] = text_key(options);
  std::optional<TextEncoder> encoder;
  auto make = [&, &key = key, &parts = parts](const std::string& path, uint64_t most) {
    if (!encoder) {
      encoder.emplace(options);
      for (const std::string& note : encoder->tokenizer().notes()) tell(note);
    }
    StoreOrigin origin;
    origin.key = key;
    origin.parts = parts;
    auto file = std::make_unique<StoreFile>(path, encoder->tokenizer().size() > 65536,
                                            std::move(origin), most);
    fill(options, *encoder, *file, fs::path(path).parent_path(), tell);
    // Others may have waited for it for long, and would go by what the key says.
    if (stamps_of(options) != stamps)
      throw Error(ErrorCode::bad_dataset,
                  options.files.front() +
                      ": the texts or the tokenizer have changed while they were tokenized")
          .key(options.path_key)
          .help("start again when nobody writes to them");
    return file;
  };
  auto write = [&](const std::string& path) { make(path, UINT64_MAX); };
  auto in_memory = [&] {
    try {
      return make("", kMostInMemory)->open();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_range) throw;
      throw too_large_for_memory(options);
    }
  };
  auto placed = [&](const Error& error) {
    return Error(error.code(), error.message())
        .key(options.table + ".cache")
        .help("set " + options.table + ".cache to a folder that may be written to and has room");
  };
  try {
    return cached_store(options.cache, key, {write, in_memory}, tell);
  } catch (const OutOfRoom& full) {
    throw placed(full.error);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::output_unwritable) throw;
    throw placed(error);
  }
}

}  // namespace meshwright::jsonl
