// Checkpoints of experts as the Hugging Face folders that they make: any piece of any expert,
// whatever layout it was saved in.
#include <doctest/doctest.h>

#include <numeric>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "sdk/base/tests/scratch.h"

namespace experts_test {

using namespace meshwright;
using namespace meshwright::checkpoint;
namespace fs = std::filesystem;
using scratch::Folder, scratch::has;

namespace {

constexpr int64_t kExperts = 3, kIn = 5, kOut = 4;
const std::string kMlp = "model.layers.0.mlp.", kSparse = "model.layers.0.block_sparse_moe.";

std::vector<float> counted(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1.0F);
  return out;
}

std::vector<MadeTensor> mixtral() {
  return {made("", kMlp + "gate.weight", DType::float32, {kExperts, kIn}, counted(kExperts * kIn)),
          made("", kMlp + "experts.gate_and_up_projs", DType::float32, {kExperts, kIn, 2 * kOut},
               counted(kExperts * kIn * 2 * kOut)),
          made("", kMlp + "experts.down_projs", DType::float32, {kExperts, kOut, kIn},
               counted(kExperts * kIn * kOut)),
          made("exp_avg", kMlp + "experts.down_projs", DType::float32, {kExperts, kOut, kIn},
               counted(kExperts * kIn * kOut))};
}

// As a saved run of that architecture.
fs::path write(const fs::path& folder, const std::string& architecture, size_t ranks, Layout layout,
               const std::vector<MadeTensor>& tensors) {
  Meta meta = make_files(folder, ranks, tensors, layout);
  meta.architecture = architecture;
  base::write_durably(folder / "meta.json", to_json(meta));
  return folder;
}

}  // namespace

TEST_CASE(
    "experts are read one by one and turned, in any pieces, from any layout, and their optimizer's "
    "state too") {
  Folder folder;
  int count = 0;
  for (Layout layout : {Layout::rows, Layout::columns, Layout::runs})
    for (size_t ranks : {1, 2, 4}) {
      Source source(write(folder.path / std::to_string(count++), "MixtralForCausalLM", ranks,
                          layout, mixtral()));
      REQUIRE(source.tensors().size() == 1 + 2 * kExperts + kExperts + kExperts);
      CHECK(source.tensors()[0].name == kSparse + "gate.weight");
      CHECK(source.tensors()[1].name == kSparse + "experts.0.w1.weight");
      CHECK(source.tensors()[2].name == kSparse + "experts.0.w3.weight");
      CHECK(source.tensors()[7].name == kSparse + "experts.0.w2.weight");
      CHECK(source.tensors()[10].state == "exp_avg");
      for (size_t i = 1; i < source.tensors().size(); ++i) {
        const SourceTensor& tensor = source.tensors()[i];
        bool up = i <= 2 * kExperts;
        size_t within = up ? i - 1 : (i - 1 - 2 * kExperts) % kExperts;
        int64_t expert = static_cast<int64_t>(up ? within / 2 : within),
                part = up ? static_cast<int64_t>(within % 2) : 0;
        int64_t in = up ? kIn : kOut, out = up ? kOut : kIn, columns = up ? 2 * kOut : kIn;
        CHECK(tensor.shape == std::vector<int64_t>{out, in});
        std::vector<float> whole;
        for (int64_t row = 0; row < out; ++row)
          for (int64_t column = 0; column < in; ++column)
            whole.push_back(
                static_cast<float>(1 + (expert * in + column) * columns + part * out + row));
        for (int64_t begin = 0; begin <= tensor.elements(); ++begin)
          for (int64_t end = begin; end <= tensor.elements(); ++end) {
            std::vector<float> found(static_cast<size_t>(end - begin));
            source.read(i, begin, end, DType::float32, found.data());
            CHECK(std::equal(found.begin(), found.end(), whole.begin() + begin));
          }
      }
    }
}

