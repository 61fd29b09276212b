// Every command of the README, AGENTS.md, the guide, the page on checkpoints and the tutorial is
// run, and what it prints is compared with what the page shows. Sections of docs/semantics.md that
// the code cites exist, as does what AGENTS.md and llms.txt name.
//
// In a ```console block a line "$ command" is run in the project's folder; the lines under it are
// the expected output (stdout and stderr), where a line "..." stands for any lines, and "..."
// inside a line for any text. "$ command  # exit 2" expects that status.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/contents.h"

namespace {

struct Example {
  std::string page, command;
  int line = 0, status = 0;
  std::vector<std::string> expected;
};

std::vector<Example> examples_of(const std::filesystem::path& page) {
  std::ifstream in(page);
  REQUIRE_MESSAGE(in.good(), page.string());
  std::vector<Example> out;
  std::string text;
  bool inside = false;
  for (int line = 1; std::getline(in, text); ++line) {
    if (text.starts_with("```")) {
      inside = text == "```console";
    } else if (inside && text.starts_with("$ ")) {
      Example e{page.filename().string(), text.substr(2), line, 0, {}};
      if (size_t at = e.command.find("  # exit "); at != std::string::npos) {
        e.status = std::atoi(e.command.c_str() + at + 9);
        e.command.resize(at);
      }
      out.push_back(e);
    } else if (inside && !out.empty()) {
      out.back().expected.push_back(text);
    }
  }
  return out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::vector<std::string> run(const std::string& command, int& status) {
  std::string full = "cd '" MESHWRIGHT_SOURCE_DIR
                     "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 COLUMNS=100 LC_ALL=C.UTF-8 "
                     "XDG_CACHE_HOME='" MESHWRIGHT_BUILD_DIR "/readme_cache' sh -c '" +
                     replaced(command, "'", "'\\''") + "' 2>&1 </dev/null";
  std::FILE* pipe = popen(full.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string all;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    all.append(buffer.data(), n);
  int raw = pclose(pipe);
  status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  std::vector<std::string> lines;
  for (size_t at = 0; at < all.size();) {
    size_t end = std::min(all.find('\n', at), all.size());
    lines.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The tutorial trains until something is learnt; its commands show that they work after a step, or
// an epoch.
std::string shortened(const std::string& page, const std::string& command) {
  static const std::regex length("((max_steps|epochs) ?= ?)[0-9]+");
  return page.starts_with("tutorial") ? std::regex_replace(command, length, "$011") : command;
}

bool line_matches(const std::string& pattern, const std::string& line) {
  size_t at = 0, from = 0;
  for (bool first = true;; first = false) {
    size_t dots = pattern.find("...", from);
    std::string piece = pattern.substr(from, dots - from);
    size_t found = line.find(piece, at);
    if (found == std::string::npos || (first && found != 0)) return false;
    if (dots == std::string::npos)
      return from == 0 ? line == pattern : line.size() >= piece.size() && line.ends_with(piece);
    at = found + piece.size();
    from = dots + 3;
  }
}

bool lines_match(const std::vector<std::string>& expected, size_t i,
                 const std::vector<std::string>& found, size_t j) {
  if (i == expected.size()) return j == found.size();
  if (expected[i] == "...") {
    for (size_t k = j; k <= found.size(); ++k)
      if (lines_match(expected, i + 1, found, k)) return true;
    return false;
  }
  return j < found.size() && line_matches(expected[i], found[j]) &&
         lines_match(expected, i + 1, found, j + 1);
}

}  // namespace

TEST_CASE("every console example of the README and the guide does what the page shows") {
  // Runs that an earlier test left would be finished, and go on.
  std::filesystem::path runs = std::filesystem::path(MESHWRIGHT_SOURCE_DIR) / "runs";
  if (std::filesystem::is_directory(runs))
    for (const auto& entry : std::filesystem::directory_iterator(runs))
      for (const char* ours : {"guide", "tutorial"})
        if (entry.path().filename().string().starts_with(ours))
          std::filesystem::remove_all(entry.path());
  int count = 0;
  for (const char* page :
       {"README.md", "AGENTS.md", "docs/guide.md", "docs/data.md", "docs/runs.md",
        "docs/operate.md", "docs/checkpoints.md", "docs/tutorial_fine_tuning.md"}) {
    for (const Example& e : examples_of(std::filesystem::path(MESHWRIGHT_SOURCE_DIR) / page)) {
      if (e.command.starts_with("./quickstart") || e.command.starts_with("./check"))
        continue;  // they contain this test
      int status = 0;
      std::vector<std::string> found =
          run(replaced(shortened(e.page, e.command), "build/", MESHWRIGHT_BUILD_DIR "/"), status);
      std::string shown;
      for (const std::string& line : found) shown += line + "\n";
      INFO(e.page, ":", e.line, ": ", e.command, "\n", shown);
      CHECK(status == e.status);
      if (!e.expected.empty()) CHECK(lines_match(e.expected, 0, found, 0));
      ++count;
    }
  }
  CHECK(count >= 10);
}

TEST_CASE("files and verbs that AGENTS.md and llms.txt name are there") {
  const std::filesystem::path root = MESHWRIGHT_SOURCE_DIR;
  auto all = [](const std::string& text, const std::string& pattern) {
    std::vector<std::smatch> out;
    const std::regex regex(pattern);
    for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
      out.push_back(*at);
    return out;
  };
  int status = 0;
  std::string manual;
  for (const std::string& line : run(MESHWRIGHT_BUILD_DIR "/bin/meshwright man --json", status))
    manual += line + "\n";
  REQUIRE(status == 0);
  std::set<std::string> verbs;
  for (const std::smatch& match : all(manual, "\"verb\": \"([a-z ]+)\"")) verbs.insert(match[1]);
  REQUIRE(verbs.size() > 20);
  for (const char* page : {"AGENTS.md", "llms.txt"}) {
    const std::string text = contents(root / page);
    size_t links = 0;
    for (const std::smatch& link : all(text, R"(\]\(([^)#]+)(#[^)]*)?\))")) {
      CHECK_MESSAGE(std::filesystem::exists(root / link[1].str()), page << ": " << link[1].str());
      ++links;
    }
    CHECK(links > 5);
    for (const std::smatch& path :
         all(text, "`(configs|examples|docs|tests|tools|plugins)/[\\w./-]*`")) {
      const std::string name = path.str().substr(1, path.str().size() - 2);
      CHECK_MESSAGE(std::filesystem::exists(root / name), page << ": " << name);
    }
    for (const std::smatch& verb : all(text, "meshwright ([a-z]+)( [a-z]+)?")) {
      const bool known = verbs.contains(verb[1]) || verbs.contains(verb[1].str() + verb[2].str());
      CHECK_MESSAGE(known, page << ": there is no verb: " << verb.str());
    }
  }
  // The form of llmstxt.org: a title, a quoted summary, prose, and below headings nothing but lists
  // of links.
  const std::string index = contents(root / "llms.txt");
  CHECK(std::regex_search(index, std::regex("^# [^\n]+\n\n> [^\n]+\n\n")));
  std::istringstream lists(index.substr(index.find("\n## ")));
  for (std::string line; std::getline(lists, line);)
    CHECK_MESSAGE((line.empty() || line.starts_with("## ") ||
                   std::regex_match(line, std::regex(R"(- \[[^\]]+\]\([^)]+\): .+)"))),
                  line);
}

namespace {

// "1,024.5" -> "1024.5"
std::string plain(std::string number) {
  std::erase(number, ',');
  return number;
}

// Whether the results have a number that is `quoted` when rounded to as many decimals.
bool has_figure(const std::string& results, const std::string& quoted) {
  size_t dot = quoted.find('.');
  int decimals = dot == std::string::npos ? 0 : static_cast<int>(quoted.size() - dot - 1);
  static const std::regex number("-?[0-9][0-9,]*(\\.[0-9]+)?");
  for (std::sregex_iterator at(results.begin(), results.end(), number), end; at != end; ++at) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals,
                  std::strtod(plain(at->str()).c_str(), nullptr));
    if (quoted == text) return true;
  }
  return false;
}

}  // namespace

// A paragraph that links to a file of results quotes figures with units: "5.3 ms", "8.0 MiB", "3.7
// times", "87%".
TEST_CASE("figures that pages quote from bench/results are those of the file") {
  namespace fs = std::filesystem;
  const fs::path root = MESHWRIGHT_SOURCE_DIR;
  std::vector<fs::path> pages{root / "README.md"};
  for (const char* folder : {"docs", "plugins", "examples"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder))
      if (entry.path().extension() == ".md") pages.push_back(entry.path());
  static const std::regex link("bench/results/([a-z_]+\\.txt)"),
      figure("(-?[0-9][0-9,]*(\\.[0-9]+)?)( (ms|us|s|MB|MiB|GB|GiB|times)\\b|%)");
  int quoted = 0;
  for (const fs::path& page : pages) {
    std::istringstream in(contents(page));
    std::string paragraph, results;
    auto judge = [&] {
      for (std::sregex_iterator at(paragraph.begin(), paragraph.end(), link), end; at != end; ++at)
        results += contents(root / "bench/results" / (*at)[1].str());
      if (!results.empty())
        for (std::sregex_iterator at(paragraph.begin(), paragraph.end(), figure), end; at != end;
             ++at, ++quoted)
          CHECK_MESSAGE(has_figure(results, plain((*at)[1].str())), page.string()
                                                                        << ": " << at->str());
      paragraph.clear();
      results.clear();
    };
    for (std::string line; std::getline(in, line);
         line.empty() ? judge() : void(paragraph += line + "\n"))
      continue;
    judge();
  }
  CHECK(quoted >= 1);
  CHECK(has_figure("median 3.68 x", "3.7"));
  CHECK_FALSE(has_figure("median 3.68 x", "3.6"));
}

TEST_CASE("every file of bench/results says in its first lines at which commit it was measured") {
  namespace fs = std::filesystem;
  static const std::regex commit("^# at [0-9a-f]{7,40}\\b");
  size_t files = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MESHWRIGHT_SOURCE_DIR) / "bench/results")) {
    std::ifstream in(entry.path());
    bool says = false;
    std::string line;
    for (int i = 0; i < 3 && std::getline(in, line); ++i)
      says = says || std::regex_search(line, commit);
    CHECK_MESSAGE(says, entry.path().filename().string()
                            << ": no line \"# at COMMIT, ...\"; bench/all.sh writes it");
    ++files;
  }
  CHECK(files > 10);
}

