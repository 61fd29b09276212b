// sentencepiece's map of characters, which a tokenizer.json holds as Precompiled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::tokenizer {

class Charsmap {
 public:
  // The bytes: four that tell the size of a double array, that array (Darts), and texts that each
  // end in a zero byte. Throws std::string, what is wrong with them.
  explicit Charsmap(std::string_view bytes);
  // What `text` becomes: that of its shortest beginning that the map knows, as the tokenizers
  // library has it.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string texts_;
};

// What base64 stands for; nothing where it is none.
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace meshwright::tokenizer
