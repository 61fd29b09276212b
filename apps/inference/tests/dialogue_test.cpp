// What has been said, commands among the lines, and stop texts in what comes in pieces.
#include "apps/inference/dialogue.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "apps/inference/stop_texts.h"
#include "tests/contents.h"

namespace dialogue_test {

namespace fs = std::filesystem;
using meshwright::generate::Dialogue;
using meshwright::generate::StopTexts;
using Wants = Dialogue::Wants;

namespace {

// "role:content role:content"
std::string said(const Dialogue& dialogue) {
  std::string out;
  const auto conversation = dialogue.conversation();
  for (const auto& one : conversation.messages.as_list())
    out += (out.empty() ? "" : " ") + one.get("role")->as_string() + ":" +
           one.get("content")->as_string();
  return out;
}

// What is shown of pieces, with a bar behind each piece.
std::string shown(StopTexts stops, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) {
    out += stops.add(piece) + "|";
    if (stops.met()) return out + "met " + stops.which();
  }
  return out + stops.finish();
}

}  // namespace

TEST_CASE("lines are messages or commands, and what was said goes into the next prompt") {
  std::vector<std::string> told;
  Dialogue dialogue("short", [&](const std::string& line) { told.push_back(line); });
  CHECK(dialogue.take("  ") == Wants::nothing);
  CHECK(dialogue.take("one") == Wants::answer);
  dialogue.answered("1");
  CHECK(dialogue.take("//two") == Wants::answer);
  CHECK(said(dialogue) == "system:short user:one assistant:1 user:/two");
  dialogue.take_back();
  CHECK(said(dialogue) == "system:short user:one assistant:1");
  CHECK(dialogue.take("/system long  words ") == Wants::nothing);
  CHECK(said(dialogue) == "system:long  words user:one assistant:1");
  CHECK(dialogue.take("/reset") == Wants::nothing);
  CHECK(said(dialogue) == "system:long  words");
  CHECK(dialogue.take("/system") == Wants::nothing);
  CHECK(said(dialogue).empty());
  told.clear();
  CHECK(dialogue.take("/rest") == Wants::nothing);
  CHECK(dialogue.take("/x") == Wants::nothing);
  CHECK(dialogue.take("\xff") == Wants::nothing);
  CHECK(said(dialogue).empty());
  REQUIRE(told.size() == 3);
  CHECK(told[0] == "there is no command /rest: did you mean /reset?");
  CHECK(told[1].starts_with("there is no command /x"));
  CHECK(told[2].find("UTF-8") != std::string::npos);
  told.clear();
  CHECK(dialogue.take("/help") == Wants::nothing);
  CHECK(told.size() == 6);
  CHECK(dialogue.take(" /exit ") == Wants::end);
}

TEST_CASE("the oldest turns go where the context is full, but not the system message") {
  Dialogue dialogue("s", [](const std::string&) {});
  for (const char* line : {"one", "two"}) {
    dialogue.take(line);
    dialogue.answered("a");
  }
  dialogue.take("three");
  CHECK(dialogue.last_alone().messages.as_list().size() == 2);
  CHECK(dialogue.forget_first());
  CHECK(said(dialogue) == "system:s user:two assistant:a user:three");
  CHECK(dialogue.forget_first());
  CHECK_FALSE(dialogue.forget_first());
  CHECK(said(dialogue) == "system:s user:three");
}

TEST_CASE("/save writes what generate --messages reads, and replaces nothing") {
  const fs::path file =
      fs::temp_directory_path() / ("meshwright_talk_" + std::to_string(::getpid()) + ".json");
  std::vector<std::string> told;
  Dialogue dialogue("s", [&](const std::string& line) { told.push_back(line); });
  dialogue.take("Zürich\t\"");
  dialogue.answered("b");
  dialogue.take("c");
  CHECK(dialogue.forget_first());
  dialogue.take("/save " + file.string());
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "wrote " + file.string() + ", 4 messages");
  Dialogue again(std::nullopt, [](const std::string&) {});
  const auto read = meshwright::generate::parse_messages(contents(file), file.string());
  CHECK(read.messages.as_list().size() == 4);
  CHECK(read.messages.as_list()[1].get("content")->as_string() == "Zürich\t\"");
  const std::string before = contents(file);
  dialogue.take("/save " + file.string());
  CHECK(told.back().find("is there already") != std::string::npos);
  CHECK(contents(file) == before);
  dialogue.take("/save /nowhere/talk.json");
  CHECK(told.back().find("/nowhere") != std::string::npos);
  CHECK_FALSE(told.back().starts_with("wrote"));
  dialogue.take("/save");
  CHECK(told.back().find("wants a file") != std::string::npos);
  fs::remove(file);
}

TEST_CASE("stop texts are found across pieces, and no part of one is shown") {
  CHECK(shown(StopTexts({}), {"ab", "c"}) == "ab|c|");
  CHECK(shown(StopTexts({"END"}), {"aE", "N", "D", "x"}) == "a|||met END");
  CHECK(shown(StopTexts({"END"}), {"aE", "Nb", "EN"}) == "a|ENb||EN");
  CHECK(shown(StopTexts({"END"}), {"aENENDx"}) == "aEN|met END");
  CHECK(shown(StopTexts({"aab"}), {"a", "a", "a", "b"}) == "||a||met aab");
  CHECK(shown(StopTexts({"\n\n", "User:"}), {"hi\n", "Us", "er", ":"}) == "hi|\n|||met User:");
  CHECK(shown(StopTexts({"xyz", "y"}), {"x", "y"}) == "|x|met y");
  CHECK(shown(StopTexts({"é!"}), {"a", "é", "?"}) == "a||é?|");
}

}  // namespace dialogue_test
