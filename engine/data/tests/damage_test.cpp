// Files that are not what they claim, that change under a reader, or that may not be read; and
// settings that make no sense.
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>

#include "engine/data/tests/fixtures.h"

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::data;

TEST_CASE("each damaged or mistaken file is refused with its place") {
  Folder folder;
  auto put = [&](const std::string& name, const std::string& bytes) {
    return folder.put(name, bytes);
  };
  std::string gpt2 = llm_header(20240520, 1, 4) + pack<uint16_t>({9, 8, 7, 6});
  const std::string raw = put("raw.bin", pack<uint16_t>({1, 2, 3, 4, 5})),
                    pipe = folder.path.string() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  put("m.bin", pack<int16_t>({1, -2, 3}));
  put("m.idx", index_file({3}, 3, 2));
  put("u.bin", pack<uint16_t>({1, 65534, 3}));
  put("u.idx", index_file({3}, 8, 2));
  std::string index = index_file({1, 2}, 8, 2);
  auto megatron = [&](const std::string& name, const std::string& idx,
                      const std::string& bin = pack<uint16_t>({1, 2, 3})) {
    put(name + ".bin", bin);
    put(name + ".idx", idx);
    return folder.path.string() + "/" + name;
  };
  auto with = [](std::string text, size_t at, auto value) {
    return text.replace(at, sizeof value, pack(std::vector{value}));
  };
  struct Case {
    std::string kind, path, dtype, part;
    int64_t read = -1, vocab = 0;
  };
  for (const Case& c : std::vector<Case>{
           {"tokens", raw, "auto", "no llm.c header"},
           {"tokens", raw, "uint16", "byte 8 is 5", 1, 4},
           {"tokens", raw, "uint32", "byte 8"},
           {"tokens", put("gpt2.bin", gpt2), "uint32", "dtype says uint32"},
           {"tokens", put("less.bin", llm_header(20240520, 1, 4) + "abc"), "auto", "byte 8"},
           {"tokens", folder.path.string() + "/nowhere.bin", "auto", "no file"},
           {"tokens", pipe, "uint16", "not a regular file"},
           {"tokens", put("cut.bin", gpt2.substr(0, 600)), "uint16", "byte 600"},
           {"tokens", put("v.bin", llm_header(20240520, 2, 4) + "12345678"), "uint16", "version 2"},
           {"tokens", put("v3.bin", llm_header(20240801, 1, 2) + "12345678"), "auto", "only 7"},
           {"tokens", put("neg.bin", llm_header(20240520, 1, -1) + "12"), "auto", "counts -1"},
           {"tokens", put("long.bin", gpt2 + "xx"), "auto", "10 bytes follow"},
           {"tokens", put("none.bin", llm_header(20240520, 1, 0)), "auto", "holds 0 tokens"},
           {"tokens", put("odd.bin", "12345"), "uint16", "byte 4"},
           {"tokens", put("empty.bin", ""), "uint16", "is empty"},
           {"megatron", folder.path.string() + "/m", "auto", "byte 2 is -2", 0, 70000},
           {"megatron", folder.path.string() + "/u", "auto", "byte 2 is 65534", 0, 65534},
           {"megatron", folder.path.string() + "/absent", "auto", "absent.idx: cannot be opened"},
           {"megatron", megatron("magic", "MMIDIDY" + index.substr(7)), "auto", "does not begin"},
           {"megatron", megatron("version", with(index, 9, uint64_t{2})), "auto", "version 2"},
           {"megatron", megatron("float", with(index, 17, uint8_t{7})), "auto", "element type 7"},
           {"megatron", megatron("many", with(index, 18, ~uint64_t{0} / 4)), "auto", "do not fit"},
           {"megatron", megatron("docs", with(index, 26, ~uint64_t{0} / 8)), "auto", "do not fit"},
           {"megatron", megatron("length", with(index, 34, int32_t{-1})), "auto",
            "byte 34: sequence 0 has the negative length"},
           {"megatron", megatron("huge", with(index, 34, INT32_MAX)), "auto",
            "ends behind the 6 bytes"},
           {"megatron", megatron("pointer", with(index, 50, int64_t{4})), "auto",
            "byte 50: sequence 1 starts at 4, expected 2"},
           {"megatron", megatron("mark", with(index, 66, int64_t{9})), "auto",
            "byte 66: document boundary 1 is 9"},
           {"megatron", megatron("back", with(index, 58, int64_t{2})), "auto",
            "byte 66: document boundary 1 is 1, expected 2"},
           {"megatron", megatron("tail", index + "x"), "auto", "1 bytes follow"},
           {"megatron", megatron("short", index, "1234"), "auto", "ends behind the 4 bytes"},
           {"megatron", megatron("longer", index, "12345678"), "auto", "byte 6: the sequences"},
           {"megatron", folder.path.string(), "auto", "cannot be opened"},
           {"text", put("one.txt", "x"), "auto", "holds 1 token,"},
           {"text", "/dev/zero", "auto", "not a regular file"},
           {"text", std::string("a\0b", 3), "auto", "NUL"},
           {"tokens", std::string("a\0b", 3), "uint16", "NUL"},
       }) {
    std::string found = failure(
        {.kind = c.kind, .path = c.path, .dtype = c.dtype, .seq_len = 2, .vocab_size = c.vocab},
        c.read);
    INFO(c.path, " -> ", found);
    CHECK(found.find(c.part) != std::string::npos);
  }
  // A mode for each sequence may follow, as multimodal sets have it.
  CHECK(failure({.kind = "megatron", .path = megatron("modes", index + "01"), .seq_len = 2}) == "");
}

