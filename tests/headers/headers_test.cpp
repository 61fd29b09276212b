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
  CHECK(planning <= 1750);  // CONTRIBUTING says so
  CHECK(total <= 4150);
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

namespace {

// Sees every include of a room of the SDK in a folder, tests left out: the room, and where.
template <class See>
void each_room_included(const fs::path& folder, const See& see) {
  const std::string prefix = "#include \"sdk/";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    if (entry.path().string().find("/tests/") != std::string::npos) continue;
    for (const std::string& line : lines_of(entry.path()))
      if (line.starts_with(prefix))
        see(line.substr(prefix.size(), line.find('/', prefix.size()) - prefix.size()),
            entry.path().string() + ": " + line);
  }
}

bool has(const std::vector<std::string>& rooms, const std::string& room) {
  return std::find(rooms.begin(), rooms.end(), room) != rooms.end();
}

}  // namespace

// What is not there may be included: the public headers, and what has no room above it.
TEST_CASE("the rooms of the SDK include those below them, and other code only those for all") {
  const fs::path source = MESHWRIGHT_SOURCE_DIR;
  const std::vector<std::string> rooms{
      "base", "planning",         "memory",        "comm",    "nn", "tensor_parallel",
      "moe",  "context_parallel", "data_parallel", "pipeline"};
  size_t between = 0;
  for (size_t i = 0; i < rooms.size(); ++i)
    each_room_included(source / "sdk" / rooms[i],
                       [&](const std::string& room, const std::string& where) {
                         const std::vector<std::string> below(
                             rooms.begin(), rooms.begin() + static_cast<std::ptrdiff_t>(i));
                         CHECK_MESSAGE(has(below, room), where);
                         ++between;
                       });
  CHECK(between > 20);
  for (const char* folder : {"engine", "plugins", "examples", "bench"})
    each_room_included(source / folder, [&](const std::string& room, const std::string& where) {
      CHECK_MESSAGE(has({"base", "files", "tokenizer", "chat"}, room), where);
    });
  for (const char* folder :
       {"testing", "conformance", "template", "template_data", "template_model"})
    each_room_included(source / "sdk" / folder,
                       [&](const std::string& room, const std::string& where) {
                         CHECK_MESSAGE((room == "base" || room == folder), where);
                       });
}

// `files` knows the base; `tokenizer` and `chat` know those two and not each other.
TEST_CASE("the rooms that plugins link include the base, themselves and files") {
  for (const std::string name : {"files", "tokenizer", "chat"}) {
    const fs::path folder = fs::path(MESHWRIGHT_SOURCE_DIR) / "sdk" / name;
    if (name == "chat" && !fs::exists(folder)) continue;
    std::vector<std::string> allowed{"base", name};
    if (name != "files") allowed.emplace_back("files");
    size_t seen = 0;
    each_room_included(folder, [&](const std::string& room, const std::string& where) {
      CHECK_MESSAGE(has(allowed, room), where);
      ++seen;
    });
    CHECK(seen > 5);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
      for (const std::string& line : lines_of(entry.path()))
        for (const char* other : {"#include \"engine/", "#include <ATen", "#include <torch",
                                  "#include <c10", "#include \"meshwright/parallel/"})
          CHECK_MESSAGE(!line.starts_with(other), entry.path().string() << ": " << line);
  }
}

TEST_CASE("the engine and the SDK name no strategy but the default value of the key") {
  for (const char* folder : {"/engine", "/sdk"})
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(fs::path(MESHWRIGHT_SOURCE_DIR) / (folder + 1))) {
      std::string path = entry.path().string(), extension = entry.path().extension().string();
      if ((extension != ".cpp" && extension != ".h" && extension != ".def") ||
          path.find("/tests/") != std::string::npos)
        continue;
      const bool sdk = path.find("/sdk/") != std::string::npos &&
                       path.find("/sdk/template") == std::string::npos;
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
      "sdk/base/plain_text.h",      "sdk/base/words.h",
      "sdk/tokenizer/divide.cpp",   "engine/cli/completion.cpp",
      "engine/cli/plugins_new.cpp", "engine/cli/checkpoint_weights.cpp"};
  size_t seen = 0;
  for (const char* folder : {"engine", "sdk", "plugins"})
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
