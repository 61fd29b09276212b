// Files that somebody made to be refused, links, and random damage by the thousand.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/files/json_codec.h"

namespace damage_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_damage_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path put(const fs::path& name, const std::string& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return path / name;
  }
};

std::string file_of(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int64_t from, int64_t to) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":[)" + std::to_string(from) + "," + std::to_string(to) + "]}";
}

// Empty: it opened.
std::string failure(const fs::path& path) {
  try {
    WeightFolder folder(path);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_safetensors);
    CHECK(!error.helps().empty());
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a key that stands twice is found at every level, however it is written") {
  Folder folder;
  const std::string a = entry("a", "F32", "[1]", 0, 4), b = entry("b", "F32", "[1]", 4, 8);
  for (auto [header, part] : std::vector<std::pair<std::string, std::string>>{
           {"{" + a + "," + b + "}", ""},
           {"{" + a + "," + a + "}", "lists \"a\" twice"},
           {"{" + a + "," + entry("\\u0061", "F32", "[1]", 4, 8) + "}", "lists \"a\" twice"},
           {R"({"a":{"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,8]}})",
            "lists \"shape\" twice"},
           {R"({"a":{"dtype":"I8","dt\u0079pe":"F32","shape":[2],"data_offsets":[0,8]}})",
            "lists \"dtype\" twice"},
           {R"({"__metadata__":{"x":"1","x":"2"},)" + a + "," + b + "}", "lists \"x\" twice"},
           {R"({"__metadata__":{"a":"1"},)" + a + "," + b + "}", ""},  // another object's key
       }) {
    std::string found = failure(folder.put("t.safetensors", file_of(header, "12345678")));
    INFO(header, " -> ", found);
    CHECK((part.empty() ? found.empty() : found.find(part) != std::string::npos));
  }
  folder.put("m/one.safetensors", file_of("{" + a + "}", "1234"));
  for (const char* map : {R"({"weight_map":{"a":"one.safetensors","a":"one.safetensors"}})",
                          R"({"weight_map":{"a":"one.safetensors"},"weight_map":{}})"}) {
    folder.put("m/model.safetensors.index.json", map);
    CHECK(failure(folder.path / "m").find(" twice") != std::string::npos);
  }
}

TEST_CASE("headers are bounded in size, depth, and the length of lists and names") {
  Folder folder;
  auto refused = [&](const std::string& header, const std::string& data, const std::string& part) {
    std::string found = failure(folder.put("t.safetensors", file_of(header, data)));
    INFO(header.substr(0, 100), " -> ", found);
    CHECK(found.find(part) != std::string::npos);
  };
  std::string ones = "1";
  for (int i = 0; i < 15; ++i) ones += ",1";
  CHECK(failure(folder.put("t.safetensors",
                           file_of("{" + entry("a", "U8", "[" + ones + "]", 0, 1) + "}", "x")))
            .empty());
  refused("{" + entry("a", "U8", "[" + ones + ",1]", 0, 1) + "}", "x", "has a list of 17 values");
  refused(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "x", "not valid JSON");
  refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})" + std::string(100000, ' ') + "x}",
      "x", "not valid JSON");
  refused("{" + entry(std::string(5000, 'n'), "U8", "[1]", 0, 1) + "}", "x", "not valid JSON");
  refused(std::string(1 << 20, '['), "", "not a JSON object");
  refused("{\"a\":" + std::string(1 << 20, '['), "", "not valid JSON");
  refused("{" + entry("a", "U8", "[1]", 0, 1) + "}{}", "x", "not valid JSON");
  refused("{" + entry("a", "U8", "[1]", 0, 1) + "}\n  ", "", "lies at");  // padding is allowed
  uint64_t claims = (100 << 20) + 1;
  fs::path large =
      folder.put("t.safetensors", std::string(reinterpret_cast<const char*>(&claims), 8));
  fs::resize_file(large, claims + 8);  // sparse
  CHECK(failure(large).find("more than 100 MiB") != std::string::npos);
}

