#include "sdk/base/terminal/report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "sdk/base/terminal/progress.h"
#include "sdk/base/tests/scratch.h"

namespace report = meshwright::report;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::Origin;
using report::Style;

namespace {

const Style kPlain{false, true, 80};

struct File {
  meshwright::scratch::Folder folder;
  std::filesystem::path path;
  explicit File(const std::string& text) : path(folder.put("a.toml", text)) {}
};

// What is shown on a stream that keeps it.
std::string shown_by(const std::function<void(report::Output&)>& body) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  report::Output out(file, "test");
  body(out);
  std::rewind(file);
  char buffer[4096];
  std::string shown(buffer, std::fread(buffer, 1, sizeof buffer, file));
  std::fclose(file);
  return shown;
}

report::Variables given(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

TEST_CASE("bytes are shown with one decimal and never as 1024 of a unit") {
  const std::pair<int64_t, const char*> cases[] = {
      {0, "0 B"},          {512, "512 B"},         {1023, "1023 B"},       {1024, "1.0 KiB"},
      {1536, "1.5 KiB"},   {1048575, "1.0 MiB"},   {12582912, "12.0 MiB"}, {1610612736, "1.5 GiB"},
      {-2048, "-2.0 KiB"}, {INT64_MAX, "8.0 EiB"}, {1LL << 40, "1.0 TiB"}};
  for (auto [bytes, text] : cases) CHECK(report::human_bytes(bytes) == text);
}

TEST_CASE("counts have thousands separators") {
  const std::pair<int64_t, const char*> cases[] = {{0, "0"},          {999, "999"},
                                                   {1000, "1,000"},   {1234567, "1,234,567"},
                                                   {-1234, "-1,234"}, {-999, "-999"}};
  for (auto [count, text] : cases) CHECK(report::human_count(count) == text);
  CHECK(report::counted(1, "error", "errors") == "1 error");
  CHECK(report::counted(1200, "error", "errors") == "1,200 errors");
}

TEST_CASE("the display width counts characters, not bytes or colours") {
  const std::pair<const char*, size_t> cases[] = {
      {"", 0},     {"abc", 3},       {"…", 1},       {"\x1b[31mred\x1b[0m", 3},
      {"日本", 4}, {"e\xcc\x81", 1}, {"\xff\xfe", 2}};
  for (auto [text, width] : cases) CHECK(report::display_width(text) == width);
}

TEST_CASE("printable text cannot steer a terminal and is valid UTF-8") {
  CHECK(report::printable("a\x1b[2Jb") == "a\\x1b[2Jb");
  CHECK(report::printable("a\tb\nc") == "a b\nc");
  CHECK(report::printable("\xc0\xafz") == "\xef\xbf\xbd\xef\xbf\xbdz");
  CHECK(report::printable("né…") == "né…");
  CHECK(report::printable("\xed\xa0\x80").find('\xed') == std::string::npos);
  CHECK(report::printable("a\xe2\x80\xae"
                          "b\xe2\x81\xa9\xd8\x9c\xe2\x80\x8f") == "a\\u202eb\\u2069\\u061c\\u200f");
  CHECK(report::printable("a\xc2\x9b\x7f") == "a\\x9b\\x7f");
}

TEST_CASE("what is written for people has the program's own colours, and no other sequence") {
  const report::Style style{.colour = true, .unicode = true, .width = 80};
  const std::string own = report::paint(style, report::Tone::red, "red") + "\tx\n";
  CHECK(report::screened(own) == own);
  CHECK(report::screened("\x1b[8mgone\x1b[2J\r\xe2\x80\xae") == "\\x1b[8mgone\\x1b[2J\\x0d\\u202e");
  const boost::json::object odd{{"a\xe2\x80\xae", "\x7f\xc2\x9b né"}};
  const std::string text = report::pretty_json(odd);
  CHECK(text.find("\\u202e") != std::string::npos);
  CHECK(text.find("\\u007f\\u009b né") != std::string::npos);
  CHECK(boost::json::parse(text).as_object() == odd);
}

TEST_CASE("cells of text are never computed by a spreadsheet") {
  for (const char* text : {"=1+1", "+1", "-1", "@SUM(A1)"})
    CHECK(report::csv_cell(text) == "'" + std::string(text));
  CHECK(report::csv_cell("\t=1") == "' =1");
  CHECK(report::csv_cell("\r=1") == "'\\x0d=1");
  CHECK(report::csv_cell("runs/a=b") == "runs/a=b");
}

TEST_CASE("wrapping breaks at spaces, and within words that are too long") {
  using Lines = std::vector<std::string>;
  CHECK(report::wrap("one two three", 8) == Lines{"one two", "three"});
  CHECK(report::wrap("abcdefghij", 4) == Lines{"abcd", "efgh", "ij"});
  CHECK(report::wrap("mixture-of-experts", 16) == Lines{"mixture-of-", "experts"});
  CHECK(report::wrap("a\nb", 10) == Lines{"a", "b"});
  CHECK(report::wrap("", 10) == Lines{""});
  CHECK(report::wrap("      abcdefgh", 7) == Lines{"      a", "bcdefgh"});
  CHECK(report::wrap("日本語", 3) == Lines{"日", "本", "語"});
}

TEST_CASE("a table aligns its columns") {
  const size_t right[] = {1};
  CHECK(report::table(kPlain, {{"axis", "size"}, {"dp_shard", "64"}, {"tp", "8"}}, right) ==
        "axis      size\n"
        "dp_shard    64\n"
        "tp           8\n");
}

TEST_CASE("a table too wide for the screen breaks its widest left column") {
  Style narrow = kPlain;
  narrow.width = 40;
  std::string text = report::table(
      narrow, {{"key", "doc"}, {"a", "one two three four five six seven eight nine ten eleven"}});
  std::string line;
  for (std::istringstream lines(text); std::getline(lines, line);)
    CHECK(report::display_width(line) <= 40);
  CHECK(text.find("eleven") != std::string::npos);
}

TEST_CASE("an error shows its place, the source line and a caret under the value") {
  File file("[distributed]\ntp_size = \"2\"  # two\n");
  Error error(ErrorCode::wrong_type, "distributed.tp_size wants an integer, found a string");
  error.key("distributed.tp_size")
      .at({Origin::Source::file, file.path.string(), 2, 11})
      .note("while reading")
      .help("set distributed.tp_size = 2");
  CHECK(report::format_error(kPlain, error) ==
        "error[E0203]: distributed.tp_size wants an integer, found a string\n"
        " --> " +
            file.path.string() +
            ":2:11\n"
            "  |\n"
            "2 | tp_size = \"2\"  # two\n"
            "  |           ^^^\n"
            "  |\n"
            "  = note: while reading\n"
            "  = help: set distributed.tp_size = 2\n");
}

TEST_CASE("an error without a place has its help right below the message") {
  Error error(ErrorCode::usage, "no such verb: pln");
  error.help("did you mean plan?\nor planet");
  CHECK(report::format_error(kPlain, error) ==
        "error[E0101]: no such verb: pln\n  = help: did you mean plan?\n          or planet\n");
}

TEST_CASE("a message that begins with its place does not say it twice; the machine form has it") {
  File file("{}\n{\"text\": 3}\n");
  const std::string path = file.path.string();
  Error error(ErrorCode::bad_dataset, path + ":2:7: not so");
  error.at({Origin::Source::file, path, 2, 7}).help("so");
  CHECK(report::format_error(kPlain, error) ==
        "error[E0701]: " + path + ":2:7: not so\n  = help: so\n");
  const auto form = report::errors_json(std::span(&error, 1)).at("error").as_object();
  CHECK(std::string(form.at("file").as_string()) == path);
  CHECK(form.at("line").to_number<int>() == 2);
  CHECK(form.at("column").to_number<int>() == 7);
  error.at({Origin::Source::file, path, 2, 0});
  CHECK(report::format_error(kPlain, error).find("-->") == std::string::npos);
  // Another place is said.
  error.at({Origin::Source::file, path, 1, 0});
  CHECK(report::format_error(kPlain, error).find("--> " + path + ":1\n") != std::string::npos);
}

TEST_CASE("a value from --set names the flag") {
  Error error(ErrorCode::wrong_type, "bad");
  error.key("distributed.tp_size").at({Origin::Source::command_line, "", 0, 0});
  CHECK(report::format_error(kPlain, error).find("--> --set distributed.tp_size\n") !=
        std::string::npos);
}

TEST_CASE("long source lines are cut around the caret") {
  File file("x = [" + std::string(300, '1') + ", \"bad\", " + std::string(300, '2') + "]\n");
  Error error(ErrorCode::wrong_type, "bad");
  error.at({Origin::Source::file, file.path.string(), 1, 308});
  std::string text = report::format_error(kPlain, error), line;
  for (std::istringstream lines(text); std::getline(lines, line);)
    if (line.find("-->") == std::string::npos) CHECK(report::display_width(line) <= 80);
  CHECK(text.find("\"bad\"") != std::string::npos);
  CHECK(text.find("^^^^^") != std::string::npos);
}

TEST_CASE("places that no longer exist are named without a source line") {
  File file("a = 1\n");
  for (const auto& [name, line, column] :
       {std::tuple<std::string, int, int>{"/no/such/file.toml", 1, 1},
        {file.path.string(), 99, 1},
        {"/", 1, 1}}) {
    Error error(ErrorCode::wrong_type, "bad");
    error.at({Origin::Source::file, name, line, column});
    std::string text = report::format_error(kPlain, error);
    CHECK(text.find(name) != std::string::npos);
    CHECK(text.find('|') == std::string::npos);
  }
  Error beyond(ErrorCode::wrong_type, "bad");
  beyond.at({Origin::Source::file, file.path.string(), 1, 5000});
  CHECK(report::format_error(kPlain, beyond).find('^') != std::string::npos);
}

TEST_CASE("the machine form holds the first error and all of them") {
  Error first(ErrorCode::wrong_type, "bad \xff");
  first.key("a.b").at({Origin::Source::file, "x.toml", 3, 4}).help("set a.b = 1");
  Error second(ErrorCode::bad_set, "worse");
  second.at({Origin::Source::command_line, "", 0, 0});
  const Error errors[] = {first, second};
  boost::json::object object = report::errors_json(errors);
  CHECK(boost::json::value(object) == boost::json::parse(R"({
    "error": {"code":"E0203","message":"bad �","key":"a.b","file":"x.toml","line":3,"column":4,"help":["set a.b = 1"],"notes":[]},
    "errors": [{"code":"E0203","message":"bad �","key":"a.b","file":"x.toml","line":3,"column":4,"help":["set a.b = 1"],"notes":[]},
               {"code":"E0217","message":"worse","key":null,"file":null,"line":null,"column":null,"help":[],"notes":[]}]})"));
}

TEST_CASE("pretty JSON reads back as the same value") {
  boost::json::value value = boost::json::parse(
      R"({"a": [1, 2, 3], "b": {"c": null, "d": []}, "e": [{"x": "y\n\"", "z": [1]}, {}], "long": [], "f": 1.5})");
  for (int i = 0; i < 200; ++i) value.at("long").as_array().push_back(100000 + i);
  std::string text = report::pretty_json(value), line;
  CHECK(boost::json::parse(text) == value);
  for (std::istringstream lines(text); std::getline(lines, line);) CHECK(line.size() <= 125);
}

