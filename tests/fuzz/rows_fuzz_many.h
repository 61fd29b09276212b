// Hundreds of rows of one input, encoded one by one from memory as a run encodes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "fuzz.h"
#include "plugins/jsonl/encode_row.h"

namespace meshwright::fuzz {

class ManyRows {
 public:
  struct Counts {
    uint64_t encoded = 0, refused = 0;
  };
  // `folder`: of a tokenizer, which is read once for all inputs. `file`: where rows may be written.
  ManyRows(std::string folder, std::filesystem::path file);

  // Rows of one kind, a third of them changed. What is encoded holds together; what is refused is
  // refused with an Error of 2xx or 7xx; and a file of those that were encoded becomes the same
  // documents. Throws std::runtime_error where something of this does not hold.
  Counts run(Random& random);

 private:
  std::shared_ptr<const jsonl::Language> language(const std::string& chat_template);
  std::string folder_;
  std::filesystem::path file_;
  std::map<std::string, std::shared_ptr<const jsonl::Language>> languages_;  // by template
};

}  // namespace meshwright::fuzz