TEST_CASE(
    "ranges that overlap, leave holes or overflow are refused, whatever their order; empty tensors "
    "fit anywhere") {
  Folder folder;
  const int64_t most = std::numeric_limits<int64_t>::max();
  auto with = [&](const std::vector<std::string>& entries) {
    std::string header = "{";
    for (const std::string& e : entries) header += (header.size() > 1 ? "," : "") + e;
    return failure(folder.put("t.safetensors", file_of(header + "}", "0123456789ab")));
  };
  auto f = [](const std::string& name, int64_t from, int64_t to) {
    return entry(name, "F32", "[" + std::to_string((to - from) / 4) + "]", from, to);
  };
  CHECK(with({f("c", 8, 12), f("a", 0, 4), f("b", 4, 8)}) == "");
  CHECK(with({f("e", 0, 0), f("a", 0, 12), f("z", 12, 12)}) == "");
  CHECK(with({f("a", 0, 8), f("b", 4, 12)}).find("tensor \"b\" overlaps") != std::string::npos);
  CHECK(with({f("a", 0, 12), f("b", 4, 8)}).find("tensor \"b\" overlaps") != std::string::npos);
  CHECK(with({f("a", 0, 12), f("b", 0, 12)}).find("overlaps") != std::string::npos);
  CHECK(with({f("a", 0, 12), f("e", 4, 4)}).find("overlaps") != std::string::npos);
  CHECK(with({f("a", 0, 4), f("b", 8, 12)}).find("4 bytes belong to no tensor") !=
        std::string::npos);
  CHECK(with({f("a", 4, 12)}).find("4 bytes belong to no tensor") != std::string::npos);
  CHECK(with({f("a", 0, 8)}).find("4 bytes belong to no tensor") != std::string::npos);
  CHECK(with({}).find("12 bytes belong to no tensor") != std::string::npos);
  CHECK(with({f("a", 0, 12), f("b", 12, 16)}).find("lies at [12, 16) of 12 bytes") !=
        std::string::npos);
  CHECK(with({entry("a", "F32", "[3]", most - 11, most)}).find("lies at") != std::string::npos);
  CHECK(with({entry("a", "F64", "[" + std::to_string(most) + "]", 0, 12)})
            .find("larger than any file") != std::string::npos);
  CHECK(with({entry("a", "U8", "[0, 3037000500, 3037000500]", 0, 0), f("b", 0, 12)})
            .find("larger than any file") != std::string::npos);
  CHECK(with({entry("a", "U8", "[3037000500, 3037000500, 0]", 0, 0), f("b", 0, 12)})
            .find("larger than any file") != std::string::npos);
}

TEST_CASE("a slice outside of its tensor is refused, whatever the sums come to") {
  Folder folder;
  WeightFolder weights(
      folder.put("t.safetensors",
                 file_of("{" + entry("a", "F32", "[2,3]", 0, 24) + "}", std::string(24, '\0'))));
  const TensorEntry& a = *weights.find("a");
  const int64_t most = std::numeric_limits<int64_t>::max(),
                least = std::numeric_limits<int64_t>::min();
  float out[6];
  for (auto [offset, size] : std::vector<std::pair<int64_t, int64_t>>{{0, 3},
                                                                      {2, 1},
                                                                      {3, 0},
                                                                      {1, most},
                                                                      {most, 1},
                                                                      {most, most},
                                                                      {-1, 1},
                                                                      {1, -1},
                                                                      {least, least},
                                                                      {2, most},
                                                                      {least, 2}})
    for (bool first : {true, false}) {
      std::vector<int64_t> offsets{0, 0}, sizes{2, 3};
      offsets[first ? 0 : 1] = offset + (!first && offset >= 0 && offset < most ? 1 : 0);
      sizes[first ? 0 : 1] = size;
      try {
        read_slice(a, offsets, sizes, DType::float32, out);
        FAIL(offset, " ", size);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::weights_mismatch);
        CHECK(error.message().find("\"a\" has ") != std::string::npos);
      }
    }
}

