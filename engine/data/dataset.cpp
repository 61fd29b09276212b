#include "engine/data/dataset.h"

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/data/mapped_file.h"

namespace meshwright::data {

namespace {

namespace fs = std::filesystem;

uint64_t hash(uint64_t h, const void* data, size_t size) {  // FNV-1a
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) h = (h ^ at[i]) * 1099511628211u;
  return h;
}
uint64_t hash(uint64_t h, int64_t value) { return hash(h, &value, sizeof value); }
constexpr uint64_t kHashBegin = 14695981039346656037u;

// Size, and up to 64 blocks of 4 KiB spread over the file.
uint64_t hash_file(uint64_t h, const MappedFile& file) {
  h = hash(h, file.size());
  int64_t blocks = std::min<int64_t>(64, (file.size() + 4095) / 4096);
  for (int64_t i = 0; i < blocks; ++i) {
    int64_t at = blocks == 1 ? 0 : (file.size() - std::min<int64_t>(4096, file.size())) / (blocks - 1) * i;
    h = hash(h, file.bytes().data() + at, static_cast<size_t>(std::min<int64_t>(4096, file.size() - at)));
  }
  return h;
}

std::string grouped(int64_t n) {
  std::string s = std::to_string(n);
  for (ptrdiff_t i = static_cast<ptrdiff_t>(s.size()) - 3; i > 0; i -= 3) s.insert(static_cast<size_t>(i), ",");
  return s;
}

[[noreturn]] void bad_token(const std::string& path, int64_t offset, int64_t token, int64_t vocab) {
  throw Error(ErrorCode::bad_token, path + ": the token at byte " + std::to_string(offset) + " is " + std::to_string(token) +
                                        ", but the model's vocabulary has " + std::to_string(vocab) + " entries")
      .help("use the tokenizer of the model, or a model with vocab_size above " + std::to_string(token))
      .help("set dataset.dtype when the file's element type was mistaken");
}

// Files in the order of their names: a pattern, a folder with all below it, or one file.
std::vector<std::string> files_of(const DatasetConfig& config) {
  std::vector<std::string> out;
  std::error_code failed;
  if (fs::is_directory(config.path, failed)) {
    for (fs::recursive_directory_iterator it(config.path, fs::directory_options::skip_permission_denied, failed), end; !failed && it != end;
         it.increment(failed))
      if (it->is_regular_file(failed) && it->file_size(failed) > 0) out.push_back(it->path().string());
    std::sort(out.begin(), out.end());
  } else if (fs::exists(config.path, failed)) {
    out.push_back(config.path);
  } else {
    glob_t found{};
    if (::glob(config.path.c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        if (fs::is_regular_file(found.gl_pathv[i], failed) && fs::file_size(found.gl_pathv[i], failed) > 0)
          out.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
  }
  if (out.empty())
    throw Error(ErrorCode::bad_dataset, config.table + ".path = \"" + config.path + "\": no file with contents matches")
        .key(config.table + ".path")
        .help("relative paths start at the current folder, " + fs::current_path(failed).string());
  return out;
}

class Text final : public Dataset {
 public:
  explicit Text(const DatasetConfig& config) {
    seq_len_ = config.seq_len;
    if (config.vocab_size > 0 && config.vocab_size < 256) smallest_ = config.vocab_size;
    for (const std::string& path : files_of(config)) {
      begins_.push_back(tokens_);
      files_.emplace_back(path, ErrorCode::bad_dataset);
      tokens_ += files_.back().size();
    }
  }
  std::string describe() const override {
    return (files_.size() == 1 ? files_[0].path() : grouped(static_cast<int64_t>(files_.size())) + " files") + ", " + grouped(tokens_) +
           " bytes";
  }
  uint64_t fingerprint() const override {
    uint64_t h = hash(kHashBegin, tokens_);
    for (size_t i = 0; i < files_.size() && i < 256; ++i) h = hash_file(h, files_[i]);
    return hash(h, static_cast<int64_t>(files_.size()));
  }

 protected:
  void tokens_at(int64_t begin, int64_t count, int64_t* out) const override {
    size_t file = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
    for (int64_t done = 0; done < count; ++file) {
      int64_t at = begin + done - begins_[file], take = std::min(count - done, files_[file].size() - at);
      const auto* bytes = reinterpret_cast<const unsigned char*>(files_[file].bytes().data()) + at;
      for (int64_t i = 0; i < take; ++i) {
        if (smallest_ > 0 && bytes[i] >= smallest_) bad_token(files_[file].path(), at + i, bytes[i], smallest_);
        out[done + i] = bytes[i];
      }
      done += take;
    }
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<int64_t> begins_;
  int64_t smallest_ = 0;  // a vocabulary below the 256 bytes
};

// Tokens of one width in one or more files, from `offset` on.
class Tokens : public Dataset {
 public:
  std::string describe() const override {
    return (files_.size() == 1 ? files_[0].file.path() : grouped(static_cast<int64_t>(files_.size())) + " files") + ", " +
           grouped(tokens_) + " tokens of " + std::to_string(width_) + " bytes";
  }
  uint64_t fingerprint() const override {
    uint64_t h = hash(hash(kHashBegin, tokens_), width_);
    for (size_t i = 0; i < files_.size() && i < 256; ++i) h = hash_file(h, files_[i].file);
    return h;
  }

 protected:
  struct Part {
    MappedFile file;
    int64_t offset, begin, count;  // bytes to skip; first token in the stream; tokens
  };
  void tokens_at(int64_t begin, int64_t count, int64_t* out) const override {
    size_t part = 0;
    while (part + 1 < files_.size() && files_[part + 1].begin <= begin) ++part;
    for (int64_t done = 0; done < count; ++part) {
      const Part& p = files_[part];
      int64_t at = begin + done - p.begin, take = std::min(count - done, p.count - at);
      const std::byte* from = p.file.bytes().data() + p.offset + at * width_;
      for (int64_t i = 0; i < take; ++i) {
        int64_t token = load(from + i * width_);
        if (token < 0 || token >= vocab_) bad_token(p.file.path(), p.offset + (at + i) * width_, token, vocab_);
        out[done + i] = token;
      }
      done += take;
    }
  }
  int64_t load(const std::byte* at) const {
    switch (width_) {
      case 1:
        return static_cast<int64_t>(*at);
      case 2: {
        uint16_t v;
        std::memcpy(&v, at, 2);
        return v;
      }
      case 4: {
        uint32_t v;
        std::memcpy(&v, at, 4);
        return is_signed_ ? static_cast<int32_t>(v) : static_cast<int64_t>(v);
      }
      default: {
        int64_t v;
        std::memcpy(&v, at, 8);
        return v;
      }
    }
  }
  void add(MappedFile file, int64_t offset, int64_t count) {
    files_.push_back({std::move(file), offset, tokens_, count});
    tokens_ += count;
  }
  std::vector<Part> files_;
  int64_t width_ = 2, vocab_ = INT64_MAX;
  bool is_signed_ = false;
};

class Binary final : public Tokens {
 public:
  explicit Binary(const DatasetConfig& config) {
    seq_len_ = config.seq_len;
    if (config.vocab_size > 0) vocab_ = config.vocab_size;
    int64_t width = config.dtype == "uint16" ? 2 : config.dtype == "uint32" ? 4 : 0;
    bool first = true;
    for (const std::string& path : files_of(config)) {
      MappedFile file(path, ErrorCode::bad_dataset);
      auto fail = [&](const std::string& what) { return Error(ErrorCode::bad_dataset, path + ": " + what).key(config.table + ".path"); };
      // llm.c: 256 int32 of header, magic, version and token count first.
      int64_t header = 0, here = width, count = 0;
      if (file.size() >= 1024) {
        int32_t head[3];
        std::memcpy(head, file.bytes().data(), sizeof head);
        int64_t magic_width = head[0] == 20240520 && head[1] == 1 ? 2 : head[0] == 20240801 && head[1] == 7 ? 4 : 0;
        bool known_magic = head[0] == 20240520 || head[0] == 20240801;
        if (known_magic && magic_width == 0 && width == 0)
          throw fail("byte 4: version " + std::to_string(head[1]) + " of the llm.c header is not known (1 with uint16, 7 with uint32)");
        if (magic_width != 0) {
          if (width != 0 && width != magic_width)
            throw fail("byte 0: the header says " + std::to_string(magic_width) + " bytes a token, " + config.table + ".dtype says " +
                       config.dtype)
                .key(config.table + ".dtype")
                .help("set " + config.table + ".dtype = \"auto\"");
          header = 1024;
          here = magic_width;
          count = head[2];
          if (count < 0 || file.size() - header != count * here)
            throw fail("byte 8: the header counts " + std::to_string(count) + " tokens of " + std::to_string(here) + " bytes, but " +
                       std::to_string(file.size() - header) + " bytes follow");
        }
      }
      if (here == 0)
        throw fail("the file has no header, so the element type must be given")
            .key(config.table + ".dtype")
            .help("set " + config.table + ".dtype = \"uint16\"")
            .help("set " + config.table + ".dtype = \"uint32\"");
      if (header == 0) {
        if (file.size() % here != 0)
          throw fail("byte " + std::to_string(file.size() / here * here) + ": " + std::to_string(file.size()) +
                     " bytes are no whole number of " + std::to_string(here) + "-byte tokens; the file is truncated or of another type");
        count = file.size() / here;
      }
      if (!first && here != width_)
        throw fail("has tokens of " + std::to_string(here) + " bytes, the files before it " + std::to_string(width_));
      first = false;
      width_ = here;
      add(std::move(file), header, count);
    }
  }
};

// Megatron's indexed data set: .idx describes the sequences in .bin; the documents are read as one stream.
class Megatron final : public Tokens {
 public:
  explicit Megatron(const DatasetConfig& config) {
    seq_len_ = config.seq_len;
    if (config.vocab_size > 0) vocab_ = config.vocab_size;
    fs::path stem = config.path;
    if (stem.extension() == ".bin" || stem.extension() == ".idx") stem.replace_extension();
    MappedFile index(stem.string() + ".idx", ErrorCode::bad_dataset), bin(stem.string() + ".bin", ErrorCode::bad_dataset);
    auto fail = [&](int64_t at, const std::string& what) {
      throw Error(ErrorCode::bad_dataset, index.path() + ": byte " + std::to_string(at) + ": " + what).key(config.table + ".path");
    };
    auto number = [&](int64_t at, auto value) {
      if (at + static_cast<int64_t>(sizeof value) > index.size()) fail(at, "the index ends here, it is truncated");
      std::memcpy(&value, index.bytes().data() + at, sizeof value);
      return value;
    };
    if (index.size() < 9 || std::memcmp(index.bytes().data(), "MMIDIDX\0\0", 9) != 0) fail(0, "the index does not begin with MMIDIDX");
    if (auto version = number(9, uint64_t{}); version != 1)
      fail(9, "version " + std::to_string(version) + " of the index is not known (1)");
    int code = number(17, uint8_t{});
    constexpr int64_t widths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};  // uint8 int8 int16 int32 int64 float64 float32 uint16
    if (code < 1 || code > 8 || widths[code] == 0) fail(17, "element type " + std::to_string(code) + " holds no tokens");
    width_ = widths[code];
    is_signed_ = code == 4;
    uint64_t sequences = number(18, uint64_t{}), documents = number(26, uint64_t{});
    auto space = static_cast<uint64_t>(index.size() - 34);
    if (sequences > space / 12 || documents > space / 8 || sequences * 12 + documents * 8 > space)
      fail(18, std::to_string(sequences) + " sequences and " + std::to_string(documents) + " documents do not fit into " +
                   std::to_string(index.size()) + " bytes; the index is truncated");
    int64_t expected = 0, pointers = 34 + static_cast<int64_t>(sequences) * 4;
    for (uint64_t i = 0; i < sequences; ++i) {
      int64_t at = 34 + static_cast<int64_t>(i) * 4, length = number(at, int32_t{});
      if (length < 0) fail(at, "sequence " + std::to_string(i) + " has a negative length");
      int64_t where = pointers + static_cast<int64_t>(i) * 8, pointer = number(where, int64_t{});
      if (pointer != expected)
        fail(where, "sequence " + std::to_string(i) + " starts at " + std::to_string(pointer) + ", expected " + std::to_string(expected));
      expected += length * width_;
    }
    if (expected != bin.size())
      throw Error(ErrorCode::bad_dataset, bin.path() + ": the index counts " + std::to_string(expected) + " bytes, the file has " +
                                              std::to_string(bin.size()) + ": the two do not belong together, or one is truncated")
          .key(config.table + ".path");
    add(std::move(bin), 0, expected / width_);
  }
};

// Synthetic tokens with something to learn: each mostly follows from the one before.
class Mock final : public Dataset {
 public:
  explicit Mock(const DatasetConfig& config) : vocab_(config.vocab_size > 0 ? config.vocab_size : 256), seed_(config.seed) {
    seq_len_ = config.seq_len;
    tokens_ = seq_len_ * 65536 + 1;
  }
  std::string describe() const override { return "synthetic, " + grouped(tokens_) + " tokens"; }
  uint64_t fingerprint() const override { return hash(hash(kHashBegin, vocab_), static_cast<int64_t>(seed_)); }

 protected:
  void tokens_at(int64_t begin, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      auto place = static_cast<uint64_t>(begin + i);
      uint64_t noise = (place ^ seed_) * 0x9e3779b97f4a7c15u;
      noise ^= noise >> 29;
      noise *= 0xbf58476d1ce4e5b9u;
      out[i] = static_cast<int64_t>((place * 31 + (noise >> 61)) % static_cast<uint64_t>(vocab_));
    }
  }

 private:
  int64_t vocab_;
  uint64_t seed_;
};

}  // namespace

void Dataset::read(int64_t sample, int64_t* out) const {
  if (sample < 0 || sample >= samples()) throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
  tokens_at(sample * seq_len_, seq_len_ + 1, out);
}

DatasetConfig dataset_config(const Options& table, int64_t vocab_size, uint64_t seed) {
  DatasetConfig config;
  config.table = table.schema().table;
  config.kind = table.get_string("kind");
  config.path = table.get_string("path");
  config.dtype = table.get_string("dtype");
  config.seq_len = table.get_int("seq_len");
  config.vocab_size = vocab_size;
  config.seed = seed;
  if (config.path.empty() && config.kind != "mock")
    throw Error(ErrorCode::missing_key, config.table + ".path is needed: where the " + config.kind + " is")
        .key(config.table + ".path")
        .help("set " + config.table + ".path = \"data/*.txt\"")
        .help("set " + config.table + ".kind = \"mock\" to train on synthetic tokens");
  return config;
}

std::unique_ptr<Dataset> open_dataset(const DatasetConfig& config) {
  std::unique_ptr<Dataset> out;
  if (config.kind == "text")
    out = std::make_unique<Text>(config);
  else if (config.kind == "tokens")
    out = std::make_unique<Binary>(config);
  else if (config.kind == "megatron")
    out = std::make_unique<Megatron>(config);
  else
    out = std::make_unique<Mock>(config);
  if (out->tokens() < config.seq_len + 1)
    throw Error(ErrorCode::bad_dataset, config.table + ".path = \"" + config.path + "\" holds " + std::to_string(out->tokens()) +
                                            " tokens, but one sample takes seq_len + 1 = " + std::to_string(config.seq_len + 1))
        .key(config.table + ".path")
        .help("set " + config.table + ".seq_len = " + std::to_string(std::max<int64_t>(out->tokens() - 1, 1)));
  return out;
}

}  // namespace meshwright::data
