#include <algorithm>
#include <cstring>

#include "engine/data/token_files.h"

namespace meshwright::data {

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

}  // namespace meshwright::data
