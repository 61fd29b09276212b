// What a remark is about, and what is left out where a key's value is in doubt.
#include <doctest/doctest.h>

#include "meshwright/error.h"

namespace diagnostics_test {

using namespace meshwright;

TEST_CASE("remarks about a key in doubt are left out, those about none never") {
  const Error plain(ErrorCode::conflict, "no key");
  CHECK(plain.keys().empty());
  const Error both = Error(ErrorCode::conflict, "two keys").key("a.b").about("a.c");
  CHECK(both.keys() == std::vector<std::string>{"a.b", "a.c"});

  Diagnostics found({"", "a.c"});
  found.add(plain);
  found.add(both);
  found.add(Error(ErrorCode::conflict, "another key").key("a.b"));
  found.notice("of a key", {"a.c"});
  found.notice("of no key");
  found.warning("of two", {"a.b", "a.c"});
  REQUIRE(found.errors().size() == 2);
  CHECK(found.errors()[0].message() == "no key");
  CHECK(found.errors()[1].message() == "another key");
  CHECK(found.notices() == std::vector<std::string>{"of no key"});
  CHECK(found.warnings().empty());
}

}  // namespace diagnostics_test
