// UTF-8, where it may be broken and where it may not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::base {

// Where the first byte stands that is not part of valid UTF-8; text.size() when there is none.
size_t first_invalid(std::string_view text);

// The character that starts at `at` of valid UTF-8, and how many bytes it has. Reads nothing behind
// the end.
struct Character {
  int32_t code = 0;
  size_t bytes = 0;
};
Character character_at(std::string_view text, size_t at);
void append_utf8(std::string& out, int32_t code);

// Valid UTF-8 from bytes that come in pieces. Every longest piece that no character can go on from
// becomes one U+FFFD.
class Utf8Stream {
 public:
  std::string add(std::string_view bytes);
  std::string finish();  // what still waits is no character

 private:
  std::string waiting_;  // the start of a character
};

}  // namespace meshwright::base