TEST_CASE("a stream that takes no more is noticed") {
  std::FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  report::Output out(full, "standard output");
  auto fill = [&] {
    out.write("x");
    out.flush();
  };
  CHECK_THROWS_WITH_AS(fill(), "cannot write to standard output: No space left on device",
                       report::WriteFailed);
  std::fclose(full);
}

TEST_CASE("the style of a file has no colours, and COLUMNS and the locale are heard") {
  std::FILE* file = std::fopen("/dev/null", "w");
  REQUIRE(file != nullptr);
  ::setenv("COLUMNS", "123", 1);
  ::setenv("LC_ALL", "C", 1);
  Style style = report::style_of(file);
  CHECK(!style.colour);
  CHECK(style.width == 123);
  CHECK(!style.unicode);
  ::setenv("LC_ALL", "en_US.UTF-8", 1);
  ::setenv("COLUMNS", "rubbish", 1);
  style = report::style_of(file);
  CHECK(style.unicode);
  CHECK(style.width == 80);
  ::unsetenv("LC_ALL");
  ::unsetenv("COLUMNS");
  std::fclose(file);
}

TEST_CASE(
    "a name that is too long is broken after a dot or an underscore, and its rest stands under "
    "it") {
  struct Row {
    const char* text;
    size_t width;
    std::vector<std::string> lines;
  };
  for (const Row& row :
       {Row{"model.embed_tokens.weight", 24, {"model.embed_tokens.", "weight"}},
        Row{"post_attention_layernorm.weight", 22, {"post_attention_", "layernorm.weight"}},
        Row{"a.bcdefghijklmnopqrstuvwxyz",
            10,
            {"a.bcdefghi", "jklmnopqrs", "tuvwxyz"}},  // "a." alone says nothing
        Row{"see /usr/lib/meshwright/plugins here",
            16,
            {"see", "/usr/lib/", "meshwright/", "plugins here"}}}) {
    INFO(row.text);
    CHECK(report::wrap(row.text, row.width) == row.lines);
  }
  CHECK(report::table({.colour = false, .unicode = true, .width = 24},
                      {{"parameter", "shape"},
                       {"model.layers", ""},
                       {"  self_attn.q_proj.weight", "[4, 4]"}}) ==
        "parameter         shape\nmodel.layers\n  self_attn.      [4, 4]\n  q_proj.weight\n");
}

