#include "sdk/kit/conformance/probe.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "sdk/base/files/hash.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::conformance {

namespace {

class Builder {
 public:
  explicit Builder(const ModelShape& shape) : s_(shape) {
    o_.architecture = s_.architecture;
    o_.model_type = s_.experts > 0 ? "mixtral" : "llama";
    o_.hidden_size = s_.hidden;
    o_.layers = s_.layers;
    o_.attention_heads = s_.heads;
    o_.key_value_heads = s_.kv_heads;
    o_.head_dim = s_.hidden / s_.heads;
    o_.vocab_size = s_.vocab;
    o_.tied_embeddings = s_.tied;
    if (s_.experts > 0) o_.moe = MoeOutline{s_.experts, 2, s_.ffn, 0};
  }

  ModelOutline build() {
    module("", ModuleKind::other, s_.architecture);
    module("model", ModuleKind::other, "LlamaModel");
    module("model.embed_tokens", ModuleKind::embedding, "Embedding");
    parameter("model.embed_tokens.weight", {s_.vocab, s_.hidden});
    module("model.layers", ModuleKind::list, "ModuleList");
    for (int64_t i = 0; i < s_.layers; ++i) layer("model.layers." + std::to_string(i));
    norm("model.norm");
    module("model.rotary_emb", ModuleKind::rotary, "LlamaRotaryEmbedding");
    module("lm_head", ModuleKind::linear, "Linear");
    if (!s_.tied) parameter("lm_head.weight", {s_.vocab, s_.hidden});
    plan("self_attn.q_proj", "colwise");
    plan("self_attn.k_proj", "colwise");
    plan("self_attn.v_proj", "colwise");
    plan("self_attn.o_proj", "rowwise");
    if (s_.experts == 0) {
      plan("mlp.gate_proj", "colwise");
      plan("mlp.up_proj", "colwise");
      plan("mlp.down_proj", "rowwise");
    }
    return std::move(o_);
  }

 private:
  void module(const std::string& name, ModuleKind kind, const std::string& class_name) {
    o_.modules.push_back({name, kind, class_name});
  }
  void parameter(const std::string& name, std::vector<int64_t> shape) {
    o_.parameters.push_back({name, std::move(shape), DType::float32});
  }
  void linear(const std::string& name, int64_t in, int64_t out) {
    module(name, ModuleKind::linear, "Linear");
    parameter(name + ".weight", {out, in});
  }
  void norm(const std::string& name) {
    module(name, ModuleKind::norm, "LlamaRMSNorm");
    parameter(name + ".weight", {s_.hidden});
  }
  void plan(const std::string& module, const char* style) {
    o_.own_tp_plan.emplace_back("model.layers.*." + module, style);
  }

  void layer(const std::string& name) {
    module(name, ModuleKind::layer, "LlamaDecoderLayer");
    module(name + ".self_attn", ModuleKind::other, "LlamaAttention");
    linear(name + ".self_attn.q_proj", s_.hidden, s_.hidden);
    linear(name + ".self_attn.k_proj", s_.hidden, s_.kv_heads * o_.head_dim);
    linear(name + ".self_attn.v_proj", s_.hidden, s_.kv_heads * o_.head_dim);
    linear(name + ".self_attn.o_proj", s_.hidden, s_.hidden);
    if (s_.experts > 0) {
      module(name + ".mlp", ModuleKind::other, "MixtralSparseMoeBlock");
      module(name + ".mlp.gate", ModuleKind::router, "MixtralTopKRouter");
      parameter(name + ".mlp.gate.weight", {s_.experts, s_.hidden});
      module(name + ".mlp.experts", ModuleKind::experts, "MixtralExperts");
      parameter(name + ".mlp.experts.gate_up_proj", {s_.experts, 2 * s_.ffn, s_.hidden});
      parameter(name + ".mlp.experts.down_proj", {s_.experts, s_.hidden, s_.ffn});
    } else {
      module(name + ".mlp", ModuleKind::other, "LlamaMLP");
      linear(name + ".mlp.gate_proj", s_.hidden, s_.ffn);
      linear(name + ".mlp.up_proj", s_.hidden, s_.ffn);
      linear(name + ".mlp.down_proj", s_.ffn, s_.hidden);
    }
    norm(name + ".input_layernorm");
    norm(name + ".post_attention_layernorm");
  }

  const ModelShape& s_;
  ModelOutline o_;
};

}  // namespace

ModelOutline make_outline(const ModelShape& shape) { return Builder(shape).build(); }

