#include "engine/models/models.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "engine/config/config.h"
#include "engine/models/decoder_family.h"
#include "engine/models/net_config.h"
#include "engine/models/other_format.h"
#include "meshwright/error.h"
#include "meshwright/model/running_model.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"

namespace meshwright::outlines {

namespace {

constexpr std::uintmax_t kMaxConfigBytes = std::uintmax_t{4} << 20;

std::string read_file(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::file_status status = std::filesystem::status(path, failed);
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::file_unreadable,
                 "cannot read the model's configuration " + path.string() + ": " + why)
        .key("model.config")
        .help("name a Hugging Face config.json, or a folder that holds one");
  };
  if (std::optional<std::string> help = base::other_format_help(path))
    throw Error(ErrorCode::file_unreadable,
                path.string() + " holds weights, where the model's configuration belongs")
        .key("model.config")
        .help(*help);
  if (!std::filesystem::exists(status)) {
    Error missing =
        refuse(failed && status.type() == std::filesystem::file_type::none ? failed.message()
                                                                           : "no such file");
    for (const std::string& help : hub_helps(path)) missing.help(help);
    if (std::optional<std::string> help = base::own_folder_help(path.parent_path()))
      missing.help(*help);
    throw missing;
  }
  if (!std::filesystem::is_regular_file(status)) throw refuse("not a regular file");
  if (std::uintmax_t size = std::filesystem::file_size(path, failed);
      failed || size > kMaxConfigBytes)
    throw refuse("larger than 4 MiB");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw refuse(std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw refuse(std::strerror(errno));
  return text.str();
}

}  // namespace

ModelOutline parse_outline(std::string_view json, const std::string& name, DType storage) {
  return make_outline(ConfigJson::parse(json, name), storage);
}

namespace {

// As transformers' _init_weights has it.
void set_initial_values(ModelOutline& outline, const NetConfig& config) {
  using enum InitialValue::Kind;
  std::map<std::string_view, ModuleKind> kinds;
  for (const ModuleOutline& module : outline.modules) kinds[module.name] = module.kind;
  for (ParameterOutline& p : outline.parameters) {
    const ModuleKind kind = kinds[module_of(p.name)];
    p.init = InitialValue{normal, config.initializer_range};
    if (p.name.ends_with(".bias"))
      p.init = InitialValue{constant, 0};
    else if (kind == ModuleKind::norm)
      p.init = InitialValue{constant, config.norms_plus_one ? 0.0 : 1.0};
    else if (kind == ModuleKind::embedding)
      p.init->zero_row = config.padding_row;
  }
}

}  // namespace

// What is only planned and does not run has neither windows nor values to begin with.
ModelOutline make_outline(const ConfigJson& config, DType storage) {
  ModelOutline outline = variant_of(config).family(config, storage);
  try {
    outline.windows = attention_windows(config, outline.model_type, outline.layers);
  } catch (const Error&) {
  }
  try {
    set_initial_values(outline, read_net_config(config));
  } catch (const Error&) {
  }
  return outline;
}

std::vector<std::string> hub_helps(const std::filesystem::path& path) {
  std::string text = path.string();
  size_t slash = text.find('/');
  auto is_name = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && part[0] != '~' && part[0] != '-' &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return text::is_alphanumeric(c) || c == '.' || c == '_' || c == '-';
           });
  };
  if (slash == std::string::npos || !is_name(std::string_view(text).substr(0, slash)) ||
      !is_name(std::string_view(text).substr(slash + 1)))
    return {};
  std::error_code failed;
  std::string extension = path.extension().string();
  if (extension == ".json" || extension == ".toml" || extension == ".safetensors" ||
      std::filesystem::exists(text.substr(0, slash), failed))
    return {};
  std::string folder = "models/" + text.substr(slash + 1);
  return {
      "if this is the name of a model on the Hugging Face hub, download it first: hf download " +
          text + " --local-dir " + folder,
      "then set model.pretrained = \"" + folder +
          "\" to start from its weights, or model.config = \"" + folder +
          "/config.json\" for random weights of its shape"};
}

ConfigJson load_config(const std::filesystem::path& config_or_folder) {
  const std::filesystem::path path = base::model_file(config_or_folder);
  const std::string* handed = base::handed_config(config_or_folder);
  return ConfigJson::parse(handed != nullptr ? *handed : read_file(path), path.string());
}

ModelOutline load_outline(const std::filesystem::path& config_or_folder, DType storage) {
  return make_outline(load_config(config_or_folder), storage);
}

namespace {

std::atomic<HubFamily::Maker> maker{nullptr};

}  // namespace