TEST_CASE(
    "work measured in bytes shows a bar, speed and the time left on a terminal, and takes it away; "
    "elsewhere nothing") {
  for (bool live : {true, false}) {
    const std::string shown = shown_by([&](report::Output& out) {
      report::ByteProgress progress(out, {false, true, 80}, live, "verifying", 4 << 20);
      progress.add(1);  // too soon to know anything
      std::this_thread::sleep_for(std::chrono::milliseconds(110));
      progress.add(1 << 20);
      progress.add(1);  // too soon for another line
    });
    if (!live) {
      CHECK(shown.empty());
      continue;
    }
    CHECK(shown.find("\r\x1b[Kverifying ━") == 0);
    CHECK(shown.find("╌  1.0 MiB of 4.0 MiB  ") != std::string::npos);
    CHECK(shown.find("/s  ") != std::string::npos);
    CHECK(shown.find(" left") != std::string::npos);
    CHECK(shown.rfind("\r\x1b[K") == shown.size() - 4);
    CHECK(std::count(shown.begin(), shown.end(), '\r') == 2);
  }
  for (auto [part, full] :
       std::vector<std::pair<double, int>>{{0, 0}, {0.5, 5}, {1, 10}, {7, 10}, {-1, 0}}) {
    std::string bar = report::progress_bar({false, false, 80}, part, 10);
    CHECK(bar == std::string(static_cast<size_t>(full), '=') +
                     std::string(static_cast<size_t>(10 - full), '-'));
  }
  CHECK(report::human_duration(200) == "3 min 20 s");
}

