// What is read of a folder that peft wrote, what is taken from it, and what is refused by its key.
#include "engine/job/adapters.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace adapter_folder_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_adapter_folder_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  void put(const std::string& members) const {
    std::ofstream(path / "adapter_config.json") << "{\"peft_type\": \"LORA\", " << members << "}";
  }
  plan::Job job(const std::string& keys, Diagnostics& diagnostics) const {
    const config::Source source =
        config::Source::parse("[run]\ndir = \"" + path.string() + "\"\n[lora]\nadapter = \"" +
                                  path.string() + "\"\n" + keys,
                              {.file = "job.toml", .sets = {}, .environment = {}}, diagnostics);
    plan::Job out;
    out.config = config::resolve(source, {}, "", diagnostics);
    plan::take_from_adapter_folder(out.config, diagnostics);
    return out;
  }
  // The first error, as "E0704: ...", of reading the job or of holding the folder against it.
  std::string refusal(const std::string& keys) const {
    Diagnostics diagnostics;
    const plan::Job read = job(keys, diagnostics);
    if (diagnostics.ok()) plan::check_adapter_folder(read, diagnostics);
    if (diagnostics.ok()) return "";
    const Error& error = diagnostics.errors().front();
    return code_string(error.code()) + " " + error.key() + ": " + error.message() + "; " +
           error.helps().at(0);
  }
};

// For which modules the file is: the rules of peft's check_target_module_exists().
const std::vector<std::string> kModules{
    "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.q_proj",
    "model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", "lm_head"};

// The places of those that are held, "0 2".
std::string held(const std::string& members) {
  const plan::AdapterTargets targets(boost::json::parse("{" + members + "}").as_object());
  std::string out;
  for (size_t i = 0; i < kModules.size(); ++i)
    if (targets.hold(kModules[i])) out += (out.empty() ? "" : " ") + std::to_string(i);
  return out;
}

const std::string kPlain = R"("r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"])";

}  // namespace

TEST_CASE("what [lora] does not set is taken from the folder") {
  Folder folder;
  folder.put(kPlain + R"(, "use_rslora": true, "exclude_modules": ["x"], "lora_dropout": 0.1)");
  Diagnostics diagnostics;
  const Options all = folder.job("", diagnostics).config.table("lora"),
                some = folder
                           .job("r = 4\nalpha = 2.5\ntarget_modules = \"k_proj\"\ndropout = 0.1",
                                diagnostics)
                           .config.table("lora"),
                off = folder.job("r = 0", diagnostics).config.table("lora");
  CHECK(diagnostics.ok());
  CHECK(all.get_int("r") == 8);
  CHECK(all.get_number("alpha") == 16);
  CHECK(all.get_bool("rslora"));
  CHECK(all.get_strings("target_modules") == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(all.get_strings("exclude_modules") == std::vector<std::string>{"x"});
  CHECK(some.get_int("r") == 4);
  CHECK(some.get_number("alpha") == 2.5);
  CHECK(some.get_string("target_modules") == "k_proj");
  CHECK(some.get_bool("rslora"));
  CHECK(off.get_int("r") == 0);
  int told = 0, idle = 0;
  for (const std::string& text : diagnostics.notices()) {
    told += text.find("set lora.dropout = 0.1 to train on as it did") != std::string::npos;
    idle += text == "lora.adapter has no effect with lora.r = 0";
  }
  CHECK(told == 1);  // of the job that drops nothing
  CHECK(idle == 1);  // of the one that has no adapters
  // What goes on from a checkpoint may do so without the folder, if it says what that had.
  fs::remove(folder.path / "adapter_config.json");
  CHECK(folder.refusal("").starts_with("E0209 lora.adapter: there is no "));
  Diagnostics without;
  CHECK(folder.job("r = 4", without).config.table("lora").get_int("r") == 4);
  CHECK(without.ok());
}

TEST_CASE("what would make other adapters of the tensors is refused by its key") {
  Folder folder;
  folder.put(kPlain);
  CHECK(folder.refusal("") == "");
  for (const char* harmless :
       {R"("bias": "none")", R"("init_lora_weights": true)", R"("init_lora_weights": "gaussian")",
        R"("init_lora_weights": "orthogonal")", R"("modules_to_save": null)",
        R"("use_dora": false)", R"("fan_in_fan_out": false)", R"("rank_pattern": {})",
        R"("layer_replication": [])"}) {
    CAPTURE(harmless);
    folder.put(kPlain + ", " + harmless);
    CHECK(folder.refusal("") == "");
  }
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"lora_bias", "true"},
           {"fan_in_fan_out", "true"},
           {"layer_replication", "[[0, 2]]"},
           {"target_parameters", "[\"mlp.experts\"]"},
           {"trainable_token_indices", "[1]"},
           {"use_dora", "true"},
           {"use_qalora", "true"},
           {"use_bdlora", "{\"nblocks\": 2}"},
           {"arrow_config", "{\"top_k\": 1}"},
           {"alora_invocation_tokens", "[1]"},
           {"modules_to_save", "[\"lm_head\"]"},
           {"bias", "\"all\""},
           {"bias", "\"lora_only\""},
           {"init_lora_weights", "\"pissa\""},
           {"init_lora_weights", "\"olora\""},
           {"init_lora_weights", "\"corda\""},
           {"init_lora_weights", "\"loftq\""},
           {"rank_pattern", "{\"q_proj\": 4.5}"},
           {"rank_pattern", "{\"q_proj\": \"4\"}"},
           {"rank_pattern", "[4]"},
           {"alpha_pattern", "{\"q_proj\": 4, \"v_proj\": 0}"},
           {"alpha_pattern", "{\"(q_proj\": 4}"}}) {
    CAPTURE(key);
    CAPTURE(value);
    folder.put(kPlain + ", \"" + key + "\": " + value);
    const std::string refusal = folder.refusal("");
    CHECK(refusal.starts_with("E0704 lora.adapter: "));
    CHECK(refusal.find(": " + key + " = ") != std::string::npos);
  }
}