namespace {

// "semantics 2.1, 2.8 and 2.9" cites three sections, also where a comment breaks in between.
std::vector<std::string> sections_cited(const std::string& text) {
  static const std::string word = "emantics";
  static const std::regex broken("\n[ \t]*(//|#)?[ \t]*"), section("[0-9]+(\\.[0-9]+)?"),
      list("( |,|and|to|[0-9]+(\\.[0-9]+)?)*");
  std::vector<std::string> out;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
    at += word.size();
    const std::string behind = std::regex_replace(text.substr(at, 80), broken, " ");
    std::smatch cited;
    std::regex_search(behind, cited, list, std::regex_constants::match_continuous);
    const std::string sections = cited.str();
    for (std::sregex_iterator s(sections.begin(), sections.end(), section), end; s != end; ++s)
      out.push_back(s->str());
  }
  return out;
}

}  // namespace

TEST_CASE("every section of docs/semantics.md that is cited is a heading of the page") {
  namespace fs = std::filesystem;
  const fs::path root = MESHWRIGHT_SOURCE_DIR, page = root / "docs/semantics.md";
  std::set<std::string> headings;
  static const std::regex heading("##(#?) ([0-9]+)\\.?([0-9]*) .+"),
      reference("\\(([0-9]+\\.[0-9]+)(, ([0-9]+\\.[0-9]+))?\\)");
  const std::string text = contents(page);
  std::istringstream lines(text);
  int chapter = 0, section = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("## ") && !line.starts_with("### ")) continue;
    CAPTURE(line);
    std::smatch match;
    REQUIRE(std::regex_match(line, match, heading));
    const bool sub = match[1].length() > 0;
    chapter += sub ? 0 : 1;
    section = sub ? section + 1 : 0;
    CHECK(std::stoi(match[2].str()) == chapter);
    if (sub) CHECK(std::stoi(match[3].str()) == section);
    headings.insert(match[2].str() + (sub ? "." + match[3].str() : ""));
  }
  CHECK(headings.size() > 30);
  for (std::sregex_iterator at(text.begin(), text.end(), reference), end; at != end; ++at)
    for (size_t group : {size_t{1}, size_t{3}})
      if ((*at)[group].matched)
        CHECK_MESSAGE(headings.contains((*at)[group].str()), "the page cites " << at->str());

  int cited = 0;
  static const std::set<std::string> kinds{".h", ".cpp", ".def", ".txt", ".cmake", ".py", ".md"};
  for (const char* folder :
       {"sdk", "engine", "apps", "plugins", "tests", "bench", "examples", "docs", "cmake", "tools"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !kinds.contains(entry.path().extension().string()) ||
          entry.path().filename() == "readme_test.cpp")
        continue;
      for (const std::string& found : sections_cited(contents(entry.path()))) {
        ++cited;
        CHECK_MESSAGE(headings.contains(found), entry.path().string()
                                                    << " cites semantics " << found);
      }
    }
  CHECK(cited > 10);
  CHECK(sections_cited("// (semantics 3.1,\n  // 4.2 and 5). 7") ==
        std::vector<std::string>{"3.1", "4.2", "5"});
}
