#include "token_store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/utf8.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::jsonl {

namespace {

static_assert(std::endian::native == std::endian::little && sizeof(Run) == 8);

constexpr std::string_view kMagic = "MWTOKENS";
constexpr size_t kAlign = 64, kMaxHeader = 1 << 20;
constexpr size_t kFront = 24;  // magic, length and checksum of the header

size_t aligned(size_t at) { return (at + kAlign - 1) / kAlign * kAlign; }

std::string hexadecimal(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 0; i < 16; ++i) out[15 - i] = "0123456789abcdef"[(value >> (4 * i)) & 15];
  return out;
}

template <class T>
std::span<const std::byte> as_bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct Section {
  const char* name;
  std::span<const std::byte> bytes;
};

boost::json::object counts_json(const StoreCounts& counts) {
  auto named = [](const StoreCounts::Names& names) {
    boost::json::object out;
    for (const auto& [name, times] : names.named) out[name] = times;
    return out;
  };
  return {{"rows", counts.rows},
          {"kept_as_text", counts.kept_as_text},
          {"open_ends", counts.open_ends},
          {"endless_texts", counts.endless_texts},
          {"double_begins", counts.double_begins},
          {"chats", counts.chats},
          {"calls_left_out", counts.calls_left_out},
          {"tools_left_out", counts.tools_left_out},
          {"own_systems", counts.own_systems},
          {"own_variables", counts.own_variables},
          {"young", counts.young},
          {"roles", named(counts.roles)},
          {"other_roles", counts.roles.others},
          {"columns", named(counts.columns)},
          {"other_columns", counts.columns.others}};
}

// Fields of an object that came from a file: each throws a string that says what is wrong.
const boost::json::value& field(const boost::json::object& object, std::string_view key) {
  const boost::json::value* value = object.if_contains(key);
  if (value == nullptr) throw "its header has no \"" + std::string(key) + "\"";
  return *value;
}
int64_t number(const boost::json::object& object, std::string_view key) {
  const boost::json::value& value = field(object, key);
  if (!value.is_int64() || value.get_int64() < 0)
    throw "\"" + std::string(key) + "\" of its header is no count";
  return value.get_int64();
}
std::string string(const boost::json::object& object, std::string_view key) {
  const boost::json::value& value = field(object, key);
  if (!value.is_string()) throw "\"" + std::string(key) + "\" of its header is no string";
  return std::string(value.get_string());
}
const boost::json::object& object(const boost::json::object& parent, std::string_view key) {
  const boost::json::value& value = field(parent, key);
  if (!value.is_object()) throw "\"" + std::string(key) + "\" of its header is no object";
  return value.get_object();
}

StoreCounts counts_of(const boost::json::object& counts) {
  StoreCounts out;
  out.rows = number(counts, "rows");
  out.kept_as_text = number(counts, "kept_as_text");
  out.open_ends = number(counts, "open_ends");
  out.endless_texts = number(counts, "endless_texts");
  out.double_begins = number(counts, "double_begins");
  out.chats = number(counts, "chats");
  out.calls_left_out = number(counts, "calls_left_out");
  out.tools_left_out = number(counts, "tools_left_out");
  out.own_systems = number(counts, "own_systems");
  out.own_variables = number(counts, "own_variables");
  out.young = number(counts, "young");
  auto named = [&](StoreCounts::Names& names, std::string_view key, std::string_view others) {
    const boost::json::object& from = object(counts, key);
    for (const auto& [name, times] : from)
      names.named[std::string(name)] = number(from, std::string_view(name));
    names.others = number(counts, others);
  };
  named(out.roles, "roles", "other_roles");
  named(out.columns, "columns", "other_columns");
  return out;
}

// A section of the file as an array of `count` elements, its checksum compared.
template <class T>
const T* section(std::span<const std::byte> file, const boost::json::object& sections,
                 std::string_view name, uint64_t count) {
  const boost::json::object& place = object(sections, name);
  const auto begin = static_cast<uint64_t>(number(place, "begin"));
  const auto size = static_cast<uint64_t>(number(place, "bytes"));
  if (begin % kAlign != 0 || begin > file.size() || size > file.size() - begin ||
      size / sizeof(T) != count || size % sizeof(T) != 0)
    throw "its section \"" + std::string(name) + "\" does not fit its size";
  const std::byte* at = file.data() + begin;
  if (hexadecimal(XXH3_64bits(at, size)) != string(place, "xxh3"))
    throw "its section \"" + std::string(name) + "\" does not match its checksum";
  return reinterpret_cast<const T*>(at);
}

