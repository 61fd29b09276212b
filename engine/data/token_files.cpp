#include "engine/data/token_files.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>

#include "sdk/base/beside.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/unpack/unpacked_file.h"
#include "sdk/base/words.h"

namespace meshwright::data {

namespace {

// Linux allows a process 65,530 mappings; a corpus may have more files. Files beyond this number
// are mapped for each read.
constexpr size_t kMaxMapped = 4096;

// Returns use(T()) with the C++ type of the tokens.
template <class Use>
auto with_type(TokenType type, Use&& use) {
  switch (type) {
    case TokenType::uint8:
      return use(uint8_t{});
    case TokenType::int8:
      return use(int8_t{});
    case TokenType::uint16:
      return use(uint16_t{});
    case TokenType::int16:
      return use(int16_t{});
    case TokenType::uint32:
      return use(uint32_t{});
    case TokenType::int32:
      return use(int32_t{});
    case TokenType::int64:
      return use(int64_t{});
  }
  throw Error(ErrorCode::internal, "a type of tokens that is not known");
}

}  // namespace

int64_t token_width(TokenType type) {
  return with_type(type, [](auto token) { return static_cast<int64_t>(sizeof token); });
}

TokenFiles::TokenFiles(const DatasetConfig& config, TokenType type, std::string advice)
    : table_(config.table),
      kind_(config.kind),
      advice_(std::move(advice)),
      type_(type),
      vocab_(config.vocab_size > 0 ? config.vocab_size : INT64_MAX) {
  seq_len_ = config.seq_len;
}

void TokenFiles::add(base::MappedFile file, int64_t offset, int64_t count) {
  if (parts_.size() >= kMaxMapped) file.unmap();
  parts_.push_back({std::move(file), offset, tokens_, count});
  tokens_ += count;
}

std::string TokenFiles::describe() const {
  std::string out = parts_.size() == 1
                        ? parts_[0].file.path()
                        : text::grouped(static_cast<int64_t>(parts_.size())) + " files";
  if (kind_ == "text") return out + ", " + text::grouped(tokens_) + " bytes";
  return out + ", " + text::grouped(tokens_) + " tokens of " + std::to_string(token_width(type_)) +
         " bytes";
}

// All sizes, and 256 blocks of up to 4 KiB spread over the stream: every byte of a small data set.
uint64_t TokenFiles::fingerprint() const {
  int64_t width = token_width(type_), block = 4096 / width,
          blocks = std::min<int64_t>(256, (tokens_ + block - 1) / block);
  base::Hash hash;
  hash.add(kind_.data(), kind_.size());
  hash.add(static_cast<int64_t>(type_));
  for (const Part& part : parts_) hash.add(part.count);
  for (int64_t i = 0; i < blocks; ++i) {
    int64_t begin = blocks < 256 ? i * block : (tokens_ - block) / 255 * i;
    visit(begin, std::min(block, tokens_ - begin),
          [&](const Part&, const std::byte* bytes, int64_t, int64_t count, int64_t) {
            hash.add(bytes, static_cast<size_t>(count * width));
          });
  }
  return hash.value();
}

template <class Use>
void TokenFiles::visit(int64_t begin, int64_t count, Use&& use) const {
  auto after = std::upper_bound(parts_.begin(), parts_.end(), begin,
                                [](int64_t place, const Part& p) { return place < p.begin; });
  int64_t width = token_width(type_);
  for (auto part = after - 1; count > 0; ++part) {
    int64_t first = begin - part->begin, take = std::min(count, part->count - first);
    auto apply = [&](const base::MappedFile& file) {
      use(*part, file.bytes().data() + part->offset + first * width, first, take, begin);
    };
    if (part->file.bytes().empty()) {
      base::MappedFile again(part->file.path(), ErrorCode::bad_dataset);
      if (again.size() != part->file.size())
        throw Error(ErrorCode::bad_dataset,
                    again.path() + ": has " + std::to_string(again.size()) + " bytes now; it had " +
                        std::to_string(part->file.size()) + " when it was opened");
      apply(again);
    } else {
      part->file.check_size();
      apply(part->file);
    }
    begin += take;
    count -= take;
  }
}

template <class T>
void TokenFiles::decode(int64_t begin, int64_t count, int64_t* out) const {
  // Of several tokens outside of the vocabulary the largest is told: a vocabulary that has it has
  // them all.
  struct Bad {
    const Part* part = nullptr;
    int64_t index = 0, id = 0;
  } bad;
  visit(begin, count,
        [&](const Part& part, const std::byte* bytes, int64_t first, int64_t take, int64_t place) {
          for (int64_t i = 0; i < take; ++i) {
            T token;
            std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof token), sizeof token);
            int64_t id = token;  // NOLINT(bugprone-signed-char-misuse): int8 tokens are signed
            if ((id < 0 || id >= vocab_) && (bad.part == nullptr || (id >= vocab_ && id > bad.id)))
              bad = {&part, first + i, id};
            out[place - begin + i] = id;
          }
        });
  if (bad.part != nullptr) bad_token(*bad.part, bad.index, bad.id);
}

