#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>

#include "engine/data/token_files.h"
#include "sdk/base/files/relative.h"

namespace meshwright::data {

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

}  // namespace meshwright::data
