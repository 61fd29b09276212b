// Outlines against what transformers builds from the same config.json, and configurations that are
// none.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include "engine/models/models.h"
#include "meshwright/error.h"

using namespace meshwright;
namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// What a class of the real model is to a plan.
ModuleKind kind_of(const std::string& class_name) {
  if (class_name == "Linear") return ModuleKind::linear;
  if (class_name.ends_with("Embedding") && class_name.find("Rotary") == std::string::npos)
    return ModuleKind::embedding;
  if (class_name.ends_with("RotaryEmbedding")) return ModuleKind::rotary;
  if (class_name.ends_with("Norm")) return ModuleKind::norm;
  if (class_name == "ModuleList") return ModuleKind::list;
  if (class_name.ends_with("DecoderLayer")) return ModuleKind::layer;
  if (class_name.ends_with("Experts")) return ModuleKind::experts;
  if (class_name.ends_with("Router")) return ModuleKind::router;
  return ModuleKind::other;
}

std::optional<Error> refusal(const std::string& text) {
  try {
    outlines::parse_outline(text, "config.json", DType::float32);
  } catch (const Error& error) {
    CHECK(error.key() == "model.config");
    return error;
  }
  return std::nullopt;
}
std::string code_of(const std::string& text) {
  const std::optional<Error> error = refusal(text);
  return error ? code_string(error->code()) : "ok";
}
std::string helps_of(const std::optional<Error>& error) {
  REQUIRE(error.has_value());
  std::string out;
  for (const std::string& help : error->helps()) out += help + "\n";
  return out;
}
// Of a path that is not there.
std::optional<Error> refused_path(const std::string& path) {
  try {
    outlines::load_outline(path, DType::float32);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::string llama(const std::string& more) {
  return R"({"architectures":["LlamaForCausalLM"],"num_hidden_layers":2)" +
         (more.empty() ? "" : "," + more) + "}";
}

}  // namespace

TEST_CASE("every outline has the names, shapes, kinds and plan of the real model") {
  int count = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(MESHWRIGHT_SOURCE_DIR "/tests/data/models")) {
    std::string name = entry.path().filename().string();
    CAPTURE(name);
    ModelOutline outline = outlines::load_outline(entry.path(), DType::float32);
    json::object golden = json::parse(read(entry.path() / "outline.golden.json")).as_object();
    CHECK(outline.architecture == std::string(golden.at("class").as_string()));
    const json::array& parameters = golden.at("parameters").as_array();
    REQUIRE(outline.parameters.size() == parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const json::array& row = parameters[i].as_array();
      CHECK(outline.parameters[i].name == std::string(row[0].as_string()));
      std::vector<int64_t> shape;
      for (const json::value& size : row[1].as_array()) shape.push_back(size.as_int64());
      INFO(outline.parameters[i].name);
      CHECK(outline.parameters[i].shape == shape);
    }
    const json::array& modules = golden.at("modules").as_array();
    REQUIRE(outline.modules.size() == modules.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      std::string module(modules[i].as_array()[0].as_string()),
          class_name(modules[i].as_array()[1].as_string());
      CHECK(outline.modules[i].name == module);
      CHECK(outline.modules[i].class_name == class_name);
      INFO(module, " ", class_name);
      CHECK(outline.modules[i].kind == kind_of(class_name));
    }
    std::set<std::string> ours, theirs;
    for (const auto& [pattern, style] : outline.own_tp_plan)
      // Of Phi's norms of heads theirs says nothing: their gradients would not be summed.
      if (!(pattern.ends_with(".q_layernorm") || pattern.ends_with(".k_layernorm")))
        ours.insert(pattern + " " + style);
    for (const auto& item : golden.at("tp_plan").as_object())
      theirs.insert(std::string(item.key()) + " " + std::string(item.value().as_string()));
    CHECK(ours == theirs);
    ++count;
  }
  CHECK(count >= 34);  // a folder that is lost would otherwise go unseen
}

