// Safetensors: what is read, what somebody made to be refused, links, random damage by the
// thousand, and the arithmetic of narrow floats.
#include "engine/checkpoint/weights/safetensors.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "sdk/base/tests/scratch.h"

namespace safetensors_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;
using scratch::Folder, scratch::has;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max(),
                  kLeast = std::numeric_limits<int64_t>::min();

std::string file_of(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int64_t from, int64_t to) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":[)" + std::to_string(from) + "," + std::to_string(to) + "]}";
}
// Floats that lie there.
std::string floats(const std::string& name, int64_t from, int64_t to) {
  return entry(name, "F32", "[" + std::to_string((to - from) / 4) + "]", from, to);
}
std::string header_of(const std::vector<std::string>& entries) {
  std::string header = "{";
  for (const std::string& e : entries) header += (header.size() > 1 ? "," : "") + e;
  return header + "}";
}

const std::string kHeader =
    header_of({R"("__metadata__":{"format":"pt"})", entry("a", "F32", "[2,3]", 0, 24),
               entry("b", "BF16", "[2]", 24, 28)});

std::string data_bytes() {
  float a[6] = {1, 2, 3, 4, 5, 6};
  uint16_t b[2] = {0x3f80, 0xc000};  // 1, -2
  return std::string(reinterpret_cast<const char*>(a), 24) +
         std::string(reinterpret_cast<const char*>(b), 4);
}

// Empty: it opened.
std::string failure(const fs::path& path) {
  const Error error = scratch::caught([&] { WeightFolder folder(path); });
  if (error.message().empty()) return "";
  CHECK(error.code() == ErrorCode::bad_safetensors);
  CHECK(!error.helps().empty());
  return error.message();
}

}  // namespace

TEST_CASE("tensors are found and read in slices") {
  Folder folder;
  folder.put("model.safetensors", file_of(kHeader, data_bytes()));
  WeightFolder weights(folder.path);
  CHECK(weights.names() == std::vector<std::string>{"a", "b"});
  CHECK(weights.find("c") == nullptr);
  using Sizes = std::vector<int64_t>;
  struct Row {
    const char* tensor;
    Sizes offsets, sizes;
    std::vector<float> values;
  };
  for (const Row& row :
       {Row{"a", {1, 0}, {1, 3}, {4, 5, 6}}, Row{"a", {0, 1}, {2, 2}, {2, 3, 5, 6}},
        Row{"b", {0}, {2}, {1, -2}}, Row{"a", {0, 0}, {0, 3}, {}}}) {
    std::vector<float> out(row.values.size());
    read_slice(*weights.find(row.tensor), row.offsets, row.sizes, DType::float32, out.data());
    CHECK(out == row.values);
  }
  // What is no part of the tensor is refused, whatever the sums come to; so is another dtype.
  float out[6];
  auto refusal = [&](const Sizes& offsets, const Sizes& sizes, DType dtype = DType::float32) {
    return scratch::message_of([&] { read_slice(*weights.find("a"), offsets, sizes, dtype, out); },
                               ErrorCode::weights_mismatch);
  };
  CHECK(has(refusal({0}, {2}), "\"a\" has 2 dimensions"));
  CHECK(has(refusal({0, 0}, {1, 1}, DType::int32), "\"a\" is float32, wanted is int32"));
  for (auto [offset, size] : std::vector<std::pair<int64_t, int64_t>>{{0, 3},
                                                                      {2, 1},
                                                                      {3, 0},
                                                                      {1, kMost},
                                                                      {kMost, 1},
                                                                      {kMost, kMost},
                                                                      {-1, 1},
                                                                      {1, -1},
                                                                      {kLeast, kLeast},
                                                                      {2, kMost},
                                                                      {kLeast, 2}}) {
    CAPTURE(offset);
    CAPTURE(size);
    CHECK(has(refusal({offset, 0}, {size, 3}), "\"a\" has "));
    CHECK(has(refusal({0, offset + (offset >= 0 && offset < kMost ? 1 : 0)}, {2, size}),
              "\"a\" has "));
  }
}