void TokenFiles::tokens_at(int64_t begin, int64_t count, int64_t* out) const {
  with_type(type_, [&](auto token) { decode<decltype(token)>(begin, count, out); });
}

void TokenFiles::check_tokens(int64_t budget) const {
  with_type(type_, [&](auto token) { look<decltype(token)>(budget); });
}

template <class T>
void TokenFiles::look(int64_t budget) const {
  if (std::is_unsigned_v<T> &&
      static_cast<uint64_t>(std::numeric_limits<T>::max()) < static_cast<uint64_t>(vocab_))
    return;
  constexpr int64_t kBlock = (int64_t{1} << 20) / static_cast<int64_t>(sizeof(T));
  const int64_t all = (tokens_ + kBlock - 1) / kBlock,
                most = std::max<int64_t>(1, budget / static_cast<int64_t>(sizeof(T)) / kBlock),
                blocks = std::min(all, most);
  std::atomic<int64_t> next = 0, bad = INT64_MAX;
  std::mutex mutex;
  std::exception_ptr failure;
  auto work = [&] {
    try {
      // Blocks are taken in order, so somebody looks at the first that has a wrong token.
      for (int64_t i; (i = next++) < blocks && bad == INT64_MAX;) {
        int64_t begin = blocks == all ? i * kBlock
                                      : static_cast<int64_t>(static_cast<double>(tokens_ - kBlock) /
                                                             static_cast<double>(blocks - 1) *
                                                             static_cast<double>(i));
        if (blocks == 1) begin = 0;
        visit(begin, std::min(kBlock, tokens_ - begin),
              [&](const Part&, const std::byte* bytes, int64_t, int64_t count, int64_t place) {
                T low = 0, high = 0;
                for (int64_t j = 0; j < count; ++j) {
                  T token;
                  std::memcpy(&token, bytes + j * static_cast<int64_t>(sizeof token), sizeof token);
                  low = std::min(low, token);
                  high = std::max(high, token);
                }
                if (static_cast<int64_t>(low) >= 0 && static_cast<int64_t>(high) < vocab_) return;
                for (int64_t seen = bad; place < seen && !bad.compare_exchange_weak(seen, place);) {
                }
              });
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    const auto threads = std::min<int64_t>({blocks, 4, std::thread::hardware_concurrency()});
    const auto others =
        detail::helpers(static_cast<size_t>(std::max<int64_t>(threads - 1, 0)), [&] { work(); });
    work();
  }
  if (failure) std::rethrow_exception(failure);
  if (bad == INT64_MAX) return;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(kBlock, tokens_ - bad)));
  decode<T>(bad, static_cast<int64_t>(tokens.size()), tokens.data());  // throws
}

void TokenFiles::bad_token(const Part& part, int64_t index, int64_t token) const {
  Error error(ErrorCode::bad_token,
              part.file.path() + ": the token at byte " +
                  std::to_string(part.offset + index * token_width(type_)) + " is " +
                  std::to_string(token) + ", but the model's vocabulary has " +
                  (vocab_ == INT64_MAX ? std::string("no negative") : std::to_string(vocab_)) +
                  " entries");
  error.key(table_ + ".path");
  if (token >= 0)
    error.help("use a model whose config.json has a vocab_size above " + std::to_string(token) +
               ", or its own tokenizer's ids");
  if (!advice_.empty()) error.help(advice_);
  throw error;
}

