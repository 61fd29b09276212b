// meshwright generate with a folder of adapters: beside the model and in its weights, as the run
// writes that trained them, and what does not fit.
#include <cmath>
#include <cstring>

#include "ran.h"
#include "sdk/comm/tests/sampled.h"

namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "F32";
};

// A safetensors file of values far enough from 0 to change what a model writes.
void put_tensors(const fs::path& path, const std::vector<Tensor>& tensors) {
  json::object header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const Tensor& tensor : tensors) {
    const size_t begin = data.size();
    for (int64_t i = 0; i < tensor.shape[0] * tensor.shape[1]; ++i) {
      const auto value = static_cast<float>(
          0.5 * std::sin(static_cast<double>(7 * i) + static_cast<double>(begin)));
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header[tensor.name] =
        json::object{{"dtype", tensor.dtype},
                     {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                     {"data_offsets", json::array{begin, data.size()}}};
  }
  const std::string text = json::serialize(header);
  const auto length = static_cast<uint64_t>(text.size());
  std::string all(sizeof length, '\0');
  std::memcpy(all.data(), &length, sizeof length);
  put(path, all + text + data);
}

// Of both layers: [out, in] a last name of a module.
std::vector<Tensor> factors(const std::vector<std::tuple<std::string, int64_t, int64_t>>& modules,
                            int64_t r = 2) {
  std::vector<Tensor> out;
  for (const std::string layer : {"0.", "1."})
    for (const auto& [module, rows, columns] : modules) {
      const std::string name = "base_model.model.model.layers." + layer + module;
      out.push_back({name + ".lora_A.weight", {r, columns}});
      out.push_back({name + ".lora_B.weight", {rows, r}});
    }
  return out;
}

const std::vector<Tensor> kPhi3 =
    factors({{"self_attn.qkv_proj", 48, 24}, {"mlp.down_proj", 24, 40}});
const std::string kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_rslora": true, "target_modules": )"
    R"(["qkv_proj", "down_proj"], "base_model_name_or_path": "models/phi"})";

fs::path put_adapter(const fs::path& folder, const std::vector<Tensor>& tensors = kPhi3,
                     const std::string& config = kConfig) {
  fs::create_directories(folder);
  put(folder / "adapter_config.json", config);
  if (!tensors.empty()) put_tensors(folder / "adapter_model.safetensors", tensors);
  return folder;
}

// Runs of no step: their checkpoints hold what they begin with.
void begin_run(const fs::path& folder, const std::string& name, const std::string& lora) {
  const fs::path job = folder / (name + ".toml");
  put(job,
      "schema = 1\n[run]\nname = \"" + name + "\"\ndir = \"" + folder.string() +
          "\"\n[model]\npretrained = \"" MESHWRIGHT_SOURCE_DIR
          "/tests/data/nets/phi3\"\n[dist_env]\ndevice = \"cpu\"\n[distributed]\nstrategy = "
          "\"ddp\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
          "\"float32\"\n[step_scheduler]\nglobal_batch_size = 1\nlocal_batch_size = 1\nmax_steps "
          "= 0\n[dataset]\nkind = \"mock\"\nseq_len = 32\n" +
          lora);
  const Ran ran = run("train " + quoted(job), true);
  INFO(ran.out);
  REQUIRE(ran.status == 0);
}

const std::string kNet = "tests/data/nets/phi3";
const std::string kHow = " --tokens 4,5,6 --temperature 0 --max-new 12 ";

}  // namespace

