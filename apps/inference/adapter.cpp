#include "apps/inference/adapter.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/error.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::generate {

namespace fs = std::filesystem;

namespace {

// What the user can do instead.
constexpr const char* kExport =
    "meshwright checkpoint export RUN --out DIR writes the adapters of a run";

// The adapters of a module go by its name in files, and by its own.
std::vector<std::string> modules_in_files(const ModelOutline& model,
                                          const ParameterOutline& weight) {
  std::vector<std::string> names = weights::names_in_files(model.architecture, weight);
  if (!weight.stored.names.empty()) names.resize(1);
  for (std::string& name : names)
    name = std::string(checkpoint::kPeftPrefix) + std::string(module_of(name));
  return names;
}

// Every weight that can have an adapter, by the names that files have for its module.
LinearsInFile linears(const ModelOutline& model) {
  LinearsInFile out;
  for (const ModuleOutline& module : model.modules) {
    const ParameterOutline* weight =
        module.kind == ModuleKind::linear ? model.find_parameter(module.name + ".weight") : nullptr;
    if (weight == nullptr || weight->shape.size() != 2) continue;
    for (const std::string& name : modules_in_files(model, *weight)) out.emplace(name, weight);
  }
  return out;
}

std::string in_quotes(std::string_view name) { return '"' + std::string(name) + '"'; }

}  // namespace

Adapter::Adapter(fs::path folder, const ModelOutline& model, bool merged, const fs::path& of)
    : folder_(std::move(folder)), merged_(merged) {
  std::error_code failed;
  if (!fs::is_directory(folder_, failed))
    throw Error(ErrorCode::file_unreadable,
                fs::exists(folder_, failed) ? "--adapter: " + folder_.string() + " is not a folder"
                                            : "--adapter: there is no folder " + folder_.string())
        .help("name a folder with adapter_config.json and adapter_model.safetensors")
        .help(kExport);
  const fs::path file = folder_ / checkpoint::kAdapterWeights;
  plan::AdapterFolder read;
  try {
    read = plan::read_adapter_folder(folder_, model, of);
    counts_.r = read.r;
    counts_.alpha = read.alpha;
    counts_.rank_stabilized = read.rank_stabilized;
    base_ = read.base;
    notice_ = read.other_base;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::weights_mismatch) throw;
    throw Error(error).help(kExport);
  }
  if (!fs::is_regular_file(file, failed))
    throw Error(ErrorCode::file_unreadable, "there is no " + file.string())
        .help("save the adapters as safetensors: peft's save_pretrained() does")
        .help(kExport);
  file_ = std::make_unique<checkpoint::Source>(file);
  pair_up(model, read);
}

// The two files do not belong together, whatever the model.
Error Adapter::inconsistent(const std::string& what) const {
  return Error(ErrorCode::weights_mismatch, file_->path().string() + ": " + what)
      .help("take adapter_config.json and adapter_model.safetensors from one save")
      .help(kExport);
}

void Adapter::check_targets(const LinearsInFile& linears,
                            const plan::AdapterTargets& targets) const {
  std::set<std::string, std::less<>> names;  // of weights that they select
  for (const auto& [in_file, weight] : linears)
    if (targets.hold(in_file.substr(checkpoint::kPeftPrefix.size())) ||
        targets.hold(module_of(weight->name)))
      names.insert(weight->name);
  for (const Weight& weight : weights_)
    if (!names.contains(weight.name))
      throw inconsistent(in_quotes(file_->tensors()[weight.factors.in].name) +
                         " is of no module of " + targets.text() + " in its adapter_config.json");
  for (const std::string& name : names)
    if (targets.are_names() && find(name) == nullptr)
      throw inconsistent("it has no tensors for " + std::string(module_of(name)) +
                         ", which is of " + targets.text() + " in its adapter_config.json");
}

Error Adapter::mismatch(const std::string& what) const {
  Error error(ErrorCode::weights_mismatch, file_->path().string() + ": " + what);
  if (!base_.empty()) error.help("its adapter_config.json names the model " + base_);
  return error.help("name the model that the adapters were trained beside");
}

Error Adapter::other_shape(const checkpoint::SourceTensor& tensor, const std::string& name,
                           const std::vector<int64_t>& wanted) const {
  const std::string what = in_quotes(tensor.name) + " has the shape " +
                           report::shape_text(tensor.shape) + ", the adapter of " + name + " has " +
                           report::shape_text(wanted);
  const size_t rank = low_rank_factor(tensor.name)->out ? 1 : 0;
  if (tensor.shape.size() != 2 || tensor.shape[1 - rank] != wanted[1 - rank]) return mismatch(what);
  return inconsistent(what + ": its r is " + std::to_string(tensor.shape[rank]) + ", not the " +
                      std::to_string(wanted[rank]) + " of its adapter_config.json");
}