namespace {

struct Layout {
  TokenType type;
  int64_t offset, count;
};

Layout layout_of(const base::MappedFile& file, const DatasetConfig& config) {
  auto fail = [&](const std::string& what) {
    return Error(ErrorCode::bad_dataset, file.path() + ": " + what).key(config.table + ".path");
  };
  std::optional<TokenType> given;
  if (config.dtype == "uint16") given = TokenType::uint16;
  if (config.dtype == "uint32") given = TokenType::uint32;
  refuse_numpy(file, config);
  int32_t head[5] = {};
  std::memcpy(head, file.bytes().data(), std::min(sizeof head, file.bytes().size()));
  for (const TokenMagic& known : kTokenMagics) {
    if (head[0] != known.magic || file.size() < 4) continue;
    if (file.size() < kTokenHeader)
      throw fail("byte " + std::to_string(file.size()) +
                 ": the file ends within the 1,024 bytes of its llm.c header; it is truncated");
    if (head[1] != known.version)
      throw fail("byte 4: version " + std::to_string(head[1]) +
                 " of the llm.c header is not known, only " + std::to_string(known.version));
    int64_t width = token_width(known.type), bytes = file.size() - kTokenHeader, tokens = head[2];
    if (tokens == kLongCount) std::memcpy(&tokens, &head[3], sizeof tokens);
    if (given && *given != known.type)
      throw fail("byte 0: the header says " + std::to_string(width) + " bytes a token, " +
                 config.table + ".dtype says " + config.dtype)
          .key(config.table + ".dtype")
          .help("set " + config.table + ".dtype = \"auto\"");
    if (tokens < 0 || bytes % width != 0 || bytes / width != tokens)
      throw fail("byte 8: the header counts " + std::to_string(tokens) + " tokens of " +
                 std::to_string(width) + " bytes, but " + std::to_string(bytes) + " bytes follow");
    return {known.type, kTokenHeader, tokens};
  }
  if (!given)
    throw fail("the file has no llm.c header, so the element type must be given")
        .key(config.table + ".dtype")
        .help("set " + config.table + ".dtype = \"uint16\"")
        .help("set " + config.table + ".dtype = \"uint32\"");
  int64_t width = token_width(*given), count = file.size() / width;
  if (file.size() != count * width)
    throw fail("byte " + std::to_string(count * width) + ": " + std::to_string(file.size()) +
               " bytes are no whole number of " + std::to_string(width) +
               "-byte tokens; the file is truncated or of another type");
  return {*given, 0, count};
}

// Tokens as they lie in a file without a header.
struct Places {
  int64_t pairs = 0;                      // of a token and the one behind it, from an even place on
  int64_t first_set = 0, first_wide = 0;  // first ones that are not 0, or above 255
  int64_t second_most = 0;                // the largest of the second ones
  bool fourths_alone = true;              // nothing but every fourth token is not 0
};

template <class T>
Places look_at_places(std::span<const std::byte> bytes) {
  constexpr size_t kBlock = 4096, kBlocks = 64;
  Places out;
  const size_t blocks = std::min(kBlocks, (bytes.size() + kBlock - 1) / kBlock);
  for (size_t b = 0; b < blocks; ++b) {
    // Whole multiples of a block, so that places stay even.
    const size_t begin = (bytes.size() / kBlock) * b / blocks * kBlock;
    const std::span<const std::byte> block =
        bytes.subspan(begin, std::min(kBlock, bytes.size() - begin));
    for (size_t at = 0; at + 2 * sizeof(T) <= block.size(); at += 2 * sizeof(T)) {
      T pair[2];
      std::memcpy(pair, block.data() + at, sizeof pair);
      ++out.pairs;
      out.first_set += pair[0] != 0;
      out.first_wide += pair[0] > 255;
      out.second_most = std::max(out.second_most, static_cast<int64_t>(pair[1]));
      out.fourths_alone =
          out.fourths_alone && pair[1] == 0 && (pair[0] == 0 || at / (2 * sizeof(T)) % 2 == 0);
    }
  }
  return out;
}

// Wider tokens than they are read as: each second one is the upper half of the one before it, which
// is 0 or next to it. No language looks so.
void check_width(const base::MappedFile& file, const DatasetConfig& config, TokenType type) {
  constexpr int64_t kFewest = 32, kShare = 8, kUpperHalf = 15;
  const Places found = type == TokenType::uint16 ? look_at_places<uint16_t>(file.bytes())
                                                 : look_at_places<uint32_t>(file.bytes());
  const bool halves =
      found.pairs >= kFewest &&
      ((found.second_most == 0 && found.first_set * kShare >= found.pairs) ||
       (found.second_most <= kUpperHalf && found.first_wide * kShare >= found.pairs));
  if (!halves) return;
  const int64_t read = token_width(type),
                width = read * (found.fourths_alone && type == TokenType::uint16 ? 4 : 2);
  const std::string key = config.table + ".dtype";
  Error error(ErrorCode::bad_dataset,
              file.path() + ": every second token of " + std::to_string(read) + " bytes is " +
                  (found.second_most == 0 ? "0" : std::to_string(found.second_most) + " or less") +
                  ": its tokens have " + std::to_string(width) + " bytes, and " + key + " = \"" +
                  config.dtype + "\" reads each as several");
  error.key(key);
  if (width == 4)
    error.help("set " + key + " = \"uint32\"");
  else
    error.help("write it again in 4 bytes a token: python -c 'import numpy as np; np.fromfile(\"" +
               file.path() + "\", np.int64).astype(np.uint32).tofile(\"" + file.path() +
               ".u32\")', and set " + key + " = \"uint32\"");
  throw error.help("if the tokens are meant so: the llm.c header in front of them says their type");
}

}  // namespace

