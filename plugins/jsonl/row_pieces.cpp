#include "row_pieces.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/unpack/unpacked_file.h"
#include "sdk/base/words.h"
#include "sdk/text/chat/roles.h"

namespace meshwright::jsonl {

std::string tell_names(const StoreCounts::Names& names,
                       const std::function<std::string(const std::string&)>& remark) {
  std::vector<std::pair<std::string, int64_t>> all(names.named.begin(), names.named.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kMostTold = 5;
  std::string out;
  int64_t told = 0;
  for (size_t i = 0; i < std::min(all.size(), kMostTold); ++i) {
    const auto& [name, times] = all[i];
    out += (i == 0 ? "\"" : ", \"") + name + "\" " + text::grouped(times) + remark(name);
    told += times;
  }
  if (names.all() > told) out += ", others " + text::grouped(names.all() - told);
  return out;
}

std::string tell_roles(const StoreCounts& counts) {
  if (counts.roles.all() == 0) return {};
  return text::counted(counts.roles.all(), "message") +
         " of roles that are not known: " + tell_names(counts.roles, [](const std::string& role) {
           const std::string meant = chat::role_meant(role);
           return meant.empty() ? std::string() : " (did you mean \"" + meant + "\"?)";
         });
}

namespace {

constexpr std::string_view kBlank = " \t\r\n";

int64_t lines_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

// Moves a place past a text.
void pass(std::string_view text, int64_t& line, int64_t& column) {
  const size_t feed = text.rfind('\n');
  column = feed == std::string_view::npos ? column + std::ssize(text)
                                          : static_cast<int64_t>(text.size() - feed);
  line += lines_in(text);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// What a file is by its first bytes that is no text in UTF-8, and how it becomes that.
void refuse_other_files(std::string_view text, const std::string& name) {
  using namespace std::string_view_literals;
  struct Kind {
    std::string_view begins;
    const char *what, *makes_text;
  };
  auto refused = [&](const std::string& what) {
    return Error(ErrorCode::bad_dataset, name + ": the file is " + what)
        .at({Origin::Source::file, name, 0, 0});
  };
  // What is read comes here where it is packed twice.
  if (const base::FileKind kind = base::kind_of(text, text); kind != base::FileKind::plain)
    throw base::packed_within(name, kind, ErrorCode::bad_dataset);
  for (const Kind& kind :
       {Kind{"\xFD\x37zXZ\0"sv, "compressed by xz", "unpack it: xz -dc <"},
        Kind{"BZh"sv, "compressed by bzip2", "unpack it: bunzip2 <"},
        Kind{"PK\x03\x04"sv, "a zip archive", "unpack it: unzip -p"},
        Kind{"\xFF\xFE\0\0"sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32 -t UTF-8"},
        Kind{"\0\0\xFE\xFF"sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32 -t UTF-8"},
        Kind{"\xFF\xFE"sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8"},
        Kind{"\xFE\xFF"sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8"},
        // Without a byte order mark: rows begin so.
        Kind{"{\0\0\0"sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32LE -t UTF-8"},
        Kind{"[\0\0\0"sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32LE -t UTF-8"},
        Kind{"\0\0\0{"sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32BE -t UTF-8"},
        Kind{"\0\0\0["sv, "UTF-32, not UTF-8", "convert it: iconv -f UTF-32BE -t UTF-8"},
        Kind{"{\0"sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16LE -t UTF-8"},
        Kind{"[\0"sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16LE -t UTF-8"},
        Kind{"\0{"sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16BE -t UTF-8"},
        Kind{"\0["sv, "UTF-16, not UTF-8", "convert it: iconv -f UTF-16BE -t UTF-8"}})
    if (text.starts_with(kind.begins))
      throw refused(kind.what).help(std::string(kind.makes_text) + " '" + name + "' > rows.jsonl");
}

}  // namespace

RowFile::RowFile(std::string_view text, std::string name)
    : text_(text), name_(std::move(name)), end_(text.size()) {
  refuse_other_files(text_, name_);
  if (text_.starts_with("\xEF\xBB\xBF")) begin_ = 3;
  const size_t first = text_.find_first_not_of(kBlank, begin_);
  if (first == std::string_view::npos || text_[first] != '[') return;
  list_ = true;
  const std::string_view before = text_.substr(begin_, first + 1 - begin_);
  begin_ = first + 1;
  pass(before, line_, column_);
  const size_t last = text_.find_last_not_of(kBlank);
  if (text_[last] != ']' || last < begin_) {
    const int64_t line = 1 + lines_in(text_.substr(0, last));
    throw Error(ErrorCode::bad_dataset, name_ + ":" + std::to_string(line) +
                                            ": the file begins with [ and does not end with ]")
        .at({Origin::Source::file, name_, static_cast<int>(line), 0})
        .help("a file is either one list of objects, or an object on every line");
  }
  end_ = last;
  const size_t comma = text_.find_last_not_of(kBlank, last - 1);
  if (comma < begin_ || text_[comma] != ',') return;
  int64_t line = line_, column = column_;
  pass(text_.substr(begin_, comma - begin_), line, column);
  throw Error(ErrorCode::bad_dataset,
              name_ + ":" + std::to_string(line) + ":" + std::to_string(column) +
                  ": not valid JSON: a comma stands before ], with nothing behind it")
      .at({Origin::Source::file, name_, static_cast<int>(line), static_cast<int>(column)})
      .help("remove that comma");
}

size_t RowFile::element_end(size_t at) const {
  int64_t depth = 0;
  for (; at < end_; ++at) switch (text_[at]) {
      case '"':
        for (++at; at < end_ && text_[at] != '"'; ++at)
          if (text_[at] == '\\') ++at;
        break;
      case '[':
      case '{':
        ++depth;
        break;
      case ']':
      case '}':
        --depth;
        break;
      case ',':
        if (depth <= 0) return at;
        break;
      default:
        break;
    }
  return end_;
}

std::vector<Chunk> RowFile::chunks(size_t size) const {
  std::vector<Chunk> out;
  Chunk next{begin_, begin_, line_, column_};
  while (next.begin < end_) {
    if (list_) {
      do next.end = std::min(element_end(next.end) + 1, end_);
      while (next.end < end_ && next.end - next.begin < size);
    } else {
      const size_t at = std::min(next.begin + size, end_);
      const size_t feed = text_.find('\n', at);
      next.end = feed == std::string_view::npos ? end_ : std::min(feed + 1, end_);
    }
    out.push_back(next);
    pass(text_.substr(next.begin, next.end - next.begin), next.line, next.column);
    next.begin = next.end;
  }
  return out;
}

std::vector<RowPiece> RowFile::rows(const Chunk& chunk) const {
  std::vector<RowPiece> out;
  int64_t line = chunk.line, column = chunk.column;
  for (size_t at = chunk.begin; at < chunk.end;) {
    const size_t stop = list_ ? element_end(at) : std::min(text_.find('\n', at), chunk.end);
    const std::string_view raw = text_.substr(at, stop - at), text = trimmed(raw);
    const size_t blank = text.empty() ? raw.size() : static_cast<size_t>(text.data() - raw.data());
    pass(raw.substr(0, blank), line, column);
    // A list has no blank elements; what an empty one holds is none.
    if (!text.empty() || (list_ && stop < end_)) out.push_back({text, line, at + blank, column});
    pass(text_.substr(at + blank, std::min(stop + 1, chunk.end) - at - blank), line, column);
    at = stop + 1;
  }
  return out;
}

}  // namespace meshwright::jsonl
