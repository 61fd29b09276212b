// The file and the line that a rank of torchrun leaves.
#include "sdk/base/terminal/torchrun.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

using namespace meshwright;
using namespace meshwright::report;

namespace {

Variables given(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE(
    "torchrun's error file gets the error as torchrun reads it: a text and a time; a second error "
    "does not replace the first") {
  std::string name =
      (std::filesystem::temp_directory_path() / "meshwright_torchrun.XXXXXX").string();
  std::filesystem::path folder = ::mkdtemp(name.data()), file = folder / "error.json";
  Error error(ErrorCode::option_refused, "ddp has no \"tensor\" parallelism");
  tell_torchrun(error.help("leave it out"), given({}));
  CHECK(std::filesystem::is_empty(folder));
  tell_torchrun(error, given({{"TORCHELASTIC_ERROR_FILE", file.string()}}));
  boost::json::value json = boost::json::parse(read(file));
  std::string text = json.at("message").as_string().c_str();
  CHECK(text.starts_with("error[E0212]: ddp has no \"tensor\" parallelism\n"));
  CHECK(text.find("help: leave it out") != std::string::npos);
  CHECK(json.at("timestamp").as_int64() > 1600000000);
  tell_torchrun(Error(ErrorCode::internal, "later"),
                given({{"TORCHELASTIC_ERROR_FILE", file.string()}}));
  CHECK(read(file).find("later") == std::string::npos);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  // A folder that is not there is no reason to fail.
  tell_torchrun(error,
                given({{"TORCHELASTIC_ERROR_FILE", (folder / "none" / "error.json").string()}}));
  std::filesystem::remove_all(folder);
}

TEST_CASE(
    "that torchrun will try again in vain is said once on each host, where it will and it is in "
    "vain") {
  std::map<std::string, std::string> base = {{"TORCHELASTIC_RUN_ID", "none"},
                                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                                             {"LOCAL_RANK", "0"}};
  for (int status : {2, 3, 5, 7})
    CHECK(vain_retries(status, given(base)).find("2 more times") != std::string::npos);
  for (int status : {0, 1, 4, 6, 75, 130}) CHECK(vain_retries(status, given(base)).empty());
  auto with = [&](const char* variable, const char* value) {
    auto changed = base;
    changed[variable] = value;
    return vain_retries(2, given(changed));
  };
  CHECK(with("TORCHELASTIC_RESTART_COUNT", "2").find("1 more time,") != std::string::npos);
  CHECK(with("TORCHELASTIC_RESTART_COUNT", "3").empty());
  CHECK(with("LOCAL_RANK", "1").empty());
  CHECK(vain_retries(2, given({})).empty());
}
