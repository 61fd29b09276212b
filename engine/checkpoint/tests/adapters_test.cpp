// Adapters of a checkpoint: written as peft has them, and merged, in the order of rows and columns
// that files have.
#include "engine/checkpoint/adapters.h"

#include <c10/util/BFloat16.h>
#include <doctest/doctest.h>

#include <cmath>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/tests/scratch.h"

namespace checkpoint_adapters_test {

using namespace meshwright;
using namespace meshwright::checkpoint;
namespace fs = std::filesystem;
using scratch::Folder;

namespace {

std::vector<float> some(int64_t count, double scale, int64_t start) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(scale * std::sin(static_cast<double>(start + 7 * i))));
  return out;
}

MadeTensor made(const std::string& name, std::vector<int64_t> shape,
                const std::vector<float>& values) {
  return checkpoint::made("", name, DType::float32, std::move(shape), values);
}

constexpr int64_t kRank = 2, kIn = 4, kOut = 6;
const FusedRows kFused{2, {1, 2}};  // in memory: part 0, part 1, part 1, part 0, part 1, part 1
constexpr int64_t kMemoryRow[] = {0, 3, 1, 2, 4, 5};  // of each of the file's rows

struct Model {
  std::vector<float> w = some(kOut * kIn, 1, 1), a = some(kRank * kIn, 0.5, 2),
                     b = some(kOut * kRank, 0.5, 3);
  std::vector<MadeTensor> tensors(DType exported) const {
    std::vector<MadeTensor> out;
    for (const std::string module : {"plain", "fused", "turned"}) {
      out.push_back(made(module + ".weight", {kOut, kIn}, w));
      out.push_back(made(module + ".lora_A.weight", {kRank, kIn}, a));
      out.push_back(made(module + ".lora_B.weight", {kOut, kRank}, b));
      out[out.size() - 3].export_dtype = exported;
      if (module == "fused") out[out.size() - 3].fused = out.back().fused = kFused;
      if (module == "turned") out[out.size() - 3].transposed = true;
    }
    out.push_back(made("norm.weight", {kIn}, some(kIn, 1, 5)));
    return out;
  }
  float merged(int64_t row, int64_t column, double scale) const {
    double sum = 0;
    for (int64_t k = 0; k < kRank; ++k)
      sum += static_cast<double>(b[static_cast<size_t>(row * kRank + k)]) *
             static_cast<double>(a[static_cast<size_t>(k * kIn + column)]);
    return static_cast<float>(static_cast<double>(w[static_cast<size_t>(row * kIn + column)]) +
                              scale * sum);
  }
};

std::map<std::string, std::string> files(const std::string& config) {
  return {{"config.json", "{}"}, {std::string(kAdapterConfig), config}, {"source/t.json", "{}"}};
}

template <class T>
std::vector<T> values(const weights::WeightFolder& folder, const std::string& name) {
  const weights::TensorEntry* entry = folder.find(name);
  REQUIRE(entry != nullptr);
  std::vector<T> out(static_cast<size_t>(entry->bytes) / sizeof(T));
  std::memcpy(static_cast<void*>(out.data()), entry->data, static_cast<size_t>(entry->bytes));
  return out;
}

constexpr const char* kConfig = R"({"r": 2, "lora_alpha": 3, "use_rslora": false})";

// Holds the merged weights to W + scale B A, `turned` alone being the value of a row and a column
// of the one whose file has columns first.
template <class Turned>
void check_merged(const weights::WeightFolder& folder, const Model& model, double plain,
                  double fused, Turned&& turned) {
  const auto at_plain = values<float>(folder, "plain.weight"),
             at_fused = values<float>(folder, "fused.weight"),
             at_turned = values<float>(folder, "turned.weight");
  for (int64_t row = 0; row < kOut; ++row)
    for (int64_t column = 0; column < kIn; ++column) {
      const auto at = static_cast<size_t>(row * kIn + column),
                 across = static_cast<size_t>(column * kOut + row);
      auto near = [](double value) { return doctest::Approx(value).epsilon(1e-6); };
      CHECK(at_plain[at] == near(model.merged(row, column, plain)));
      CHECK(at_fused[at] == near(model.merged(kMemoryRow[row], column, fused)));
      CHECK(at_turned[across] == near(turned(row, column)));
    }
}

}  // namespace