void check_offsets(const uint64_t* offsets, uint64_t count, std::string_view name) {
  bool fine = offsets[0] == 0;
  for (uint64_t i = 0; i < count; ++i) fine &= offsets[i] <= offsets[i + 1];
  if (!fine) throw "its section \"" + std::string(name) + "\" is out of order";
}

}  // namespace

void StoreCounts::operator+=(const StoreCounts& other) {
  rows += other.rows;
  kept_as_text += other.kept_as_text;
  open_ends += other.open_ends;
  endless_texts += other.endless_texts;
  double_begins += other.double_begins;
  chats += other.chats;
  calls_left_out += other.calls_left_out;
  tools_left_out += other.tools_left_out;
  own_systems += other.own_systems;
  own_variables += other.own_variables;
  young += other.young;
  roles += other.roles;
  columns += other.columns;
}

void StoreCounts::Names::operator+=(const Names& other) {
  others += other.others;
  for (const auto& [name, times] : other.named) add(name, times);
}

void StoreCounts::Names::add(const std::string& name, int64_t times) {
  std::string shown;
  for (size_t at = 0; at < name.size();) {
    const auto [code, size] = chat::unicode::decode(name, at);
    // It is told on terminals.
    shown += chat::unicode::is_printable(code) ? name.substr(at, size) : "\uFFFD";
    at += size;
    if (shown.size() <= kLongest) continue;
    shown.resize(kLongest - 3);
    shown.resize(base::first_invalid(shown));  // not within a character
    shown += "...";
    break;
  }
  named[shown] += times;
  if (named.size() <= kMost) return;
  const auto last = std::prev(named.end());
  others += last->second;
  named.erase(last);
}

int64_t StoreCounts::Names::all() const {
  int64_t out = others;
  for (const auto& [name, times] : named) out += times;
  return out;
}

void StoreWriter::add(const Document& document) {
  for (int64_t id : document.ids)
    if (wide_)
      wide_ids_.push_back(static_cast<uint32_t>(id));
    else
      narrow_ids_.push_back(static_cast<uint16_t>(id));
  targets_.insert(targets_.end(), document.targets.begin(), document.targets.end());
  tokens_.push_back(wide_ ? wide_ids_.size() : narrow_ids_.size());
  runs_.push_back(targets_.size());
  rows_.push_back(document.row);
}

void StoreWriter::append(StoreWriter&& other) {
  auto join = [](auto& to, auto& from) {
    to.insert(to.end(), from.begin(), from.end());
    from = {};
  };
  auto join_offsets = [](std::vector<uint64_t>& to, std::vector<uint64_t>& from) {
    const uint64_t before = to.back();
    for (size_t i = 1; i < from.size(); ++i) to.push_back(before + from[i]);
    from = {0};
  };
  join_offsets(tokens_, other.tokens_);
  join_offsets(runs_, other.runs_);
  join(rows_, other.rows_);
  join(narrow_ids_, other.narrow_ids_);
  join(wide_ids_, other.wide_ids_);
  join(targets_, other.targets_);
}

std::vector<std::byte> StoreWriter::bytes(const StoreOrigin& origin) const {
  const Section sections[] = {
      {"tokens", as_bytes(tokens_)}, {"ids", wide_ ? as_bytes(wide_ids_) : as_bytes(narrow_ids_)},
      {"runs", as_bytes(runs_)},     {"targets", as_bytes(targets_)},
      {"rows", as_bytes(rows_)},
  };
  boost::json::object places;
  // The header's length decides where sections begin, which it tells: it gets room to spare.
  const size_t header_room = 8192 + origin.parts.size();
  size_t at = aligned(kFront + header_room);
  for (const Section& one : sections) {
    places[one.name] = {{"begin", at},
                        {"bytes", one.bytes.size()},
                        {"xxh3", hexadecimal(XXH3_64bits(one.bytes.data(), one.bytes.size()))}};
    at = aligned(at + one.bytes.size());
  }
  boost::json::object header{{"version", kStoreVersion}, {"key", origin.key}};
  if (!origin.parts.empty()) header["parts"] = boost::json::parse(origin.parts);
  header["template"] = origin.template_hash;
  header["documents"] = documents();
  header["id_bytes"] = wide_ ? 4 : 2;
  header["counts"] = counts_json(origin.counts);
  header["sections"] = std::move(places);
  std::string text = boost::json::serialize(header);
  if (text.size() > header_room)
    throw Error(ErrorCode::internal,
                "the header of a token store has " + std::to_string(text.size()) + " bytes");
  text.resize(header_room, ' ');

  std::vector<std::byte> out(at, std::byte{0});
  const uint64_t front[] = {text.size(), XXH3_64bits(text.data(), text.size())};
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  std::memcpy(out.data() + kMagic.size(), front, sizeof front);
  std::memcpy(out.data() + kFront, text.data(), text.size());
  at = aligned(kFront + header_room);
  for (const Section& one : sections) {
    if (!one.bytes.empty()) std::memcpy(out.data() + at, one.bytes.data(), one.bytes.size());
    at = aligned(at + one.bytes.size());
  }
  return out;
}

