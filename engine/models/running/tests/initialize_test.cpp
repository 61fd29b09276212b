// Random initial weights: the right distribution, and the same on every layout.
#include "engine/models/running/initialize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <cmath>

#include "engine/models/models.h"
#include "engine/models/running/causal_lm.h"
#include "engine/models/running/philox.h"
#include "meshwright/error.h"

namespace initialize_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr const char* kName = "model.layers.3.mlp.up_proj.weight";

Tensor slice(const std::string& name, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& offsets, const std::vector<int64_t>& sizes,
             uint64_t seed = 7, at::ScalarType type = at::kFloat) {
  Tensor out = at::full(sizes, 99, type);
  modules::initialize(name, shape, offsets, sizes, {}, seed, out);
  return out;
}
Tensor whole(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed = 7) {
  return slice(name, shape, std::vector<int64_t>(shape.size(), 0), shape, seed);
}

}  // namespace

TEST_CASE("philox gives the published bits") {
  CHECK(modules::philox({0, 0, 0, 0}, 0, 0) ==
        modules::PhiloxBits{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(modules::philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
        modules::PhiloxBits{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(modules::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        modules::PhiloxBits{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("every element is the Box-Muller normal of its own bits") {
  Tensor all = whole(kName, {700});
  uint64_t stream = 0xCBF29CE484222325U;
  for (const char* c = kName; *c != 0; ++c)
    stream = (stream ^ static_cast<uint8_t>(*c)) * 0x100000001B3U;
  for (uint32_t i = 0; i < 700; ++i) {
    modules::PhiloxBits bits = modules::philox(
        {i / 4, 0, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}, 7, 0);
    double a = (bits[i % 4 / 2 * 2] >> 8) * 0x1p-24,
           b = (bits[i % 4 / 2 * 2 + 1] >> 8) * 0x1p-24 * 2 * M_PI;
    double expected =
        0.02 * std::sqrt(-2 * std::log(1 - a)) * (i % 2 == 0 ? std::cos(b) : std::sin(b));
    CHECK(all[i].item<double>() == doctest::Approx(expected).epsilon(1e-6).scale(0.02));
  }
}

TEST_CASE("weights do not depend on the processor") {
  Tensor all = whole("model.embed_tokens.weight", {1 << 16});
  // Bit patterns summed: one element rounded otherwise changes it.
  CHECK(all.view(at::kInt).to(at::kLong).sum().item<int64_t>() == -4283853570287);
}

TEST_CASE("any slice equals that part of the whole") {
  const std::vector<int64_t> shape = {37, 53};
  Tensor all = whole(kName, shape);
  for (auto [row, rows, column, columns] : {std::array<int64_t, 4>{0, 37, 0, 53},
                                            {5, 9, 0, 53},
                                            {36, 1, 0, 53},
                                            {0, 37, 13, 7},
                                            {3, 30, 52, 1},
                                            {4, 0, 0, 53},
                                            {7, 2, 1, 50}})
    CHECK(slice(kName, shape, {row, column}, {rows, columns})
              .equal(all.narrow(0, row, rows).narrow(1, column, columns)));
  const std::vector<int64_t> cube = {5, 6, 300};
  Tensor box = whole(kName, cube);
  CHECK(slice(kName, cube, {1, 2, 0}, {3, 2, 300}).equal(box.narrow(0, 1, 3).narrow(1, 2, 2)));
  CHECK(slice(kName, cube, {1, 2, 7}, {3, 2, 290})
            .equal(box.narrow(0, 1, 3).narrow(1, 2, 2).narrow(2, 7, 290)));
  CHECK(slice(kName, cube, {2, 0, 0}, {3, 6, 300}).equal(box.narrow(0, 2, 3)));
  CHECK(box.flatten().equal(whole(kName, {5 * 6 * 300})));  // flat layouts count elements
  Tensor strided = at::empty({53, 37}).t();
  modules::initialize(kName, shape, std::vector<int64_t>{0, 0}, shape, {}, 7, strided);
  CHECK(strided.equal(all));
  CHECK(slice(kName, shape, {5, 0}, {9, 53}, 7, at::kBFloat16)
            .equal(all.narrow(0, 5, 9).to(at::kBFloat16)));
}

TEST_CASE("weights are normal, and differ by seed and by name") {
  const std::vector<int64_t> shape = {1000, 1000};
  Tensor a = whole(kName, shape).to(at::kDouble) / 0.02;
  CHECK(std::abs(a.mean().item<double>()) < 5e-3);
  CHECK(a.square().mean().item<double>() == doctest::Approx(1).epsilon(1e-2));
  CHECK(std::abs(a.pow(3).mean().item<double>()) < 2e-2);
  CHECK(a.pow(4).mean().item<double>() == doctest::Approx(3).epsilon(2e-2));
  CHECK(a.abs().gt(1.959964).to(at::kDouble).mean().item<double>() ==
        doctest::Approx(0.05).epsilon(3e-2));
  CHECK(a.abs().max().item<double>() > 4.2);
  CHECK(a.abs().max().item<double>() < 6);
  for (int64_t lag : {1, 2, 3, 4, 256, 1000})
    CHECK(std::abs((a.flatten().narrow(0, 0, 900000) * a.flatten().narrow(0, lag, 900000))
                       .mean()
                       .item<double>()) < 6e-3);
  for (const Tensor& b :
       {whole(kName, shape, 8), whole("model.layers.3.mlp.gate_proj.weight", shape),
        whole(kName, shape, uint64_t{7} << 32)})
    CHECK(std::abs((a * b / 0.02).mean().item<double>()) < 5e-3);
}

TEST_CASE("biases are zero, norms are one, the padding row of the embedding is zero") {
  int biases = 0, norms = 0;
  for (const char* net : {"qwen2", "qwen3", "phi"}) {
    modules::CausalLM model = modules::build_model(
        std::string(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/") + net, DType::float32, at::kCPU);
    modules::initialize(*model, 7);
    for (const auto& item : model->named_parameters()) {
      INFO(net, " ", item.key());
      const bool bias = item.key().ends_with(".bias"), norm = item.key().ends_with("norm.weight");
      if (bias || norm)
        CHECK(item.value().eq(norm ? 1 : 0).all().item<bool>());
      else
        CHECK(item.value().std().item<double>() > 0);
      biases += bias ? 1 : 0, norms += norm ? 1 : 0;
    }
  }
  CHECK(biases > 10);
  CHECK(norms > 10);
  const std::vector<int64_t> shape = {5, 4};
  Tensor plain = whole("model.embed_tokens.weight", shape), padded = at::empty(shape);
  modules::initialize("model.embed_tokens.weight", shape, std::vector<int64_t>{0, 0}, shape,
                      {.zero_row = 3}, 7, padded);
  CHECK(plain[3].abs().sum().item<double>() > 0);
  plain[3].zero_();
  CHECK(padded.equal(plain));
  Tensor part = at::empty({3, 4});
  modules::initialize("model.embed_tokens.weight", shape, std::vector<int64_t>{2, 0}, part.sizes(),
                      {.zero_row = 3}, 7, part);
  CHECK(part.equal(plain.narrow(0, 2, 3)));
}

TEST_CASE("norms that scale by one plus their weight start as zeros") {
  modules::CausalLM model = modules::build_model(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/gemma3",
                                                 DType::float32, at::kCPU);
  modules::initialize(*model, 11);
  int norms = 0;
  for (const auto& item : model->named_parameters()) {
    if (!item.key().ends_with("norm.weight")) continue;
    CHECK(item.value().eq(0).all().item<bool>());
    ++norms;
  }
  CHECK(norms == 6 * model->outline().layers + 1);
}

TEST_CASE("a part of any layout is filled like the whole model") {
  modules::CausalLM model = modules::build_model(
      MESHWRIGHT_SOURCE_DIR "/tests/data/nets/llama_padding", DType::float32, at::kCPU);
  modules::initialize(*model, 11);
  auto parameters = model->named_parameters();
  for (const ParameterOutline& p : model->outline().parameters) {
    const Tensor& full = parameters[p.name];
    ParallelParameter rows{
        p.name, at::empty(p.shape).narrow(0, 1, 4), {}, p.shape, Region::whole(p.shape), {}};
    rows.region.offsets[0] = 1;
    rows.region.sizes[0] = 4;
    modules::initialize(*model, rows, 11);
    CHECK(rows.local.equal(full.narrow(0, 1, 4)));
    ParallelParameter flat{p.name, at::empty({13}), {}, p.shape, Region::run(6, 19), {}};
    modules::initialize(*model, flat, 11);
    CHECK(flat.local.equal(full.flatten().narrow(0, 6, 13)));
    if (p.shape.size() < 2) continue;
    for (int64_t begin :
         {0, 3, 7, 9}) {  // a run of a part that tensor parallelism cut along columns
      ParallelParameter part{p.name,
                             at::empty({11}),
                             {},
                             p.shape,
                             Region::run_of_box({1, 2}, {p.shape[0] - 1, 5}, begin, begin + 11),
                             {}};
      modules::initialize(*model, part, 11);
      CHECK(part.local.equal(
          full.narrow(0, 1, p.shape[0] - 1).narrow(1, 2, 5).flatten().narrow(0, begin, 11)));
    }
  }
  CHECK(parameters["model.embed_tokens.weight"].std().item<double>() ==
        doctest::Approx(0.2).epsilon(0.1));  // its config.json's
  CHECK(parameters["model.embed_tokens.weight"][3].abs().sum().item<double>() == 0);
}

TEST_CASE("a slice outside of its parameter is an error") {
  Tensor out = at::empty({2, 2});
  for (auto [o0, s0, o1, s1] :
       {std::array<int64_t, 4>{4, 2, 0, 2}, {-1, 2, 0, 2}, {0, 2, 0, 3}, {0, 1, 0, 1}})
    CHECK_THROWS_AS(modules::initialize(kName, {5, 4}, std::vector<int64_t>{o0, o1},
                                        std::vector<int64_t>{s0, s1}, {}, 7, out),
                    Error);
  CHECK_THROWS_AS(modules::initialize(kName, {5, 4}, std::vector<int64_t>{0},
                                      std::vector<int64_t>{4}, {}, 7, out),
                  Error);
}

}  // namespace initialize_test
