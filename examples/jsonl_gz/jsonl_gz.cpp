// A data set of compressed JSON lines: [dataset] plugin = "jsonl_gz".
#include <glob.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "gzip_index.h"
#include "meshwright/plugin_main.h"
#include "meshwright/typed_options.h"
#include "rows.h"

namespace {

using meshwright::DatasetRequest;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::SampleView;
namespace fs = std::filesystem;

struct Settings {
  std::string tokens_key, text_key;
  std::optional<int64_t> end_token;
  std::optional<std::string> weight_key;
  int64_t spacing_kib;
};
using meshwright::field;
constexpr auto kOptions = meshwright::typed_options<Settings>(
    field(&Settings::tokens_key, meshwright::option("tokens_key", MESHWRIGHT_STRING, "\"tokens\"",
                                                    "The field that holds token ids.")),
    field(&Settings::text_key,
          meshwright::option("text_key", MESHWRIGHT_STRING, "\"text\"",
                             "The field whose bytes are the tokens, in rows without token ids.")),
    field(&Settings::end_token,
          meshwright::with_flags(meshwright::int_option("end_token", nullptr, 0,
                                                        "A token that is put behind every row."),
                                 MESHWRIGHT_OPTIONAL)),
    field(&Settings::weight_key,
          meshwright::with_flags(
              meshwright::option("weight_key", MESHWRIGHT_STRING, nullptr,
                                 "The field that holds the weight of a row's targets in the loss; "
                                 "rows without it have 1."),
              MESHWRIGHT_OPTIONAL)),
    field(&Settings::spacing_kib,
          meshwright::int_option("spacing_kib", "1024", 64,
                                 "Contents between two places from which a file can be read, KiB; "
                                 "each takes 32 KiB of memory. Changes no sample.")));

jsonl_gz::RowFormat format_of(const DatasetRequest& request) {
  const Settings own = kOptions.read(request.options);
  return {own.tokens_key, own.text_key, own.end_token, own.weight_key, request.vocab_size};
}

// A file, a folder with *.jsonl.gz, or a pattern; sorted by name.
std::vector<std::string> files_of(const DatasetRequest& request) {
  std::vector<std::string> out;
  std::error_code failed;
  const fs::path path = request.path;
  if (fs::is_regular_file(path, failed)) return {path.string()};
  const std::string pattern =
      fs::is_directory(path, failed) ? (path / "*.jsonl.gz").string() : path.string();
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(out.begin(), out.end());
  if (out.empty())
    throw Error(ErrorCode::bad_dataset, request.table + ".path = \"" + request.path +
                                            "\": no such file, and no file that matches")
        .key(request.table + ".path")
        .help("set " + request.table + ".path = \"data/*.jsonl.gz\"");
  return out;
}

// All rows behind each other are one line of positions, which is cut into samples of seq_len: a row
// may go on in the next sample. Position i predicts the token behind it where that is of its row.
class Source final : public meshwright::SampleSource {
 public:
  explicit Source(const DatasetRequest& request)
      : format_(format_of(request)), length_(request.seq_len), paths_(files_of(request)) {
    for (const std::string& path : paths_) read_all(path, request);
    if (samples() < 1)
      throw Error(ErrorCode::bad_dataset,
                  request.table + ".path = \"" + request.path + "\" holds " +
                      std::to_string(tokens_) +
                      " tokens, but a sample takes seq_len = " + std::to_string(length_))
          .key(request.table + ".path")
          .help("name more data, or set " + request.table + ".seq_len to less");
  }

  int64_t samples() const override { return tokens_ / length_; }
  std::vector<std::string> files() const override { return paths_; }
  uint64_t fingerprint() const override { return hash_; }
  bool has_documents() const override { return true; }
  bool has_weights() const override { return format_.weight_key.has_value(); }
  std::string describe() const override {
    return (paths_.size() == 1 ? paths_[0] : std::to_string(paths_.size()) + " files") + ", " +
           std::to_string(rows_.size()) + " rows, " + std::to_string(tokens_) + " tokens";
  }
  std::vector<std::string> report() const override {
    int64_t bytes = 0, places = 0;
    for (const auto& file : files_) bytes += file->bytes(), places += file->places();
    char mean[40];
    std::snprintf(mean, sizeof mean, "%.1f",
                  static_cast<double>(rows_.size()) / static_cast<double>(samples()));
    return {std::to_string(bytes) + " bytes of JSON, readable from " + std::to_string(places) +
            " places; " + mean + " rows a sample, " +
            std::to_string(tokens_ - samples() * length_) + " tokens at the end are left out"};
  }

  void read(int64_t sample, const SampleView& out) const override {
    if (sample < 0 || sample >= samples())
      throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
    const int64_t begin = sample * length_;
    // The row that the sample begins in.
    auto row = std::upper_bound(rows_.begin(), rows_.end(), begin,
                                [](int64_t at, const Place& r) { return at < r.begin; }) -
               rows_.begin() - 1;
    int64_t at = 0;
    for (int32_t document = 0; at < length_;) {
      const size_t file = rows_[static_cast<size_t>(row)].file;
      std::string line;
      files_[file]->read(rows_[static_cast<size_t>(row)].byte, [&](std::span<const char> piece) {
        for (const char c : piece) {
          if (c != '\n') {
            line += c;
            continue;
          }
          if (!add(line, row, begin, at, document, out)) return false;
          line.clear();
        }
        return true;
      });
      // The last line may have no end.
      if (at < length_ && row < static_cast<std::ptrdiff_t>(rows_.size()) &&
          rows_[static_cast<size_t>(row)].file == file)
        add(line, row, begin, at, document, out);
    }
  }

