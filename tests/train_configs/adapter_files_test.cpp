// Files of adapters that do not fit are refused before anything of a run is there.
#include <cstring>
#include <functional>

#include "trained.h"

namespace adapter_files_test {

const std::string kJob =
    "configs/lora_cpu.toml --set dataset.jsonl.cache=none --set dataset.seq_len=256 --set "
    "distributed.strategy=ddp ";

// A copy of a folder of adapters, whose tensors are zeros where its header is written anew.
struct Adapters {
  fs::path path;
  Adapters(const fs::path& from, const std::string& name) : path(kRuns + "/" + name) {
    fs::remove_all(path);
    fs::copy(from, path);
  }
  fs::path file() const { return path / "adapter_model.safetensors"; }
  static uint64_t header_size(const std::string& bytes) {
    uint64_t size = 0;
    REQUIRE(bytes.size() > sizeof size);
    std::memcpy(&size, bytes.data(), sizeof size);
    return size;
  }
  // `change`: of the tensors of the header, by name, with dtype and shape.
  void rewrite(const std::function<void(json::object&)>& change) const {
    const std::string before = contents(file());
    json::object tensors = json::parse(before.substr(8, header_size(before))).as_object();
    tensors.erase("__metadata__");
    change(tensors);
    int64_t end = 0;
    for (auto& tensor : tensors) {
      json::object& about = tensor.value().as_object();
      int64_t bytes = 4;
      for (const json::value& size : about.at("shape").as_array()) bytes *= size.as_int64();
      about["data_offsets"] = json::array{end, end + bytes};
      end += bytes;
    }
    const std::string text = json::serialize(tensors);
    const auto size = static_cast<uint64_t>(text.size());
    std::string length(sizeof size, '\0');
    std::memcpy(length.data(), &size, sizeof size);
    std::ofstream(file(), std::ios::binary)
        << length << text << std::string(static_cast<size_t>(end), '\0');
  }
};

// Made once.
const fs::path& exported_adapters() {
  static const fs::path made = kRuns + "/adapter_files/hf";
  static bool there = false;
  if (there) return made;
  const Trained run = train(kJob + "--set step_scheduler.max_steps=0 --set checkpoint.export=final",
                            "adapter_files");
  INFO(run.out);
  REQUIRE(run.status == 0);
  there = true;
  return made;
}

const std::string kOfQ = "base_model.model.model.layers.0.self_attn.q_proj.";

TEST_CASE("files of adapters that do not fit are refused, and leave no run") {
  const fs::path& whole = exported_adapters();
  struct Row {
    const char* name;
    std::function<void(const Adapters&)> damage;
    std::string code, said, help;
  };
  const std::vector<Row> rows{
      {"as it was", [](const Adapters&) {}, "", "", ""},
      {"truncated",
       [](const Adapters& a) { fs::resize_file(a.file(), fs::file_size(a.file()) - 8); }, "E0703",
       "adapter_model.safetensors", "set lora.adapter = \"none\""},
      {"without a file", [](const Adapters& a) { fs::remove(a.file()); }, "E0209", "there is no ",
       "save the adapters as safetensors"},
      {"half",
       [](const Adapters& a) {
         a.rewrite([](json::object& t) { t.erase(kOfQ + "lora_B.weight"); });
       },
       "E0704", "has no tensor \"" + kOfQ + "lora_B.weight\"", "the other factor of that adapter"},
      {"other r",
       [](const Adapters& a) {
         a.rewrite([](json::object& t) {
           t.at(kOfQ + "lora_A.weight").as_object().at("shape").as_array()[0] = 4;
         });
       },
       "E0704", "\"" + kOfQ + "lora_A.weight\" has the shape [4, ", "its r is 4, not the 8"},
      {"wide",
       [](const Adapters& a) {
         a.rewrite([](json::object& t) {
           t.at(kOfQ + "lora_A.weight").as_object().at("shape").as_array()[1] = 7;
         });
       },
       "E0704", "\"" + kOfQ + "lora_A.weight\" has the shape [8, 7]",
       "name adapters that were trained beside this model"},
      {"foreign",
       [](const Adapters& a) {
         a.rewrite([](json::object& t) {
           const json::value like = t.at(kOfQ + "lora_A.weight");
           t["base_model.model.model.vision.proj.lora_A.weight"] = like;
         });
       },
       "E0704",
       "has the tensor \"base_model.model.model.vision.proj.lora_A.weight\", which no adapter of "
       "this job takes",
       "name adapters that were trained beside this model"},
      {"integers",
       [](const Adapters& a) {
         a.rewrite(
             [](json::object& t) { t.at(kOfQ + "lora_A.weight").as_object()["dtype"] = "I32"; });
       },
       "E0704", "is int32, not of a floating type", "save the adapters in float32"},
  };
  for (const Row& row : rows) {
    const Adapters adapters(whole, "adapter_files_in");
    row.damage(adapters);
    const std::string begin = kJob + "--set step_scheduler.max_steps=0 --set 'lora.adapter=\"" +
                              adapters.path.string() + "\"' ";
    const bool fits = row.code.empty();
    int status = -1;
    fs::remove_all(kRuns + "/adapter_files_begun");
    const std::string validated = said(
        "validate " + begin + "--set run.dir='" + kRuns + "' --set run.name=adapter_files_begun",
        &status);
    CHECK((status == 0) == fits);
    for (const char* ranks : {"", "--nproc 2 "}) {
      const Trained run = train(begin + ranks, "adapter_files_begun");
      INFO(row.name, " ", ranks, "\n", validated, "\n", run.out);
      CHECK(run.status == (fits ? 0 : row.code == "E0209" ? 2 : 7));
      CHECK(fs::exists(kRuns + "/adapter_files_begun") == fits);
      for (const std::string& part : {row.code, row.said, row.help}) {
        CAPTURE(part);
        CHECK(run.out.find(part) != std::string::npos);
        CHECK(validated.find(part) != std::string::npos);
      }
      CHECK(run.out.find("set lora.target_modules") == std::string::npos);
    }
  }
}

TEST_CASE("names with a dot choose modules, and tensors of others are told as such") {
  const std::string chosen = kJob +
                             "--set step_scheduler.max_steps=0 --set "
                             "'lora.target_modules=[\"self_attn.q_proj\", \"mlp.down_proj\"]' ";
  const fs::path& whole = exported_adapters();
  const Trained some = train(chosen + "--set checkpoint.export=final", "adapter_files_some");
  INFO(some.out);
  REQUIRE(some.status == 0);
  const std::string tensors = contents(kRuns + "/adapter_files_some/hf/adapter_model.safetensors");
  const std::string header = tensors.substr(8, Adapters::header_size(tensors));
  CHECK(header.find(kOfQ + "lora_A.weight") != std::string::npos);
  CHECK(header.find("mlp.down_proj.lora_B.weight") != std::string::npos);
  CHECK(header.find("k_proj") == std::string::npos);
  CHECK(header.find("up_proj") == std::string::npos);

  const Trained fewer =
      train(chosen + "--set 'lora.adapter=\"" + whole.string() + "\"' ", "adapter_files_fewer");
  INFO(fewer.out);
  CHECK(fewer.status == 7);
  CHECK_FALSE(fs::exists(kRuns + "/adapter_files_fewer"));
  CHECK(fewer.out.find("which no adapter of this job takes") != std::string::npos);
  CHECK(fewer.out.find("set lora.target_modules and lora.exclude_modules to those of its") !=
        std::string::npos);
}

TEST_CASE("adapters that are not finite are said to be the adapters") {
  const Adapters adapters(exported_adapters(), "adapter_files_nan");
  std::string bytes = contents(adapters.file());
  const size_t begin = 8 + Adapters::header_size(bytes);
  bytes.replace(begin, bytes.size() - begin, bytes.size() - begin, '\xff');  // all of them NaN
  std::ofstream(adapters.file(), std::ios::binary) << bytes;
  const Trained run = train(kJob +
                                "--set step_scheduler.max_steps=1 --set run.stop_on_nonfinite=true "
                                "--set 'lora.adapter=\"" +
                                adapters.path.string() + "\"' ",
                            "adapter_files_not_finite");
  INFO(run.out);
  CHECK(run.status == 5);
  CHECK(run.out.find("look at the files of lora.adapter") != std::string::npos);
  CHECK(run.out.find("look at the files of model.pretrained") == std::string::npos);
}

}  // namespace adapter_files_test