void Adapter::check_tensor(const std::string& name, const std::vector<int64_t>& shape,
                           size_t at) const {
  const checkpoint::SourceTensor& tensor = file_->tensors()[at];
  if (tensor.shape != shape) throw other_shape(tensor, name, shape);
  if (!weights::is_floating(tensor.dtype))
    throw mismatch(in_quotes(tensor.name) + " is " + std::string(dtype_name(tensor.dtype)) +
                   ", not of a floating type");
}

void Adapter::pair_up(const ModelOutline& model, const plan::AdapterFolder& read) {
  const auto modules = linears(model);
  struct Found {
    const ParameterOutline* weight = nullptr;
    std::string_view in_file;  // what the file calls its module
    std::optional<size_t> in, out;
  };
  std::map<std::string, Found, std::less<>> found;  // by weight
  for (size_t i = 0; i < file_->tensors().size(); ++i) {
    const std::string& name = file_->tensors()[i].name;
    const std::optional<LowRankFactor> factor = low_rank_factor(name);
    const auto module = factor ? modules.find(factor->linear) : modules.end();
    if (module == modules.end())
      throw mismatch("no Linear of " + model.architecture + " takes the tensor " + in_quotes(name));
    Found& one = found[module->second->name];
    one.weight = module->second;
    one.in_file = factor->linear.substr(checkpoint::kPeftPrefix.size());
    (factor->out ? one.out : one.in) = i;
  }
  for (const auto& [name, one] : found) {
    if (!one.in || !one.out)
      throw inconsistent(in_quotes(file_->tensors()[one.in ? *one.in : *one.out].name) +
                         " has no other factor beside it, lora_" + (one.in ? "B" : "A"));
    const std::string module(module_of(name));
    const plan::AdapterSize size{static_cast<int64_t>(read.ranks.of(one.in_file, module)),
                                 read.alphas.of(one.in_file, module)};
    check_tensor(name, {size.r, one.weight->shape[1]}, *one.in);
    check_tensor(name, {one.weight->shape[0], size.r}, *one.out);
    if (size != plan::AdapterSize{counts_.r, counts_.alpha}) counts_.others.emplace(module, size);
    weights_.push_back({name, {*one.in, *one.out, counts_.scale(module)}});
  }
  if (weights_.empty()) throw mismatch("it holds no adapters");
  check_targets(modules, read.targets);
}

const Adapter::Weight* Adapter::find(std::string_view parameter) const {
  const auto at = std::lower_bound(
      weights_.begin(), weights_.end(), parameter,
      [](const Weight& weight, std::string_view name) { return weight.name < name; });
  return at == weights_.end() || at->name != parameter ? nullptr : &*at;
}

// Full names of modules and their numbers, as lora.rank_pattern and lora.alpha_pattern take them.
StringMap Adapter::differing(double (*number)(const plan::AdapterSize&), double all) const {
  StringMap out;
  for (const auto& [module, size] : counts_.others)
    if (number(size) != all) out.emplace_back(module, to_toml(number(size)));
  return out;
}

std::vector<std::string> Adapter::settings() const {
  if (merged_) return {};
  std::vector<std::string> modules;
  for (const Weight& weight : weights_) modules.emplace_back(module_of(weight.name));
  const StringMap ranks = differing(
                      [](const plan::AdapterSize& size) { return static_cast<double>(size.r); },
                      static_cast<double>(counts_.r)),
                  alphas = differing([](const plan::AdapterSize& size) { return size.alpha; },
                                     counts_.alpha);
  return {"lora.r=" + to_toml(counts_.r),
          "lora.alpha=" + to_toml(counts_.alpha),
          "lora.rank_pattern=" + to_toml(ranks),
          "lora.alpha_pattern=" + to_toml(alphas),
          "lora.rslora=" + to_toml(counts_.rank_stabilized),
          "lora.target_modules=" + to_toml(modules)};
}

std::optional<Adapter> adapter_of(const Source& source, const Request& request) {
  if (!request.adapter) {
    if (!request.merge) return std::nullopt;
    throw Error(ErrorCode::usage,
                "--merge joins adapters with the weights, and no --adapter names any")
        .help("--merge --adapter runs/lora_adapter")
        .help("leave out --merge");
  }
  if (source.has_adapters())
    throw Error(ErrorCode::usage, source.folder().string() +
                                      " is a checkpoint of adapters: it has its own, and --adapter "
                                      "names others")
        .help("leave out --adapter")
        .help("make it a whole model first: meshwright checkpoint export " +
              source.folder().string() + " --merged --out DIR");
  return Adapter(*request.adapter, source.outline(request.sets), request.merge,
                 source.is_checkpoint() ? fs::path() : source.folder());
}

}  // namespace meshwright::generate
