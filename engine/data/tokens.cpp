#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "engine/data/token_files.h"
#include "engine/data/token_header.h"

namespace meshwright::data {

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

}  // namespace meshwright::data
