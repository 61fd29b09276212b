// What shells complete, asked of the shells themselves; manual pages.
#include <sys/wait.h>

#include <cstdlib>

#include "ran.h"

namespace completion_test {

namespace {

bool installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace

TEST_CASE("bash completes verbs, their flags, choices and files") {
  const fs::path script = fs::path(MESHWRIGHT_BUILD_DIR) / "completion_test.bash";
  const Ran made = run("completion bash");
  REQUIRE(made.status == 0);
  std::ofstream(script) << made.out;
  struct Row {
    const char *words, *offers, *never;  // the last word is the one being written
  };
  for (const Row& row :
       {Row{"meshwright tr", "train", "plan"}, Row{"meshwright ''", "checkpoint", "ls"},
        Row{"meshwright checkpoint ''", "now", "train"},
        Row{"meshwright checkpoint d", "diff", "ls"},
        Row{"meshwright train --", "--nproc", "--world-size"},
        Row{"meshwright train --co", "--color", "--nproc"},
        Row{"meshwright --color never pl", "plan", "train"},
        Row{"meshwright plan x.toml --wo", "--world-size", "--nproc"},
        Row{"meshwright env --color ''", "always", "--json"},
        Row{"meshwright plan CONTRI", "CONTRIBUTING.md", "--set"},
        Row{"meshwright report --output CONTRI", "CONTRIBUTING.md", "--text"},
        Row{"meshwright checkpoint ls --j", "--json", "--all"},
        Row{"meshwright completion ''", "zsh", "fish"},
        Row{"meshwright man ''", "checkpoint", "ls"},
        Row{"meshwright plugins new x --kind ''", "model", "text"},
        Row{"meshwright evaluate x --kind m", "megatron", "model"},
        Row{"meshwright env --color n", "never", "auto"},
        Row{"meshwright config explain optimizer.l", "optimizer.lr", "optimizer.lr="},
        Row{"meshwright train x.toml --set run.n", "run.name=", "run.name"}}) {
    CAPTURE(row.words);
    const Ran ran = shell("cd '" MESHWRIGHT_SOURCE_DIR "' && bash -c 'source \"" + script.string() +
                          "\"; COMP_WORDS=(" +
                          [&] {
                            std::string words = row.words;
                            for (size_t at; (at = words.find("''")) != words.npos;)
                              words.replace(at, 2, "\"\"");
                            return words;
                          }() +
                          "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _meshwright; printf \"%s\\n\" "
                          "\"${COMPREPLY[@]}\"'");
    const std::string lines = "\n" + ran.out;
    CHECK(lines.find("\n" + std::string(row.offers) + "\n") != std::string::npos);
    CHECK(lines.find("\n" + std::string(row.never) + "\n") == std::string::npos);
  }
}

TEST_CASE("the completion for zsh is zsh, and describes every verb and flag") {
  const Ran made = run("completion zsh");
  REQUIRE(made.status == 0);
  for (const char* part : {"#compdef meshwright", "'checkpoint:verbs of checkpoint'",
                           "--nproc[Start N local ranks. Default\\: 1, in this process.]:N: ",
                           "'now:Ask a run that trains", "(auto always never)", "_files",
                           "(bash zsh)", "(text tokens megatron mock)", "optimizer.lr "}) {
    CAPTURE(part);
    CHECK(made.says(part));
  }
  if (!installed("zsh")) {
    MESSAGE("zsh is not installed: its syntax was not checked");
    return;
  }
  const fs::path script = fs::path(MESHWRIGHT_BUILD_DIR) / "completion_test.zsh";
  std::ofstream(script) << made.out;
  CHECK(shell("zsh -n '" + script.string() + "'").status == 0);
}

TEST_CASE("every verb has a manual page, without a word that roff would take for a request") {
  const fs::path folder = fs::path(MESHWRIGHT_BUILD_DIR) / "man_test";
  fs::remove_all(folder);
  REQUIRE(run("man --dir '" + folder.string() + "'").status == 0);
  size_t pages = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    ++pages;
    std::ifstream in(entry.path());
    std::string line;
    REQUIRE(std::getline(in, line));
    CHECK(line.starts_with(".TH MESHWRIGHT"));
    while (std::getline(in, line))
      if (line.starts_with('.'))
        CHECK(std::string(".SH .B .I .BR .RI .TP .PP .nf .fi ")
                  .find(line.substr(0, line.find(' ')) + " ") != std::string::npos);
    if (installed("groff")) {
      const Ran drawn =
          shell("groff -man -Tutf8 -wmac -wchar -Wbreak -z '" + entry.path().string() + "' 2>&1");
      CHECK(drawn.out == "");
    }
  }
  CHECK(pages >= 22);
  CHECK(run("man checkpoint now").says(".B \\-\\-wait SECONDS\n"));
  CHECK(run("man").says("meshwright\\-checkpoint\\-now (1)"));
  const Ran wrong = run("man trian", "2>&1");
  CHECK(wrong.status == 2);
  CHECK(wrong.says("did you mean meshwright man train?"));
  const auto verb = json::parse(run("man checkpoint now --json").out).at("verbs").at(0).as_object();
  CHECK(verb.at("verb") == "checkpoint now");
  CHECK(verb.at("flags").at(0).at("name").is_string());
  CHECK(json::parse(run("man --json").out).at("verbs").as_array().size() + 1 == pages);
  CHECK(json::parse(run("completion zsh --json").out).at("shell") == "zsh");
  const Ran several = run("man checkpoint", "2>&1");
  CHECK(several.status == 2);
  CHECK(several.says("checkpoint is several verbs: checkpoint ls, "));
  CHECK(run("completion fish", "2>&1").status == 2);
  fs::remove_all(folder);
}

}  // namespace completion_test