TEST_CASE("adapters beside a model and in its weights write what the merged folder writes") {
  Folder folder;
  const fs::path adapter = put_adapter(folder.path / "adapter"), merged = folder.path / "merged";
  begin_run(folder.path, "tuned",
            "[lora]\nr = 2\nalpha = 3\nrslora = true\ntarget_modules = [\"qkv_proj\", "
            "\"down_proj\"]\nadapter = \"" +
                adapter.string() + "\"\n");
  const Ran exported = run("checkpoint export " + quoted(folder.path / "tuned") +
                               " --merged --dtype float32 --out " + quoted(merged),
                           true);
  INFO(exported.out);
  REQUIRE(exported.status == 0);
  const Ran expected = run("generate " + quoted(merged) + kHow);
  REQUIRE(expected.status == 0);
  CHECK(run("generate " + kNet + kHow).out != expected.out);

  // A checkpoint with adapters finds both by itself; one without takes them as a folder does.
  CHECK(run("generate " + quoted(folder.path / "tuned") + kHow).out == expected.out);
  begin_run(folder.path, "whole", "");
  const std::string with = " --adapter " + quoted(adapter) + " ";
  for (const std::string& from : {kNet, quoted(folder.path / "whole")})
    for (const std::string& how : {with, with + "--merge"}) {
      const Ran ran = run("generate " + from + kHow + how);
      CAPTURE(from + how);
      CHECK(ran.status == 0);
      CHECK(ran.out == expected.out);
    }
  // fsdp2 without stages: below.
  for (const std::string layout :
       {"--nproc 2 --set distributed.strategy=fsdp2 --set distributed.pp_size=2",
        "--nproc 2 --set distributed.strategy=ddp"})
    for (const std::string merge : {"", "--merge "}) {
      const Ran ran = run("generate " + kNet + kHow + with + merge + layout, true);
      INFO(layout, " ", merge, "\n", ran.out);
      CHECK(ran.status == 0);
      CHECK(ran.out.find(expected.out) != std::string::npos);
      CHECK((ran.out.find("notice: merged the adapters into weights of") != std::string::npos) ==
            !merge.empty());
    }

  for (const std::string merge : {"", "--merge"}) {
    const Ran again =
        run("generate " + quoted(folder.path / "tuned") + " --tokens 1" + with + merge, true);
    CHECK(again.status == 2);
    CHECK(again.out.find("is a checkpoint of adapters") != std::string::npos);
  }
}

TEST_CASE("adapters of two ranks train on, go out as they came, and write alike everywhere") {
  Folder folder;
  // qkv_proj: r 2, alpha 3, and 5 in the second layer; down_proj: r 3, alpha 3.
  std::vector<Tensor> tensors = kPhi3;
  for (Tensor& tensor : tensors)
    if (tensor.name.find("down_proj") != std::string::npos)
      (tensor.name.ends_with("lora_A.weight") ? tensor.shape[0] : tensor.shape[1]) = 3;
  const std::string config =
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["qkv_proj", )"
      R"("down_proj"], "rank_pattern": {"mlp.down_proj": 3}, "alpha_pattern": )"
      R"({"model.layers.1.self_attn.qkv_proj": 5}})";
  const fs::path adapter = put_adapter(folder.path / "adapter", tensors, config),
                 merged = folder.path / "merged", back = folder.path / "back";
  begin_run(folder.path, "tuned", "[lora]\nadapter = \"" + adapter.string() + "\"\n");
  for (const auto& [how, to] : {std::pair(std::string(" --merged --dtype float32"), merged),
                                std::pair(std::string(), back)}) {
    const Ran exported = run(
        "checkpoint export " + quoted(folder.path / "tuned") + how + " --out " + quoted(to), true);
    INFO(exported.out);
    REQUIRE(exported.status == 0);
  }
  const json::object written = json::parse(contents(back / "adapter_config.json")).as_object();
  CHECK(written.at("r").as_int64() == 2);
  CHECK(json::serialize(written.at("rank_pattern")) == R"({"down_proj":3})");
  CHECK(json::serialize(written.at("alpha_pattern")) ==
        R"({"model.layers.1.self_attn.qkv_proj":5})");

  const Ran expected = run("generate " + quoted(merged) + kHow);
  REQUIRE(expected.status == 0);
  CHECK(run("generate " + quoted(folder.path / "tuned") + kHow).out == expected.out);
  const std::string fsdp2 = "--nproc 2 --set distributed.strategy=fsdp2 ";
  size_t of_folder = 0;  // half: of folder, way and layout every pair
  for (const fs::path& from : {adapter, back}) {
    size_t of_way = of_folder++;
    for (const std::string merge : {"", "--merge "}) {
      size_t turn = of_way++;
      for (const std::string& layout :
           {std::string(), fsdp2, fsdp2 + "--set distributed.tp_size=2 "}) {
        if (!meshwright::sampled(turn++, 2)) continue;
        const Ran ran =
            run("generate " + kNet + kHow + " --adapter " + quoted(from) + " " + merge + layout);
        CAPTURE(from.string() + merge + layout);
        CHECK(ran.status == 0);
        CHECK(ran.out.find(expected.out) != std::string::npos);
      }
    }
  }
  // The same file with another alpha writes something else: the pattern counts.
  const fs::path other = put_adapter(
      folder.path / "other", tensors,
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["qkv_proj", )"
      R"("down_proj"], "rank_pattern": {"down_proj": 3}, "alpha_pattern": {"qkv_proj": 40}})");
  CHECK(run("generate " + kNet + kHow + " --adapter " + quoted(other)).out != expected.out);
}