TEST_CASE("fused weights say how their rows lie in memory, and no others do") {
  struct Row {
    const char* folder;
    FusedRows attention, mlp;
  };
  for (const Row& row :
       {Row{"phi3_grouped", {2, {32, 16, 16}}, {2, {88, 88}}},
        Row{"phi3_mini", {32, {96, 96, 96}}, {32, {256, 256}}},
        Row{"phi3_tied", {2, {32, 16, 16}}, {2, {88, 88}}}, Row{"qwen3_moe_mixed", {}, {}}}) {
    CAPTURE(row.folder);
    ModelOutline outline = outlines::load_outline(
        std::string(MESHWRIGHT_SOURCE_DIR "/tests/data/models/") + row.folder, DType::float32);
    size_t fused = 0;
    for (const ParameterOutline& p : outline.parameters) {
      if (!p.fused) continue;
      ++fused;
      CHECK(*p.fused == (p.name.ends_with("self_attn.qkv_proj.weight") ? row.attention : row.mlp));
      CHECK(p.shape[0] == p.fused->groups * std::accumulate(p.fused->parts.begin(),
                                                            p.fused->parts.end(), int64_t{0}));
    }
    CHECK(fused == (row.attention.parts.empty() ? 0 : 4));
  }
}

TEST_CASE("a fused weight of more heads than a checkpoint can name is refused") {
  auto phi3 = [](int64_t heads) {
    std::string n = std::to_string(heads);
    return R"({"architectures":["Phi3ForCausalLM"],"head_dim":2,"num_attention_heads":)" + n +
           R"(,"num_key_value_heads":)" + n + "}";
  };
  CHECK(code_of(phi3(4096)) == "ok");
  CHECK(code_of(phi3(4097)) == "E0210");
}

TEST_CASE("a configuration that makes no sense is refused by its field") {
  CHECK(code_of(llama("")) == "ok");
  for (const char* bad : {"", "[]", "nonsense", "{\"a\":", "null", "3"})
    CHECK(code_of(bad) == "E0210");
  CHECK(code_of(std::string(1000, '[')) == "E0210");
  for (const char* field :
       {"\"hidden_size\":0", "\"hidden_size\":-4", "\"hidden_size\":\"64\"", "\"hidden_size\":1.5",
        "\"hidden_size\":99999999999999999999", "\"vocab_size\":1e300",
        "\"num_hidden_layers\":1000000000", "\"num_attention_heads\":7",
        "\"num_key_value_heads\":3", "\"tie_word_embeddings\":1", "\"attention_bias\":\"no\""}) {
    std::string text = field;
    CAPTURE(text);
    CHECK(code_of(R"({"architectures":["LlamaForCausalLM"],)" + text + "}") == "E0210");
  }
  CHECK(code_of(R"({"architectures":["GPT2LMHeadModel"]})") == "E0211");
  CHECK(code_of("{}") == "E0211");
  CHECK(code_of(R"({"architectures":[3]})") == "E0210");
  // Python's words for numbers that JSON does not have, and weights in another format.
  for (const char* word : {"Infinity", "-Infinity", "NaN"}) {
    CAPTURE(word);
    const std::optional<Error> error =
        refusal("{\"a\": 1,\n \"limit\": [0.0, " + std::string(word) + "]}");
    REQUIRE(error.has_value());
    CHECK(error->message().find("line 2") != std::string::npos);
    REQUIRE(error->helps().size() == 1);
    CHECK(error->helps()[0].starts_with(std::string(word) + " is no number of JSON"));
  }
  CHECK(helps_of(refused_path("/nowhere/q4.gguf")).find("gguf_file=\"q4.gguf\"") !=
        std::string::npos);
  for (const char* path : {"/nowhere/config.json", "/dev/zero"})
    CHECK(refused_path(path).has_value());
}

