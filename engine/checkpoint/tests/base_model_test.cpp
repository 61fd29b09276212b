// Checkpoints that leave weights in the folder which the run started from.
#include "engine/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/tests/scratch.h"

namespace checkpoint_base_model_test {

using namespace meshwright;
using namespace meshwright::checkpoint;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kRank = 2, kIn = 4, kOut = 6;

std::vector<float> some(int64_t count, int64_t start) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(std::sin(static_cast<double>(start + 7 * i))));
  return out;
}

struct Parts {
  std::vector<MadeTensor> weights, factors;
};

// Of each form that files have a weight in; experts too, three of [4, 2 x 5].
Parts parts_of(int64_t start) {
  Parts out;
  for (const std::string module : {"plain", "fused", "turned"}) {
    out.weights.push_back(made("", module + ".weight", DType::float32, {kOut, kIn},
                               some(kOut * kIn, start + static_cast<int64_t>(module.size()))));
    out.factors.push_back(
        made("", module + ".lora_A.weight", DType::float32, {kRank, kIn}, some(kRank * kIn, 2)));
    out.factors.push_back(
        made("", module + ".lora_B.weight", DType::float32, {kOut, kRank}, some(kOut * kRank, 3)));
    if (module == "fused")
      out.weights.back().fused = out.factors.back().fused = FusedRows{2, {1, 2}};
    if (module == "turned") out.weights.back().transposed = true;
  }
  out.weights.push_back(made("", "model.layers.0.mlp.experts.gate_and_up_projs", DType::float32,
                             {3, 4, 10}, some(120, start)));
  return out;
}

std::vector<MadeTensor> joined(std::vector<MadeTensor> a, const std::vector<MadeTensor>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What a test stands on: checkpoints of the whole model and of the adapters beside `base`.
struct Made : scratch::Folder {
  fs::path base = path / "base", whole = path / "whole", apart = path / "apart";
  const std::map<std::string, std::string> files = {
      {"config.json", "{}"}, {std::string(kAdapterConfig), R"({"r": 2, "lora_alpha": 3})"}};

  Made() {
    const Parts parts = parts_of(1);
    put_base(parts.weights, base);
    put(whole, 2, joined(parts.weights, parts.factors), {});
    Meta meta = make_files(apart, 2, parts.factors, Layout::rows, files);
    meta.architecture = "MixtralForCausalLM";
    meta.base = BaseRecord{base.string(), fingerprint_of(weights::WeightFolder(base))};
    for (const MadeTensor& weight : parts.weights) {
      TensorRecord record{"",           weight.name,  weight.dtype,     weight.shape,     {},
                          weight.dtype, weight.fused, weight.file_name, weight.transposed};
      record.base = weight.shape.size() == 3 ? "model.layers.0.block_sparse_moe.experts.0.w1.weight"
                                             : weight.name;
      meta.tensors.insert(meta.tensors.begin(), record);
    }
    base::write_durably(apart / "meta.json", to_json(meta));
  }

  static void put(const fs::path& folder, size_t ranks, const std::vector<MadeTensor>& tensors,
                  std::map<std::string, std::string> more) {
    more.emplace("config.json", "{}");
    if (tensors.size() > 4) more.emplace(kAdapterConfig, R"({"r": 2, "lora_alpha": 3})");
    Meta meta = make_files(folder, ranks, tensors, Layout::rows, more);
    meta.architecture = "MixtralForCausalLM";
    base::write_durably(folder / "meta.json", to_json(meta));
  }
  void put_base(const std::vector<MadeTensor>& weights, const fs::path& folder) const {
    fs::remove_all(path / "plain");
    put(path / "plain", 1, weights, {});
    Source source(path / "plain");
    export_folder(source, folder, {});
  }
};

std::map<std::string, std::string> all_of(const fs::path& folder) {
  const weights::WeightFolder found(folder);
  std::map<std::string, std::string> out;
  for (const std::string& name : found.names()) {
    const weights::TensorEntry& tensor = *found.find(name);
    out[name] = {reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes)};
  }
  return out;
}

