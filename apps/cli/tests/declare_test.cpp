// Verbs as their help declares them.
#include <doctest/doctest.h>

#include <set>

#include "apps/cli/verb.h"

using namespace meshwright;
using namespace meshwright::cli;

namespace {

int nothing(Call&) { return 0; }

}  // namespace

TEST_CASE("a verb is what its help says") {
  Verb verb = declare(nothing, R"(
folder make NAME [PLACE] FILES...
Make a folder of files

NAME is new.
  meshwright folder make a b

Twice is fine.

--size N       How much,
               at most.
--tag WORD...  A word about it.
--force        Even if it is there.
--set
--json
)");
  CHECK(verb.name == "folder make");
  CHECK(verb.summary == "Make a folder of files");
  CHECK(verb.details == "NAME is new.\n  meshwright folder make a b\n\nTwice is fine.");
  CHECK((verb.run == nothing));
  struct Word {
    const char* name;
    bool required, repeats;
  };
  const Word words[] = {{"NAME", true, false}, {"PLACE", false, false}, {"FILES", true, true}};
  REQUIRE(verb.positionals.size() == std::size(words));
  for (size_t i = 0; i < std::size(words); ++i) {
    CAPTURE(words[i].name);
    CHECK(verb.positionals[i].name == words[i].name);
    CHECK(verb.positionals[i].required == words[i].required);
    CHECK(verb.positionals[i].repeats == words[i].repeats);
  }
  struct Row {
    const char *name, *argument, *doc;
    bool repeats;
  };
  const Row rows[] = {
      {"size", "N", "How much, at most.", false},
      {"tag", "WORD", "A word about it.", true},
      {"force", "", "Even if it is there.", false},
      {"set", "KEY=VALUE",
       "Override any key of the file, for example distributed.tp_size=2. Repeatable.", true},
      {"json", "", "Print JSON for machines; errors too.", false}};
  REQUIRE(verb.flags.size() == std::size(rows));
  for (size_t i = 0; i < std::size(rows); ++i) {
    CAPTURE(rows[i].name);
    CHECK(verb.flags[i].name == rows[i].name);
    CHECK(verb.flags[i].argument == rows[i].argument);
    CHECK(verb.flags[i].doc == rows[i].doc);
    CHECK(verb.flags[i].repeats == rows[i].repeats);
    CHECK(!verb.flags[i].hidden);
  }
}

TEST_CASE("an argument may be one of a few words, which the help does not repeat") {
  const Verb verb = declare(nothing, R"(
make SHELL=a|b [KEY|TABLE]
Make it

--kind KIND=one|two
               One or two.
--set
)");
  REQUIRE(verb.positionals.size() == 2);
  CHECK(verb.positionals[0].name == "SHELL");
  CHECK(verb.positionals[0].choices == std::vector<std::string>{"a", "b"});
  CHECK(verb.positionals[1].name == "KEY|TABLE");
  CHECK(verb.positionals[1].choices.empty());
  REQUIRE(verb.flags.size() == 2);
  CHECK(verb.flags[0].argument == "KIND");
  CHECK(verb.flags[0].choices == std::vector<std::string>{"one", "two"});
  CHECK(verb.flags[0].doc == "One or two.");
  CHECK(verb.flags[1].argument == "KEY=VALUE");
  CHECK(verb.flags[1].choices.empty());
}

TEST_CASE("a help may hold nothing but a name and a line; a flag without a text has to be known") {
  Verb verb = declare(nothing, "env\nShow versions");
  CHECK(verb.name == "env");
  CHECK(verb.summary == "Show versions");
  CHECK(verb.details.empty());
  CHECK(verb.positionals.empty());
  CHECK(verb.flags.empty());
  CHECK(declare(nothing, "env\nShow\n\n  an example").details == "  an example");
  CHECK_THROWS_AS(declare(nothing, "env\nShow\n\n--unheard-of"), Error);
}

TEST_CASE("every verb of the program is declared in full") {
  std::set<std::string> names;
  for (const Verb& verb : verbs()) {
    CAPTURE(verb.name);
    CHECK(names.insert(verb.name).second);
    CHECK(verb.summary.size() > 10);
    CHECK((verb.run != nullptr));
    for (const Positional& positional : verb.positionals)
      CHECK(positional.name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ|") == std::string::npos);
    std::set<std::string> flags;
    for (const Flag& flag : verb.flags) {
      CAPTURE(flag.name);
      CHECK(flags.insert(flag.name).second);
      CHECK(flag.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos);
      CHECK(flag.argument.find(' ') == std::string::npos);
      CHECK((flag.hidden || flag.doc.ends_with('.')));
    }
  }
}
