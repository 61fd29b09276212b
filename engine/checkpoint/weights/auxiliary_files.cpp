#include "engine/checkpoint/weights/auxiliary_files.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <initializer_list>
#include <map>
#include <span>
#include <string_view>
#include <system_error>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::weights {

namespace fs = std::filesystem;

namespace {

bool lies_in(const fs::path& file, const fs::path& folder) {
  fs::path inside = file.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

}  // namespace

std::optional<fs::path> leads_out(const fs::path& folder, const fs::path& file) {
  std::error_code failed;
  fs::path root = fs::canonical(folder, failed), real = fs::canonical(file, failed);
  if (failed || lies_in(real, root)) return std::nullopt;
  fs::path snapshots = root.parent_path();
  if (snapshots.filename() == "snapshots" &&
      real.parent_path() == snapshots.parent_path() / "blobs")
    return std::nullopt;
  return real;
}

namespace {

constexpr int kMostLevels = 4;
constexpr size_t kMostFiles = 1000, kMostEntries = 20000;
constexpr int64_t kMostBytes = 1 << 30;

// Why a file of that name stays behind; "": it does not. "-": nobody needs to hear of it, the
// export has its own.
std::string kind_left_behind(const std::string& name, bool top) {
  const std::string lower = text::lower(name);
  if (top && (lower == "config.json" || lower == "model.safetensors" ||
              lower == "model.safetensors.index.json" || lower == kExportMarker))
    return "-";
  if (top && lower.starts_with("model-") && lower.ends_with(".safetensors")) return "-";
  if (lower[0] == '.') return "hidden files";
  if (lower.ends_with(".safetensors") || lower.ends_with(".index.json")) return "other weights";
  for (std::string_view end :
       {".bin",    ".pt",   ".pth", ".pkl", ".pickle", ".ckpt", ".npz",  ".npy",
        ".joblib", ".dill", ".p",   ".pyc", ".so",     ".t7",   ".nemo", ".mar",
        ".zip",    ".tar",  ".gz",  ".tgz", ".bz2",    ".xz",   ".7z"})
    if (lower.ends_with(end)) return "weights in formats that may hold programs";
  for (std::string_view end : {".msgpack", ".h5", ".onnx", ".onnx_data", ".gguf", ".ggml",
                               ".tflite", ".mlmodel", ".ot", ".pb"})
    if (lower.ends_with(end)) return "weights in other formats";
  return lower.starts_with("consolidated") ? "weights in other formats" : "";
}

}  // namespace

bool may_hold_program(const fs::path& file) {
  using namespace std::string_view_literals;
  base::ForeignFile in(file);
  char head[4] = {};
  const ssize_t got = in.is_open() ? ::pread(in.fd(), head, sizeof head, 0) : 0;
  const std::string_view begin(head, got > 0 ? static_cast<size_t>(got) : 0);
  // Pickles of protocol 2 and later, and the archives and programs that have them or are them.
  return (begin.size() >= 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5) ||
         std::ranges::any_of(std::initializer_list<std::string_view>{"PK\3\4"sv, "\x1f\x8b"sv,
                                                                     "\x7f"
                                                                     "ELF"sv},
                             [&](std::string_view magic) { return begin.starts_with(magic); });
}

namespace {

// meta.json of a checkpoint and JSON reports name it.
bool can_be_named(const std::string& name) {
  boost::system::error_code failed;
  boost::json::parse(boost::json::serialize(boost::json::string(name)), failed);
  return !failed && name.size() <= 1000;
}

// What the libraries that write tokenizers call their files. The first ones alone make a tokenizer.
constexpr std::string_view kTokenizers[] = {
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "tekken.json",    "vocab.json",      "vocab.txt"};
constexpr std::string_view kBesideTokenizer[] = {
    "merges.txt",        "tokenizer_config.json",     "special_tokens_map.json",
    "added_tokens.json", "chat_template.json",        "chat_template.jinja",
    "chat_template",     "additional_chat_templates", "generation_config.json"};

// Its settings of how to generate are the model's.
bool of_tokenizer(std::string_view name) {
  return name != "generation_config.json" &&
         (std::ranges::find(kTokenizers, name) != std::end(kTokenizers) ||
          std::ranges::find(kBesideTokenizer, name) != std::end(kBesideTokenizer));
}

class Walk {
 public:
  explicit Walk(fs::path root) : root_(std::move(root)) {}