std::unique_ptr<Dataset> open_tokens(const DatasetConfig& config) {
  std::unique_ptr<TokenFiles> out;
  std::optional<TokenType> type;
  size_t looked = 0;
  for (const std::string& path : list_files(config)) {
    base::MappedFile file(path, ErrorCode::bad_dataset);
    Layout layout = layout_of(file, config);
    constexpr size_t kLookedAt = 64;  // a corpus may have very many files
    if (layout.offset == 0 && looked++ < kLookedAt) check_width(file, config, layout.type);
    if (type && *type != layout.type)
      throw Error(ErrorCode::bad_dataset,
                  path + ": has tokens of " + std::to_string(token_width(layout.type)) +
                      " bytes, the files before it " + std::to_string(token_width(*type)))
          .key(config.table + ".path");
    if (!type) {
      type = layout.type;
      out = std::make_unique<TokenFiles>(
          config, *type,
          layout.offset > 0 ? ""
                            : "set " + config.table + ".dtype = \"" +
                                  (*type == TokenType::uint16 ? "uint32" : "uint16") +
                                  "\" if the file was written so");
    }
    out->add(std::move(file), layout.offset, layout.count);
  }
  return out;
}

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// What stands between the quotes behind 'descr', and where the numbers begin; empty when the header
// does not read so.
struct Header {
  std::string type;
  int64_t size = 0;
};

Header read_header(const base::MappedFile& file) {
  auto byte = [&](int64_t at) {
    return at < file.size() ? static_cast<uint64_t>(file.bytes()[static_cast<size_t>(at)]) : 0;
  };
  const int64_t fixed = byte(6) == 1 ? 10 : 12;
  uint64_t length = byte(8) | byte(9) << 8;
  if (fixed == 12) length |= byte(10) << 16 | byte(11) << 24;
  Header out;
  out.size = fixed + static_cast<int64_t>(length);
  if (out.size > file.size()) return {};
  std::string text(reinterpret_cast<const char*>(file.bytes().data()) + fixed, length);
  size_t at = text.find("'descr'"), open = at == std::string::npos ? at : text.find('\'', at + 7),
         close = open == std::string::npos ? open : text.find('\'', open + 1);
  if (close != std::string::npos) out.type = text.substr(open + 1, close - open - 1);
  return out;
}

}  // namespace

