// Prints the facts of this build as a C++ source: abi_probe plugin|engine STRATEGIES OUTPUT
// [KEY=VALUE...]. The last arguments add facts, or replace some for the tests of the loader.
//
// Two builds that agree on every fact lay out every type that crosses the plugin border alike.
// Facts named info.* are only reported.
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <features.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>
#include <torch/nn/module.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "meshwright/data/dataset_inspector.h"
#include "meshwright/data/dataset_language.h"
#include "meshwright/model/config_json.h"
#include "meshwright/model/model_family.h"
#include "meshwright/model/running_model.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/rotary.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/plugin.h"
#include "meshwright/unit_rules.h"

namespace {

using Facts = std::map<std::string, std::string>;

template <class T>
void size_fact(Facts& facts, const char* name) {
  facts[std::string("sizeof.") + name] =
      std::to_string(sizeof(T)) + "/" + std::to_string(alignof(T));
}

std::string sanitizers() {
  std::string out;
#ifdef __SANITIZE_ADDRESS__
  out += "address ";
#endif
#ifdef __SANITIZE_THREAD__
  out += "thread ";
#endif
  return out.empty() ? "none" : out.substr(0, out.size() - 1);
}

Facts facts_of_this_build() {
  Facts f;
  f["sdk.major"] = std::to_string(MESHWRIGHT_SDK_MAJOR);
  f["sdk.cxx_epoch"] = std::to_string(MESHWRIGHT_CXX_EPOCH);
  f["torch.version"] = MESHWRIGHT_FACT_TORCH_VERSION;
  char text[40];
  std::snprintf(text, sizeof text, "%016" PRIx64, static_cast<uint64_t>(TORCH_ABI_VERSION));
  f["torch.abi_version"] = text;
  f["torch.cuda"] = MESHWRIGHT_FACT_TORCH_CUDA;
  f["torch.c10d"] = MESHWRIGHT_FACT_C10D;
#ifdef __GLIBCXX__
  f["stdlib"] = "libstdc++";
  f["stdlib.cxx11_abi"] = std::to_string(_GLIBCXX_USE_CXX11_ABI);
#else
  f["stdlib"] = "other";
#endif
#ifdef _GLIBCXX_DEBUG
  f["stdlib.debug_mode"] = "1";
#else
  f["stdlib.debug_mode"] = "0";
#endif
  f["cxx.abi"] = std::to_string(__GXX_ABI_VERSION / 1000);
#ifdef __GXX_RTTI
  f["cxx.rtti"] = "1";
#else
  f["cxx.rtti"] = "0";
#endif
#ifdef __EXCEPTIONS
  f["cxx.exceptions"] = "1";
#else
  f["cxx.exceptions"] = "0";
#endif
  f["arch"] = MESHWRIGHT_FACT_ARCH;
#ifdef __GLIBC__
  f["libc"] = "glibc";
#else
  f["libc"] = "other";
#endif
  f["sanitizers"] = sanitizers();
  size_fact<at::Tensor>(f, "at.Tensor");
  size_fact<c10::TensorImpl>(f, "c10.TensorImpl");
  size_fact<torch::nn::Module>(f, "torch.nn.Module");
  size_fact<torch::autograd::Node>(f, "torch.autograd.Node");
  size_fact<std::string>(f, "std.string");
  size_fact<std::function<void()>>(f, "std.function");
  // Every type whose layout plugins compile in.
#define MESHWRIGHT_SIZE(name) size_fact<meshwright::name>(f, #name);
  MESHWRIGHT_SIZE(AttentionCoreImpl)
  MESHWRIGHT_SIZE(AttentionMethod)
  MESHWRIGHT_SIZE(AttentionOptions)
  MESHWRIGHT_SIZE(Communication)
  MESHWRIGHT_SIZE(ConfigJson)
  MESHWRIGHT_SIZE(ContextParallel)
  MESHWRIGHT_SIZE(DatasetInspector)
  MESHWRIGHT_SIZE(DatasetKind)
  MESHWRIGHT_SIZE(DatasetLanguage)
  MESHWRIGHT_SIZE(DatasetRequest)
  MESHWRIGHT_SIZE(DatasetRow)
  MESHWRIGHT_SIZE(Diagnostics)
  MESHWRIGHT_SIZE(EmbeddingImpl)
  MESHWRIGHT_SIZE(Error)
  MESHWRIGHT_SIZE(ExpertDispatcher)
  MESHWRIGHT_SIZE(ExpertOrder)
  MESHWRIGHT_SIZE(ExpertParallel)
  MESHWRIGHT_SIZE(FlatParameterGroup)
  MESHWRIGHT_SIZE(Footprint)
  MESHWRIGHT_SIZE(ForwardCall)
  MESHWRIGHT_SIZE(GroupedExpertsImpl)
  MESHWRIGHT_SIZE(HookHost)
  MESHWRIGHT_SIZE(HostBatch)
  MESHWRIGHT_SIZE(LanguageFile)
  MESHWRIGHT_SIZE(LayerNormImpl)
  MESHWRIGHT_SIZE(LinearImpl)
  MESHWRIGHT_SIZE(LoadBalance)
  MESHWRIGHT_SIZE(Mesh)
  MESHWRIGHT_SIZE(MeshPlan)
  MESHWRIGHT_SIZE(MeshRequest)
  MESHWRIGHT_SIZE(ModelFamily)
  MESHWRIGHT_SIZE(ModelOutline)
  MESHWRIGHT_SIZE(ModelRequest)
  MESHWRIGHT_SIZE(ModuleOutline)
  MESHWRIGHT_SIZE(MoeConfig)
  MESHWRIGHT_SIZE(MoeImpl)
  MESHWRIGHT_SIZE(OptionSchema)
  MESHWRIGHT_SIZE(OptionValue)
  MESHWRIGHT_SIZE(Options)
  MESHWRIGHT_SIZE(OwnCost)
  MESHWRIGHT_SIZE(ParallelModel)
  MESHWRIGHT_SIZE(ParallelParameter)
  MESHWRIGHT_SIZE(ParallelizeRequest)
  MESHWRIGHT_SIZE(ParameterOutline)
  MESHWRIGHT_SIZE(ParameterPlacement)
  MESHWRIGHT_SIZE(PipelineUnits)
  MESHWRIGHT_SIZE(PlannedUnit)
  MESHWRIGHT_SIZE(RMSNormImpl)
  MESHWRIGHT_SIZE(ReplicatedPolicy)
  MESHWRIGHT_SIZE(RopeConfig)
  MESHWRIGHT_SIZE(RotaryEmbeddingImpl)
  MESHWRIGHT_SIZE(RouterImpl)
  MESHWRIGHT_SIZE(Routing)
  MESHWRIGHT_SIZE(RunningModel)
  MESHWRIGHT_SIZE(SampleSource)
  MESHWRIGHT_SIZE(SampleView)
  MESHWRIGHT_SIZE(Sequence)
  MESHWRIGHT_SIZE(ShardGroups)
  MESHWRIGHT_SIZE(ShardingPlan)
  MESHWRIGHT_SIZE(ShardingPolicy)
  MESHWRIGHT_SIZE(ShardingRequest)
  MESHWRIGHT_SIZE(StateTensor)
  MESHWRIGHT_SIZE(Strategy)
  MESHWRIGHT_SIZE(StrategyConfig)
  MESHWRIGHT_SIZE(TensorParallel)
  MESHWRIGHT_SIZE(TpEntry)
  MESHWRIGHT_SIZE(TpPlan)
  MESHWRIGHT_SIZE(TpPlanRequest)
  MESHWRIGHT_SIZE(TrafficCounter)
  MESHWRIGHT_SIZE(UnitCost)
  MESHWRIGHT_SIZE(UnitRequest)
  MESHWRIGHT_SIZE(UnitSharding)
  MESHWRIGHT_SIZE(UnitSpec)
  MESHWRIGHT_SIZE(ValuesWritten)
  MESHWRIGHT_SIZE(VocabularyShard)
  MESHWRIGHT_SIZE(Work)
  MESHWRIGHT_SIZE(World)
#undef MESHWRIGHT_SIZE
  f["info.compiler"] = std::string("g++ ") + __VERSION__;
#ifdef __clang__
  f["info.compiler"] = std::string("clang++ ") + __clang_version__;
#endif
  f["info.cxx_standard"] = std::to_string(__cplusplus);
  f["info.build_type"] = MESHWRIGHT_FACT_BUILD_TYPE;
  f["info.sdk_version"] = MESHWRIGHT_VERSION;
  f["info.sdk_minor"] = std::to_string(MESHWRIGHT_SDK_MINOR);
  return f;
}

// FNV-1a over the lines that must match.
uint64_t hash_of(const Facts& facts) {
  uint64_t h = 14695981039346656037u;
  for (const auto& [key, value] : facts) {
    if (key.starts_with("info.")) continue;
    for (char c : key + "=" + value + "\n")
      h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return h;
}

std::string literal(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\\n\"\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s plugin|engine STRATEGIES|- OUTPUT [KEY=VALUE...]\n", argv[0]);
    return 2;
  }
  Facts facts = facts_of_this_build();
  bool plugin = std::strcmp(argv[1], "plugin") == 0;
  if (plugin) facts["info.strategies"] = std::strcmp(argv[2], "-") == 0 ? "" : argv[2];
  for (int i = 4; i < argc; ++i) {
    const char* equals = std::strchr(argv[i], '=');
    if (equals == nullptr) {
      std::fprintf(stderr, "%s: \"%s\" is not KEY=VALUE\n", argv[0], argv[i]);
      return 2;
    }
    facts[std::string(argv[i], static_cast<size_t>(equals - argv[i]))] = equals + 1;
  }
  char symbol[40];
  std::snprintf(symbol, sizeof symbol, "meshwright_abi_%016" PRIx64, hash_of(facts));
  std::string lines;
  for (const auto& [key, value] : facts) lines += "    " + literal(key + "=" + value);
  std::ofstream out(argv[3], std::ios::trunc);
  out << "// Made by the build: the facts of this build. Do not edit.\n";
  if (plugin) {
    out << "extern \"C\" {\nextern __attribute__((visibility(\"default\"))) const char " << symbol
        << "[];\nextern __attribute__((visibility(\"hidden\"))) const char "
           "meshwright_plugin_facts[];\n"
        << "__attribute__((section(\"meshwright_abi\"), used, retain)) const char " << symbol
        << "[] =\n"
        << lines << "    ;\nconst char meshwright_plugin_facts[] =\n"
        << lines << "    ;\n}\n";
  } else {
    out << "namespace meshwright::detail {\nextern const char* const kEngineFacts;\nextern const "
           "char* const kEngineFactsSymbol;\n"
        << "const char* const kEngineFacts =\n"
        << lines << "    ;\nconst char* const kEngineFactsSymbol = \"" << symbol << "\";\n}\n";
  }
  out.close();
  if (!out) std::fprintf(stderr, "cannot write %s\n", argv[3]);
  return out ? 0 : 1;
}
