#include "prepare.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "cached_store.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/utf8.h"
#include "text_prepare.h"

namespace meshwright::jsonl {

namespace {

// Of what the key is made. Not the format of the file: one of an older format is made anew under
// its name, and a run that began with it goes on.
constexpr int kKeyVersion = 3;
// The same of texts.
constexpr int kTextKeyVersion = 1;

std::string digits_of(const XXH128_hash_t& hash) {
  char out[33];
  std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return out;
}

std::string hash_of(std::string_view bytes) {
  return digits_of(XXH3_128bits(bytes.data(), bytes.size()));
}

class Hash128 {
 public:
  Hash128() { XXH3_128bits_reset(&state_); }
  void add(std::string_view bytes) {
    const uint64_t size = bytes.size();  // so that "a", "bc" is not "ab", "c"
    XXH3_128bits_update(&state_, &size, sizeof size);
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  std::string text() const { return digits_of(XXH3_128bits_digest(&state_)); }

 private:
  XXH3_state_t state_;
};

void add_templates(Hash128& hash, const chat::Store& templates) {
  for (const auto& [name, text] : templates.texts()) {
    hash.add(name);
    hash.add(text);
  }
}

chat::Store templates_of(const JsonlOptions& options) {
  return chat::Store::open(options.folder, options.chat_template, options.table + ".chat_template");
}

// Names of files and settings may have any bytes; JSON may not.
std::string as_utf8(std::string_view text, size_t longest = 200) {
  base::Utf8Stream stream;
  std::string out = stream.add(text.substr(0, longest));
  return out + stream.finish();
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

constexpr size_t kMostListed = 64;

// `one` of each of the first of `all`, under `name`, with how many others there are.
template <class Items, class One>
void put_list(boost::json::object& out, const std::string& name, const Items& all, const One& one) {
  boost::json::array list;
  for (const auto& item : all) {
    if (list.size() == kMostListed) break;
    list.emplace_back(one(item));
  }
  const size_t others = all.size() - list.size();
  out[name] = std::move(list);
  if (others > 0) out["more_" + name] = others;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t feed = std::min(text.find('\n'), text.size());
    out.push_back(text.substr(0, feed));
    text.remove_prefix(std::min(feed + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string cache_key(const JsonlOptions& options) {
  Hash128 hash;
  hash.add("meshwright tokens " + std::to_string(kKeyVersion));
  for (const DataFile& file : open_files(options.files, Packed::as_it_is)) hash.add(file.text());
  hash.add("language");
  for (const std::string& file : options.language_files()) {
    hash.add(file_name(file));
    hash.add(base::read_file(file));
  }
  // The built-in one is in no file.
  add_templates(hash, templates_of(options));
  hash.add(options.key);
  return hash.text();
}

std::string key_parts(const JsonlOptions& options) {
  namespace json = boost::json;
  auto file = [](const std::string& path, std::string_view bytes) {
    return json::object{
        {"name", as_utf8(file_name(path))}, {"bytes", bytes.size()}, {"xxh128", hash_of(bytes)}};
  };
  json::object out{{"key_version", kKeyVersion}};
  put_list(out, "files", open_files(options.files, Packed::as_it_is),
           [&](const DataFile& one) { return file(one.path, one.text()); });
  put_list(out, "language", options.language_files(),
           [&](const std::string& path) { return file(path, base::read_file(path)); });
  const chat::Store templates = templates_of(options);
  put_list(out, "templates", templates.texts(), [](const auto& one) {
    return json::object{{"name", as_utf8(one.first)}, {"xxh128", hash_of(one.second)}};
  });
  put_list(out, "special_tokens", templates.special_tokens(), [](const auto& one) {
    return json::object{{"key", as_utf8(one.first)}, {"text", as_utf8(one.second)}};
  });
  constexpr size_t kLongestSetting = 1000;
  put_list(out, "options", lines_of(options.key),
           [](std::string_view line) { return as_utf8(line, kLongestSetting); });
  return json::serialize(out);
}

std::pair<std::string, std::string> text_key(const TextOptions& options) {
  namespace json = boost::json;
  struct Hashed {
    std::string name;
    size_t bytes;
    std::string xxh128;
  };
  auto hashed = [](const std::vector<std::string>& paths) {
    std::vector<Hashed> out;
    for (const std::string& path : paths) {
      std::error_code failed;
      const bool empty = std::filesystem::file_size(path, failed) == 0 && !failed;
      // One at a time: there may be more files than a process may map.
      const DataFile file = std::move(open_files({path}, Packed::as_it_is).front());
      out.push_back({file_name(path), empty ? 0 : file.text().size(), hash_of(file.text())});
    }
    return out;
  };
  auto described = [](const Hashed& one) {
    return json::object{{"name", as_utf8(one.name)}, {"bytes", one.bytes}, {"xxh128", one.xxh128}};
  };
  const std::vector<Hashed> files = hashed(options.files),
                            language = hashed(options.language_files());
  Hash128 hash;
  hash.add("meshwright texts " + std::to_string(kTextKeyVersion));
  for (const Hashed& file : files) {
    hash.add(is_rows_name(file.name) ? "rows" : "text");
    hash.add(file.xxh128);
  }
  hash.add("language");
  for (const Hashed& file : language) {
    hash.add(file.name);
    hash.add(file.xxh128);
  }
  hash.add(options.key);
  json::object out{{"text_key_version", kTextKeyVersion}};
  put_list(out, "files", files, described);
  put_list(out, "language", language, described);
  constexpr size_t kLongestSetting = 1000;
  put_list(out, "options", lines_of(options.key),
           [](std::string_view line) { return as_utf8(line, kLongestSetting); });
  return {hash.text(), json::serialize(out)};
}

std::string template_hash(const chat::Store& templates) {
  Hash128 hash;
  add_templates(hash, templates);
  return hash.text().substr(0, 12);
}

}  // namespace meshwright::jsonl