TEST_CASE("a folder with an index") {
  Folder folder;
  folder.put("one.safetensors", file_of(kHeader, data_bytes()));
  folder.put("two.safetensors", file_of(header_of({entry("c", "F64", "[]", 0, 8)}), "12345678"));
  auto index = [&](const std::string& map) {
    folder.put("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  };
  index(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  CHECK(WeightFolder(folder.path).names().size() == 3);
  for (auto [map, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"a":"../one.safetensors"})", "out of the folder"},
           {R"({"a":"/etc/passwd"})", "out of the folder"},
           {R"({"a":"three.safetensors"})", "not there"},
           {R"({"z":"one.safetensors"})", "it is not"},
           {R"({"a":1})", "no file"},
           {"[]", "weight_map"},
           {R"({"a":"one.safetensors","a":"one.safetensors"})", " twice"},
           {R"({"a":"one.safetensors"},"weight_map":{})", " twice"},
           {R"({"a":"x\u0000y"})", "out of the folder"}}) {
    index(map);
    std::string found = failure(folder.path);
    INFO(map, " -> ", found);
    CHECK(has(found, part));
  }
  fs::remove(folder.path / "model.safetensors.index.json");
  CHECK(has(failure(folder.path), "neither"));
}

TEST_CASE("damage of every kind is named, and no truncation passes") {
  Folder folder;
  const std::string good = file_of(kHeader, data_bytes());
  auto found = [&](const std::string& bytes) {
    return failure(folder.put("t.safetensors", bytes));
  };
  for (size_t cut = 0; cut < good.size(); ++cut) CHECK(found(good.substr(0, cut)) != "");
  CHECK(has(found(good + "x"), "belong to no tensor"));
  CHECK(has(found(std::string(8, '\xff') + "{}"), "100 MiB"));
  uint64_t claims = (100 << 20) + 1;
  const fs::path large =
      folder.put("t.safetensors", std::string(reinterpret_cast<const char*>(&claims), 8));
  fs::resize_file(large, claims + 8);  // sparse
  CHECK(has(failure(large), "more than 100 MiB"));
  auto one = [](const std::string& dtype, const std::string& shape, int64_t from, int64_t to) {
    return header_of({entry("a", dtype, shape, from, to)});
  };
  std::string ones = "1";
  for (int i = 0; i < 15; ++i) ones += ",1";
  // Of 12 bytes of data. "": it is read.
  for (const auto& [header, part] : std::vector<std::pair<std::string, std::string>>{
           {one("F8_E4M3", "[12]", 0, 12), "not supported"},
           {one("F32", "[1]", 0, 12), "need 4"},
           {one("F32", "[-1]", 0, 4), "no whole number"},
           {one("F32", "[1.5]", 0, 4), "no whole number"},
           {one("F32", "[1]", 8, 4), "lies at"},
           {one("F32", "[1]", 0, 99), "lies at"},
           {one("F32", "[3]", kMost - 11, kMost), "lies at"},
           {one("F32", "[4611686018427387904,4]", 0, 4), "larger than any file"},
           {one("F64", "[" + std::to_string(kMost) + "]", 0, 12), "larger than any file"},
           {one("U8", "[0, 3037000500, 3037000500]", 0, 0), "larger than any file"},
           {one("U8", "[3037000500, 3037000500, 0]", 0, 0), "larger than any file"},
           {R"({"a":{"dtype":"F32","shape":[1]}})", "lacks"},
           {R"({"a":3})", "not described"},
           {"[]", "not a JSON object"},
           {"{", "not valid JSON"},
           {std::string(100, '{'), "not valid JSON"},
           // One key, one meaning: the reader of headers is base::parse_strictly().
           {header_of({floats("a", 0, 4), entry("\\u0061", "F32", "[2]", 4, 12)}),
            "lists \"a\" twice"},
           {R"({"a":{"dtype":"I8","dt\u0079pe":"F32","shape":[3],"data_offsets":[0,12]}})",
            "lists \"dtype\" twice"},
           {R"({"__metadata__":{"x":"1","x":"2"},)" + floats("a", 0, 12) + "}",
            "lists \"x\" twice"},
           {R"({"__metadata__":{"a":"1"},)" + floats("a", 0, 12) + "}", ""},
           // Bounds of size, depth, and the length of lists and names.
           {one("U8", "[12," + ones.substr(2) + "]", 0, 12), ""},
           {one("U8", "[12," + ones + "]", 0, 12), "has a list of 17 values"},
           {R"({"a":{"dtype":"U8","shape":[[12]],"data_offsets":[0,12]}})", "not valid JSON"},
           {header_of({floats(std::string(5000, 'n'), 0, 12)}), "not valid JSON"},
           {std::string(1 << 20, '['), "not a JSON object"},
           {"{\"a\":" + std::string(1 << 20, '['), "not valid JSON"},
           {one("U8", "[12]", 0, 12) + "{}", "not valid JSON"},
           {one("U8", "[12]", 0, 12) + std::string(100000, ' '), ""},  // padding is allowed
           // Ranges that overlap or leave holes, in any order; empty tensors fit anywhere.
           {header_of({floats("c", 8, 12), floats("a", 0, 4), floats("b", 4, 8)}), ""},
           {header_of({floats("e", 0, 0), floats("a", 0, 12), floats("z", 12, 12)}), ""},
           {header_of({floats("a", 0, 8), floats("b", 4, 12)}), "tensor \"b\" overlaps"},
           {header_of({floats("a", 0, 12), floats("b", 4, 8)}), "tensor \"b\" overlaps"},
           {header_of({floats("a", 0, 12), floats("b", 0, 12)}), "overlaps"},
           {header_of({floats("a", 0, 12), floats("e", 4, 4)}), "overlaps"},
           {header_of({floats("a", 0, 4), floats("b", 8, 12)}), "4 bytes belong to no tensor"},
           {header_of({floats("a", 4, 12)}), "4 bytes belong to no tensor"},
           {header_of({floats("a", 0, 8)}), "4 bytes belong to no tensor"},
           {header_of({}), "12 bytes belong to no tensor"},
           {header_of({floats("a", 0, 12), floats("b", 12, 16)}), "lies at [12, 16) of 12 bytes"},
       }) {
    const std::string said = found(file_of(header, "0123456789ab"));
    INFO(header.substr(0, 100), " -> ", said);
    CHECK((part.empty() ? said.empty() : has(said, part)));
  }
}

TEST_CASE("a file that shrinks after it was opened is an error, not a crash") {
  Folder folder;
  const fs::path path = folder.put(
      "t.safetensors", file_of(header_of({floats("a", 0, 262144)}), std::string(262144, '\0')));
  WeightFolder weights(path);
  fs::resize_file(path, 4096);
  std::vector<float> out(65536);
  const std::vector<int64_t> from = {0}, all = {65536};
  CHECK(has(scratch::message_of(
                [&] { read_slice(*weights.find("a"), from, all, DType::float32, out.data()); },
                ErrorCode::bad_safetensors),
            "byte 4096: the file ends here now"));
}

TEST_CASE("the links of the download cache are followed, others out of the folder are not") {
  Folder folder;
  const std::string good = file_of(header_of({floats("a", 0, 4)}), "1234");
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
    folder.put(row.folder / "inside.bin", good);
    fs::create_symlink(row.target, row.folder / row.name);
    std::string found = failure(row.folder);
    CAPTURE(row.target);
    CAPTURE(found);
    CHECK((row.good ? found.empty() : has(found, "is a link that leads out of the folder, to ")));
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
  CHECK(has(failure(plain), "is a link that leads out"));
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
  std::vector<std::string> entries = {R"("__metadata__":{"format":"pt"})"};
  int64_t at = 0;
  for (auto [name, dtype, shape, bytes] :
       std::vector<std::tuple<const char*, const char*, const char*, int64_t>>{
           {"a", "F32", "[2,3]", 24},
           {"b", "BF16", "[2]", 4},
           {"c", "F64", "[]", 8},
           {"d", "F16", "[0,7]", 0},
           {"e", "I64", "[1,1]", 8}}) {
    entries.push_back(entry(name, dtype, shape, at, at + bytes));
    at += bytes;
  }
  const std::string
      good = file_of(header_of(entries), std::string(static_cast<size_t>(at), 'x')),
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
                                          "\u0000",
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
  for (int i = 0; i < 4000; ++i) {
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
  CHECK(opened > 5);  // damage to what nobody checks: data, metadata, names
  CHECK(refused > 2000);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(120));
}

TEST_CASE("narrow floats convert as PyTorch's do") {
  Folder folder;
  std::mt19937 random(7);
  std::vector<float> values = {0.f,      -0.f,      1.f,           65504.f,       65519.9f,
                               65520.f,  1e-8f,     5.9604645e-8f, 2.9802322e-8f, 6.1e-5f,
                               INFINITY, -INFINITY, NAN,           1e38f,         3.4e38f};
  for (int i = 0; i < 20000; ++i) {
    uint32_t bits = random();
    float f;
    std::memcpy(&f, &bits, 4);
    values.push_back(f);
  }
  std::string n = std::to_string(values.size()),
              bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  auto put = [&](const char* name, const char* dtype, const std::string& data) {
    const std::string one = entry("x", dtype, "[" + n + "]", 0, std::ssize(data));
    return folder.put(name, file_of(header_of({one}), data));
  };
  WeightFolder weights(put("f.safetensors", "F32", bytes));
  std::vector<int64_t> zero{0}, all{static_cast<int64_t>(values.size())};
  std::vector<uint16_t> half(values.size()), bfloat(values.size());
  read_slice(*weights.find("x"), zero, all, DType::float16, half.data());
  read_slice(*weights.find("x"), zero, all, DType::bfloat16, bfloat.data());
  for (size_t i = 0; i < values.size(); ++i) {
    CAPTURE(values[i]);
    if (std::isnan(values[i])) {
      CHECK(std::isnan(static_cast<float>(c10::Half(half[i], c10::Half::from_bits()))));
      continue;
    }
    CHECK(half[i] == c10::Half(values[i]).x);
    CHECK(bfloat[i] == c10::BFloat16(values[i]).x);
  }
  std::string halves(reinterpret_cast<const char*>(half.data()), half.size() * 2);
  std::vector<float> back(values.size());
  WeightFolder narrow(put("h.safetensors", "F16", halves));
  read_slice(*narrow.find("x"), zero, all, DType::float32, back.data());
  for (size_t i = 0; i < values.size(); ++i) {
    float expected = static_cast<float>(c10::Half(half[i], c10::Half::from_bits()));
    CHECK((std::isnan(expected) ? std::isnan(back[i]) : back[i] == expected));
  }
}

}  // namespace safetensors_test