int64_t stated_positions(const ConfigJson& whole) {
  const ConfigJson config = whole.has("text_config") ? whole.object("text_config") : whole;
  if (!config.has("max_position_embeddings")) return 0;
  int64_t positions = config.integer("max_position_embeddings", 1, INT64_MAX);
  if (!config.has("rope_scaling")) return positions;
  // Stretched positions reach further than the field says where it was left at the length of the
  // first training.
  const ConfigJson scaling = config.object("rope_scaling");
  const double original = scaling.number("original_max_position_embeddings", 1, 1e12,
                                         static_cast<double>(positions)),
               stretched = original * scaling.number("factor", 0, 1e6, 1.0);
  return std::max(positions, static_cast<int64_t>(stretched));
}

void HubFamily::made_by(Maker given) { maker = given; }

// Its family, its rotary embedding, its activations and dropouts.
void HubFamily::check_runs(const ModelRequest& request, Diagnostics& diagnostics) const {
  const NetConfig net = read_net_config(load_config(request.config));
  if (request.sizes.cp > 1 && net.attention_dropout > 0)
    diagnostics.add(Error(ErrorCode::model_does_not_fit,
                          "the model drops attention out in training (attention_dropout), which "
                          "ranks that share a sample would do each in its own way")
                        .key("distributed.cp_size")
                        .help("set attention_dropout to 0 in the model's config.json")
                        .help("set distributed.cp_size = 1"));
  if (request.sizes.pp > 1 && net.moe.balance_coefficient > 0)
    diagnostics.add(Error(ErrorCode::not_in_release,
                          "the auxiliary loss of this model is one of all its routers together, "
                          "which the stages of a pipeline do not yet add up")
                        .key("distributed.pp_size")
                        .help("set \"router_aux_loss_coef\": 0 or \"output_router_logits\": "
                              "false in the model's config.json")
                        .help("set distributed.pp_size = 1"));
}

ModelOutline HubFamily::outline(const ModelRequest& request) const {
  const ConfigJson config = load_config(request.config);
  ModelOutline out = make_outline(config, request.storage);
  out.max_positions = stated_positions(config);
  return out;
}

std::unique_ptr<RunningModel> HubFamily::make(const ModelRequest& request) const {
  const Maker make = maker;
  if (make == nullptr)
    throw Error(ErrorCode::internal, "nothing here makes models of a config.json");
  return make(request);
}

}  // namespace meshwright::outlines

namespace meshwright::weights {

namespace {

int64_t group_size(const FusedRows& fused) {
  return std::accumulate(fused.parts.begin(), fused.parts.end(), int64_t{0});
}

}  // namespace

std::vector<RowRun> runs_of_memory(const FusedRows& fused, int64_t begin, int64_t end) {
  std::vector<RowRun> out;
  int64_t group = group_size(fused);
  while (begin < end) {
    int64_t inside = begin % group, before = 0;  // rows of the parts before this one, in one group
    size_t part = 0;
    while (inside - before >= fused.parts[part]) before += fused.parts[part++];
    int64_t from = inside - before, count = std::min(fused.parts[part] - from, end - begin);
    out.push_back({begin, fused.groups * before + begin / group * fused.parts[part] + from, count});
    begin += count;
  }
  return out;
}

std::vector<RowRun> runs_of_file(const FusedRows& fused, int64_t begin, int64_t end) {
  std::vector<RowRun> out;
  int64_t group = group_size(fused);
  while (begin < end) {
    int64_t before = 0;
    size_t part = 0;
    while (begin >= fused.groups * (before + fused.parts[part])) before += fused.parts[part++];
    int64_t inside = begin - fused.groups * before, rows = fused.parts[part], from = inside % rows;
    int64_t count = std::min(rows - from, end - begin);
    out.push_back({inside / rows * group + before + from, begin, count});
    begin += count;
  }
  return out;
}

FusedRows fused_elements(const FusedRows& fused, std::span<const int64_t> shape) {
  int64_t width = 1;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  FusedRows out = fused;
  for (int64_t& rows : out.parts) rows *= width;
  return out;
}

bool fits(const FusedRows& fused, std::span<const int64_t> shape) {
  if (shape.empty() || fused.groups < 1 || fused.parts.empty() || shape[0] % fused.groups != 0)
    return false;
  int64_t left = shape[0] / fused.groups;
  for (int64_t rows : fused.parts) {
    if (rows < 1 || rows > left) return false;
    left -= rows;
  }
  return left == 0;
}

}  // namespace meshwright::weights