TEST_CASE("norms of queries and keys in Phi need the head size that they are made for") {
  auto phi = [](const std::string& more) {
    return R"({"architectures":["PhiForCausalLM"],"num_hidden_layers":1,"num_attention_heads":8,)" +
           more + "}";
  };
  struct Row {
    const char *fields, *code;
  };
  // The same as what transformers can run: the norms are hidden_size // num_attention_heads wide.
  for (const Row& row : {Row{R"("hidden_size":64,"qk_layernorm":true)", "ok"},
                         Row{R"("hidden_size":64,"head_dim":8,"qk_layernorm":true)", "ok"},
                         Row{R"("hidden_size":65,"head_dim":8,"qk_layernorm":true)", "ok"},
                         Row{R"("hidden_size":64,"head_dim":16,"qk_layernorm":true)", "E0210"},
                         Row{R"("hidden_size":4,"head_dim":1,"qk_layernorm":true)", "E0210"},
                         Row{R"("hidden_size":64,"head_dim":16,"qk_layernorm":false)", "ok"},
                         Row{R"("hidden_size":64,"head_dim":16)", "ok"}}) {
    std::string fields = row.fields;
    CAPTURE(fields);
    CHECK(code_of(phi(fields)) == row.code);
  }
  const std::optional<Error> error =
      refusal(phi(R"("hidden_size":64,"head_dim":16,"qk_layernorm":true)"));
  REQUIRE(error.has_value());
  CHECK(error->message().find("64 / 8 = 8, found head_dim = 16") != std::string::npos);
  CHECK(error->helps().front() == "set \"head_dim\": 8");  // the second row: it works
}

TEST_CASE("an unknown architecture is likened to a known one only when it is nearly the same") {
  auto helps = [](const std::string& architecture) {
    return helps_of(refusal(R"({"architectures":[")" + architecture + R"("]})"));
  };
  for (const char* name : {"SmolLM3ForCausalLM", "FooForCausalLM", "OlmoForCausalLM", "ForCausalLM",
                           "", "GPT2LMHeadModel", "BloomForCausalLM"}) {
    INFO(name);
    CHECK(helps(name).find("did you mean") == std::string::npos);
  }
  CHECK(helps("LamaForCausalLM").find("\"LlamaForCausalLM\"") != std::string::npos);
  CHECK(helps("Gemma3ForConditionalGeneration").find("\"Gemma3ForCausalLM\"") != std::string::npos);
}

TEST_CASE(
    "the name of a model on the hub where a path belongs says how to download it, and which key "
    "names it then") {
  const std::optional<Error> error = refused_path("meta-llama/Llama-3.2-1B");
  const std::string helps = helps_of(error);
  CHECK(error->code() == ErrorCode::file_unreadable);
  for (const char* help : {"hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B\n",
                           "set model.pretrained = \"models/Llama-3.2-1B\"",
                           "model.config = \"models/Llama-3.2-1B/config.json\""})
    CHECK_MESSAGE(helps.find(help) != std::string::npos, help);
  CHECK(outlines::hub_helps("Qwen/Qwen3-0.6B").size() == 2);
  for (const char* path : {"", "a", "/", "./a", "../a", "/a/b", "a/b/c", "a/", "/b",
                           "models/config.json", "a b/c", "-a/b", "a/b\n", "a/$(b)", "~/a"}) {
    INFO(path);
    CHECK(outlines::hub_helps(path).empty());
  }
  fs::path folder = fs::temp_directory_path() / ("meshwright_hub_" + std::to_string(getpid()));
  fs::create_directories(folder / "org");
  fs::path before = fs::current_path();
  fs::current_path(folder);
  CHECK(outlines::hub_helps("org/model").empty());  // the folder is there: a slip in the path
  CHECK(outlines::hub_helps("gro/model").size() == 2);
  fs::current_path(before);
  fs::remove_all(folder);
}

TEST_CASE("no bytes make the reader crash") {
  const std::string whole =
      read(MESHWRIGHT_SOURCE_DIR "/tests/data/models/qwen3_moe_mixed/config.json");
  uint64_t state = 3;
  auto next = [&] {
    return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33;
  };
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = whole;
    for (uint64_t k = 0; k < 1 + next() % 5; ++k)
      text[next() % text.size()] = "0123456789{}[]\",:-e"[next() % 19];
    try {
      outlines::parse_outline(text, "mutant", DType::float32);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
}