void* make_or_throw(void* (*create)(meshwright_status*)) {
  meshwright_status status{sizeof(meshwright_status), 0, {}};
  if (void* made = create(&status)) return made;
  status.message[sizeof status.message - 1] = '\0';
  throw std::runtime_error(std::string("create() failed: ") +
                           (*status.message != '\0' ? status.message : "it gave no reason"));
}

void check_growth(const std::function<void()>& make, Report& report) {
  constexpr int kTimes = 100, kWarm = 20;
  for (int i = 0; i < kWarm; ++i) make();  // what is made once per process
  const size_t before = bytes_in_use();
  for (int i = 0; i < kTimes; ++i) make();
  const size_t after = bytes_in_use();
  // Less than a pointer per instance is noise.
  if (after > before + kTimes * sizeof(void*))
    report.fail("memory grew by " + std::to_string(after - before) + " bytes over " +
                std::to_string(kTimes) + " instances");
  report.note(std::to_string(kTimes) + " instances", kTimes);
}

Options random_options(const OptionSchema& schema, Random& random) {
  Options out(schema);
  for (const meshwright_option* option : schema.options)
    if (random.chance(50))
      ask([&] {
        out.set(option->name, random_value(*option, random));
        return true;
      });
  return out;
}

void check_answers(const std::function<void()>& validate, Report& report) {
  const auto answer = ask([&] {
    validate();
    return true;
  });
  if (answer.error) report.fail("validate threw instead of reporting: " + one_line(*answer.error));
  if (!answer.foreign.empty()) report.fail("validate threw " + answer.foreign);
}

std::string describe_foreign_exception() {
  std::string type = detail::exception_type();
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();  // LibTorch's go on with a backtrace
    return type + ": " + what.substr(0, what.find('\n'));
  } catch (...) {
    return type;
  }
}

uint64_t Random::next() { return base::mix64(state_ += 0x9e3779b97f4a7c15); }

OptionSchema own_schema(const meshwright_strategy& strategy) {
  OptionSchema schema;
  schema.table = std::string("distributed.") +
                 (strategy.options_table != nullptr ? strategy.options_table : strategy.name);
  schema.owner = strategy.name;
  for (size_t i = 0; i < strategy.option_count; ++i)
    schema.options.push_back(&element(strategy.options, i));
  return schema;
}

OptionSchema schema_of(const Subject& subject) {
  const meshwright_component* about = subject.dataset != nullptr ? subject.dataset : subject.model;
  if (about == nullptr) return own_schema(*subject.strategy);
  OptionSchema schema{
      (subject.dataset != nullptr ? "dataset." : "model.") + std::string(about->name),
      about->name,
      {}};
  for (size_t i = 0; i < about->option_count; ++i)
    schema.options.push_back(&element(about->options, i));
  return schema;
}

