#include "meshwright/error.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace meshwright {
namespace {

constexpr std::array kCatalog = {
#define MESHWRIGHT_ERROR(name, number, kind, title, explanation) \
  ErrorInfo{ErrorCode::name, #name, ErrorKind::kind, title, explanation},
#include "meshwright/error_codes.def"
#undef MESHWRIGHT_ERROR
};

// How many letters have to be inserted, left out, replaced or exchanged with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const ErrorInfo> error_catalog() { return kCatalog; }

const ErrorInfo& error_info(ErrorCode code) {
  for (const ErrorInfo& info : kCatalog)
    if (info.code == code) return info;
  return kCatalog.back();
}

std::string code_string(ErrorCode code) {
  char text[8];
  std::snprintf(text, sizeof text, "E%04u", static_cast<unsigned>(code) % 10000);
  return text;
}

int exit_status(ErrorCode code) {
  // By the hundreds of the code.
  constexpr int kStatus[] = {1, 2, 2, 3, 2, 4, 6, 7, 5};
  const auto hundreds = static_cast<size_t>(code) / 100;
  return hundreds < std::size(kStatus) ? kStatus[hundreds] : 1;
}

Error::Error(ErrorCode code, std::string message)
    : code_(code),
      message_(std::move(message)),
      what_("error[" + code_string(code) + "]: " + message_) {}
Error::Error(const Error&) = default;
Error::Error(Error&&) noexcept = default;
Error& Error::operator=(const Error&) = default;
Error& Error::operator=(Error&&) noexcept = default;
Error::~Error() = default;

Error& Error::key(std::string dotted_key) {
  key_ = std::move(dotted_key);
  return *this;
}
Error& Error::about(std::string dotted_key) {
  about_.push_back(std::move(dotted_key));
  return *this;
}
std::vector<std::string> Error::keys() const {
  std::vector<std::string> out = about_;
  if (!key_.empty()) out.insert(out.begin(), key_);
  return out;
}
Error& Error::at(Origin origin) {
  origin_ = std::move(origin);
  return *this;
}
Error& Error::help(std::string text) {
  helps_.push_back(std::move(text));
  return *this;
}
Error& Error::note(std::string text) {
  notes_.push_back(std::move(text));
  return *this;
}

Diagnostics::Diagnostics(std::set<std::string, std::less<>> doubtful)
    : doubtful_(std::move(doubtful)) {}
bool Diagnostics::in_doubt(const std::vector<std::string>& keys) const {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return doubtful_.contains(key); });
}
void Diagnostics::add(Error error) {
  if (!in_doubt(error.keys())) errors_.push_back(std::move(error));
}
void Diagnostics::notice(std::string text, const std::vector<std::string>& about) {
  if (!in_doubt(about)) notices_.push_back(std::move(text));
}
void Diagnostics::warning(std::string text, const std::vector<std::string>& about) {
  if (!in_doubt(about)) warnings_.push_back(std::move(text));
}
void Diagnostics::throw_if_any() const {
  if (!errors_.empty()) throw errors_.front();
}

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  // A slip of the finger: one letter of three, and never more than three. Names that share no more
  // than an ending are not near.
  constexpr size_t kMost = 3;
  std::string best;
  size_t best_distance = std::clamp<size_t>(word.size() / 3, 1, kMost) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > word.size() + kMost || word.size() > candidate.size() + kMost) continue;
    if (size_t d = edit_distance(word, candidate); d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  if (!best.empty()) return best;
  // The beginning of one name, whole words of it.
  for (const std::string& candidate : candidates) {
    if (word.size() < 4 || candidate.size() <= word.size() || !candidate.starts_with(word) ||
        candidate[word.size()] != '_')
      continue;
    if (!best.empty()) return {};
    best = candidate;
  }
  return best;
}

}  // namespace meshwright
