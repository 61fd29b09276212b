// Links that were made up, and how all that was found is shown.
#include <doctest/doctest.h>

#include <set>

#include "apps/doctor/report.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/tests/scratch.h"

namespace report_test {

using namespace meshwright::doctor;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::scratch::has;

namespace {

Link link(int64_t from, int64_t to, double there, double back) {
  Link out{.from = from, .to = to};
  out.latency = 2e-4;
  out.there = there;
  out.back = back;
  return out;
}

// As rank 0 has what another rank tells.
template <class T>
T again(const T& one) {
  return meshwright::base::read_json_text<T>(meshwright::base::json_text(one));
}

const Hosts kThree{{"a", "b", "c"}, {0, 1, 2}};

}  // namespace

TEST_CASE("all pairs meet once, and nobody is in two pairs of a round") {
  for (int64_t members : {1, 2, 3, 4, 6, 7, 8, 15}) {
    CAPTURE(members);
    std::set<std::pair<int64_t, int64_t>> met;
    for (const auto& round : rounds_of(members)) {
      std::set<int64_t> busy;
      for (const auto& [a, b] : round) {
        CHECK(a < b);
        CHECK(b < members);
        CHECK(busy.insert(a).second);
        CHECK(busy.insert(b).second);
        CHECK(met.insert({a, b}).second);
      }
    }
    CHECK(std::ssize(met) == members * (members - 1) / 2);
  }
}

TEST_CASE("the slowest link is named with its direction, and warned of when it is an odd one") {
  const std::vector<Link> links = {link(0, 1, 1e9, 1e9), link(0, 2, 1e9, 4e8),
                                   link(1, 2, 9e8, 1e9)};
  const Finding found = judge(links, kThree);
  CHECK(found.level == Level::warning);
  CHECK(has(found.text, "slowest: rank 2 (c) -> rank 0 (a), 400 MB/s, 200 us one way"));
  CHECK(has(found.fix, "dist_env.interface"));
  CHECK(judge(std::vector<Link>{link(0, 1, 1e9, 3e8)}, kThree).level == Level::ok);
  CHECK(judge(std::vector<Link>{link(0, 1, 1e9, 2e8)}, kThree).level == Level::warning);
  // On one host ranks share cores: that one pair has fewer is no fault of a link.
  CHECK(judge(links, Hosts{{"a", "a", "a"}, {0, 0, 0}}).level == Level::ok);
  CHECK(has(judge(std::vector<Link>{}, kThree).text, "n/a"));
}

TEST_CASE("what ranks found alike is one line, what differs names host or ranks") {
  Report report;
  report.hosts = {{"a", "a", "b", "b"}, {0, 0, 2, 2}};
  const Finding good{"cores", Level::ok, "good"}, bad{"cores", Level::warning, "bad", "repair"};
  report.add({{good, {"memory", Level::ok, "much"}}, {good}, {bad}, {bad}});
  REQUIRE(report.lines.size() == 3);
  const std::string text = report.text({});
  CHECK(has(text, "a: good"));
  CHECK(has(text, "b: bad. FIX: repair"));
  CHECK(has(text, "much"));
  CHECK(has(text, "0 faults, 1 warning, 0 notes on 4 ranks of 2 hosts"));
}

TEST_CASE("of many hosts where all is well a few are shown, and every one that is not") {
  Report report;
  std::vector<std::vector<Finding>> all;
  for (int64_t host = 0; host < 9; ++host) {
    report.hosts.names.push_back("h" + std::to_string(host));
    report.hosts.first.push_back(host);
    all.push_back(
        {{"memory", host == 7 ? Level::warning : Level::ok, "has " + std::to_string(host)}});
  }
  report.add(all);
  const std::string text = report.text({});
  CHECK(has(text, "h3: has 3"));
  CHECK_FALSE(has(text, "h4: has 4"));
  CHECK(has(text, "h7: has 7"));
  CHECK(has(text, "memory: 4 more are ok; --json has them"));
  CHECK(report.json().at("findings").as_array().size() == 9);
}

TEST_CASE("the exit status is that of the worst fault, whatever comes first, and of no warning") {
  Report report;
  report.hosts = {{"a"}, {0}};
  report.add(Finding{"cores", Level::warning, "few"});
  CHECK(report.exit_status() == 0);
  report.add(finding_of("run folder", Error(ErrorCode::output_unwritable, "no").help("yes")));
  CHECK(report.exit_status() == 7);
  report.add(finding_of("ranks", Error(ErrorCode::rendezvous_failed, "alone")));
  CHECK(report.exit_status() == 4);
  report.add(finding_of("config", Error(ErrorCode::out_of_range, "odd")));
  CHECK(report.exit_status() == 4);
  CHECK(has(report.text({}), "no [E0705]. FIX: yes"));
}

TEST_CASE("findings, links and collectives reach rank 0 as they were") {
  const Finding finding = finding_of("x", Error(ErrorCode::bad_interface, "y").help("z"));
  CHECK(again(finding) == finding);
  const Finding plain = Finding::unknown("x", "why");
  CHECK(again(plain) == plain);
  Link one = link(0, 3, 1e6, 2e6);
  one.back.reset();
  one.ahead = -2;
  const Link other = again(one);
  CHECK(other.to == 3);
  CHECK(other.there == 1e6);
  CHECK_FALSE(other.back.has_value());
  CHECK(other.ahead == -2);
  Collective c{"tp", "all_reduce", "sockets", 2, 1e-4, 1000, 0.5, {0, 1}};
  const Collective same = again(c);
  CHECK(same.rate() == 2000);
  CHECK(same.slowest == std::vector<int64_t>{0, 1});
}

TEST_CASE("tables of links and collectives, and the same as JSON") {
  Report report;
  report.hosts = {{"a", "b", "c"}, {0, 1, 2}};
  report.links = {link(0, 1, 1e8, 1e8), link(0, 2, 1.2e7, 1.1e7)};
  report.collectives = {{"dp", "all_gather", "sockets", 3, 1e-4, 2000000, 0.1, {0, 1, 2}}};
  const std::string text = report.text({});
  CHECK(has(text, "rank 0 (a) -> rank 2 (c)"));
  CHECK(has(text, "11 MB/s  slowest"));
  CHECK(has(text, "20 MB/s"));
  const boost::json::object json = report.json();
  CHECK(json.at("slowest_link").at("to_host") == "c");
  CHECK(json.at("collectives").at(0).at("op") == "all_gather");
  CHECK(json.at("hosts").as_array().size() == 3);
  CHECK_FALSE(json.at("links").at(0).as_object().contains("clock"));
}

}  // namespace report_test