TEST_CASE("counted work shows its part and the time left on a terminal, but not of its last step") {
  const std::string shown = shown_by([](report::Output& out) {
    report::WorkProgress progress(out, {false, false, 60}, true, report::WorkProgress::Unit::steps,
                                  "", 4);
    progress.begin("evaluate");
    for (int i = 0; i < 4; ++i) {
      if (i > 1) std::this_thread::sleep_for(std::chrono::milliseconds(110));
      progress.add(1);
    }
  });
  CHECK(shown == "\r\x1b[Kevaluate  75%  0 s left  " + std::string(22, '=') + std::string(8, '-') +
                     "\r\x1b[K");
}

TEST_CASE(
    "a line for a narrow terminal has whole fields only, and those that matter least go first") {
  std::vector<report::LineField> fields = {{"12 of 34"}, {"3.5 GB/s", 2}, {"1 min left", 1}};
  CHECK(report::fit_line(fields, 80) == "12 of 34  3.5 GB/s  1 min left");
  CHECK(report::fit_line(fields, 30) == "12 of 34  3.5 GB/s  1 min left");
  CHECK(report::fit_line(fields, 29) == "12 of 34  1 min left");
  CHECK(report::fit_line(fields, 19) == "12 of 34");
  CHECK(report::fit_line(fields, 7) == "");  // half a number would be a wrong number
  CHECK(report::fit_line(fields, -1) == "");
  CHECK(report::fit_line({}, 80) == "");
  // The same for work that is measured in bytes: what was drawn last, before it was taken away.
  auto drawn = [](int width) {
    std::string text = shown_by([&](report::Output& out) {
      report::ByteProgress progress(out, {false, false, width}, true, "verifying",
                                    int64_t{1} << 30);
      std::this_thread::sleep_for(std::chrono::milliseconds(110));
      progress.add(int64_t{1} << 29);
    });
    const std::string erase = "\r\x1b[K";
    REQUIRE(text.ends_with(erase));
    text.resize(text.size() - erase.size());
    return text.substr(text.rfind(erase) + erase.size());
  };
  std::string wide = drawn(120);
  CHECK(wide.starts_with("verifying ===============---------------  512.0 MiB of 1.0 GiB  "));
  CHECK(wide.ends_with(" left"));
  CHECK(drawn(34) == "verifying  512.0 MiB of 1.0 GiB");
  CHECK(drawn(30) == "512.0 MiB of 1.0 GiB");
  CHECK(drawn(10) == "");
}