TEST_CASE("a file that shrinks after it was opened is an error, not a crash") {
  Folder folder;
  fs::path path = folder.put(
      "t.safetensors",
      file_of("{" + entry("a", "F32", "[65536]", 0, 262144) + "}", std::string(262144, '\0')));
  WeightFolder weights(path);
  fs::resize_file(path, 4096);
  std::vector<float> out(65536);
  try {
    read_slice(*weights.find("a"), std::vector<int64_t>{0}, std::vector<int64_t>{65536},
               DType::float32, out.data());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_safetensors);
    CHECK(error.message().find("byte 4096: the file ends here now") != std::string::npos);
  }
}

TEST_CASE("the links of the download cache are followed, others out of the folder are not") {
  Folder folder;
  const std::string good = file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "1234");
  fs::path model = folder.path / "models--acme--tiny", revision = model / "snapshots" / "0123abcd";
  fs::create_directories(revision);
  folder.put("models--acme--tiny/blobs/5ea1", good);
  folder.put("secret.safetensors", good);
  // One file.
  fs::create_symlink("../../blobs/5ea1", revision / "model.safetensors");
  CHECK(failure(revision) == "");
  fs::create_symlink(revision, folder.path / "latest");  // the user's own link to the folder
  CHECK(failure(folder.path / "latest") == "");
  // An index, whose files are links, too.
  fs::rename(revision / "model.safetensors", revision / "model-00001-of-00001.safetensors");
  folder.put(
      "models--acme--tiny/blobs/1dea",
      R"({"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  fs::create_symlink("../../blobs/1dea", revision / "model.safetensors.index.json");
  CHECK(failure(revision) == "");
  // Elsewhere.
  struct Row {
    fs::path folder;
    std::string name, target;
    bool good;
  };
  fs::path plain = folder.path / "plain";
  folder.put("models--acme--other/blobs/5ea1", good);
  for (const Row& row : std::vector<Row>{
           {plain, "model.safetensors", "inside.bin", true},
           {plain, "model.safetensors", "../secret.safetensors", false},
           {plain, "model.safetensors", (folder.path / "secret.safetensors").string(), false},
           {plain, "model.safetensors", "../models--acme--tiny/blobs/5ea1", false},
           {model / "snapshots" / "x", "model.safetensors", "../../blobs/5ea1", true},
           {model / "snapshots" / "x", "model.safetensors",
            "../../../models--acme--other/blobs/5ea1", false},
           {model / "snapshots" / "x", "model.safetensors", "../../../secret.safetensors", false},
           {model / "snapshots" / "x", "model.safetensors", "../../blobs/../../secret.safetensors",
            false},
       }) {
    fs::remove_all(row.folder);
    fs::create_directories(row.folder);
    std::ofstream(row.folder / "inside.bin", std::ios::binary) << good;
    fs::create_symlink(row.target, row.folder / row.name);
    std::string found = failure(row.folder);
    CAPTURE(row.target);
    CAPTURE(found);
    CHECK((row.good
               ? found.empty()
               : found.find("is a link that leads out of the folder, to ") != std::string::npos));
  }
  // A link that leads nowhere, to itself, and an index that is a link to something else.
  for (const char* target : {"nowhere", "model.safetensors"}) {
    fs::remove_all(plain);
    fs::create_directories(plain);
    fs::create_symlink(target, plain / "model.safetensors");
    CHECK(failure(plain) != "");
  }
  fs::remove_all(plain);
  fs::create_directories(plain);
  fs::create_symlink("../models--acme--tiny/blobs/1dea", plain / "model.safetensors.index.json");
  CHECK(failure(plain).find("is a link that leads out") != std::string::npos);
}

