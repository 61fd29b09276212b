#include "engine/models/running/tests/safetensors_file.h"

#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <iterator>

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::map<std::string, at::Tensor> out;
  const boost::json::value parsed = boost::json::parse(std::string_view(bytes).substr(8, header));
  for (const auto& item : parsed.as_object()) {
    if (item.key() == "__metadata__") continue;
    const boost::json::object& entry = item.value().as_object();
    const boost::json::string& type = entry.at("dtype").as_string();
    auto shape = boost::json::value_to<std::vector<int64_t>>(entry.at("shape"));
    auto place = boost::json::value_to<std::vector<size_t>>(entry.at("data_offsets"));
    at::Tensor tensor = at::empty(shape, type == "I64"    ? at::kLong
                                         : type == "BF16" ? at::kBFloat16
                                                          : at::kFloat);
    REQUIRE(tensor.nbytes() == place[1] - place[0]);
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header + place[0], tensor.nbytes());
    out.emplace(item.key(), tensor);
  }
  return out;
}
