// plugins new: a plugin to start from, built out of tree against the installed package.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/cli/common.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

struct Template {
  const char* kind;
  const char* folder;
  const char* word;  // which the new name replaces, also in CamelCase
  bool plans;        // its job can be planned for several ranks
};
constexpr Template kTemplates[] = {{"strategy", "template", "my_strategy", true},
                                   {"model", "template_model", "my_model", true},
                                   {"data", "template_data", "my_data", false}};

const Template& template_of(const std::string& kind) {
  std::vector<std::string> kinds;
  for (const Template& one : kTemplates) {
    if (kind == one.kind) return one;
    kinds.emplace_back(one.kind);
  }
  throw Error(ErrorCode::usage, "there is no template of a plugin of kind \"" + kind + "\"")
      .help("there is --kind " + text::join(kinds, ", --kind "));
}

// Templates lie beside the program when installed, and in the source tree while developing.
fs::path folder_of(const Template& wanted) {
  std::error_code failed;
  const fs::path program = program_path().parent_path();
  for (const fs::path& folder : {program / "../share/meshwright" / wanted.folder,
                                 fs::path(MESHWRIGHT_TEMPLATE_SOURCE) / wanted.folder})
    if (fs::is_directory(folder, failed)) return folder.lexically_normal();
  throw Error(ErrorCode::internal, std::string("the plugin template is not installed (share/"
                                               "meshwright/") +
                                       wanted.folder + ")")
      .help("install the whole package with cmake --install");
}

// What is already called so; empty: nothing.
std::string taken_by(const std::string& name) {
  loader::Registry registry({});
  for (const loader::Listing& listing : registry.list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies)
      if (info.name == name) return "a strategy " + name + ", in " + listing.path.string();
    for (const loader::ComponentInfo& info : listing.plugin->models)
      if (info.name == name) return "a model " + name + ", in " + listing.path.string();
    for (const loader::ComponentInfo& info : listing.plugin->datasets)
      if (info.name == name) return "a data set " + name + ", in " + listing.path.string();
  }
  return "";
}

std::string camel(const std::string& name) {
  std::string out;
  bool upper = true;
  for (char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return out;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// As a shell takes it: in quotes when it holds more than plain characters.
std::string shell_word(const std::string& word) {
  bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("/._-+,:@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? word : "'" + replace_all(word, "'", "'\\''") + "'";
}

// Writes one file and the folders above it.
void write_file(const fs::path& file, const std::string& text) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::output_unwritable, "cannot write " + file.string() + ": " + why)
        .help("--dir FOLDER: write it elsewhere");
  };
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  if (failed) throw refuse(failed.message());
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw refuse(errno == 0 ? "the disk takes no more" : std::strerror(errno));
}

int run_new(Call& call) {
  std::string name = call.positional(0);
  const Template& made = template_of(call.value("kind", "strategy"));
  bool good =
      !name.empty() && name.size() <= 48 && std::islower(static_cast<unsigned char>(name[0])) &&
      std::all_of(name.begin(), name.end(),
                  [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '_'; });
  if (!good)
    throw Error(
        ErrorCode::usage,
        "\"" + name +
            "\" is not a plugin name: a-z, 0-9 and _, a letter first, at most 48 characters")
        .help("meshwright plugins new my_strategy");
  fs::path target = call.value("dir", name);
  std::error_code failed;
  if (fs::exists(target, failed) &&
      (!fs::is_directory(target, failed) || !fs::is_empty(target, failed)))
    throw Error(ErrorCode::usage, target.string() + " is already there and not an empty folder")
        .help("meshwright plugins new " + name + " --dir ANOTHER");
  if (const std::string there = taken_by(name); !there.empty())
    throw Error(ErrorCode::usage, "there is already " + there)
        .help("choose another name, for example " + name + "_2");

  const fs::path source = folder_of(made);
  const std::string word = made.word;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    fs::path to = target / replace_all(fs::relative(entry.path(), source).string(), word, name);
    write_file(to, replace_all(replace_all(text.str(), word, name), camel(word), camel(name)));
  }
  // The folder above bin/ is a package, whether installed or a build folder.
  const fs::path program = program_path();
  const std::string run = shell_word(program.string());
  call.out.write("made " + target.string() + "/\n\nnext:\n  cd " + shell_word(target.string()) +
                 "\n  cmake -B build -DCMAKE_PREFIX_PATH=" +
                 shell_word(program.parent_path().parent_path().string()) +
                 "\n  cmake --build build\n  ctest --test-dir build\n  " +
                 (made.plans ? run + " plan job.toml --world-size 8\n  " : "") + run +
                 " train job.toml --nproc 2\n");
  return 0;
}

}  // namespace

Verb plugins_new_verb() {
  return declare(run_new, R"(
plugins new NAME
Make a new plugin from a template

Writes CMakeLists.txt, a small strategy that trains (or a small model, or a small kind of data set),
its tests and a job, and says how to build them.

--kind KIND=strategy|model|data
              What it brings: strategy, model or data. Default: strategy.
--dir FOLDER  Where to. Default: NAME in the current folder.
)");
}

}  // namespace meshwright::cli