void TokenStore::read(std::span<const std::byte> bytes) {
  uint64_t length = 0, sum = 0;
  if (bytes.size() < kFront || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    throw std::string("it is not a token store");
  std::memcpy(&length, bytes.data() + kMagic.size(), sizeof length);
  std::memcpy(&sum, bytes.data() + kMagic.size() + sizeof length, sizeof sum);
  if (length > kMaxHeader || length > bytes.size() - kFront)
    throw std::string("it ends within its header");
  if (XXH3_64bits(bytes.data() + kFront, length) != sum)
    throw std::string("its header does not match its checksum");
  boost::system::error_code failed;
  const boost::json::value parsed = boost::json::parse(
      std::string_view(reinterpret_cast<const char*>(bytes.data()) + kFront, length), failed);
  if (failed || !parsed.is_object()) throw std::string("its header is not valid JSON");
  const boost::json::object& header = parsed.get_object();
  if (number(header, "version") != kStoreVersion)
    throw "it is of version " + std::to_string(number(header, "version"));
  origin_.key = string(header, "key");
  // For people only: nothing here depends on it.
  if (const auto* parts = header.if_contains("parts"); parts != nullptr && parts->is_object())
    origin_.parts = boost::json::serialize(*parts);
  origin_.template_hash = string(header, "template");
  origin_.counts = counts_of(object(header, "counts"));
  documents_ = static_cast<uint64_t>(number(header, "documents"));
  if (documents_ >= UINT32_MAX) throw std::string("it has too many documents");
  const boost::json::object& sections = object(header, "sections");
  tokens_ = section<uint64_t>(bytes, sections, "tokens", documents_ + 1);
  runs_ = section<uint64_t>(bytes, sections, "runs", documents_ + 1);
  rows_ = section<uint64_t>(bytes, sections, "rows", documents_);
  check_offsets(tokens_, documents_, "tokens");
  check_offsets(runs_, documents_, "runs");
  const int64_t id_bytes = number(header, "id_bytes");
  if (id_bytes == 2)
    narrow_ids_ = section<uint16_t>(bytes, sections, "ids", tokens_[documents_]);
  else if (id_bytes == 4)
    wide_ids_ = section<uint32_t>(bytes, sections, "ids", tokens_[documents_]);
  else
    throw std::string("its ids have " + std::to_string(id_bytes) + " bytes");
  targets_ = section<Run>(bytes, sections, "targets", runs_[documents_]);
  for (uint64_t document = 0; document < documents_; ++document) {
    uint32_t before = 0;
    for (const Run& run : targets(document)) {
      if (run.begin < before || run.end <= run.begin || run.end > tokens(document))
        throw "the targets of document " + std::to_string(document) + " lie outside of it";
      before = run.end;
    }
  }
  const uint64_t all = tokens_[documents_];
  if (all > 0)
    largest_id_ = narrow_ids_ != nullptr
                      ? int64_t{*std::max_element(narrow_ids_, narrow_ids_ + all)}
                      : int64_t{*std::max_element(wide_ids_, wide_ids_ + all)};
}

std::shared_ptr<const TokenStore> TokenStore::open(const std::string& path) {
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->file_.emplace(path, ErrorCode::bad_dataset);
  try {
    store->read(store->file_->bytes());
  } catch (const std::string& what) {
    throw Error(ErrorCode::bad_dataset, path + ": " + what);
  }
  return store;
}

std::shared_ptr<const TokenStore> TokenStore::in_memory(std::vector<std::byte> bytes) {
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->memory_ = std::move(bytes);
  try {
    store->read(store->memory_);
  } catch (const std::string& what) {
    throw Error(ErrorCode::internal, "a token store in memory: " + what);
  }
  return store;
}

void TokenStore::check() const {
  if (file_) file_->check_size();
}

}  // namespace meshwright::jsonl