size_t bytes_in_use() {
  struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

OptionValue random_value(const meshwright_option& option, Random& random) {
  auto flag = [&](uint32_t bit) { return (option.flags & bit) != 0; };
  std::vector<uint32_t> forms;
  for (uint32_t form = MESHWRIGHT_BOOL; form <= MESHWRIGHT_STRING_TABLE; form *= 2)
    if ((option.type & form) != 0) forms.push_back(form);
  if (flag(MESHWRIGHT_OPTIONAL) && random.chance(15)) return std::string("none");
  std::vector<std::string> words = text::split_names(option.choices, '|');
  bool any_word = words.empty();
  if (any_word)
    words = {"",
             "a",
             "model.layers.*",
             "-",
             "1f1b",
             "an unlikely name with spaces and \xc3\xa4",
             std::string(300, 'x')};
  if (flag(MESHWRIGHT_DTYPE) && any_word)
    words = {"float32", "bf16", "torch.float16", "half", "int8", "bool"};
  double low = flag(MESHWRIGHT_NO_MIN) ? -1e6 : option.min,
         high = flag(MESHWRIGHT_NO_MAX) ? std::max(low, 0.0) + 1e6 : option.max;
  auto number = [&] {
    double v = low + (high - low) * static_cast<double>(random.below(1001)) / 1000.0;
    if (random.chance(50)) v = low + static_cast<double>(random.below(5));
    if (flag(MESHWRIGHT_OPEN_MIN) && v <= low) v = std::nextafter(low, high);
    return std::min(v, high);
  };
  auto strings = [&](int64_t most) {
    std::vector<std::string> list(static_cast<size_t>(random.below(most + 1)));
    for (std::string& word : list) word = random.pick(words);
    return list;
  };
  switch (random.pick(forms)) {
    case MESHWRIGHT_BOOL:
      return random.chance(50);
    case MESHWRIGHT_INT: {
      if (flag(MESHWRIGHT_NO_MAX) && random.chance(10)) return std::numeric_limits<int64_t>::max();
      if (flag(MESHWRIGHT_NO_MIN) && random.chance(10)) return std::numeric_limits<int64_t>::min();
      auto v = static_cast<int64_t>(std::floor(number()));
      if (static_cast<double>(v) < low ||
          (flag(MESHWRIGHT_OPEN_MIN) && static_cast<double>(v) <= low))
        ++v;
      return v;
    }
    case MESHWRIGHT_NUMBER:
      return number();
    case MESHWRIGHT_STRING:
      return random.pick(words);
    case MESHWRIGHT_STRING_LIST:
      return strings(4);
    case MESHWRIGHT_NUMBER_LIST: {
      std::vector<double> list(static_cast<size_t>(random.below(4)));
      for (double& v : list) v = number();
      return list;
    }
    case MESHWRIGHT_STRING_MAP: {
      StringMap map;
      for (std::string& word : strings(3)) map.emplace_back(std::move(word), random.pick(words));
      return map;
    }
    default: {
      StringTable table(static_cast<size_t>(random.below(4)));
      for (auto& row : table) row = strings(3);
      return table;
    }
  }
}

std::vector<OptionValue> one_of_each_form() {
  return {OptionValue(true),
          OptionValue(int64_t{3}),
          OptionValue(0.5),
          OptionValue(std::string("a word")),
          OptionValue(std::vector<std::string>{"a word"}),
          OptionValue(std::vector<double>{0.5}),
          OptionValue(StringMap{{"a", "word"}}),
          OptionValue(StringTable{{"a", "word"}})};
}

std::string describe(const ParallelDims& dims) {
  std::string out = "world " + std::to_string(dims.world);
  auto add = [&](const char* name, int64_t size) {
    if (size != 1) out += std::string(", ") + name + " " + std::to_string(size);
  };
  if (dims.dp) out += ", dp " + std::to_string(*dims.dp);
  add("dp_replicate", dims.dp_replicate);
  add("tp", dims.tp);
  add("cp", dims.cp);
  add("pp", dims.pp);
  add("ep", dims.ep);
  if (!dims.ranks.empty()) {
    out += ", ranks [";
    for (size_t i = 0; i < dims.ranks.size() && i < 8; ++i)
      out += (i > 0 ? ", " : "") + std::to_string(dims.ranks[i]);
    out += dims.ranks.size() > 8 ? ", ...]" : "]";
  }
  for (const auto* keys : {&dims.shared, &dims.own})
    for (const auto& [key, value] : *keys) {
      std::string text = to_toml(value);
      out += ", " + key + " = " + (text.size() > 60 ? text.substr(0, 57) + "..." : text);
    }
  return out;
}

StrategyConfig make_config(const Subject& subject, const ParallelDims& dims) {
  StrategyConfig config;
  config.distributed() = Options(distributed_schema());
  auto size = [&](const char* key, int64_t value) {
    if (value != 1) config.distributed().set(key, value);
  };
  if (dims.dp) config.distributed().set("dp_size", *dims.dp);
  size("dp_replicate_size", dims.dp_replicate);
  size("tp_size", dims.tp);
  size("cp_size", dims.cp);
  size("pp_size", dims.pp);
  size("ep_size", dims.ep);
  for (const auto& [key, value] : dims.shared) config.distributed().set(key, value);
  Diagnostics diagnostics;
  config.shared() = read_shared_options(config.distributed(), diagnostics);
  diagnostics.throw_if_any();
  config.own() = Options(own_schema(*subject.strategy));
  for (const auto* keys : {&subject.settings, &dims.own})
    for (const auto& [key, value] : *keys) config.own().set(key, value);
  return config;
}

MeshRequest make_request(const Subject& subject, const ParallelDims& dims) {
  return {dims.world, dims.ranks, make_config(subject, dims)};
}

ParallelDims random_dims(Random& random, int64_t max_world, int spoilt_percent) {
  constexpr int64_t kSizes[] = {1, 1, 1, 1, 2, 2, 3, 4, 5, 8, 16};
  ParallelDims dims;
  do {
    dims.tp = random.chance(45) ? random.pick(std::span(kSizes)) : 1;
    dims.cp = random.chance(25) ? random.pick(std::span(kSizes)) : 1;
    dims.pp = random.chance(25) ? random.pick(std::span(kSizes)) : 1;
  } while (dims.tp * dims.cp * dims.pp > max_world);
  int64_t model = dims.tp * dims.cp * dims.pp, most = max_world / model;
  int64_t dp =
      random.chance(40) ? 1 + random.below(std::min<int64_t>(most, 8)) : 1 + random.below(most);
  if (random.chance(50))  // powers of two are what people use
    for (dp = 1; dp * 2 <= most && random.chance(70);) dp *= 2;
  dims.world = dp * model;
  if (random.chance(25)) dims.dp = dp;
  auto divisor_of = [&](int64_t n) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= n; ++d)
      if (n % d == 0) divisors.push_back(d);
    return random.pick(divisors);
  };
  if (random.chance(30)) dims.dp_replicate = divisor_of(dp);
  if (random.chance(20)) dims.ep = divisor_of(dp * dims.cp * dims.tp);
  if (random.chance(10)) {  // a subset of a larger world, in an order of its own
    int64_t offset = random.below(16);
    for (int64_t i = 0; i < dims.world; ++i) dims.ranks.push_back(offset + 2 * i);
    if (random.chance(30)) std::reverse(dims.ranks.begin(), dims.ranks.end());
    dims.dp = dp;
    dims.world = 2 * dims.world + offset;
  }
  if (random.chance(spoilt_percent)) {
    int64_t* sizes[] = {&dims.tp, &dims.cp, &dims.pp, &dims.ep, &dims.dp_replicate};
    int64_t by = 1 + random.below(5);
    if (random.chance(25) && dims.ranks.empty())
      dims.dp = dp + by;
    else
      *random.pick(std::span(sizes)) += by;
  }
  return dims;
}

