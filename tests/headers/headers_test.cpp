// Promises about the public surface: its size, what it includes, and what the built files need at
// run time.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.append(buffer.data(), n);
  CHECK(pclose(pipe) == 0);
  return out;
}

}  // namespace

TEST_CASE("the public headers stay small and include neither all of LibTorch nor the engine") {
  size_t total = 0, planning = 0, files = 0;
  const fs::path top = MESHWRIGHT_SOURCE_DIR "/sdk/include/meshwright";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(top)) {
    if (!entry.is_regular_file()) continue;
    std::vector<std::string> lines = lines_of(entry.path());
    total += lines.size();
    if (entry.path().parent_path() == top) planning += lines.size();
    ++files;
    for (const std::string& line : lines) {
      INFO(entry.path().filename().string(), ": ", line);
      bool include = line.starts_with("#include");
      CHECK(!(include && line.find("torch/torch.h") != std::string::npos));
      CHECK(!(include && line.find("engine/") != std::string::npos));
      CHECK(line.find("using namespace") == std::string::npos);
    }
  }
  CHECK(files > 10);
  CHECK(planning <= 2050);  // CONTRIBUTING says so
  CHECK(total <= 4550);
}

TEST_CASE("what strategies plan with needs nothing of what they run with") {
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/sdk/include/meshwright")) {
    if (!entry.is_regular_file()) continue;
    for (const std::string& line : lines_of(entry.path()))
      for (const char* folder : {"#include \"meshwright/parallel/", "#include \"meshwright/nn/",
                                 "#include <ATen", "#include <torch"})
        CHECK_MESSAGE(!line.starts_with(folder), entry.path().filename().string() << ": " << line);
  }
}

TEST_CASE("plugins include the SDK and nothing of the engine") {
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(MESHWRIGHT_SOURCE_DIR "/plugins")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    for (const std::string& line : lines_of(entry.path()))
      CHECK_MESSAGE(line.find("#include \"engine/") == std::string::npos, entry.path().string());
  }
}

// cmake/Folders.cmake has the order.
TEST_CASE("a folder includes what stands before it in the house, and nothing behind") {
  const fs::path source = MESHWRIGHT_SOURCE_DIR;
  std::vector<std::string> order;
  for (const std::string& line : lines_of(source / "cmake/Folders.cmake")) {
    std::smatch name;
    if (std::regex_search(line, name, std::regex(R"(^ +((sdk|engine|apps)/[a-z_]+))")))
      order.push_back(name[1]);
  }
  CHECK(order.size() == 24);
  // The place of what `path` is in; -1: it is in no folder of the house.
  auto place = [&](const std::string& path) {
    const size_t end = path.find('/', path.find('/') + 1);
    const auto found = std::find(order.begin(), order.end(), path.substr(0, end));
    return found == order.end() ? -1 : static_cast<int>(found - order.begin());
  };
  const std::regex include(R"re(#include "((sdk|engine|apps|plugins|tests)/[^"]+)".*)re");
  size_t between = 0, homeless = 0;
  std::string where;
  auto look = [&](const std::string& folder, const auto& judge) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source / folder)) {
      const std::string path = fs::relative(entry.path(), source).generic_string();
      const fs::path ending = entry.path().extension();
      if ((ending != ".cpp" && ending != ".h") || path.find("/tests/") != std::string::npos)
        continue;
      for (const std::string& line : lines_of(entry.path())) {
        std::smatch name;
        if (!line.starts_with("#include \"") || !std::regex_match(line, name, include)) continue;
        where = path + ": " + line;
        judge(path, name[1].str());
      }
    }
  };
  // Of the SDK others include the public headers, and what is for all.
  auto for_all = [](const std::string& path) {
    return path.starts_with("sdk/base/") || path.starts_with("sdk/text/");
  };
  for (const char* folder : {"sdk", "engine", "apps"})
    look(folder, [&](const std::string& path, const std::string& included) {
      if (path.starts_with("sdk/cmake/")) return;
      const int from = place(path), to = place(included);
      homeless += from < 0 ? 1 : 0;
      CHECK_MESSAGE((to >= 0 && to <= from), where);
      if (!path.starts_with("sdk/") && included.starts_with("sdk/"))
        CHECK_MESSAGE((for_all(included) || included.starts_with("sdk/kit/")), where);
      // Apps alone have the kit.
      if (included.starts_with("sdk/kit/"))
        CHECK_MESSAGE((path.starts_with("sdk/kit/") || path.starts_with("apps/")), where);
      between += from != to ? 1 : 0;
    });
  CHECK(homeless == 0);
  CHECK(between > 800);
  // Plugins link a copy of these.
  auto for_plugins = [](const std::string& path) {
    const bool of_programs =
        path.starts_with("sdk/base/host/") || path.starts_with("sdk/base/terminal/");
    return (path.starts_with("sdk/base/") && !of_programs) ||
           path.starts_with("sdk/text/tokenizer/") || path.starts_with("sdk/text/chat/");
  };
  for (const char* folder : {"plugins", "examples", "bench", "sdk/text", "sdk/kit"})
    look(folder, [&](const std::string& path, const std::string& included) {
      if (!included.starts_with("sdk/")) return;
      const bool own = path.starts_with("sdk/") &&
                       included.starts_with(path.substr(0, path.find('/', path.find('/', 4) + 1)));
      const bool of_trainer =  // which is the program's alone
          path.starts_with("sdk/text/trainer/") && included.starts_with("sdk/text/corpus/");
      const bool compares = path.starts_with("sdk/kit/conformance/") &&  // as apps/prove does
                            included.starts_with("sdk/kit/comparison/");
      CHECK_MESSAGE((own || of_trainer || compares || for_plugins(included)), where);
      const bool twins =
          path.starts_with("sdk/text/tokenizer/") && included.starts_with("sdk/text/chat/");
      const bool twin =
          path.starts_with("sdk/text/chat/") && included.starts_with("sdk/text/tokenizer/");
      CHECK_MESSAGE((!twins && !twin), where);
    });
  // They do without the engine and LibTorch.
  for (const char* folder : {"sdk/base/files", "sdk/base/host", "sdk/base/terminal", "sdk/text"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source / folder))
      for (const std::string& line : lines_of(entry.path()))
        for (const char* other : {"#include <ATen", "#include <torch", "#include <c10",
                                  "#include \"meshwright/parallel/"})
          CHECK_MESSAGE(!line.starts_with(other), entry.path().string() << ": " << line);
}