TEST_CASE("merged weights are W + scale B A in the file's order of rows and columns") {
  Folder folder;
  const Model model;
  for (size_t ranks : {1, 3}) {
    for (const auto& [config, scale] :
         {std::pair(kConfig, 1.5),
          std::pair(R"({"r": 2, "lora_alpha": 3, "use_rslora": true})", 3 / std::sqrt(2))}) {
      const fs::path saved = folder.path / "saved", out = folder.path / "hf";
      fs::remove_all(saved);
      make_checkpoint(saved, ranks, model.tensors(DType::float32), Layout::rows, files(config));
      Source source(saved);
      MergeCount count;
      int64_t heard = 0;
      const weights::Exported done = export_folder(
          source, out,
          {.progress = [&](int64_t bytes) { heard += bytes; }, .form = ExportForm::merged}, &count);
      CHECK(heard == done.bytes);
      CHECK(count.elements == 3 * kOut * kIn);
      CHECK(count.unchanged == 0);
      CHECK(fs::exists(out / "config.json"));
      CHECK_FALSE(fs::exists(out / kAdapterConfig));
      const weights::WeightFolder found(out);
      CHECK(found.names() == std::vector<std::string>{"fused.weight", "norm.weight", "plain.weight",
                                                      "turned.weight"});
      check_merged(found, model, scale, scale,
                   [&](int64_t row, int64_t column) { return model.merged(row, column, scale); });
    }
  }
}

TEST_CASE("each weight is merged with the rank and the alpha of its own adapter") {
  Folder folder;
  const Model model;
  std::vector<MadeTensor> tensors = model.tensors(DType::float32);
  // "turned" has the first of the two ranks alone.
  const std::vector<float> a(model.a.begin(), model.a.begin() + kIn);
  std::vector<float> b;
  for (size_t row = 0; row < kOut; ++row) b.push_back(model.b[row * kRank]);
  tensors[7] = made("turned.lora_A.weight", {1, kIn}, a);
  tensors[8] = made("turned.lora_B.weight", {kOut, 1}, b);
  const fs::path saved = folder.path / "saved", out = folder.path / "hf",
                 peft = folder.path / "peft";
  const std::string config =
      R"({"r": 2, "lora_alpha": 3, "rank_pattern": {"turned": 1}, "alpha_pattern": {"fused": 5}})";
  make_checkpoint(saved, 2, tensors, Layout::rows, files(config));
  Source source(saved);
  export_folder(source, out, {.form = ExportForm::merged});
  check_merged(weights::WeightFolder(out), model, 1.5, 2.5, [&](int64_t row, int64_t column) {
    return static_cast<double>(model.w[static_cast<size_t>(row * kIn + column)]) +
           3 * static_cast<double>(b[static_cast<size_t>(row)]) *
               static_cast<double>(a[static_cast<size_t>(column)]);
  });
  export_folder(source, peft, {});
  const weights::WeightFolder alone(peft / "adapter_model.safetensors");
  CHECK(alone.find("base_model.model.turned.lora_A.weight")->shape == std::vector<int64_t>{1, kIn});
  CHECK(alone.find("base_model.model.plain.lora_A.weight")->shape ==
        std::vector<int64_t>{kRank, kIn});
}

TEST_CASE("a merge rounds once, and says what a narrow dtype lost") {
  Folder folder;
  Model model;
  for (float& value : model.b) value *= 0.001F;  // far below half a step of most
  const fs::path saved = folder.path / "saved", out = folder.path / "hf";
  make_checkpoint(saved, 2, model.tensors(DType::bfloat16), Layout::runs, files(kConfig));
  Source source(saved);
  MergeCount count;
  export_folder(source, out, {.form = ExportForm::merged}, &count);
  const weights::WeightFolder found(out);
  const auto plain = values<c10::BFloat16>(found, "plain.weight");
  int64_t same = 0;
  for (int64_t row = 0; row < kOut; ++row)
    for (int64_t column = 0; column < kIn; ++column) {
      const auto at = static_cast<size_t>(row * kIn + column);
      CHECK(plain[at] == c10::BFloat16(model.merged(row, column, 1.5)));
      same += plain[at] == c10::BFloat16(model.w[at]) ? 1 : 0;
    }
  CHECK(count.unchanged == 3 * same);
  CHECK(same > kOut * kIn / 2);
}