void refuse_numpy(const base::MappedFile& file, const DatasetConfig& config) {
  if (file.size() < static_cast<int64_t>(kMagic.size()) ||
      std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) != 0)
    return;
  const Header header = read_header(file);
  Error error(ErrorCode::bad_dataset,
              file.path() + ": byte 0: this is a .npy file" +
                  (header.type.empty() ? std::string() : " of type '" + header.type + "'") +
                  ", whose header of " + std::to_string(header.size) + " bytes is no tokens");
  error.key(config.table + ".path");
  // Signed ones are the same bytes as long as no token is negative, and none may be.
  const char* same = header.type == "<u2" || header.type == "<i2"   ? "uint16"
                     : header.type == "<u4" || header.type == "<i4" ? "uint32"
                                                                    : "";
  if (*same != '\0') {
    error.help("cut the header off: tail -c +" + std::to_string(header.size + 1) + " '" +
               file.path() + "' > tokens.bin");
    error.help("then set " + config.table + ".kind = \"tokens\", " + config.table +
               ".path = \"tokens.bin\" and " + config.table + ".dtype = \"" + same + "\"");
  } else {
    error.help("write the numbers alone: numpy.load(\"" + file.path() +
               "\").astype(\"uint32\").tofile(\"tokens.bin\")");
    error.help("then set " + config.table + ".kind = \"tokens\", " + config.table +
               ".path = \"tokens.bin\" and " + config.table + ".dtype = \"uint32\"");
  }
  throw error;
}

namespace {

// By Megatron's and fairseq's numbers of element types; 6 and 7 are floats.
constexpr std::optional<TokenType> kTypes[] = {
    std::nullopt,     TokenType::uint8, TokenType::int8, TokenType::int16, TokenType::int32,
    TokenType::int64, std::nullopt,     std::nullopt,    TokenType::uint16};

}  // namespace

std::vector<std::string> megatron_files(const DatasetConfig& config) {
  std::filesystem::path stem = config.path;
  if (stem.extension() == ".bin" || stem.extension() == ".idx") stem.replace_extension();
  return {stem.string() + ".idx", stem.string() + ".bin"};
}