 private:
  struct Place {
    int64_t begin = 0;  // tokens before it
    int64_t byte = 0;   // of the file's contents
    int64_t line = 0;   // from 1
    size_t file = 0;
  };

  static bool blank(std::string_view line) {
    return line.find_first_not_of(" \t\r") == std::string_view::npos;
  }

  // Every row once: where it is, how many tokens it has, and whether all of them can be used.
  void read_all(const std::string& path, const DatasetRequest& request) {
    std::string line;
    int64_t number = 1, byte = 0;
    auto end_of_line = [&] {
      if (!blank(line)) {
        const auto row = jsonl_gz::parse_row(line, format_, path + ":" + std::to_string(number));
        if (!row.tokens.empty()) rows_.push_back({tokens_, byte, number, files_.size()});
        tokens_ += static_cast<int64_t>(row.tokens.size());
        const auto size = static_cast<int64_t>(row.tokens.size());
        add_to_hash(&size, sizeof size);
        add_to_hash(row.tokens.data(), row.tokens.size() * sizeof(int64_t));
        add_to_hash(&row.weight, sizeof row.weight);
      }
      byte += static_cast<int64_t>(line.size()) + 1;
      ++number;
      line.clear();
    };
    auto file = std::make_unique<jsonl_gz::GzipIndex>(
        path, kOptions.read(request.options).spacing_kib << 10, [&](std::span<const char> piece) {
          for (const char c : piece) {
            if (c == '\n')
              end_of_line();
            else
              line += c;
          }
        });
    if (!line.empty()) end_of_line();
    files_.push_back(std::move(file));
  }

  // The rest of the sample that the row `row` has, whose line this is. False: the sample is full,
  // or the next row is in another file.
  bool add(std::string_view line, std::ptrdiff_t& row, int64_t begin, int64_t& at,
           int32_t& document, const SampleView& out) const {
    if (blank(line)) return true;
    const Place& place = rows_[static_cast<size_t>(row)];
    const jsonl_gz::Row parsed =
        jsonl_gz::parse_row(line, format_, paths_[place.file] + ":" + std::to_string(place.line));
    if (parsed.tokens.empty()) return true;  // it has no place of its own
    const auto size = static_cast<int64_t>(parsed.tokens.size());
    for (int64_t i = begin + at - place.begin; i < size && at < length_; ++i, ++at) {
      const auto to = static_cast<size_t>(at);
      out.tokens[to] = parsed.tokens[static_cast<size_t>(i)];
      out.targets[to] =
          i + 1 < size ? parsed.tokens[static_cast<size_t>(i) + 1] : meshwright::kNoTarget;
      out.documents[to] = document;
      if (!out.weights.empty()) out.weights[to] = parsed.weight;
    }
    ++document;
    ++row;
    return at < length_ && row < static_cast<std::ptrdiff_t>(rows_.size()) &&
           rows_[static_cast<size_t>(row)].file == place.file;
  }

  void add_to_hash(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) hash_ = (hash_ ^ bytes[i]) * 1099511628211u;
  }

  jsonl_gz::RowFormat format_;
  int64_t length_, tokens_ = 0;
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<jsonl_gz::GzipIndex>> files_;
  std::vector<Place> rows_;
  uint64_t hash_ = 14695981039346656037u;
};

class JsonlGz final : public meshwright::DatasetKind {
 public:
  void validate(const DatasetRequest& request, meshwright::Diagnostics& found) const override {
    if (request.path.empty())
      found.add(Error(ErrorCode::missing_key,
                      request.table + ".path is needed: where the compressed JSON lines are")
                    .key(request.table + ".path")
                    .help("set " + request.table + ".path = \"data/*.jsonl.gz\""));
    const auto end = kOptions.read(request.options).end_token;
    if (end && request.vocab_size > 0 && *end >= request.vocab_size)
      found.add(Error(ErrorCode::out_of_range, request.table +
                                                   ".jsonl_gz.end_token = " + std::to_string(*end) +
                                                   ", but the model's vocabulary has " +
                                                   std::to_string(request.vocab_size) + " entries")
                    .key(request.table + ".jsonl_gz.end_token")
                    .help("set " + request.table + ".jsonl_gz.end_token = 0"));
  }
  std::unique_ptr<meshwright::SampleSource> open(const DatasetRequest& request) const override {
    return std::make_unique<Source>(request);
  }
};

const meshwright_component kDatasets[] = {meshwright::describe_dataset<JsonlGz>(
    {.name = "jsonl_gz",
     .summary = "Compressed JSON lines of token ids or text, packed into samples",
     .options = kOptions.declared})};

}  // namespace

MESHWRIGHT_DATA_PLUGIN("jsonl_gz", "1.0.0", "Meshwright", "Apache-2.0",
                       "Compressed JSON lines as training data", kDatasets)