TEST_CASE("adapters that name another model which is here are told so, and write all the same") {
  Folder folder;
  for (const auto& [base, told] :
       {std::pair(fs::path(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/llama"), true),
        std::pair(fs::path(MESHWRIGHT_SOURCE_DIR "/tests/data/nets/phi3"), false)}) {
    std::string config = kConfig;
    config.replace(config.find("models/phi"), std::string("models/phi").size(), base.string());
    const Ran ran = run("generate " + kNet + kHow + " --adapter " +
                            quoted(put_adapter(folder.path / "named", kPhi3, config)),
                        true);
    INFO(ran.out);
    CHECK(ran.status == 0);
    CHECK((ran.out.find("its adapters were trained beside " + base.string()) !=
           std::string::npos) == told);
  }
  // Without a model they are none, and theirs is named.
  std::string config = kConfig;
  config.replace(config.find("models/phi"), std::string("models/phi").size(), kNet);
  const fs::path alone = put_adapter(folder.path / "alone", kPhi3, config);
  const Ran ran = run("generate " + quoted(alone) + kHow, true);
  INFO(ran.out);
  CHECK(ran.status == 7);
  CHECK(ran.out.find("help: meshwright generate " + kNet + " --adapter " + alone.string()) !=
        std::string::npos);
  CHECK(run("generate " + kNet + " --adapter " + quoted(alone) + kHow).status == 0);
}

TEST_CASE("adapters of some layers and of names with a dot are taken where the folder says so") {
  Folder folder;
  std::vector<Tensor> second;
  for (const Tensor& tensor : kPhi3)
    if (tensor.name.find("layers.1.self_attn.qkv_proj") != std::string::npos)
      second.push_back(tensor);
  for (const std::string targets :
       {R"(["self_attn.qkv_proj"], "layers_to_transform": [1])",
        R"(["qkv_proj"], "layers_to_transform": 1, "layers_pattern": "layers")",
        R"(["1.self_attn.qkv_proj"])", R"(".*\\.1\\..*qkv_proj")"}) {
    const Ran ran = run("generate " + kNet + kHow + " --adapter " +
                            quoted(put_adapter(folder.path / "some", second,
                                               R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, )"
                                               R"("target_modules": )" +
                                                   targets + "}")),
                        true);
    INFO(targets, "\n", ran.out);
    CHECK(ran.status == 0);
  }
}

TEST_CASE("adapters that do not fit the model are refused before a rank starts") {
  Folder folder;
  auto adapter = [&](const std::string& name, const std::vector<Tensor>& tensors,
                     const std::string& config = kConfig) {
    return " --adapter " + quoted(put_adapter(folder.path / name, tensors, config));
  };
  std::vector<Tensor> wide = kPhi3, half = kPhi3, whole = kPhi3, more = kPhi3;
  wide[3].shape = {25, 2};
  half.pop_back();
  whole[0].dtype = "I32";
  more.push_back({"base_model.model.lm_head.modules_to_save.weight", {61, 24}});
  const std::string first = "\"base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight\"";
  auto with_targets = [](const std::string& targets) {
    return R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": )" + targets + "}";
  };
  fs::create_directories(folder.path / "empty");
  check_refused(
      {{kNet + " --merge", 2, "no --adapter names any"},
       {kNet + " --adapter /nowhere", 2, "there is no folder /nowhere"},
       {kNet + " --adapter README.md", 2, "README.md is not a folder"},
       {kNet + " --adapter " + quoted(folder.path / "empty"), 2, "adapter_config.json"},
       {kNet + adapter("no_tensors", {}), 2, "E0209]: there is no "},
       {quoted(put_adapter(folder.path / "alone")), 7,
        "help: meshwright generate MODEL --adapter " + (folder.path / "alone").string()},
       {kNet + adapter("no_expression", kPhi3, with_targets(R"(".*(qkv_proj")")), 7,
        "adapter_config.json: target_modules = \".*(qkv_proj\" is no regular expression\n "
        "--> " +
            (folder.path / "no_expression/adapter_config.json").string() + ":1:"},
       {"tests/data/nets/llama" + adapter("other_model", kPhi3), 7,
        "no Linear of LlamaForCausalLM takes the tensor " + first},
       {"tests/data/nets/llama" + adapter("named", kPhi3) + " --merge --nproc 2", 7,
        "names the model models/phi"},
       {kNet + adapter("wide", wide), 7, "has the shape [25, 2]"},
       {kNet + adapter("half", half) + " --merge", 7, "has no other factor beside it, lora_B"},
       {kNet + adapter("whole", whole), 7, first + " is int32"},
       {kNet + adapter("more", more), 7, "lm_head.modules_to_save.weight"},
       {kNet + adapter("other_r", factors({{"mlp.down_proj", 24, 40}}, 3)), 7,
        "has the shape [3, 40]"},
       {kNet + adapter("other_r_alone",
                       factors({{"self_attn.qkv_proj", 48, 24}, {"mlp.down_proj", 24, 40}}, 3)),
        7, "its r is 3, not the 2 of its adapter_config.json"},
       {kNet + adapter("no_target", kPhi3, with_targets(R"(["qkv_proj"])")), 7,
        "down_proj.lora_A.weight\" is of no module of target_modules = [\"qkv_proj\"] in its "
        "adapter_config.json"},
       {kNet + adapter("an_expression", kPhi3, with_targets(R"(".*\\.qkv_proj")")), 7,
        "down_proj.lora_A.weight\" is of no module of target_modules = "},
       {kNet +
            adapter("one_layer", kPhi3,
                    with_targets(R"(["qkv_proj", "mlp.down_proj"], "layers_to_transform": [0])")),
        7, "layers.1.mlp.down_proj.lora_A.weight\" is of no module of "},
       {kNet + adapter("no_tensors_of_a_target", factors({{"self_attn.qkv_proj", 48, 24}})), 7,
        "it has no tensors for model.layers.0.mlp.down_proj, which is of target_modules = "},
       {kNet + adapter("dora", kPhi3,
                       R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_dora": true})"),
        7, "use_dora = true is not read here"},
       {kNet + adapter("no_alpha", kPhi3, R"({"peft_type": "LORA", "r": 2})"), 7,
        "lora_alpha is not set, not a number above 0\n  = help: write the folder again: "},
       {kNet + adapter("turned", kPhi3,
                       R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "fan_in_fan_out": true})"),
        7, "the model has no weights that lie so"},
       {kNet + adapter("no_json", kPhi3, "{"), 7, "E0704"}},
      " --tokens 1");
}