void randomize_own(const meshwright_strategy& strategy, ParallelDims& dims, Random& random) {
  for (size_t i = 0; i < strategy.option_count; ++i)
    if (random.chance(40)) {
      const meshwright_option& option = element(strategy.options, i);
      OptionValue value = random_value(option, random);
      // An option whose range holds nothing is the concern of case "schema".
      if (ask([&] { return check_option(option, value, option.name); }).value)
        dims.own.emplace_back(option.name, std::move(value));
    }
}

void randomize_shared(ParallelDims& dims, Random& random) {
  for (const meshwright_option* option : distributed_schema().options) {
    std::string name = option->name;
    if (name == "strategy" || name.ends_with("_size") || !random.chance(25)) continue;
    dims.shared.emplace_back(name, random_value(*option, random));
  }
}

namespace {

void put(std::ostream& out, const Options& options) {
  for (const meshwright_option* option : options.schema().options)
    out << option->name << '=' << to_toml(options.value(option->name))
        << (options.is_given(option->name) ? "!" : "") << ';';
  out << '\n';
}

void put(std::ostream& out, const std::optional<Mesh>& mesh) {
  if (!mesh) {
    out << "no mesh\n";
    return;
  }
  for (const MeshAxis& axis : mesh->axes()) out << axis.name << ' ' << axis.size << ';';
  for (const FlattenedAxis& axis : mesh->flattened()) {
    out << axis.name << '(';
    for (const std::string& name : axis.axes) out << name << ',';
    out << ");";
  }
  for (int64_t rank : mesh->rank_list()) out << rank << ',';
  out << '\n';
}

}  // namespace

std::string fingerprint(const MeshRequest& request) {
  std::ostringstream out;
  out << request.world_size << ':';
  for (int64_t rank : request.ranks) out << rank << ',';
  const ParallelSizes& s = request.config.shared().sizes;
  out << '\n'
      << s.dp.value_or(0) << ' ' << s.dp_replicate << ' ' << s.tp << ' ' << s.cp << ' ' << s.pp
      << ' ' << s.ep << ' ' << request.config.shared().sequence_parallel << '\n';
  put(out, request.config.own());
  put(out, request.config.distributed());
  return out.str();
}

std::string fingerprint(const MeshPlan& plan) {
  std::ostringstream out;
  put(out, plan.device_mesh);
  put(out, plan.moe_mesh);
  for (const std::string& axis : plan.fsdp_axes) out << axis << ',';
  out << '\n' << plan.delegate_to << '\n' << plan.dp << '\n';
  for (const std::string& notice : plan.notices) out << notice << '\n';
  return out.str();
}

}  // namespace meshwright::conformance