TEST_CASE(
    "a weight that is fused, transposed or both is read, exported and compared as its file has it, "
    "from any layout") {
  constexpr int64_t kRows = 6, kColumns = 4;
  for (const bool transposed : {false, true})
    for (const auto& fused :
         {std::optional<FusedRows>(), std::optional<FusedRows>(FusedRows{3, {1, 1}})})
      for (Layout layout : {Layout::rows, Layout::columns, Layout::runs})
        for (size_t ranks : {1, 3, 5}) {
          CAPTURE(transposed);
          CAPTURE(ranks);
          const Folder folder;
          MadeTensor weight =
              made("", "net.w", DType::float32, {kRows, kColumns}, counted(kRows * kColumns));
          weight.fused = fused;
          weight.file_name = "w";
          weight.transposed = transposed;
          MadeTensor moment = weight;
          moment.state = "exp_avg";
          Source source(
              write(folder.path / "saved", "GPT2LMHeadModel", ranks, layout, {weight, moment}));
          REQUIRE(source.tensors().size() == 2);
          const SourceTensor& tensor = source.tensors()[0];
          CHECK(tensor.name == "w");
          const int64_t outer = transposed ? kColumns : kRows, inner = kRows * kColumns / outer;
          CHECK(tensor.shape == std::vector<int64_t>{outer, inner});
          std::vector<float> whole;
          for (int64_t i = 0; i < outer; ++i)
            for (int64_t j = 0; j < inner; ++j) {
              const int64_t row = transposed ? j : i, column = transposed ? i : j,
                            memory = fused ? row % 3 * 2 + row / 3 : row;  // part by part
              whole.push_back(static_cast<float>(1 + memory * kColumns + column));
            }
          for (int64_t begin = 0; begin <= tensor.elements(); ++begin)
            for (int64_t end = begin; end <= tensor.elements(); ++end) {
              std::vector<float> found(static_cast<size_t>(end - begin));
              source.read(0, begin, end, DType::float32, found.data());
              CHECK(std::equal(found.begin(), found.end(), whole.begin() + begin));
            }
          export_folder(source, folder.path / "hf", {});
          const weights::WeightFolder file(folder.path / "hf");
          const auto bytes = std::as_bytes(std::span(whole));
          CHECK(std::equal(bytes.begin(), bytes.end(), file.find("w")->data));
          Source exported(folder.path / "hf");
          CHECK(compare(source, exported, [](int64_t) {}).equal());
        }
}

TEST_CASE("tensors of other architectures and shapes stay as they are") {
  Folder folder;
  Source llama(write(folder.path / "llama", "LlamaForCausalLM", 2, Layout::rows, mixtral()));
  CHECK(llama.tensors().size() == 4);
  CHECK(llama.tensors()[1].name == kMlp + "experts.gate_and_up_projs");
  std::vector<MadeTensor> flat = {
      made("", kMlp + "experts.down_projs", DType::float32, {6, 2}, counted(12)),
      made("", kMlp + "experts.gate_and_up_projs", DType::float32, {2, 2, 3}, counted(12))};
  Source odd(write(folder.path / "odd", "MixtralForCausalLM", 2, Layout::rows, flat));
  CHECK(odd.tensors().size() == 2);
}

TEST_CASE("checkpoints whose experts become too many tensors, or two of one name, are refused") {
  Folder folder;
  auto refusal = [&](const std::string& name, const std::vector<MadeTensor>& tensors) {
    const fs::path saved =
        write(folder.path / name, "MixtralForCausalLM", 1, Layout::rows, tensors);
    return scratch::message_of([&] { Source source(saved); }, ErrorCode::bad_checkpoint);
  };
  std::vector<MadeTensor> twice = mixtral();
  twice.push_back(
      made("", kSparse + "experts.1.w2.weight", DType::float32, {kIn, kOut}, counted(kIn * kOut)));
  CHECK(has(refusal("twice", twice), "two tensors are " + kSparse + "experts.1.w2.weight"));
  std::vector<MadeTensor> many;
  for (int layer = 0; layer < 9; ++layer)
    many.push_back(made("",
                        "model.layers." + std::to_string(layer) + ".mlp.experts.gate_and_up_projs",
                        DType::float32, {1 << 16, 1, 2}, counted(2 << 16)));
  CHECK(has(refusal("many", many), "more than 1048576 tensors"));
}

}  // namespace experts_test