TEST_CASE("engine, apps and SDK name no strategy but the default value of the key") {
  for (const char* folder : {"/engine", "/apps", "/sdk"})
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(fs::path(MESHWRIGHT_SOURCE_DIR) / (folder + 1))) {
      std::string path = entry.path().string(), extension = entry.path().extension().string();
      if ((extension != ".cpp" && extension != ".h" && extension != ".def") ||
          path.find("/tests/") != std::string::npos)
        continue;
      const bool sdk = path.find("/sdk/") != std::string::npos &&
                       path.find("/sdk/kit/template") == std::string::npos;
      for (const std::string& line : lines_of(entry.path())) {
        std::string code = line.substr(0, line.find("//"));
        for (const char* name : {"\"ddp\"", "\"megatron_fsdp\"", "\"moe_ep\""})
          CHECK_MESSAGE(code.find(name) == std::string::npos, path << ": " << line);
        // In the SDK not even the keys of their options.
        for (const char* name : {"fsdp2_", "_fsdp2", "megatron_fsdp", "distributed.ddp",
                                 "distributed.fsdp2", "zero_dp_strategy"})
          CHECK_MESSAGE((!sdk || code.find(name) == std::string::npos), path << ": " << line);
      }
    }
}

// Numbers that are written are read again, and a host program or a plugin may have called
// setlocale(): sdk/base/plain_text.h has what takes their place.
TEST_CASE("numbers and letters do not ask the locale") {
  const std::regex floats(R"(%[-+ 0#]*[0-9*]*(\.[0-9*]+)?l?[aefgAEFG])"),
      others(R"(\b(strto(d|f|ld)|sto(d|f|ld)|atof|isalpha|isalnum|isspace|isupper|islower|ispunct|)"
             R"(isprint|tolower|toupper|strcoll|setlocale)\s*\()"),
      prints(R"(\b(printf|fprintf|sprintf|snprintf|vsnprintf)\()");
  // Names of ASCII: of templates, of man pages, of units, and `normal()`.
  const std::vector<std::string> allowed{
      "sdk/base/plain_text.h",         "sdk/base/words.h",     "sdk/text/tokenizer/divide.cpp",
      "apps/cli/completion_verbs.cpp", "apps/cli/plugins.cpp", "apps/cli/checkpoint_weights.cpp"};
  size_t seen = 0;
  for (const char* folder : {"engine", "apps", "sdk", "plugins"})
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(fs::path(MESHWRIGHT_SOURCE_DIR) / folder)) {
      const std::string path = fs::relative(entry.path(), MESHWRIGHT_SOURCE_DIR).generic_string();
      const std::string extension = entry.path().extension().string();
      if ((extension != ".cpp" && extension != ".h" && extension != ".cu") ||
          path.find("/tests/") != std::string::npos ||
          std::find(allowed.begin(), allowed.end(), path) != allowed.end())
        continue;
      std::string code;
      for (const std::string& line : lines_of(entry.path()))
        code += line.substr(0, line.find("//")) + '\n';
      ++seen;
      std::smatch match;
      CHECK_MESSAGE(!std::regex_search(code, match, others), path << ": " << match.str());
      for (std::sregex_iterator at(code.begin(), code.end(), prints), end; at != end; ++at) {
        const auto from = static_cast<size_t>(at->position());
        const std::string call = code.substr(from, code.find(';', from) - from);
        CHECK_MESSAGE(!std::regex_search(call, floats), path << ": " << call);
      }
    }
  CHECK(seen > 500);
}

TEST_CASE("neither the program nor the SDK library needs LibTorch to start") {
  for (const char* file : {"/bin/meshwright", "/lib/libmeshwright_sdk.so"}) {
    std::string out = output_of(std::string("ldd '") + MESHWRIGHT_BUILD_DIR + file + "'");
    INFO(out);
    CHECK(out.find("libc.so") != std::string::npos);
    CHECK(out.find("torch_cuda") == std::string::npos);
    CHECK(out.find("libtorch") == std::string::npos);
    CHECK(out.find("libpython") == std::string::npos);
    CHECK(out.find("not found") == std::string::npos);
  }
}