  void folder(const fs::path& path, const std::string& prefix, int level) {
    std::error_code failed;
    for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
      if (++entries_ > kMostEntries) return left("files beyond the first 20,000 entries", prefix);
      entry(*at, prefix + at->path().filename().string(), level);
    }
    if (failed)
      throw Error(ErrorCode::file_unreadable,
                  "cannot list " + path.string() + ": " + failed.message())
          .help("make the folder readable: chmod u+rx '" + path.string() + "'");
  }

  // The entries of the root with these names; those that are not there are passed over. Returns
  // whether any was there.
  bool named(std::span<const std::string_view> names) {
    bool found = false;
    for (std::string_view name : names) {
      std::error_code failed;
      fs::directory_entry at(root_ / name, failed);
      if (failed || !fs::exists(fs::symlink_status(at.path(), failed))) continue;
      entry(at, std::string(name), 0);
      found = true;
    }
    return found;
  }

  Carried finish() {
    std::sort(out_.files.begin(), out_.files.end(),
              [](const CarriedFile& a, const CarriedFile& b) { return a.name < b.name; });
    int64_t bytes = 0;
    std::vector<CarriedFile> kept;
    for (CarriedFile& file : out_.files) {
      if (file.bytes > kMostBytes - bytes) {
        left("files beyond 1 GiB in all", file.name);
        continue;
      }
      if (kept.size() == kMostFiles) {
        left("files beyond the first 1,000", file.name);
        continue;
      }
      bytes += file.bytes;
      kept.push_back(std::move(file));
    }
    out_.files = std::move(kept);
    for (auto& [kind, names] : left_) {
      std::sort(names.begin(), names.end());
      out_.notices.push_back(root_.string() + ": " + kind +
                             " are not carried along: " + text::first_few(names, 1));
    }
    return std::move(out_);
  }

 private:
  void left(const std::string& kind, const std::string& name) { left_[kind].push_back(name); }

  void entry(const fs::directory_entry& entry, const std::string& name, int level) {
    std::error_code failed;
    bool link = entry.is_symlink(failed);
    std::string kind = kind_left_behind(entry.path().filename().string(), level == 0);
    if (kind == "-") return;
    if (!kind.empty()) return left(kind, name);
    if (!can_be_named(name))
      return left("files with names that are not UTF-8 or longer than 1,000 bytes", name);
    if (entry.is_directory(failed)) {
      // Links to folders can go round in circles.
      if (link) return left("links to folders", name);
      if (level + 1 > kMostLevels) return left("folders deeper than 4 levels", name);
      return folder(entry.path(), name + "/", level + 1);
    }
    if (link && leads_out(root_, entry.path()))
      return left("links that lead out of the folder", name);
    if (link && !fs::exists(entry.path(), failed)) return left("links that lead nowhere", name);
    if (!entry.is_regular_file(failed)) return left("pipes, sockets and devices", name);
    auto bytes = static_cast<int64_t>(fs::file_size(entry.path(), failed));
    if (failed) return left("files that cannot be read", name);
    if (may_hold_program(entry.path())) return left("pickles, archives and programs", name);
    out_.files.push_back({name, entry.path(), bytes});
  }

  fs::path root_;
  Carried out_;
  std::map<std::string, std::vector<std::string>> left_;
  size_t entries_ = 0;
};

}  // namespace

Carried carried_files(const fs::path& folder) {
  Walk walk(folder);
  walk.folder(folder, "", 0);
  return walk.finish();
}

Carried carried_beside(const fs::path& folder) {
  Walk walk(folder.empty() ? fs::path(".") : folder);
  if (walk.named(kTokenizers)) walk.named(kBesideTokenizer);
  return walk.finish();
}

std::string left_behind(std::string_view name) {
  for (size_t level = 0; !name.empty(); ++level) {
    const std::string part(name.substr(0, name.find('/')));
    if (part.empty() || part == "..") return "names that lead elsewhere";
    if (std::string kind = kind_left_behind(part, level == 0); !kind.empty()) return kind;
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return "";
}

bool is_of_tokenizer(std::string_view name) { return of_tokenizer(name.substr(0, name.find('/'))); }

std::optional<std::string> tokenizer_of_no_use(const fs::path& config) {
  if (carried_beside(config.parent_path()).files.empty()) return std::nullopt;
  return "the tokenizer beside " + config.string() +
         " is not carried along: dataset.kind = \"text\" trains on bytes, not on its tokens";
}

}  // namespace meshwright::weights