TEST_CASE("adapters alone go out under peft's names, every digit kept") {
  Folder folder;
  const Model model;
  const fs::path saved = folder.path / "saved", out = folder.path / "peft";
  make_checkpoint(saved, 2, model.tensors(DType::bfloat16), Layout::rows, files(kConfig));
  Source source(saved);
  const weights::Exported done = export_folder(source, out, {.shard_bytes = 8});
  CHECK(done.files ==
        std::vector<std::string>{"adapter_model.safetensors", "adapter_config.json", "t.json"});
  const weights::WeightFolder found(out / "adapter_model.safetensors");
  CHECK(found.names().size() == 6);
  CHECK(values<float>(found, "base_model.model.plain.lora_A.weight") == model.a);
  CHECK(values<float>(found, "base_model.model.turned.lora_B.weight") == model.b);
  const auto fused = values<float>(found, "base_model.model.fused.lora_B.weight");
  for (int64_t row = 0; row < kOut; ++row)
    for (int64_t k = 0; k < kRank; ++k)
      CHECK(fused[static_cast<size_t>(row * kRank + k)] ==
            model.b[static_cast<size_t>(kMemoryRow[row] * kRank + k)]);
}

TEST_CASE("adapters that were trained in bfloat16 go out in float32, or as asked") {
  Folder folder;
  std::vector<MadeTensor> tensors = Model().tensors(DType::bfloat16);
  for (MadeTensor& tensor : tensors)
    if (tensor.name.find("lora_") != std::string::npos) {
      tensor.dtype = DType::bfloat16;
      tensor.values.resize(tensor.values.size() / 2);
    }
  const fs::path saved = folder.path / "saved";
  make_checkpoint(saved, 2, tensors, Layout::rows, files(kConfig));
  Source source(saved);
  for (const auto& [asked, wanted] : {std::pair(std::optional<DType>(), DType::float32),
                                      std::pair(std::optional(DType::bfloat16), DType::bfloat16)}) {
    const fs::path out = folder.path / std::string(dtype_name(wanted));
    export_folder(source, out, {.dtype = asked});
    const weights::WeightFolder found(out / "adapter_model.safetensors");
    for (const std::string& name : found.names()) CHECK(found.find(name)->dtype == wanted);
  }
}

TEST_CASE("files of a checkpoint that do not belong together are damage") {
  Folder folder;
  const Model model;
  const std::vector<MadeTensor> whole = model.tensors(DType::float32);
  auto refused = [&](const std::vector<MadeTensor>& tensors, const std::string& config) {
    const fs::path saved = folder.path / "saved";
    fs::remove_all(saved);
    make_checkpoint(saved, 1, tensors, Layout::rows, files(config));
    Source source(saved);
    return scratch::message_of([&] { adapters_of(source); }, ErrorCode::bad_checkpoint);
  };
  CHECK(refused(whole, kConfig).empty());
  CHECK(refused(whole, "{}").ends_with("adapter_config.json has no r above 0"));
  CHECK(refused(whole, R"({"r": 2, "lora_alpha": "3"})").ends_with("has no lora_alpha above 0"));
  CHECK(scratch::has(refused(whole, R"({"r": 2, "lora_alpha": 3, "alpha_pattern": {"plain": 0}})"),
                     "alpha_pattern: \"plain\" = \"0\""));
  std::vector<MadeTensor> fewer = whole;
  fewer.erase(fewer.begin());
  CHECK(refused(fewer, kConfig).ends_with("plain.lora_A.weight lies beside no weight"));
  CHECK(refused({whole.back()}, kConfig).ends_with("but no adapters"));
  std::vector<MadeTensor> other = whole;
  other[0] = made("plain.weight", {kIn, kIn}, some(kIn * kIn, 1, 1));
  CHECK(refused(other, kConfig).ends_with("has another shape than the weight beside it"));
}

}  // namespace checkpoint_adapters_test
