#include "sdk/text/tokenizer/folder.h"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/sentencepiece.h"
#include "sdk/text/tokenizer/tekken.h"

namespace meshwright::tokenizer {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

json::object settings_beside(const fs::path& file) {
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  std::error_code failed;
  if (!fs::exists(config, failed)) return {};
  const std::string text = base::read_foreign(config, base::kSmallFile, ErrorCode::bad_tokenizer);
  try {
    json::value parsed = base::parse_strictly(text, {.depth = 32, .elements = 1 << 20});
    if (parsed.is_object()) return std::move(parsed.get_object());
  } catch (const base::JsonProblem& problem) {
    refuse(config.string(), "the file",
           problem.what + " (at byte " + std::to_string(problem.offset) + ")");
  }
  refuse(config.string(), "the file", "is no JSON object");
}

}  // namespace

std::optional<json::value> of_other_file(const fs::path& file, std::string_view bytes) {
  const std::string name = file.filename().string();
  if (name.ends_with(".model"))
    return of_sentencepiece(bytes, file.string(), settings_beside(file));
  if (name.starts_with("tekken") && name.ends_with(".json")) return of_tekken(bytes, file.string());
  return std::nullopt;
}

}  // namespace meshwright::tokenizer