// The index: "MMIDIDX\0\0", version (u64), element type (u8), counts of sequences and of document
// boundaries (u64 each), lengths (i32), byte positions (i64), boundaries (i64), and with several
// modalities a mode for each sequence (i8). The sequences lie in .bin one after another, so the
// documents are one stream of tokens.
std::unique_ptr<Dataset> open_megatron(const DatasetConfig& config) {
  std::vector<std::string> names = megatron_files(config);
  if (std::error_code failed; !std::filesystem::exists(names[0], failed) && !failed) {
    Error error(ErrorCode::bad_dataset, names[0] +
                                            ": cannot be opened: there is no such file, and data "
                                            "of kind megatron are a pair .bin and .idx");
    error.key(config.table + ".path");
    for (const std::string& help :
         base::relative_path_help(config.table + ".path", names[0], config.toml))
      error.help(help);
    throw error;
  }
  base::MappedFile index(names[0], ErrorCode::bad_dataset), bin(names[1], ErrorCode::bad_dataset);
  auto fail = [&](int64_t at, const std::string& what) {
    throw Error(ErrorCode::bad_dataset, index.path() + ": byte " + std::to_string(at) + ": " + what)
        .key(config.table + ".path");
  };
  constexpr int64_t kFixed = 34;
  if (std::memcmp(index.bytes().data(), "MMIDIDX\0\0", std::min<size_t>(9, index.bytes().size())) !=
      0)
    fail(0, "the index does not begin with MMIDIDX");
  if (index.size() < kFixed)
    fail(index.size(), "the index ends within its first 34 bytes, it is truncated");
  auto number = [&](int64_t at, auto value) {
    std::memcpy(&value, index.bytes().data() + at, sizeof value);
    return value;
  };
  if (auto version = number(9, uint64_t{}); version != 1)
    fail(9, "version " + std::to_string(version) + " of the index is not known (1)");
  size_t code = number(17, uint8_t{});
  std::optional<TokenType> type = code < std::size(kTypes) ? kTypes[code] : std::nullopt;
  if (!type) fail(17, "element type " + std::to_string(code) + " holds no tokens");
  auto count = number(18, uint64_t{}), boundaries = number(26, uint64_t{}),
       space = static_cast<uint64_t>(index.size() - kFixed);
  if (count > space / 12 || boundaries > space / 8 || count * 12 + boundaries * 8 > space)
    fail(18, std::to_string(count) + " sequences and " + std::to_string(boundaries) +
                 " document boundaries do not fit into " + std::to_string(index.size()) +
                 " bytes; the index is truncated");
  auto sequences = static_cast<int64_t>(count), documents = static_cast<int64_t>(boundaries);
  int64_t pointers = kFixed + sequences * 4, marks = pointers + sequences * 8,
          end = marks + documents * 8;
  if (index.size() != end && index.size() != end + sequences)
    fail(end, std::to_string(index.size() - end) +
                  " bytes follow the last document boundary, expected none or one a sequence");

  int64_t width = token_width(*type), expected = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    int64_t at = kFixed + i * 4, length = number(at, int32_t{}), where = pointers + i * 8,
            pointer = number(where, int64_t{});
    if (length < 0)
      fail(at,
           "sequence " + std::to_string(i) + " has the negative length " + std::to_string(length));
    if (pointer != expected)
      fail(where, "sequence " + std::to_string(i) + " starts at " + std::to_string(pointer) +
                      ", expected " + std::to_string(expected));
    if (length * width > bin.size() - expected)
      fail(at, "sequence " + std::to_string(i) + " of " + std::to_string(length) +
                   " tokens ends behind the " + std::to_string(bin.size()) + " bytes of " +
                   bin.path() + ": the two do not belong together, or one is truncated");
    expected += length * width;
  }
  for (int64_t i = 0, last = 0; i < documents; ++i) {
    int64_t at = marks + i * 8, mark = number(at, int64_t{});
    if (mark < last || mark > sequences)
      fail(at, "document boundary " + std::to_string(i) + " is " + std::to_string(mark) +
                   ", expected " + std::to_string(last) + " to " + std::to_string(sequences));
    last = mark;
  }
  if (expected != bin.size())
    throw Error(ErrorCode::bad_dataset,
                bin.path() + ": byte " + std::to_string(expected) + ": the sequences of " +
                    index.path() + " end here, the file has " + std::to_string(bin.size()) +
                    " bytes: the two do not belong together, or one is truncated")
        .key(config.table + ".path");
  auto out = std::make_unique<TokenFiles>(config, *type);
  out->add(std::move(bin), 0, expected / width);
  return out;
}

std::vector<std::string> list_files(const DatasetConfig& config) {
  return base::list_files(config.path, config.table + ".path", config.toml);
}

namespace {

// Of bytes those that were packed would be learnt.
void refuse_packed(const base::MappedFile& file, const DatasetConfig& config) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  const base::FileKind kind = base::kind_of(bytes, bytes);
  if (kind == base::FileKind::plain) return;
  Error error(ErrorCode::bad_dataset, file.path() + ": byte 0: it is " +
                                          (kind == base::FileKind::parquet ? "" : "packed by ") +
                                          std::string(base::name_of(kind)) +
                                          ", and bytes are read as they lie in the file");
  if (kind != base::FileKind::parquet)
    error.help("unpack it: " + std::string(base::name_of(kind)) + " -dk '" + file.path() + "'");
  throw error.key(config.table + ".path")
      .help("set " + config.table +
            ".tokenizer to the folder of a tokenizer: its texts may be packed, or Parquet");
}

}  // namespace

std::unique_ptr<Dataset> open_text(const DatasetConfig& config) {
  auto out = std::make_unique<TokenFiles>(config, TokenType::uint8);
  for (const std::string& path : list_files(config)) {
    base::MappedFile file(path, ErrorCode::bad_dataset);
    refuse_numpy(file, config);
    refuse_packed(file, config);
    int64_t size = file.size();
    out->add(std::move(file), 0, size);
  }
  return out;
}

}  // namespace meshwright::data