Error error_of(const fs::path& checkpoint, const fs::path& base = {}) {
  return scratch::caught([&] {
    Source source(checkpoint, base);
    std::vector<float> memory(kOut * kIn);
    for (size_t i = 0; i < source.tensors().size(); ++i)
      if (source.tensors()[i].name == "plain.weight")
        source.read(i, 0, kOut * kIn, DType::float32, memory.data());
  });
}

}  // namespace

TEST_CASE("weights that stayed are read from the base model, in any part and form") {
  const Made made;
  Checkpoint whole(made.whole), apart(made.apart);
  for (const TensorRecord& record : apart.meta().tensors) {
    if (!record.base) continue;
    CAPTURE(record.name);
    const TensorRecord& twin = *whole.meta().find("", record.name);
    const int64_t count = Region::whole(record.shape).count();
    std::vector<Region> regions = {Region::whole(record.shape), Region::run(3, count - 5)};
    if (record.shape.size() == 2)
      for (const Region& one : {Region::box({1, 1}, {4, 2}), Region::box({0, 3}, {kOut, 1}),
                                Region::run_of_box({1, 1}, {4, 2}, 1, 6)})
        regions.push_back(one);
    else
      regions.push_back(Region::box({1, 1, 3}, {2, 2, 4}));
    for (const Region& region : regions) {
      CAPTURE(to_text(region));
      std::vector<float> a(static_cast<size_t>(region.count())), b(a.size(), -1);
      whole.read(twin, region, DType::float32, a.data());
      apart.read(record, region, DType::float32, b.data());
      CHECK(a == b);
    }
  }
}

TEST_CASE("a checkpoint of adapters exports, merges and compares as one of the whole model") {
  const Made made;
  for (const ExportForm form : {ExportForm::merged, ExportForm::adapter}) {
    Source whole(made.whole), apart(made.apart);
    export_folder(whole, made.path / "a", {.form = form});
    export_folder(apart, made.path / "b", {.form = form});
    const char* file =
        form == ExportForm::merged ? "model.safetensors" : "adapter_model.safetensors";
    CHECK(all_of(made.path / "a" / file) == all_of(made.path / "b" / file));
    fs::remove_all(made.path / "a");
    fs::remove_all(made.path / "b");
  }
  Source whole(made.whole), apart(made.apart), again(made.apart);
  int64_t heard = 0;
  CHECK(compare(whole, apart, [](int64_t) {}).equal());
  CHECK(compare(apart, again, [&](int64_t bytes) { heard += bytes; }).equal());
  CHECK(heard == diff_bytes(apart, again));
}

TEST_CASE("no export takes away the model that its adapters need") {
  const Made made;
  const fs::path moved = made.path / "moved", link = made.path / "link";
  const std::map<std::string, std::string> before = all_of(made.base);
  fs::copy(made.base, moved);
  fs::create_directory_symlink(made.base, link);
  auto refusal = [&](const fs::path& target, const fs::path& base, ExportForm form) {
    Source source(made.apart, base);
    const Error error = scratch::caught([&] { export_folder(source, target, {.form = form}); });
    if (error.message().empty()) return std::string();
    CHECK(error.code() == ErrorCode::output_unwritable);
    CHECK(error.helps() == std::vector<std::string>{"name a folder that does not exist yet"});
    return error.message();
  };
  const std::string needs = ", which the adapters of " + made.apart.string() + " need";
  for (const ExportForm form : {ExportForm::merged, ExportForm::adapter}) {
    // By which other names: would_replace() in weights/tests/export_test.cpp.
    for (const fs::path& target : {made.base, link})
      CHECK(refusal(target, "", form) == "an export to " + target.string() +
                                             " would take away the model in " + made.base.string() +
                                             needs);
    CHECK(refusal(moved, moved, form).ends_with("the model in " + moved.string() + needs));
    CHECK(refusal(made.base, moved, form).ends_with("the model in " + made.base.string() + needs));
    CHECK(all_of(made.base) == before);
    CHECK(all_of(moved) == before);
    CHECK(refusal(made.path / "out", moved, form) == "");
    fs::remove_all(made.path / "out");
  }
  // A checkpoint of the whole model needs none.
  Source whole(made.whole);
  export_folder(whole, made.base, {.form = ExportForm::merged});
  CHECK(all_of(made.base) != before);
}

