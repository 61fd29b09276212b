// Logits, losses and gradients against transformers: goldens made by
// tests/reference_pytorch/make_logits.py.
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "engine/models/running/causal_lm.h"
#include "meshwright/nn/moe.h"

namespace logits_test {

using namespace meshwright;
using at::Tensor;
namespace fs = std::filesystem;

namespace {

// The tensors of one small file.
std::map<std::string, Tensor> read_safetensors(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::map<std::string, Tensor> out;
  const boost::json::value parsed = boost::json::parse(std::string_view(bytes).substr(8, header));
  for (const auto& item : parsed.as_object()) {
    if (item.key() == "__metadata__") continue;
    const boost::json::object& entry = item.value().as_object();
    const boost::json::string& type = entry.at("dtype").as_string();
    auto shape = boost::json::value_to<std::vector<int64_t>>(entry.at("shape"));
    auto place = boost::json::value_to<std::vector<size_t>>(entry.at("data_offsets"));
    Tensor tensor = at::empty(shape, type == "I64"    ? at::kLong
                                     : type == "BF16" ? at::kBFloat16
                                                      : at::kFloat);
    REQUIRE(tensor.nbytes() == place[1] - place[0]);
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header + place[0], tensor.nbytes());
    out.emplace(item.key(), tensor);
  }
  return out;
}

// A fused weight of a file with its rows as the model holds them.
Tensor interleaved(const Tensor& file, const FusedRows& fused) {
  std::vector<int64_t> rows;
  for (int64_t part : fused.parts) rows.push_back(part * fused.groups);
  std::vector<Tensor> parts = file.split_with_sizes(rows, 0);
  for (Tensor& part : parts) part = part.unflatten(0, {fused.groups, -1});
  return at::cat(parts, 1).flatten(0, 1);
}

// A grouped tensor of experts from the file's Linears, one per expert and part.
Tensor grouped(const std::map<std::string, Tensor>& file, const std::string& name,
               int64_t experts) {
  bool mixtral = file.contains("model.layers.0.block_sparse_moe.gate.weight"),
       down = name.ends_with("down_projs");
  std::string prefix = name.substr(0, name.find(".mlp.experts.")) +
                       (mixtral ? ".block_sparse_moe.experts." : ".mlp.experts.");
  std::vector<Tensor> all;
  for (int64_t e = 0; e < experts; ++e) {
    auto part = [&](const char* of_mixtral, const char* of_qwen) {
      return file
          .at(prefix + std::to_string(e) + "." + (mixtral ? of_mixtral : of_qwen) + ".weight")
          .t();
    };
    all.push_back(down ? part("w2", "down_proj")
                       : at::cat({part("w1", "gate_proj"), part("w3", "up_proj")}, 1));
  }
  return at::stack(all);
}

modules::CausalLM load(const fs::path& folder, DType dtype) {
  modules::CausalLM model = modules::build_model(folder, dtype, at::kCPU);
  c10::NoGradGuard no_grad;
  std::map<std::string, Tensor> weights = read_safetensors(folder / "model.safetensors");
  for (const ParameterOutline& p : model->outline().parameters) {
    Tensor file;
    if (p.shape.size() == 3)
      file = grouped(weights, p.name, p.shape[0]);
    else if (size_t at = p.name.find(".mlp.gate.weight");
             at != std::string::npos && !weights.contains(p.name))
      file = weights.at(p.name.substr(0, at) + ".block_sparse_moe.gate.weight");
    else
      file = weights.at(p.name);
    model->named_parameters()[p.name].copy_(p.fused ? interleaved(file, *p.fused) : file);
  }
  return model;
}

double distance(const Tensor& a, const Tensor& b) {
  Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return ((x - y).abs().max() / y.abs().max()).item<double>();
}

double deviation(const Tensor& a, const Tensor& b) {
  Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return (x - y).square().mean().sqrt().item<double>();
}

}  // namespace

TEST_CASE("logits, loss and gradients of every variant are those of transformers") {
  int count = 0, balanced = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/nets")) {
    CAPTURE(entry.path().filename().string());
    std::map<std::string, Tensor> golden = read_safetensors(entry.path() / "golden.safetensors");
    const Tensor& ids = golden.at("ids");
    int64_t length = ids.size(1) - 1;
    modules::CausalLM model = load(entry.path(), DType::float32);
    Tensor logits = model(ids.narrow(1, 0, length));
    REQUIRE(logits.sizes().vec() == golden.at("logits").sizes().vec());
    CHECK(distance(logits, golden.at("logits")) < 1e-5);
    CHECK((logits - golden.at("logits")).abs().max().item<double>() < 1e-4);
    Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, length).flatten());
    for (auto& [name, block] : find_moe_blocks(*model))
      if (block->gate()
              ->load_balance) {  // one for all of them; what it adds to gradients comes by itself
        loss = loss + block->gate()->load_balance->value();
        ++balanced;
        break;
      }
    CHECK(loss.item<double>() == doctest::Approx(golden.at("loss").item<double>()).epsilon(1e-6));
    loss.backward();
    const Tensor& norms = golden.at("grad_norms");
    const std::vector<ParameterOutline>& parameters = model->outline().parameters;
    REQUIRE(norms.size(0) == static_cast<int64_t>(parameters.size()));
    for (size_t i = 0; i < parameters.size(); ++i) {
      INFO(parameters[i].name);
      double norm = model->named_parameters()[parameters[i].name].grad().norm().item<double>();
      double expected = norms[static_cast<int64_t>(i)].item<double>();
      // Key biases shift all scores of a query alike, so that their gradients are rounding errors.
      CHECK(std::abs(norm - expected) < 2e-5 * expected + 1e-6);
    }
    ++count;
  }
  CHECK(count == 29);
  CHECK(balanced == 2);
}

TEST_CASE("a model in bfloat16 is as close to its float32 self as the one of transformers") {
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/nets")) {
    CAPTURE(entry.path().filename().string());
    std::map<std::string, Tensor> golden = read_safetensors(entry.path() / "golden.safetensors");
    modules::CausalLM model = load(entry.path(), DType::bfloat16);
    c10::NoGradGuard no_grad;
    Tensor logits = model(golden.at("ids").narrow(1, 0, golden.at("ids").size(1) - 1));
    CHECK((logits.scalar_type() == at::kBFloat16));
    // Rounding depends on how weights lie in memory: transformers' own results differ as much from
    // load to load.
    double theirs = deviation(golden.at("logits_bf16"), golden.at("logits"));
    CHECK(theirs > 0);
    CHECK(deviation(logits, golden.at("logits")) < 1.3 * theirs);
    CHECK(deviation(logits, golden.at("logits_bf16")) < 1.8 * theirs);
  }
}

}  // namespace logits_test
