// convert FILE: the tokenizer.json that a tokenizer.model or a tekken.json amounts to, with what
// tokenizer_config.json beside it says; see tests/reference_pytorch/check_sentencepiece.py.
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/text/tokenizer/folder.h"

int main(int argc, char** argv) {
  using namespace meshwright;
  if (argc != 2) return 2;
  try {
    const std::string bytes =
        base::read_foreign(argv[1], base::kSmallFile, ErrorCode::bad_tokenizer);
    const auto value = tokenizer::of_other_file(argv[1], bytes);
    if (!value) return 2;
    std::printf("%s\n", boost::json::serialize(*value).c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.message().c_str());
    return 3;
  }
  return 0;
}
