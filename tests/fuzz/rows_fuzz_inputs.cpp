#define XXH_INLINE_ALL
#include "rows_fuzz_inputs.h"

#include <xxhash.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

namespace meshwright::fuzz {

namespace json = boost::json;

namespace {

// clang-format off
constexpr const char* kPieces[] = {
    "Hello", " ", "\n", "\"quoted\"", "\\", "\xc3\xa9", "e\xcc\x81", "\xf0\x9f\x99\x82",
    "<|im_end|>", "<|im_start|>", "<|im_start|", "<|endoftext|>", "\t", "{{ x }}", "",
    "\xe6\x97\xa5\xe6\x9c\xac", "assistant\n", "a longer text of several words"};
// clang-format on

std::string some_text(Random& random) {
  std::string out;
  for (size_t i = random.one_in(30) ? 100 : random.below(7); i > 0; --i)
    out += kPieces[random.below(std::size(kPieces))];
  return out;
}

json::object some_message(Random& random, const char* role, bool sharegpt) {
  json::object out;
  out[sharegpt ? "from" : "role"] = role;
  json::value& content = out[sharegpt ? "value" : "content"];
  if (random.one_in(40))
    content = nullptr;
  else if (random.one_in(40))
    content = json::array{json::object{{"type", "text"}, {"text", some_text(random)}}};
  else
    content = some_text(random);
  if (random.one_in(6)) out[random.one_in(2) ? "weight" : "train"] = random.below(2);
  return out;
}

json::array some_messages(Random& random, bool sharegpt = false) {
  json::array out;
  if (random.one_in(3)) out.push_back(some_message(random, "system", sharegpt));
  for (size_t turns = 1 + random.below(3); turns > 0; --turns) {
    out.push_back(some_message(random, sharegpt ? "human" : "user", sharegpt));
    if (turns > 1 || !random.one_in(10))
      out.push_back(some_message(random, sharegpt ? "gpt" : "assistant", sharegpt));
  }
  return out;
}

json::object some_row(Random& random, size_t kind) {
  json::object row;
  switch (kind) {
    case 0:
      row["messages"] = some_messages(random);
      if (random.one_in(8)) {
        json::array tools;
        if (!random.one_in(4)) tools.push_back(json::object{{"name", some_text(random)}});
        row["tools"] = std::move(tools);
      }
      break;
    case 1:
      row["conversations"] = some_messages(random, /*sharegpt=*/true);
      break;
    case 2:
      row["prompt"] = some_text(random);
      row["completion"] = some_text(random);
      break;
    case 3:
      row["prompt"] = json::array{some_message(random, "user", false)};
      row["completion"] = json::array{some_message(random, "assistant", false)};
      break;
    default:
      row["text"] = some_text(random);
  }
  if (random.one_in(10)) row["id"] = random.below(1000);
  return row;
}

constexpr size_t kFront = 24;  // magic, length and checksum of the header

std::string checksum(std::string_view bytes) {
  char out[17];
  std::snprintf(out, sizeof out, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return out;
}

// With another header, whose checksum is right.
std::string with_header(const std::string& store, std::string header) {
  uint64_t length = 0;
  std::memcpy(&length, store.data() + 8, sizeof length);
  if (header.size() < length) header.resize(length, ' ');
  const uint64_t front[] = {header.size(), XXH3_64bits(header.data(), header.size())};
  std::string out = store.substr(0, 8);
  out.append(reinterpret_cast<const char*>(front), sizeof front);
  return out + header + store.substr(kFront + length);
}

}  // namespace

std::string some_file(Random& random, size_t kind) {
  const bool list = random.one_in(4);
  const std::string feed = random.one_in(8) ? "\r\n" : "\n";
  std::string out = random.one_in(10) ? "\xEF\xBB\xBF" : "";
  if (list) out += "[" + feed;
  const size_t rows = random.one_in(50) ? 60 : 1 + random.below(8);
  const size_t changed = random.one_in(4) ? random.below(rows) : rows;
  for (size_t i = 0; i < rows; ++i) {
    std::string row =
        json::serialize(some_row(random, random.one_in(40) ? random.below(kRowKinds) : kind));
    if (i == changed) row = fuzz::mutated_json(std::move(row), random);
    out += row + (list && i + 1 < rows ? "," : "") + feed;
    if (random.one_in(20)) out += feed;
  }
  if (list) out += "]";
  switch (random.below(6)) {
    case 0:
      return fuzz::mutated_bytes(std::move(out), random);
    case 1:
      out.resize(random.below(out.size() + 1));
      return out;
    default:
      return out;
  }
}

std::string many_rows(Random& random, size_t kind, size_t count) {
  const bool list = random.one_in(8);
  std::string out = list ? "[\n" : "";
  for (size_t i = 0; i < count; ++i) {
    std::string row =
        json::serialize(some_row(random, random.one_in(40) ? random.below(kRowKinds) : kind));
    // One that is broken may leave nothing of a list.
    if (random.one_in(list ? 2 * count : 3)) row = fuzz::mutated_json(std::move(row), random);
    out += row + (list && i + 1 < count ? ",\n" : "\n");
  }
  return list ? out + "]\n" : out;
}

std::string forged(const std::string& store, Random& random) {
  uint64_t length = 0;
  std::memcpy(&length, store.data() + 8, sizeof length);
  std::string header = store.substr(kFront, length);
  header.resize(header.find_last_not_of(' ') + 1);
  if (random.one_in(2)) return with_header(store, fuzz::mutated_json(std::move(header), random));
  const json::object sections = json::parse(header).at("sections").as_object();
  const json::object& one =
      std::next(sections.begin(), static_cast<std::ptrdiff_t>(random.below(sections.size())))
          ->value()
          .as_object();
  const auto begin = one.at("begin").to_number<size_t>(),
             size = one.at("bytes").to_number<size_t>();
  std::string out = store;
  for (size_t changes = 1 + random.below(3); changes > 0 && size > 0; --changes) {
    const size_t at = begin + random.below(size);
    out[at] = random.one_in(2) ? static_cast<char>(random.next())
                               : static_cast<char>(out[at] + (random.one_in(2) ? 1 : -1));
  }
  const std::string before(one.at("xxh3").as_string());
  if (const size_t at = header.find(before); at != std::string::npos)
    header.replace(at, before.size(), checksum(std::string_view(out).substr(begin, size)));
  return with_header(out, std::move(header));
}

std::string damaged(std::string store, Random& random) {
  switch (random.below(5)) {
    case 0:
      return std::string(random.below(2 * kFront), static_cast<char>(random.next()));
    case 1:
      store.resize(random.below(store.size() + 1));
      return store;
    case 2:  // within the header, or where sections begin
      store[random.below(std::min<size_t>(store.size(), 5000))] = static_cast<char>(random.next());
      return store;
    default:
      return fuzz::mutated_bytes(std::move(store), random);
  }
}

}  // namespace meshwright::fuzz