TEST_CASE("a base model that is gone or another one is told, and may lie elsewhere") {
  const Made made;
  auto verified = [&] { return verify_checkpoint(made.apart, [](int64_t) {}); };
  CHECK(verified().base == made.base.string());
  CHECK(verified().base_problem.empty());
  CHECK(error_of(made.apart).message() == "");
  const fs::path moved = made.path / "moved";
  fs::rename(made.base, moved);
  const Error gone = error_of(made.apart);
  CHECK(gone.code() == ErrorCode::file_unreadable);
  CHECK(gone.message().ends_with("there is no folder of their model: " + made.base.string()));
  CHECK(verified().damage.empty());
  CHECK(verified().base_problem == gone.message());
  // Nobody has named a folder here: what to do is said for a run and for an export.
  const std::string whole =
      "meshwright checkpoint export " + made.apart.string() + " --merged --base FOLDER --out DIR";
  CHECK(gone.key().empty());
  CHECK(gone.helps() ==
        std::vector<std::string>{"put the model back into " + made.base.string(),
                                 "where it is elsewhere: model.pretrained = \"FOLDER\" to train on",
                                 "for a model that is whole: " + whole});
  CHECK(error_of(made.apart, moved).message() == "");
  // The same names and shapes, other values.
  made.put_base(parts_of(2).weights, made.base);
  const Error changed = error_of(made.apart);
  CHECK(changed.code() == ErrorCode::checkpoint_mismatch);
  CHECK(changed.message().ends_with("whose weights are not those of then"));
  CHECK(changed.key().empty());
  CHECK(changed.helps() ==
        std::vector<std::string>{
            "put the weights back that the run started from",
            "where a copy of them is, a model that is whole can be made: " + whole});
  fs::rename(made.base, made.path / "another");
  const Error other = error_of(made.apart, made.path / "another");
  CHECK(other.code() == ErrorCode::checkpoint_mismatch);
  CHECK(other.message().ends_with("of the model in " + made.base.string() + ", not of " +
                                  (made.path / "another").string() + ", which has other weights"));
}

TEST_CASE("what --base names wrongly is told with what to give it, and a run's key by that key") {
  const Made made;
  const fs::path other = made.path / "other", nowhere = made.path / "nowhere";
  made.put_base(parts_of(2).weights, other);
  const std::string give =
                        "--base FOLDER: the folder of the model that the run started from, "
                        "which was " +
                        made.base.string() + " then, with the weights of then",
                    leave = "leave out --base: there still is a folder " + made.base.string(),
                    alone =
                        "leave out --merged and --base to export the adapters alone, which need "
                        "no model";
  for (const fs::path& base : {other, nowhere}) {
    CAPTURE(base.string());
    const Error error = error_of(made.apart, base);
    CHECK(error.code() ==
          (base == other ? ErrorCode::checkpoint_mismatch : ErrorCode::file_unreadable));
    CHECK(error.message().find(base.string()) != std::string::npos);
    CHECK(error.key().empty());
    CHECK(error.helps() == std::vector<std::string>{give, leave, alone});
  }
  // As it says: the adapters alone go out beside any folder.
  Source source(made.apart, other);
  export_folder(source, made.path / "alone", {.form = ExportForm::adapter});
  CHECK(fs::exists(made.path / "alone" / "adapter_model.safetensors"));
  // Under the name of then lie others: to leave out --base would not help.
  fs::remove_all(made.base);
  fs::copy(other, made.base);
  CHECK(error_of(made.apart, made.base).helps() == std::vector<std::string>{give, alone});
  Checkpoint going_on(made.apart);
  going_on.base_is_in(other, BaseNamedBy::pretrained);
  const Error error = scratch::caught([&] { going_on.open_base(); });
  CHECK(error.key() == "model.pretrained");
  CHECK(error.helps().at(0) == "set model.pretrained = \"" + made.base.string() + "\"");
}

}  // namespace checkpoint_base_model_test