TEST_CASE("tokens that are wider than they are read as are told, and ordinary ones are not") {
  Folder folder;
  // As ids of a text lie: many small ones, some large, each of its own frequency.
  auto ids = [](int64_t count, int64_t vocab) {
    std::vector<int64_t> out;
    uint64_t state = 7;
    for (int64_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      out.push_back(static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(vocab)));
    }
    return out;
  };
  auto as = [](auto type, const std::vector<int64_t>& tokens) {
    return pack(std::vector<decltype(type)>(tokens.begin(), tokens.end()));
  };
  std::vector<int64_t> padded = ids(5000, 300), zeros(5000, 0), often = ids(5000, 300);
  for (size_t i = 0; i < padded.size(); ++i)
    if (i % 100 > 20) padded[i] = 0;
  for (size_t i = 0; i < often.size(); i += 2) often[i] = 0;
  often[777] = 0;
  often[778] = 5;
  struct Row {
    std::string bytes, dtype, part;  // "": it is taken
  };
  for (const Row& row : std::vector<Row>{
           {as(uint32_t{}, ids(200, 256)), "uint16", "4 bytes"},
           {as(uint32_t{}, ids(100'000, 50'257)), "uint16", "4 bytes"},
           {as(uint32_t{}, ids(100'000, 151'936)), "uint16", "4 bytes"},
           {as(int64_t{}, ids(200, 256)), "uint16", "8 bytes"},
           {as(int64_t{}, ids(200, 256)), "uint32", "8 bytes"},
           {as(int64_t{}, ids(100'000, 151'936)), "uint32", "8 bytes"},
           {as(uint16_t{}, ids(5000, 256)), "uint16", ""},
           {as(uint16_t{}, ids(100'000, 50'257)), "uint16", ""},
           {as(uint16_t{}, padded), "uint16", ""},
           {as(uint16_t{}, zeros), "uint16", ""},
           {as(uint16_t{}, often), "uint16", ""},
           {as(uint16_t{}, ids(5000, 12)), "uint16", ""},
           {as(uint32_t{}, ids(5000, 151'936)), "uint32", ""},
           {as(uint32_t{}, padded), "uint32", ""},
       }) {
    CAPTURE(row.dtype);
    CAPTURE(row.part);
    const std::string path = folder.put("t.bin", row.bytes);
    const std::string found =
        failure({.kind = "tokens", .path = path, .dtype = row.dtype, .seq_len = 2});
    INFO(found);
    CHECK(found.empty() == row.part.empty());
    CHECK(found.find(row.part) != std::string::npos);
  }
  // The other way round ids are beyond any vocabulary, which names the other type.
  const Error error = thrown([&] {
    open_dataset({.kind = "tokens",
                  .path = folder.put("t.bin", as(uint16_t{}, ids(5000, 256))),
                  .dtype = "uint32",
                  .seq_len = 2,
                  .vocab_size = 151'936})
        ->check_tokens(kTokensLookedAt);
  });
  CHECK(error.helps().back().find("dataset.dtype = \"uint16\"") != std::string::npos);
}

TEST_CASE("what the help lines of a refused data set say, works") {
  Folder folder;
  DatasetConfig config{
      .kind = "tokens", .path = folder.put("t.bin", pack<uint16_t>({1, 2, 3, 4})), .seq_len = 100};
  auto refused = [&] {
    const Error error = thrown([&] { open_dataset(config); });
    if (error.helps().empty()) return error.message();
    CHECK(error.key().substr(0, 8) == "dataset.");
    return error.helps()[0];
  };
  CHECK(refused() == "set dataset.dtype = \"uint16\"");
  config.dtype = "uint16";
  CHECK(refused() == "set dataset.seq_len = 3");
  config.seq_len = 3;
  CHECK(refused() == "nothing");
  for (int64_t bad : {int64_t{0}, int64_t{-5}, INT64_MAX}) {
    DatasetConfig mock{.kind = "mock", .seq_len = bad};
    CHECK_THROWS_WITH_AS(open_dataset(mock), doctest::Contains("seq_len"), Error);
  }
  CHECK_THROWS_WITH_AS(open_dataset({.kind = "words", .seq_len = 1}),
                       doctest::Contains("one of text"), Error);
}

TEST_CASE(
    "the keys of the table become the configuration, and a missing path is named with an example "
    "of its kind") {
  constexpr std::array keys = {
      choice_option("kind", "\"text\"", "text|tokens|megatron|mock", ""),
      with_flags(option("path", MESHWRIGHT_STRING, nullptr, ""), MESHWRIGHT_OPTIONAL),
      with_flags(option("plugin", MESHWRIGHT_STRING, nullptr, ""), MESHWRIGHT_OPTIONAL),
      choice_option("dtype", "\"auto\"", "auto|uint16|uint32", ""),
      bool_option("packing", false, ""),
      bool_option("shuffle", true, ""),
      with_flags(int_option("document_end", nullptr, 0, ""), MESHWRIGHT_OPTIONAL),
      int_option("seq_len", "512", 1, "")};
  for (auto [kind, example] : std::vector<std::pair<std::string, std::string>>{
           {"text", "*.txt"}, {"tokens", ".bin"}, {"megatron", "_document"}}) {
    Options table(make_schema("validation_dataset", "engine", keys));
    table.set("kind", kind);
    const Error error = thrown([&] { dataset_config(table, 10, 1); });
    CHECK(error.code() == ErrorCode::missing_key);
    CHECK(error.key() == "validation_dataset.path");
    REQUIRE(!error.helps().empty());
    CHECK(error.helps()[0].find(example) != std::string::npos);
    table.set("path", std::string("p"));
    table.set("seq_len", int64_t{7});
    DatasetConfig config = dataset_config(table, 10, 1);
    CHECK((config.table == "validation_dataset" && config.kind == kind && config.path == "p" &&
           config.dtype == "auto"));
    CHECK((config.seq_len == 7 && config.vocab_size == 10 && config.seed == 1));
  }
  Options mock(make_schema("dataset", "engine", keys));
  mock.set("kind", std::string("mock"));
  CHECK(open_dataset(dataset_config(mock, 10, 1))->seq_len() == 512);
}

TEST_CASE(
    "a file that shrinks under a reader is an error, one that is replaced or removed goes on") {
  Folder folder;
  std::string big(100000, 'x'), path = folder.put("a.txt", big);
  auto data = open_dataset({.kind = "text", .path = path, .seq_len = 99});
  fs::rename(folder.put("b.txt", "new"), path);
  CHECK(sample(*data, 1000)[0] == 'x');
  fs::remove(path);
  CHECK(sample(*data, 1000)[0] == 'x');
  path = folder.put("a.txt", big);
  data = open_dataset({.kind = "text", .path = path, .seq_len = 99});
  REQUIRE(::truncate(path.c_str(), 5000) == 0);
  CHECK_THROWS_WITH_AS(sample(*data, 1000), doctest::Contains("byte 5000"), Error);
  CHECK_THROWS_WITH_AS(data->fingerprint(), doctest::Contains("byte 5000"), Error);
}

TEST_CASE("more files than a process may map are one stream all the same") {
  Folder folder(fs::is_directory("/dev/shm") ? "/dev/shm"
                                             : fs::temp_directory_path());  // disks take seconds
  constexpr int kFiles = 4200;
  for (int i = 0; i < kFiles; ++i) folder.put(std::to_string(100000 + i), i % 2 == 0 ? "ab" : "c");
  auto data = open_dataset({.kind = "text", .path = folder.path.string(), .seq_len = 2});
  REQUIRE(data->tokens() == kFiles / 2 * 3);
  int wrong = 0;
  for (int64_t i = 0; i < data->samples(); ++i) {
    std::vector<int64_t> found = sample(*data, i);
    for (size_t k = 0; k < 3; ++k) wrong += found[k] != "abc"[(static_cast<size_t>(i) * 2 + k) % 3];
  }
  CHECK(wrong == 0);
  uint64_t before = data->fingerprint();
  folder.put(std::to_string(100000 + kFiles - 2), "abb");
  CHECK_THROWS_WITH_AS(sample(*data, data->samples() - 1), doctest::Contains("has 3 bytes now"),
                       Error);
  CHECK(open_dataset({.kind = "text", .path = folder.path.string(), .seq_len = 2})->fingerprint() !=
        before);
}

TEST_CASE("identity follows kind, sizes and contents, and neither place nor length of samples") {
  Folder folder;
  std::string text(50000, 'q');
  auto identity = [](const std::string& kind, const std::string& path, int64_t seq_len = 2,
                     uint64_t seed = 0) {
    return open_dataset(
               {.kind = kind, .path = path, .dtype = "uint16", .seq_len = seq_len, .seed = seed})
        ->fingerprint();
  };
  std::string a = folder.put("a", text);
  fs::create_directories(folder.path / "sub");
  CHECK(identity("text", a) == identity("text", folder.put("sub/b", text), 7));
  CHECK(identity("text", a) != identity("tokens", a));
  text[31234] = 'r';
  CHECK(identity("text", a) != identity("text", folder.put("c", text)));
  // The same bytes cut into files elsewhere are another data set.
  fs::create_directories(folder.path / "two");
  folder.put("two/1", std::string(20000, 'q'));
  folder.put("two/2", std::string(30000, 'q'));
  CHECK(identity("text", a) != identity("text", (folder.path / "two").string()));
  CHECK(identity("mock", "", 2, 1) != identity("mock", "", 2, 2));
}

TEST_CASE("a folder that may not be read is an error, not a smaller data set") {
  Folder folder;
  folder.put("a.txt", "some text");
  fs::create_directories(folder.path / "closed");
  folder.put("closed/b.txt", "more text");
  fs::permissions(folder.path / "closed", fs::perms::none);
  // Root reads everything, so another user looks, in a process of its own.
  pid_t child = ::fork();
  if (child == 0) {
    fs::permissions(folder.path, fs::perms::all);
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(9);
    int refused = 0;
    for (const std::string& path : {folder.path.string(), (folder.path / "*" / "*.txt").string()}) {
      try {
        open_dataset({.kind = "text", .path = path, .seq_len = 2});
      } catch (const Error& error) {
        refused += std::string(error.what()).find("cannot be read") != std::string::npos;
      }
    }
    ::_exit(refused == 2 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  fs::permissions(folder.path / "closed", fs::perms::all);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
