#include "engine/config/cross_checks.h"

#include <doctest/doctest.h>

#include "engine/config/config.h"
#include "engine/config/source.h"

using namespace meshwright;
using config::ListenAddress;
using config::parse_listen_address;

TEST_CASE("an address to listen at is this machine's own unless it says otherwise") {
  struct Case {
    const char* text;
    ListenAddress wanted;
  };
  for (const auto& [text, wanted] :
       {Case{"127.0.0.1:9400", {"127.0.0.1", 9400}}, Case{"9400", {"127.0.0.1", 9400}},
        Case{":9400", {"127.0.0.1", 9400}}, Case{":0", {"127.0.0.1", 0}},
        Case{"[::1]:65535", {"::1", 65535}}, Case{"localhost:1", {"localhost", 1}},
        Case{"node-7.cluster:9400", {"node-7.cluster", 9400}},
        Case{"0.0.0.0:9400", {"0.0.0.0", 9400}}, Case{"[::]:9400", {"::", 9400}},
        Case{"192.168.1.5:9400", {"192.168.1.5", 9400}}}) {
    CAPTURE(text);
    const ListenAddress found = parse_listen_address(text, "report.prometheus");
    CHECK(found.host == wanted.host);
    CHECK(found.port == wanted.port);
  }
}

TEST_CASE("what is no address is refused with what is wrong, and an address that is") {
  struct Case {
    const char *text, *why;
  };
  for (const auto& [text, why] :
       {Case{"", "it wants HOST:PORT"}, Case{"localhost", "it wants HOST:PORT"},
        Case{"localhost:", "after the colon comes the number of a port"},
        Case{"localhost:http", "after the colon comes the number of a port"},
        Case{"localhost:-1", "after the colon comes the number of a port"},
        Case{"localhost:65536", "ports go up to 65535"},
        Case{"localhost:99999999999999999999", "ports go up to 65535"},
        Case{"::1:9400", "an IPv6 address stands in brackets"},
        Case{"[::1]", "after [ADDRESS] comes :PORT"}, Case{"[::1:9400", "after [ADDRESS] comes"},
        Case{"[localhost]:9400", "\"localhost\" is no IPv6 address"},
        Case{"[0:0:0:0:0:0:0:0]:9400", "all interfaces are written [::]"},
        Case{"*:9400", "all interfaces are 0.0.0.0"},
        // The system would take these for addresses, the first two for all interfaces.
        Case{"0:9400", "\"0\" is no IPv4 address"}, Case{"0x0:9400", "\"0x0\" is no IPv4 address"},
        Case{"127.1:9400", "\"127.1\" is no IPv4 address"},
        Case{"256.0.0.1:9400", "is no IPv4 address"},
        Case{"http://127.0.0.1:9400", "an IPv6 address stands in brackets"},
        Case{"a b:9400", "\"a b\" is no name of a host"},
        Case{"-a:9400", "is no name of a host"}}) {
    CAPTURE(text);
    try {
      parse_listen_address(text, "report.prometheus");
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(code_string(error.code()) == "E0204");
      CHECK(error.key() == "report.prometheus");
      CHECK(error.message().find(why) != std::string::npos);
      CHECK(error.helps().size() == 2);
    }
  }
}

TEST_CASE("an address that is none is found with its line before anything runs") {
  Diagnostics found;
  const config::Source source = config::Source::parse(
      "schema = 1\n[report]\nprometheus = \"nowhere\"\nprometheus_file = \"\"\n", {}, found);
  REQUIRE(found.ok());
  config::resolve(source, {}, "fsdp2", found);
  int told = 0;
  for (const Error& error : found.errors()) {
    if (!error.key().starts_with("report.")) continue;
    ++told;
    CHECK(code_string(error.code()) == "E0204");
    CHECK(error.origin().line == (error.key() == "report.prometheus" ? 3 : 4));
    CHECK(exit_status(error.code()) == 2);
  }
  CHECK(told == 2);
}
