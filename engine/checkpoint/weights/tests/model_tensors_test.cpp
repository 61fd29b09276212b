// A Hugging Face folder beside the model of its config.json.
#include "engine/checkpoint/weights/model_tensors.h"

#include <doctest/doctest.h>

#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "sdk/base/tests/scratch.h"

namespace model_tensors_test {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::weights;
using scratch::caught, scratch::has;

namespace {

ModelOutline small(bool tied) {
  ModelOutline out;
  out.architecture = "LlamaForCausalLM";
  out.tied_embeddings = tied;
  out.modules.push_back({"model.embed_tokens", ModuleKind::embedding, "Embedding"});
  out.parameters.push_back({"model.embed_tokens.weight", {6, 2}});
  out.parameters.push_back({"model.norm.weight", {2}});
  if (!tied) out.parameters.push_back({"lm_head.weight", {6, 2}});
  return out;
}

struct One {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
};

std::string floats(int count, float first) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    const float value = first + static_cast<float>(i);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return out;
}

// The same values with half the digits.
std::string narrow(const std::string& wide) {
  std::string out;
  for (size_t at = 0; at < wide.size(); at += 4) out += wide.substr(at + 2, 2);
  return out;
}

struct Folder : scratch::Folder {
  explicit Folder(const std::vector<One>& tensors, const std::string& config = "{}") {
    std::string header, data;
    for (const One& one : tensors) {
      std::string shape;
      for (int64_t size : one.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
      header += (header.empty() ? "{\"" : ",\"") + one.name + R"(":{"dtype":")" + one.dtype +
                R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data.size()) +
                "," + std::to_string(data.size() + one.data.size()) + "]}";
      data += one.data;
    }
    header += "}";
    const uint64_t length = header.size();
    put("model.safetensors",
        std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
    put("config.json", config);
  }
};

const std::string kTable = floats(12, 1), kNorm = floats(2, 1);

}  // namespace

TEST_CASE("what a folder lacks, or has in another form, is told from its headers") {
  const One table{"model.embed_tokens.weight", "F32", {6, 2}, kTable},
      norm{"model.norm.weight", "F32", {2}, kNorm};
  const char* fp8 = R"({"quantization_config": {"quant_method": "fp8"}})";
  struct Row {
    std::vector<One> tensors;
    const char *config, *message, *help, *note;
  };
  for (const Row& row : std::vector<Row>{
           {{table, norm}, "{}", "", "", ""},
           {{table, norm}, fp8, "", "", ""},  // it may have been left behind
           {{table}, "{}", "has no tensor \"model.norm.weight\"", "belong together", ""},
           {{table, {"model.norm.weight", "F32", {1, 2}, kNorm}},
            "{}",
            "has the shape [1, 2], the model of config.json [2]",
            "belong together",
            ""},
           {{table, {"model.norm.weight", "I8", {2}, "xx"}},
            "{}",
            "is int8, wanted is a floating-point dtype",
            "quantized weights are not read",
            ""},
           {{table, {"model.norm.weight", "F8_E4M3", {2}, "xx"}},
            "{}",
            "has the dtype F8_E4M3, which is not supported",
            "quantized weights are not read",
            ""},
           {{table, {"model.norm.weight", "F8_E4M3", {2}, "xx"}},
            fp8,
            "F8_E4M3",
            "quantized weights are not read",
            "quantization_config.quant_method = \"fp8\""},
       }) {
    CAPTURE(row.message);
    const Folder folder(row.tensors, row.config);
    const Error error = caught([&] { open_model_tensors(folder.path.string(), small(true)); });
    CHECK(has(error.message(), row.message));
    CHECK(error.message().empty() == (*row.message == 0));
    if (*row.help == 0) continue;
    CHECK(error.key() == "model.pretrained");
    REQUIRE(error.helps().size() == 1);
    CHECK(has(error.helps()[0], row.help));
    CHECK(!has(error.helps()[0], "again"));
    CHECK(error.notes().empty() == (*row.note == 0));
    if (*row.note != 0) CHECK(has(error.notes()[0], row.note));
  }
}

TEST_CASE("a head beside a tied embedding is the same, or it is told that it would be lost") {
  struct Row {
    One head;
    bool tied, refused;
  };
  std::string other = kTable;
  other.back() ^= 1;
  for (const Row& row : std::vector<Row>{
           {{"lm_head.weight", "F32", {6, 2}, kTable}, true, false},
           {{"lm_head.weight", "F32", {6, 2}, other}, true, true},
           {{"lm_head.weight", "F32", {6, 2}, other}, false, false},
           {{"lm_head.weight", "BF16", {6, 2}, narrow(kTable)}, true, false},
           {{"lm_head.weight", "BF16", {6, 2}, narrow(floats(12, 2))}, true, true},
           {{"lm_head.weight", "F32", {5, 2}, floats(10, 1)}, true, true},
       }) {
    CAPTURE(row.head.dtype);
    const Folder folder({{"model.embed_tokens.weight", "F32", {6, 2}, kTable},
                         {"model.norm.weight", "F32", {2}, kNorm},
                         row.head,
                         {"more", "F32", {2}, kNorm}});
    const std::string path = folder.path.string();
    const ModelOutline outline = small(row.tied);
    const WeightFolder files(path);
    const Error error = caught([&] { check_tied_head(files, path, outline); });
    CHECK((error.code() == ErrorCode::weights_mismatch) == row.refused);
    if (row.refused) CHECK(has(error.helps().at(0), "\"tie_word_embeddings\": false"));
    CHECK(unused_tensors(files, path, outline).ends_with("not read: more"));
  }
}

TEST_CASE("a list that somebody else wrote carries no file out that may be a program") {
  for (const char* name : {"tokenizer.json", "a/chat_template.jinja", "LICENSE", "spiece.model"})
    CHECK(left_behind(name) == "");
  for (const char* name :
       {"pytorch_model.bin", "a/x.PKL", "x.pt", "..", "a/../x.json", "", ".bashrc", "a/.x/y",
        "x.joblib", "pytorch_model.bin.index.json", "model.safetensors", "a//b", "config.json"})
    CHECK_MESSAGE((*name == 0 || left_behind(name) != ""), name);
  const Folder folder({{"a", "F32", {2}, kNorm}});
  for (const std::string& begin :
       {std::string("\x80\4\x95"), std::string("PK\3\4"), std::string("\x1f\x8b"),
        std::string("\x7f"
                    "ELF")}) {
    folder.put("merges.txt", begin + "rest");
    CHECK(may_hold_program(folder.path / "merges.txt"));
    CHECK(carried_files(folder.path).files.empty());
  }
  folder.put("merges.txt", "#version: 0.2\n");
  CHECK(!may_hold_program(folder.path / "merges.txt"));
  CHECK(carried_files(folder.path).files.size() == 1);
  fs::rename(folder.path / "model.safetensors", folder.path / "evil.pkl");
  folder.put("model.safetensors.index.json", R"({"weight_map": {"a": "evil.pkl"}})");
  CHECK(has(caught([&] { WeightFolder files(folder.path); }).message(), "no safetensors file"));
}

}  // namespace model_tensors_test
