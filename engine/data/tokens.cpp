#include <cstring>
#include <optional>

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

}  // namespace

std::unique_ptr<Dataset> open_tokens(const DatasetConfig& config) {
  std::unique_ptr<TokenFiles> out;
  std::optional<TokenType> type;
  for (const std::string& path : list_files(config)) {
    base::MappedFile file(path, ErrorCode::bad_dataset);
    Layout layout = layout_of(file, config);
    if (type && *type != layout.type)
      throw Error(ErrorCode::bad_dataset,
                  path + ": has tokens of " + std::to_string(token_width(layout.type)) +
                      " bytes, the files before it " + std::to_string(token_width(*type)))
          .key(config.table + ".path");
    if (!type) {
      type = layout.type;
      out = std::make_unique<TokenFiles>(
          config, *type,
          layout.offset > 0
              ? ""
              : "set " + config.table + ".dtype to the type that the file was written with");
    }
    out->add(std::move(file), layout.offset, layout.count);
  }
  return out;
}

}  // namespace meshwright::data
