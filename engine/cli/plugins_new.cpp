// plugins new: a strategy plugin to start from, built out of tree against the installed package.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/cli/common.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

// The template lies beside the program when installed, and in the source tree while developing.
fs::path template_folder() {
  std::error_code failed;
  fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const fs::path& folder :
       {program / "../share/meshwright/template", fs::path(MESHWRIGHT_TEMPLATE_SOURCE)})
    if (fs::is_directory(folder, failed)) return folder.lexically_normal();
  throw Error(ErrorCode::internal,
              "the plugin template is not installed (share/meshwright/template)")
      .help("install the whole package with cmake --install");
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
  loader::Registry registry({});
  for (const loader::Listing& listing : registry.list())
    if (listing.plugin != nullptr)
      for (const loader::StrategyInfo& info : listing.plugin->strategies)
        if (info.name == name)
          throw Error(ErrorCode::usage,
                      "there is already a strategy " + name + ", in " + listing.path.string())
              .help("choose another name, for example " + name + "_2");

  fs::path source = template_folder();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    fs::path to =
        target / replace_all(fs::relative(entry.path(), source).string(), "my_strategy", name);
    write_file(
        to, replace_all(replace_all(text.str(), "my_strategy", name), "MyStrategy", camel(name)));
  }
  // The folder above bin/ is a package, whether installed or a build folder.
  fs::path program = fs::read_symlink("/proc/self/exe", failed);
  const std::string run = shell_word(program.string());
  call.out.write("made " + target.string() + "/\n\nnext:\n  cd " + shell_word(target.string()) +
                 "\n  cmake -B build -DCMAKE_PREFIX_PATH=" +
                 shell_word(program.parent_path().parent_path().string()) +
                 "\n  cmake --build build\n  ctest --test-dir build\n  " + run +
                 " plan job.toml --world-size 8\n  " + run + " train job.toml --nproc 2\n");
  return 0;
}

}  // namespace

Verb plugins_new_verb() {
  return declare(run_new, R"(
plugins new NAME
Make a new strategy plugin from the template

Writes CMakeLists.txt, a small strategy that trains, its tests and a job, and says how to build
them.

--dir FOLDER  Where to. Default: NAME in the current folder.
)");
}

}  // namespace meshwright::cli
