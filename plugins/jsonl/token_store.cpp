#include "token_store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/files/utf8.h"
#include "sdk/text/chat/unicode.h"
#include "store_layout.h"

namespace meshwright::jsonl {

// Its names are written with those that have no place of their own.
BOOST_DESCRIBE_STRUCT(StoreCounts, (),
                      (rows, kept_as_text, open_ends, endless_texts, double_begins, chats,
                       calls_left_out, tools_left_out, own_systems, own_variables, renamed, young))

namespace {

static_assert(std::endian::native == std::endian::little && sizeof(Run) == 8);

constexpr std::string_view kMagic = "MWTOKENS";
constexpr size_t kMaxHeader = 1 << 20;
constexpr size_t kFront = 24;  // magic, length and checksum of the header

template <class T>
std::span<const std::byte> as_bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct Header {
  int version = kStoreVersion;
  std::string key;
  std::optional<boost::json::value> parts = {};
  std::string template_, form;
  uint64_t documents = 0;
  int id_bytes = 0;
  boost::json::value counts = {};
  Sections sections = {};
};
BOOST_DESCRIBE_STRUCT(Header, (),
                      (version, key, parts, template_, form, documents, id_bytes, counts, sections))

boost::json::value counts_json(const StoreCounts& counts) {
  boost::json::value out = base::json_of(counts);
  boost::json::object& all = out.get_object();
  all["roles"] = base::json_of(counts.roles.named);
  all["other_roles"] = counts.roles.others;
  all["columns"] = base::json_of(counts.columns.named);
  all["other_columns"] = counts.columns.others;
  return out;
}

// Takes them out of the object. Throws base::JsonProblem.
StoreCounts::Names names_in(boost::json::object& counts, const std::string& key) {
  StoreCounts::Names out;
  out.named = base::read_json<std::map<std::string, int64_t>>(counts[key], "\"" + key + "\"");
  out.others = base::read_json<int64_t>(counts["other_" + key], "\"other_" + key + "\"");
  counts.erase(key);
  counts.erase("other_" + key);
  return out;
}

StoreCounts counts_of(boost::json::value json) {
  StoreCounts::Names roles, columns;
  if (boost::json::object* counts = json.if_object()) {
    roles = names_in(*counts, "roles");
    columns = names_in(*counts, "columns");
  }
  auto out = base::read_json<StoreCounts>(json, "\"counts\"");
  out.roles = std::move(roles);
  out.columns = std::move(columns);
  return out;
}

// A section of the file as an array of `count` elements, its checksum compared.
template <class T>
const T* section(std::span<const std::byte> file, const Section& place, const std::string& name,
                 uint64_t count) {
  if (place.begin % kStoreAlign != 0 || place.begin > file.size() ||
      place.bytes > file.size() - place.begin || place.bytes / sizeof(T) != count ||
      place.bytes % sizeof(T) != 0)
    throw "its section \"" + name + "\" does not fit its size";
  const std::byte* at = file.data() + place.begin;
  if (base::to_hex(XXH3_64bits(at, place.bytes)) != place.xxh3)
    throw "its section \"" + name + "\" does not match its checksum";
  return reinterpret_cast<const T*>(at);
}

void check_offsets(const uint64_t* offsets, uint64_t count, std::string_view name) {
  bool fine = offsets[0] == 0;
  for (uint64_t i = 0; i < count; ++i) fine &= offsets[i] <= offsets[i + 1];
  if (!fine) throw "its section \"" + std::string(name) + "\" is out of order";
}

}  // namespace

void StoreCounts::operator+=(const StoreCounts& other) {
  boost::mp11::mp_for_each<base::codec::Members<StoreCounts>>(
      [&](auto member) { this->*member.pointer += other.*member.pointer; });
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
  weights_.push_back(document.weight);
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
  join(weights_, other.weights_);
}

namespace {

size_t header_room(const StoreOrigin& origin) {
  constexpr size_t kMostOfByte = 6;  // as JSON
  return 8192 + origin.parts.size() + kMostOfByte * origin.form.size();
}

}  // namespace

size_t first_section(const StoreOrigin& origin) {
  return store_aligned(kFront + header_room(origin));
}

std::string store_front(const StoreOrigin& origin, uint64_t documents, bool wide,
                        const Sections& sections) {
  Header header{.key = origin.key,
                .template_ = origin.template_hash,
                .form = origin.form,
                .documents = documents,
                .id_bytes = wide ? 4 : 2,
                .counts = counts_json(origin.counts),
                .sections = sections};
  if (!origin.parts.empty()) header.parts = base::parse_own(origin.parts);
  std::string text = base::json_text(header);
  if (text.size() > header_room(origin))
    throw Error(ErrorCode::internal,
                "the header of a token store has " + std::to_string(text.size()) + " bytes");
  text.resize(header_room(origin), ' ');
  std::string out(first_section(origin), '\0');
  const uint64_t front[] = {text.size(), XXH3_64bits(text.data(), text.size())};
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  std::memcpy(out.data() + kMagic.size(), front, sizeof front);
  std::memcpy(out.data() + kFront, text.data(), text.size());
  return out;
}

std::vector<std::byte> StoreWriter::bytes(const StoreOrigin& origin) const {
  Sections sections;
  size_t at = first_section(origin);
  std::vector<std::pair<size_t, std::span<const std::byte>>> parts;  // where each lies
  auto add = [&](Section& place, std::span<const std::byte> bytes) {
    place = {at, bytes.size(), base::to_hex(XXH3_64bits(bytes.data(), bytes.size()))};
    parts.emplace_back(at, bytes);
    at = store_aligned(at + bytes.size());
  };
  add(sections.tokens, as_bytes(tokens_));
  add(sections.ids, wide_ ? as_bytes(wide_ids_) : as_bytes(narrow_ids_));
  add(sections.runs, as_bytes(runs_));
  add(sections.targets, as_bytes(targets_));
  add(sections.rows, as_bytes(rows_));
  const bool weighted =
      std::any_of(weights_.begin(), weights_.end(), [](float w) { return w != 1; });
  add(sections.weights, weighted ? as_bytes(weights_) : std::span<const std::byte>());
  std::vector<std::byte> out(at, std::byte{0});
  const std::string front = store_front(origin, documents(), wide_, sections);
  std::memcpy(out.data(), front.data(), front.size());
  for (const auto& [begin, bytes] : parts)
    if (!bytes.empty()) std::memcpy(out.data() + begin, bytes.data(), bytes.size());
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
  const boost::json::value json =
      base::parse_own({reinterpret_cast<const char*>(bytes.data()) + kFront, length});
  // Another version has other fields.
  if (const boost::json::value* version =
          json.is_object() ? json.get_object().if_contains("version") : nullptr;
      version != nullptr && *version != kStoreVersion)
    throw "it is of version " + boost::json::serialize(*version);
  auto header = base::read_json<Header>(json, "its header");
  origin_.key = header.key;
  // For people only: nothing here depends on it.
  if (header.parts && header.parts->is_object())
    origin_.parts = boost::json::serialize(*header.parts);
  origin_.template_hash = header.template_;
  origin_.form = header.form;
  origin_.counts = counts_of(std::move(header.counts));
  documents_ = header.documents;
  if (documents_ >= UINT32_MAX) throw std::string("it has too many documents");
  const Sections& sections = header.sections;
  tokens_ = section<uint64_t>(bytes, sections.tokens, "tokens", documents_ + 1);
  runs_ = section<uint64_t>(bytes, sections.runs, "runs", documents_ + 1);
  rows_ = section<uint64_t>(bytes, sections.rows, "rows", documents_);
  check_offsets(tokens_, documents_, "tokens");
  check_offsets(runs_, documents_, "runs");
  if (header.id_bytes == 2)
    narrow_ids_ = section<uint16_t>(bytes, sections.ids, "ids", tokens_[documents_]);
  else if (header.id_bytes == 4)
    wide_ids_ = section<uint32_t>(bytes, sections.ids, "ids", tokens_[documents_]);
  else
    throw "its ids have " + std::to_string(header.id_bytes) + " bytes";
  targets_ = section<Run>(bytes, sections.targets, "targets", runs_[documents_]);
  if (sections.weights.bytes > 0) {
    weights_ = section<float>(bytes, sections.weights, "weights", documents_);
    if (!std::all_of(weights_, weights_ + documents_,
                     [](float weight) { return std::isfinite(weight) && weight >= 0; }))
      throw std::string("its section \"weights\" has what is no weight");
  }
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

void TokenStore::read_or_throw(std::span<const std::byte> bytes, ErrorCode code,
                               const std::string& name) {
  try {
    read(bytes);
  } catch (const std::string& what) {
    throw Error(code, name + ": " + what);
  } catch (const base::JsonProblem& problem) {
    throw Error(code, name + ": " + problem.what);
  }
}

std::shared_ptr<const TokenStore> TokenStore::open(const std::string& path) {
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->file_.emplace(path, ErrorCode::bad_dataset);
  store->read_or_throw(store->file_->bytes(), ErrorCode::bad_dataset, path);
  return store;
}

std::shared_ptr<const TokenStore> TokenStore::in_memory(std::vector<std::byte> bytes) {
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->memory_ = std::move(bytes);
  store->read_or_throw(store->memory_, ErrorCode::internal, "a token store in memory");
  return store;
}

uint64_t TokenStore::document_of(uint64_t token) const {
  // The last one that begins there or before: of several that do, all but that one are empty.
  return static_cast<uint64_t>(std::upper_bound(tokens_, tokens_ + documents_ + 1, token) -
                               tokens_) -
         1;
}

void TokenStore::check() const {
  if (file_) file_->check_size();
}

}  // namespace meshwright::jsonl