TEST_CASE("patterns that come to one number for all modules are that number") {
  Folder folder;
  auto taken = [&](const std::string& patterns) {
    folder.put(kPlain + ", " + patterns);
    CHECK(folder.refusal("") == "");
    Diagnostics diagnostics;
    const Options lora = folder.job("", diagnostics).config.table("lora");
    return std::pair(lora.get_int("r"), lora.get_number("alpha"));
  };
  CHECK(taken(R"("rank_pattern": {"q_proj": 8}, "alpha_pattern": {"model.*": 16})") ==
        std::pair(int64_t{8}, 16.0));
  CHECK(taken(R"("rank_pattern": {"v_proj": 4, "q_proj": 4})") == std::pair(int64_t{4}, 16.0));
  CHECK(taken(R"("alpha_pattern": {"v_proj": 2.5, "q_proj": 2.5})") == std::pair(int64_t{8}, 2.5));
}

TEST_CASE("numbers of some modules are taken as the folder has them") {
  Folder folder;
  folder.put(kPlain + R"(, "rank_pattern": {"layers.0.q_proj": 4, "v_proj": 2},
                           "alpha_pattern": {".*\\.1\\..*": 2.5})");
  CHECK(folder.refusal("") == "");
  Diagnostics diagnostics;
  const Options lora = folder.job("", diagnostics).config.table("lora");
  CHECK(lora.get_int("r") == 8);
  CHECK(lora.get_number("alpha") == 16);
  CHECK(std::get<StringMap>(lora.value("rank_pattern")) ==
        StringMap{{"layers.0.q_proj", "4"}, {"v_proj", "2"}});
  CHECK(std::get<StringMap>(lora.value("alpha_pattern")) == StringMap{{".*\\.1\\..*", "2.5"}});
  CHECK(folder.refusal("rank_pattern = {\"layers.0.q_proj\" = 4.0, v_proj = 2}") == "");
  CHECK(folder.refusal("rank_pattern = {v_proj = 2}")
            .ends_with("set lora.rank_pattern = {\"layers.0.q_proj\" = \"4\", \"v_proj\" = "
                       "\"2\"}"));
  CHECK(folder.refusal("alpha_pattern = {}").starts_with("E0208 lora.alpha_pattern: "));
  ModelOutline model;
  const plan::AdapterFolder read = plan::read_adapter_folder(folder.path, model);
  CHECK(read.ranks.of("model.layers.0.q_proj") == 4);
  CHECK(read.ranks.of("model.layers.10.q_proj") == 8);
  CHECK(read.ranks.of("model.layers.1.v_proj") == 2);
  CHECK(read.ranks.of("model.layers.1.uv_proj") == 8);
  CHECK(read.alphas.of("model.layers.1.v_proj") == 2.5);
  CHECK(read.alphas.of("model.layers.0.v_proj") == 16);
}

