// Who meets a limit of the process is told of the limit.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "sdk/base/used_up.h"

namespace used_up_test {

using namespace meshwright;

std::string code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    const std::optional<Error> limit = detail::used_up(error);
    return limit ? code_string(limit->code()) + " " + limit->helps().front() : "none";
  }
  return "nothing was thrown";
}

TEST_CASE("exceptions of a limit are its error, whoever threw them") {
  const std::string few = std::strerror(EMFILE), memory = std::strerror(ENOMEM);
  struct Row {
    std::function<void()> work;
    std::string code, help;
  };
  for (const Row& row :
       {Row{[] { throw std::bad_alloc(); }, "E0508", "local_batch_size"},
        Row{[] { throw std::system_error(EAGAIN, std::generic_category(), "thread"); }, "E0508",
            "ulimit -u"},
        Row{[] {
              throw std::filesystem::filesystem_error(
                  "x", std::error_code(EMFILE, std::generic_category()));
            },
            "E0508", "ulimit -n"},
        Row{[&] { throw std::runtime_error("[enforce fail at loop.cc:104] " + few + "\nframe"); },
            "E0508", "ulimit -n"},
        Row{[&] { throw Error(ErrorCode::bad_interface, "cannot listen: " + few); }, "E0508",
            "ulimit -n"},
        Row{[&] { throw Error(ErrorCode::file_unreadable, "cannot map libtorch: " + memory); },
            "E0508", "local_batch_size"},
        Row{[&] { throw std::runtime_error("frame\n" + few); }, "none", ""},
        Row{[] { throw Error(ErrorCode::file_unreadable, "no such file"); }, "none", ""},
        Row{[] { throw std::system_error(ENOENT, std::generic_category()); }, "none", ""}}) {
    const std::string found = code_of(row.work);
    CAPTURE(found);
    CHECK(found.starts_with(row.code));
    CHECK(found.find(row.help) != std::string::npos);
  }
}

TEST_CASE("of several errors the limit alone is told: the others follow from it") {
  const std::string few = std::strerror(EMFILE);
  const std::vector<Error> errors{Error(ErrorCode::unknown_architecture, "x"),
                                  Error(ErrorCode::file_unreadable, few)};
  REQUIRE(detail::by_cause(errors).size() == 1);
  CHECK(detail::by_cause(errors)[0].code() == ErrorCode::out_of_memory);
  CHECK(detail::by_cause(std::span(errors).first(1))[0].message() == "x");
}

}  // namespace used_up_test