namespace {

// One act of damage to a text.
void damage(std::string& bytes, std::mt19937& random, const std::vector<std::string>& words) {
  auto place = [&](size_t n) { return static_cast<size_t>(random()) % (n + 1); };
  switch (random() % 9) {
    case 0:  // a bit
      if (!bytes.empty()) {
        char& c = bytes[place(bytes.size() - 1)];
        c = static_cast<char>(c ^ (1 << random() % 8));
      }
      break;
    case 1:  // a byte
      if (!bytes.empty()) bytes[place(bytes.size() - 1)] = static_cast<char>(random());
      break;
    case 2:
      bytes.resize(place(bytes.size()));
      break;
    case 3:  // something taken out
      if (size_t at = place(bytes.size()); at < bytes.size()) bytes.erase(at, place(20));
      break;
    case 4:  // something twice
      if (size_t at = place(bytes.size()); at < bytes.size())
        bytes.insert(place(bytes.size()), bytes.substr(at, place(100)));
      break;
    case 5:  // a word that means something
    case 6: {
      size_t at = place(bytes.size());
      bytes.replace(at, place(12), words[random() % words.size()]);
      break;
    }
    case 7: {  // another length of the header
      uint64_t length = random() % 3 == 0 ? (uint64_t{random()} << 32) + random() : random() % 600;
      if (bytes.size() >= 8) std::memcpy(bytes.data(), &length, 8);
      break;
    }
    default:
      bytes.append(place(40), static_cast<char>(random()));
  }
}

}  // namespace

TEST_CASE(
    "random damage to a file or an index is refused or read, never a crash, and each refusal names "
    "its file") {
  Folder folder;
  fs::path model = folder.path / "m";
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  int64_t at = 0;
  for (auto [name, dtype, shape, bytes] :
       std::vector<std::tuple<const char*, const char*, const char*, int64_t>>{
           {"a", "F32", "[2,3]", 24},
           {"b", "BF16", "[2]", 4},
           {"c", "F64", "[]", 8},
           {"d", "F16", "[0,7]", 0},
           {"e", "I64", "[1,1]", 8}}) {
    header += "," + entry(name, dtype, shape, at, at + bytes);
    at += bytes;
  }
  data.assign(static_cast<size_t>(at), 'x');
  const std::string
      good = file_of(header + "}", data),
      index =
          R"({"metadata":{"total_size":44},"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"}})";
  const std::vector<std::string> words = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "0",
                                          "-1",
                                          "1e999",
                                          "9223372036854775807",
                                          "18446744073709551616",
                                          "4611686018427387904",
                                          "null",
                                          "F64",
                                          "U8",
                                          "\"shape\"",
                                          "\"a\"",
                                          "\\u0000",
                                          "../",
                                          "/etc/passwd",
                                          "one.safetensors",
                                          "two.safetensors",
                                          " "};
  std::random_device device;
  unsigned seed = device();
  CAPTURE(seed);
  std::mt19937 random(seed);
  folder.put("m/one.safetensors", good);
  int opened = 0, refused = 0;
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 12000; ++i) {
    bool of_index = i % 3 == 0;
    std::string bytes = of_index ? index : good;
    for (uint32_t k = 0, many = 1 + random() % 4; k < many; ++k) damage(bytes, random, words);
    fs::path path = of_index ? folder.put("m/model.safetensors.index.json", bytes)
                             : folder.put("one.safetensors", bytes);
    try {
      WeightFolder weights(of_index ? model : path);
      // What opens can be read, to the last byte.
      for (const std::string& name : weights.names()) {
        const TensorEntry& tensor = *weights.find(name);
        std::vector<char> out(static_cast<size_t>(tensor.bytes));
        read_slice(tensor, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, tensor.dtype,
                   out.data());
      }
      ++opened;
    } catch (const Error& error) {
      ++refused;
      bool named = error.code() == ErrorCode::bad_safetensors &&
                   error.message().find(of_index ? model.string() : path.string()) == 0;
      if (!named) CHECK_MESSAGE(named, error.message());
    }
  }
  MESSAGE(opened, " opened, ", refused, " refused");
  CHECK(opened > 20);  // damage to what nobody checks: data, metadata, names
  CHECK(refused > 6000);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(120));
}

}  // namespace damage_test