TEST_CASE(
    "torchrun's error file gets the error as torchrun reads it: a text and a time; a second error "
    "does not replace the first") {
  const meshwright::scratch::Folder own;
  const std::filesystem::path &folder = own.path, file = folder / "error.json";
  Error error(ErrorCode::option_refused, "ddp has no \"tensor\" parallelism");
  report::tell_torchrun(error.help("leave it out"), given({}));
  CHECK(std::filesystem::is_empty(folder));
  report::tell_torchrun(error, given({{"TORCHELASTIC_ERROR_FILE", file.string()}}));
  boost::json::value json = boost::json::parse(own.read("error.json"));
  std::string text = json.at("message").as_string().c_str();
  CHECK(text.starts_with("error[E0212]: ddp has no \"tensor\" parallelism\n"));
  CHECK(text.find("help: leave it out") != std::string::npos);
  CHECK(json.at("timestamp").as_int64() > 1600000000);
  report::tell_torchrun(Error(ErrorCode::internal, "later"),
                        given({{"TORCHELASTIC_ERROR_FILE", file.string()}}));
  CHECK(own.read("error.json").find("later") == std::string::npos);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  // A folder that is not there is no reason to fail.
  report::tell_torchrun(
      error, given({{"TORCHELASTIC_ERROR_FILE", (folder / "none" / "error.json").string()}}));
}

TEST_CASE(
    "that torchrun will try again in vain is said once on each host, where it will and it is in "
    "vain") {
  std::map<std::string, std::string> base = {{"TORCHELASTIC_RUN_ID", "none"},
                                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                                             {"LOCAL_RANK", "0"}};
  for (int status : {2, 3, 5, 7})
    CHECK(report::vain_retries(status, given(base)).find("2 more times") != std::string::npos);
  for (int status : {0, 1, 4, 6, 75, 130}) CHECK(report::vain_retries(status, given(base)).empty());
  auto with = [&](const char* variable, const char* value) {
    auto changed = base;
    changed[variable] = value;
    return report::vain_retries(2, given(changed));
  };
  CHECK(with("TORCHELASTIC_RESTART_COUNT", "2").find("1 more time,") != std::string::npos);
  CHECK(with("TORCHELASTIC_RESTART_COUNT", "3").empty());
  CHECK(with("LOCAL_RANK", "1").empty());
  CHECK(report::vain_retries(2, given({})).empty());
}