TEST_CASE("settings that differ from the folder's are refused with those that work") {
  Folder folder;
  folder.put(kPlain);
  CHECK(folder.refusal("r = 4").ends_with("set lora.r = 8"));
  CHECK(folder.refusal("alpha = 4").ends_with("set lora.alpha = 16"));
  CHECK(folder.refusal("rslora = true").ends_with("set lora.rslora = false"));
  // Expressions of peft are no names: then the job says which.
  folder.put(R"("r": 8, "lora_alpha": 16, "target_modules": ".*_proj")");
  CHECK(folder.refusal("").starts_with("E0208 lora.target_modules: "));
  CHECK(folder.refusal("target_modules = \"q_proj\"") == "");
  folder.put(kPlain + R"(, "layers_to_transform": [1])");
  CHECK(folder.refusal("").starts_with("E0208 lora.target_modules: "));
}

TEST_CASE("what peft could not read either is told at its place, alike to whoever reads it") {
  Folder folder;
  const fs::path file = folder.path / "adapter_config.json";
  for (const char* name : {"target_modules", "exclude_modules"}) {
    const std::string valid =
        std::string(name) == "target_modules" ? R"("r": 8, "lora_alpha": 16)" : kPlain;
    folder.put(valid + ",\n \"" + name + "\": \".*(q_proj\"");
    const std::string what =
        file.string() + ": " + name + " = \".*(q_proj\" is no regular expression";
    auto check = [&](const Error& error) {
      CHECK(error.code() == ErrorCode::weights_mismatch);
      CHECK(error.message() == what);
      CHECK(error.origin().source == Origin::Source::file);
      CHECK(error.origin().file == file.string());
      CHECK(error.origin().line == 2);
      CHECK(error.origin().column == 2);
      CHECK(error.helps().at(0).starts_with("write the folder again: "));
    };
    // Where r comes from the folder, and where it does not.
    for (const char* keys : {"", "r = 8\nalpha = 16"}) {
      CAPTURE(keys);
      Diagnostics diagnostics;
      const plan::Job read = folder.job(keys, diagnostics);
      if (diagnostics.ok()) plan::check_adapter_folder(read, diagnostics);
      REQUIRE(diagnostics.errors().size() == 1);
      check(diagnostics.errors()[0]);
      CHECK(diagnostics.errors()[0].key() == "lora.adapter");
    }
    try {
      plan::read_adapter_folder(folder.path, ModelOutline());
      FAIL("the folder was read");
    } catch (const Error& error) {
      check(error);
    }
  }
  // What the job says itself is not read there.
  folder.put(R"("r": 8, "lora_alpha": 16, "target_modules": "(q_proj")");
  CHECK(folder.refusal("target_modules = \"q_proj\"") == "");
}

TEST_CASE("the help for a broken file and for one of another kind are not the same") {
  Folder folder;
  for (const auto& [members, help] : std::vector<std::pair<std::string, std::string>>{
           {R"("r": "8", "lora_alpha": 16)", "write the folder again: "},
           {R"("lora_alpha": 16)", "write the folder again: "},
           {R"("r": 8, "lora_alpha": -1)", "write the folder again: "},
           {R"("r": 1.5, "lora_alpha": 1)", "write the folder again: "},
           {R"("r": 8, "lora_alpha": 16, "rank_pattern": [4])", "write the folder again: "},
           {R"("r": 8,)", "write the folder again: "},
           {kPlain + R"(, "use_dora": true)", "peft makes a whole model of such adapters: "},
           {kPlain + R"(, "bias": "all")", "peft makes a whole model of such adapters: "}}) {
    CAPTURE(members);
    folder.put(members);
    try {
      plan::read_adapter_folder(folder.path, ModelOutline());
      FAIL("the folder was read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::weights_mismatch);
      REQUIRE(error.helps().size() == 1);
      CHECK(error.helps()[0].starts_with(help));
    }
  }
}

TEST_CASE("adapters of another model that is here are told, and of one that is not are not") {
  Folder folder;
  const fs::path base = folder.path / "base", other = folder.path / "other";
  fs::create_directories(base);
  fs::create_directories(other);
  fs::create_directory_symlink(base, folder.path / "link");
  auto told = [&](const fs::path& names, const fs::path& model) {
    folder.put(kPlain + ", \"base_model_name_or_path\": \"" + names.string() + "\"");
    return plan::read_adapter_folder(folder.path, ModelOutline(), model).other_base;
  };
  CHECK(told(base, other) == (folder.path / "adapter_config.json").string() +
                                 ": its adapters were trained beside " + base.string() +
                                 ", and this is " + other.string() +
                                 ": beside other weights they are another model");
  CHECK(told(base, base) == "");
  CHECK(told(base, folder.path / "link") == "");
  CHECK(told("meta-llama/none", other) == "");
  CHECK(told(base, "") == "");
  folder.put(kPlain + ", \"base_model_name_or_path\": \"" + base.string() + "\"");
  for (const fs::path& model : {base, other}) {
    Diagnostics diagnostics;
    const config::Source source = config::Source::parse(
        "[run]\ndir = \"" + folder.path.string() + "\"\n[model]\npretrained = \"" + model.string() +
            "\"\n[lora]\nadapter = \"" + folder.path.string() + "\"\n",
        {.file = "job.toml", .sets = {}, .environment = {}}, diagnostics);
    config::Config config = config::resolve(source, {}, "", diagnostics);
    plan::take_from_adapter_folder(config, diagnostics);
    CHECK(diagnostics.ok());
    CHECK(diagnostics.notices().size() == (model == other ? 1 : 0));
  }
}

TEST_CASE("targets are names, last parts of names, expressions and layers, as in peft") {
  CHECK(held(R"("target_modules": ["q_proj"])") == "0 1 2 3");
  CHECK(held(R"("target_modules": ["self_attn.q_proj"])") == "0 2 3");
  CHECK(held(R"("target_modules": ["attn.q_proj", "1.self_attn.q_proj"])") == "2");
  CHECK(held(R"("target_modules": ["model.layers.0.mlp.q_proj", "lm_head"])") == "1 4");
  CHECK(held(R"("target_modules": "all-linear")") == "0 1 2 3");
  CHECK(held(R"("target_modules": ".*\\.1\\..*")") == "2");
  CHECK(held(R"("target_modules": "q_proj")") == "");
  CHECK(held(R"("target_modules": [])") == "");
  CHECK(held(R"("target_modules": null)") == "0 1 2 3 4");
  // Not read here, and so for all.
  CHECK(held(R"("target_modules": "model\\.layers\\.[0-9]{1,}.*")") == "0 1 2 3 4");
  CHECK(held(R"("target_modules": ["q_proj"], "exclude_modules": ["mlp.q_proj"])") == "0 2 3");
  CHECK(held(R"("target_modules": ["q_proj"], "exclude_modules": ".*self_attn.*")") == "1");
  CHECK(held(R"("target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1])") == "2 4");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": 0)") == "0 1");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": [0, 11],
                "layers_pattern": ["h", "layers"])") == "0 1 3");
  CHECK(held(R"("target_modules": ["q_proj"], "layers_to_transform": [0],
                "layers_pattern": "h")") == "");
  CHECK(plan::AdapterTargets().hold("anything"));
  const plan::AdapterTargets some(
      boost::json::parse(R"({"r": 2, "layers_to_transform": [1], "target_modules": ["q_proj"]})")
          .as_object());
  CHECK(some.are_names());
  CHECK(some.text() == R"(target_modules = ["q_proj"], layers_to_transform = [1])");
}

}  // namespace adapter_folder_test
