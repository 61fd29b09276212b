// Safetensors: what is read, every kind of damage, and the arithmetic of narrow floats.
#include "engine/checkpoint/weights/safetensors.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

namespace safetensors_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_weights_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
    return path / name;
  }
};

std::string file_of(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}})";

std::string data_bytes() {
  float a[6] = {1, 2, 3, 4, 5, 6};
  uint16_t b[2] = {0x3f80, 0xc000};  // 1, -2
  return std::string(reinterpret_cast<const char*>(a), 24) +
         std::string(reinterpret_cast<const char*>(b), 4);
}

std::string failure(const fs::path& path) {
  try {
    WeightFolder folder(path);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_safetensors);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("tensors are found and read in slices") {
  Folder folder;
  folder.put("model.safetensors", file_of(kHeader, data_bytes()));
  WeightFolder weights(folder.path);
  CHECK(weights.names() == std::vector<std::string>{"a", "b"});
  const TensorEntry* a = weights.find("a");
  REQUIRE(a != nullptr);
  CHECK(weights.find("c") == nullptr);
  float out[6] = {};
  read_slice(*a, std::vector<int64_t>{1, 0}, std::vector<int64_t>{1, 3}, DType::float32, out);
  CHECK((out[0] == 4 && out[1] == 5 && out[2] == 6));
  read_slice(*a, std::vector<int64_t>{0, 1}, std::vector<int64_t>{2, 2}, DType::float32, out);
  CHECK((out[0] == 2 && out[1] == 3 && out[2] == 5 && out[3] == 6));
  read_slice(*weights.find("b"), std::vector<int64_t>{0}, std::vector<int64_t>{2}, DType::float32,
             out);
  CHECK((out[0] == 1 && out[1] == -2));
  read_slice(*a, std::vector<int64_t>{0, 0}, std::vector<int64_t>{0, 3}, DType::float32, nullptr);
  CHECK_THROWS_AS(
      read_slice(*a, std::vector<int64_t>{1, 0}, std::vector<int64_t>{2, 3}, DType::float32, out),
      Error);
  CHECK_THROWS_AS(
      read_slice(*a, std::vector<int64_t>{0}, std::vector<int64_t>{2}, DType::float32, out), Error);
  CHECK_THROWS_AS(
      read_slice(*a, std::vector<int64_t>{0, 0}, std::vector<int64_t>{1, 1}, DType::int32, out),
      Error);
}

TEST_CASE("a folder with an index") {
  Folder folder;
  folder.put("one.safetensors", file_of(kHeader, data_bytes()));
  folder.put("two.safetensors",
             file_of(R"({"c":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", "12345678"));
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
           {R"({"a":"x\u0000y"})", "out of the folder"}}) {
    index(map);
    std::string found = failure(folder.path);
    INFO(map, " -> ", found);
    CHECK(found.find(part) != std::string::npos);
  }
  fs::create_symlink("/etc/hostname", folder.path / "link.safetensors");
  index(R"({"a":"link.safetensors"})");
  CHECK(failure(folder.path).find("leads out") != std::string::npos);
  fs::remove(folder.path / "model.safetensors.index.json");
  CHECK(failure(folder.path).find("neither") != std::string::npos);
}

TEST_CASE("damage of every kind is named, and no truncation passes") {
  Folder folder;
  std::string good = file_of(kHeader, data_bytes());
  for (size_t cut = 0; cut < good.size(); ++cut)
    CHECK(failure(folder.put("t.safetensors", good.substr(0, cut))) != "");
  CHECK(failure(folder.put("t.safetensors", good + "x")).find("belong to no tensor") !=
        std::string::npos);
  auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  for (
      auto [header, part] : std::vector<std::pair<std::string, std::string>>{
          {entry("F8_E4M3", "[4]", "[0,4]"), "not supported"},
          {entry("F32", "[1]", "[0,8]"), "need 4"},
          {entry("F32", "[-1]", "[0,4]"), "no whole number"},
          {entry("F32", "[1.5]", "[0,4]"), "no whole number"},
          {entry("F32", "[4611686018427387904,4]", "[0,4]"), "larger than any file"},
          {entry("F32", "[1]", "[4,8]"), "belong to no tensor"},
          {entry("F32", "[1]", "[8,4]"), "lies at"},
          {entry("F32", "[1]", "[0,99]"), "lies at"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           "overlaps"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           "twice"},
          {R"({"a":{"dtype":"F32","shape":[1]}})", "lacks"},
          {R"({"a":3})", "not described"},
          {"[]", "not a JSON object"},
          {"{", "not valid JSON"},
          {std::string(100, '{'), "not valid JSON"},
      }) {
    std::string found = failure(folder.put("t.safetensors", file_of(header, "12345678")));
    INFO(header, " -> ", found);
    CHECK(found.find(part) != std::string::npos);
  }
  CHECK(failure(folder.put("t.safetensors", std::string(8, '\xff') + "{}")).find("100 MiB") !=
        std::string::npos);
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    failure(folder.put("t.safetensors", bad));  // refused or read, never a crash
  }
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
  fs::path path = folder.put(
      "f.safetensors", file_of(R"({"x":{"dtype":"F32","shape":[)" + n + R"(],"data_offsets":[0,)" +
                                   std::to_string(bytes.size()) + "]}}",
                               bytes));
  WeightFolder weights(path);
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
  path = folder.put("h.safetensors",
                    file_of(R"({"x":{"dtype":"F16","shape":[)" + n + R"(],"data_offsets":[0,)" +
                                std::to_string(halves.size()) + "]}}",
                            halves));
  std::vector<float> back(values.size());
  WeightFolder narrow(path);
  read_slice(*narrow.find("x"), zero, all, DType::float32, back.data());
  for (size_t i = 0; i < values.size(); ++i) {
    float expected = static_cast<float>(c10::Half(half[i], c10::Half::from_bits()));
    CHECK((std::isnan(expected) ? std::isnan(back[i]) : back[i] == expected));
  }
}

}  // namespace safetensors_test
