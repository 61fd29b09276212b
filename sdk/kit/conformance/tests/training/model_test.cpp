// Model families that are wrong in one way each: a case fails, and says what it is. Long because
// each is written out.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <torch/nn/modules/container/modulelist.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <set>
#include <stdexcept>

#include "meshwright/model/running_model.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/plugin_main.h"
#include "sdk/base/conformance.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace model_test {

using namespace meshwright;
namespace conf = meshwright::conformance;
using at::Tensor;

namespace {

// What a row of the table replaces; the model below is right wherever nothing is.
struct Hooks {
  std::function<void()> create;
  std::function<void()> validate;
  std::function<void(ModelOutline&, const ModelRequest&)> outline;
  std::function<void(const ModelRequest&, Diagnostics&)> runs;
  std::function<void(torch::nn::Module&, const at::TensorOptions&)> module;
  std::function<Tensor(const Tensor& logits, const Tensor& input)> forward;  // of the last stage
  std::function<Tensor(const Tensor& output, const Tensor& targets, const Tensor& weights,
                       const VocabularyShard* shard)>
      loss;
  std::function<void(HostBatch&)> batch;
  bool nothing = false, other_modules = false, plain_layers = false, fixed_heads = false,
       all_layers = false, own_positions = false, float32_only = false, says_no_batch = false;
  int64_t max_positions = 32;
  bool generates = true;
};
Hooks hooks;

constexpr int64_t kWidth = 8, kHeads = 4, kLayers = 2, kVocabulary = 13, kPositions = 32;

struct NormImpl : torch::nn::Module {
  explicit NormImpl(const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({kWidth}, options));
    bias = register_parameter("bias", at::empty({kWidth}, options));
  }
  Tensor forward(const Tensor& x) { return at::layer_norm(x, weight.sizes(), weight, bias, 1e-5); }
  Tensor weight, bias;
};
MESHWRIGHT_MODULE(Norm);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const at::TensorOptions& options) {
    norm = register_module("norm", Norm(options));
    query = register_module("query", make_linear(kWidth, kWidth, true, options));
    core = register_module("core", AttentionCore(AttentionOptions{.scale = 0.5}));
    output = register_module("output", make_linear(kWidth, kWidth, true, options));
  }
  Tensor forward(const Tensor& x) {
    if (hooks.float32_only && x.scalar_type() != at::kFloat)
      throw std::runtime_error("made for float32");
    const Tensor q = query(norm(x)),
                 heads = q.view(
                     {q.size(0), q.size(1), hooks.fixed_heads ? kHeads : -1, kWidth / kHeads});
    return x + output(core(heads, heads, heads).flatten(2));
  }
  Norm norm{nullptr};
  Linear query{nullptr}, output{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Block);

Embedding table(int64_t rows, const at::TensorOptions& options) {
  Embedding out(torch::nn::EmbeddingOptions(1, 1));
  out->options.num_embeddings(rows).embedding_dim(kWidth);
  reallocate(out->weight, {rows, kWidth}, options);
  return out;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const at::TensorOptions& options) {
    tokens = register_module("tokens", table(kVocabulary, options));
    positions = register_module("positions", table(kPositions, options));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i) {
      if (hooks.plain_layers)
        layers->push_back(std::make_shared<BlockImpl>(options));
      else
        layers->push_back(Block(options));
    }
    norm = register_module("norm", Norm(options));
    head = register_module("lm_head", make_linear(kWidth, kVocabulary, false, options));
    if (hooks.module) hooks.module(*this, options);
  }
  Tensor forward(const Tensor& input) {
    const StagePart part = hooks.all_layers ? StagePart{} : current_stage();
    Tensor x = input;
    if (part.first) x = tokens(input) + positions(where(input));
    for (int64_t i = part.begin; i < part.end_of(kLayers); ++i) {
      const auto& each = layers[static_cast<size_t>(i)];
      x = hooks.plain_layers ? std::static_pointer_cast<BlockImpl>(each)->forward(x)
                             : each->as<Block>()->forward(x);
    }
    if (!part.last) return x;
    x = head(norm(x));
    return hooks.forward ? hooks.forward(x, input) : x;
  }
  static Tensor where(const Tensor& ids) {
    const auto sequence = current_sequence();
    if (hooks.own_positions || !sequence || sequence->rows.empty())
      return at::arange(ids.size(1), ids.options()).unsqueeze(0);
    std::vector<Tensor> runs;
    for (const PositionRun& run : sequence->rows)
      runs.push_back(at::arange(run.position, run.position + run.count, ids.options()));
    return at::cat(runs).clamp_max(kPositions - 1).unsqueeze(0);
  }
  Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList layers;
  Norm norm{nullptr};
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

class Running final : public RunningModel {
 public:
  explicit Running(const at::TensorOptions& options) : net_(options), options_(options) {}
  std::shared_ptr<torch::nn::Module> module() override {
    return hooks.other_modules ? Net(options_).ptr() : net_.ptr();
  }
  Tensor forward(const Tensor& input) override { return net_(input); }
  Tensor loss_sum(const Tensor& output, const Tensor& targets, const Tensor& weights,
                  const VocabularyShard* shard) override {
    return hooks.loss ? hooks.loss(output, targets, weights, shard)
                      : RunningModel::loss_sum(output, targets, weights, shard);
  }
  bool changes_batches() const override { return hooks.batch && !hooks.says_no_batch; }
  void change_batch(HostBatch& batch) const override {
    if (hooks.batch) hooks.batch(batch);
  }
  int64_t max_positions() const override { return hooks.max_positions; }
  bool generates() const override { return hooks.generates; }

 private:
  Net net_;
  at::TensorOptions options_;
};

class Family final : public ModelFamily {
 public:
  Family() {
    if (hooks.create) hooks.create();
  }
  void validate(const ModelRequest&, Diagnostics&) const override {
    if (hooks.validate) hooks.validate();
  }
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override {
    if (hooks.runs) hooks.runs(request, diagnostics);
  }
  ModelOutline outline(const ModelRequest& request) const override {
    using enum ModuleKind;
    ModelOutline o;
    o.architecture = "Net";
    o.model_type = "net";
    o.hidden_size = kWidth;
    o.layers = kLayers;
    o.attention_heads = o.key_value_heads = kHeads;
    o.head_dim = kWidth / kHeads;
    o.vocab_size = kVocabulary;
    o.inner_prefix = "";
    o.max_positions = kPositions;
    o.positions_end = true;
    auto parameter = [&](const std::string& name, std::vector<int64_t> shape) {
      o.parameters.push_back(ParameterOutline{name, std::move(shape), request.storage});
    };
    auto module = [&](const std::string& name, ModuleKind kind, const char* type) {
      o.modules.push_back({name, kind, type});
    };
    module("", other, "Net");
    for (const char* name : {"tokens", "positions"}) module(name, embedding, "Embedding");
    parameter("tokens.weight", {kVocabulary, kWidth});
    parameter("positions.weight", {kPositions, kWidth});
    module("layers", list, "ModuleList");
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string l = "layers." + std::to_string(i);
      module(l, layer, "Block");
      module(l + ".norm", norm, "Norm");
      for (const char* part : {".norm.weight", ".norm.bias"}) parameter(l + part, {kWidth});
      for (const char* name : {".query", ".output"}) {
        module(l + name, linear, "Linear");
        parameter(l + name + ".weight", {kWidth, kWidth});
        parameter(l + name + ".bias", {kWidth});
        if (name == std::string(".query")) module(l + ".core", other, "AttentionCore");
      }
    }
    module("norm", norm, "Norm");
    for (const char* part : {"norm.weight", "norm.bias"}) parameter(part, {kWidth});
    module("lm_head", linear, "Linear");
    parameter("lm_head.weight", {kVocabulary, kWidth});
    o.own_tp_plan = {{"tokens", "rowwise_rep"},
                     {"positions", "rowwise_rep"},
                     {"layers.*.query", "colwise"},
                     {"layers.*.output", "rowwise"},
                     {"lm_head", "colwise_rep"}};
    o.own_sequence_plan = {{"layers.*.norm", "sequence_parallel"}, {"norm", "sequence_parallel"}};
    for (ParameterOutline& p : o.parameters) {
      p.init = o.initial_value(p.name);
      if (p.init->kind == InitialValue::Kind::normal) p.init->value = 0.3;
    }
    if (hooks.outline) hooks.outline(o, request);
    return o;
  }
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override {
    if (hooks.nothing) return nullptr;
    return std::make_unique<Running>(
        at::TensorOptions().dtype(scalar_type(request.storage)).device(at::kMeta));
  }
};

constexpr meshwright_component kAbout =
    describe_model<Family>({.name = "net", .summary = "For tests"});

conf::Report report_of(const char* name) {
  conf::Subject subject;
  subject.model = &kAbout;
  return conf::run_case(*conf::find_case(name), subject);
}
std::string said(const conf::Report& report) {
  std::string out;
  for (const std::string& problem : report.problems()) out += problem + "\n";
  return out;
}

}  // namespace

TEST_CASE("model kit: a model that is right passes every case") {
  hooks = {};
  size_t passed = 0;
  for (const conf::Case& c : conf::cases()) {
    if (c.scope != conf::Scope::model) continue;
    const conf::Report report = report_of(std::string(c.name).c_str());
    CHECK_MESSAGE(said(report) == "", c.name);
    passed += report.verdict() == conf::Verdict::ok ? 1 : 0;
    if (c.name == "model_layouts")
      CHECK(report.note() ==
            "as alone with 1 rank, 2 ranks, activation_checkpointing = full, tp_size = 2, tp_size "
            "= 2 with sequence_parallel, cp_size = 2 by all_gather, cp_size = 2 by ring, cp_size = "
            "2 by ulysses, pp_size = 2, tp_size = 2 and pp_size = 2, mp_policy.param_dtype = "
            "bfloat16");
  }
  CHECK(passed == 6);
}

TEST_CASE("model kit: what a family refuses is no fault") {
  hooks = {};
  hooks.own_positions = true;
  hooks.runs = [](const ModelRequest& request, Diagnostics& diagnostics) {
    if (request.sizes.cp > 1)
      diagnostics.add(Error(ErrorCode::model_does_not_fit, "no cp").help("set it to 1"));
  };
  const conf::Report report = report_of("model_layouts");
  CHECK(said(report) == "");
  CHECK(report.note().find("refused: cp_size = 2 by all_gather (E0316)") != std::string::npos);
}

TEST_CASE("model kit: sequences that a plan leaves whole are not said to be cut") {
  hooks = {};
  hooks.outline = [](ModelOutline& o, const ModelRequest&) {
    o.own_sequence_plan = {};
    o.own_tp_plan.emplace_back("layers.*.norm", "replicated");
  };
  const conf::Report report = report_of("model_layouts");
  CHECK(said(report) == "");
  CHECK(report.note().find(
            "; refused: tp_size = 2 with sequence_parallel (its plan cuts no sequence)") !=
        std::string::npos);
}

TEST_CASE("model kit: each wrong model is caught by the case that is about it, and named") {
  struct Mutant {
    const char* name;
    const char* caught_by;
    const char* said;
    Hooks hooks;
  };
  static std::atomic<int64_t> calls;
  static std::vector<std::unique_ptr<std::vector<char>>> kept;
  std::vector<Mutant> mutants;
  auto add = [&](const char* name, const char* caught_by, const char* text) -> Hooks& {
    mutants.push_back({name, caught_by, text, {}});
    return mutants.back().hooks;
  };
  using Outline = ModelOutline&;
  using Request = const ModelRequest&;

  // On paper.
  add("what is made stays", "model_lifecycle", "memory grew").create = [] {
    kept.push_back(std::make_unique<std::vector<char>>(4096));
  };
  add("validate throws", "model_lifecycle", "validate threw std::runtime_error: broken").validate =
      [] { throw std::runtime_error("broken"); };
  add("outline throws what is no Error", "model_outline", "outline threw std::runtime_error: torn")
      .outline = [](Outline, Request) { throw std::runtime_error("torn"); };
  add("another outline each time", "model_outline", "outline gives another model").outline =
      [](Outline o, Request) { o.hidden_size = 8 + calls++ % 7; };
  add("a parameter twice", "model_outline", "two parameters are called tokens.weight").outline =
      [](Outline o, Request) { o.parameters.push_back(o.parameters.front()); };
  add("a parameter of no module", "model_outline", "no module of the outline has").outline =
      [](Outline o, Request) { o.parameters[0].name = "tokenz.weight"; };
  add("a module before its parent", "model_outline", "stands before \"layers\"").outline =
      [](Outline o, Request) { std::swap(o.modules[3], o.modules[4]); };
  add("a size of 0", "model_outline", "has a size that is not above 0").outline =
      [](Outline o, Request) { o.parameters[0].shape[0] = 0; };
  add("other layers than modules", "model_outline", "layers is 3, but 2 modules").outline =
      [](Outline o, Request) { o.layers = 3; };
  add("no vocabulary", "model_outline", "vocab_size is 0").outline = [](Outline o, Request) {
    o.vocab_size = 0;
  };
  add("heads that do not divide", "model_outline", "is no multiple of key_value_heads").outline =
      [](Outline o, Request) { o.key_value_heads = 3; };
  add("a matrix that is none", "model_outline", "is a matrix by its kind").outline =
      [](Outline o, Request) { o.modules[5].kind = ModuleKind::linear; };
  add("model.torch_dtype is ignored", "model_outline", "changes no parameter's dtype").outline =
      [](Outline o, Request) {
        for (ParameterOutline& p : o.parameters) p.dtype = DType::float32;
      };
  add("a plan for what is not there", "model_outline", "layers.*.quarry matches no module")
      .outline = [](Outline o, Request) { o.own_tp_plan[2].first = "layers.*.quarry"; };
  add("a style that means nothing", "model_outline", "its own plan is refused").outline =
      [](Outline o, Request) { o.own_tp_plan[2].second = "columnwise"; };
  add("first values that differ", "model_outline", "outline gives another model when asked again")
      .outline = [](Outline o, Request) {
    o.parameters[0].init->value = static_cast<double>(calls++);
  };
  add("a deviation below 0", "model_outline", "the initial value of tokens.weight is -").outline =
      [](Outline o, Request) { o.parameters[0].init->value = -0.1; };
  add("a row that is not there", "model_outline", "tokens.weight has no row 400").outline =
      [](Outline o, Request) { o.parameters[0].init->zero_row = 400; };

  // The module.
  add("make returns nothing", "model_module", "make() returned nothing").nothing = true;
  add("another module each time", "model_module", "module() gives another module").other_modules =
      true;
  add("a shape that is not the outline's", "model_module",
      "parameter 1 of the module is tokens.weight [13, 8], in the outline tokens.weight [14, 8]")
      .outline = [](Outline o, Request) { o.parameters[0].shape[0] = 14; };
  add("a parameter beyond the outline", "model_module", "parameter 1 of the module is more [2]")
      .module = [](torch::nn::Module& m, const at::TensorOptions& options) {
    m.register_parameter("more", at::empty({2}, options));
  };
  add("another order", "model_module", "parameter 1 of the module is tokens.weight").outline =
      [](Outline o, Request) { std::swap(o.parameters[0], o.parameters[1]); };
  add("frozen in the module alone", "model_module", "does not require gradients").module =
      [](torch::nn::Module& m, const at::TensorOptions&) {
        m.parameters()[0].set_requires_grad(false);
      };
  add("a module of the outline is not there", "model_module", "the module has no ghost").outline =
      [](Outline o, Request) { o.modules.push_back({"ghost", ModuleKind::other, "Ghost"}); };
  add("layers without hooks", "model_module", "layers.0 has no hooks").plain_layers = true;
  add("longer samples than the outline has", "model_module", "max_positions() is 99")
      .max_positions = 99;
  add("a buffer that nothing fills", "model_module", "the buffer angles is on the meta device")
      .module = [](torch::nn::Module& m, const at::TensorOptions& options) {
    m.register_buffer("angles", at::empty({3}, options));
  };

  // Alone.
  using Logits = const Tensor&;
  add("an output of another shape", "model_forward", "gives [3, 16, 12], expected [3, 16, 13]")
      .forward = [](Logits x, Logits) { return x.narrow(2, 0, 12); };
  add("no numbers", "model_forward", "forward gives what is no number").forward =
      [](Logits x, Logits) { return x / 0.0; };
  add("samples that see each other", "model_forward", "a sample alone differs").forward =
      [](Logits x, Logits) { return x - x.mean(0, true); };
  add("later tokens are seen", "model_forward", "a later token changes what stands before it")
      .forward = [](Logits x, Logits) { return x + x.mean(1, true); };
  add("another output each time", "model_forward", "asked twice it gives another output").forward =
      [](Logits x, Logits) { return x + static_cast<double>(++calls % 5); };
  add("the mean of losses", "model_forward", "do not add up to that of all").loss =
      [](Logits output, Logits targets, Logits weights, const VocabularyShard* shard) {
        return cross_entropy_sum(output, targets, shard, -100, weights) /
               static_cast<double>(targets.numel());
      };
  add("targets that are none count", "model_forward", "of no target at all").loss =
      [](Logits output, Logits targets, Logits weights, const VocabularyShard* shard) {
        return cross_entropy_sum(output, targets.clamp_min(0), shard, -100, weights);
      };
  add("weights are not looked at", "model_forward", "a weight of 0 is not as a target of -100")
      .loss = [](Logits output, Logits targets, Logits, const VocabularyShard* shard) {
    return cross_entropy_sum(output, targets, shard);
  };
  add("no gradient reaches a parameter", "model_forward", "no gradient reaches tokens.weight")
      .loss = [](Logits output, Logits targets, Logits weights, const VocabularyShard* shard) {
    return cross_entropy_sum(output.detach().requires_grad_(), targets, shard, -100, weights);
  };
  add("batches at random", "model_forward", "other batches from call to call").batch =
      [](HostBatch& b) { b.tokens.fill_(calls++ % kVocabulary); };
  add("batches by the place in the batch", "model_forward", "when they come alone").batch =
      [](HostBatch& b) {
        for (int64_t row = 0; row < b.tokens.size(0); ++row) b.tokens[row].fill_(row);
      };
  add("validation by the step", "model_forward", "samples of validation in another step").batch =
      [](HostBatch& b) { b.tokens.fill_(b.step); };
  add("tokens beyond the vocabulary", "model_forward",
      "one of the tokens, outside of the vocabulary of 13")
      .batch = [](HostBatch& b) { b.tokens.fill_(b.training ? 12 + b.step / 2 : 1); };
  Hooks& silent = add("batches without saying so", "model_forward", "changes_batches() says no");
  silent.batch = [](HostBatch& b) { b.tokens.fill_(1); };
  silent.says_no_batch = true;

  // On several ranks.
  add("a loss that ignores the cut vocabulary", "model_layouts", "tp_size = 2: ").loss =
      [](Logits output, Logits targets, Logits weights, const VocabularyShard*) {
        return cross_entropy_sum(output, targets.clamp(-100, output.size(2) - 1), nullptr, -100,
                                 weights);
      };
  add("positions of its own", "model_layouts", "cp_size = 2 by ").own_positions = true;
  add("heads of the whole model", "model_layouts", "tp_size = 2: ").fixed_heads = true;
  add("all layers on every stage", "model_layouts", "pp_size = 2: ").all_layers = true;
  add("columns that no row adds up", "model_layouts", "tp_size = 2: ").outline =
      [](Outline o, Request) { o.own_tp_plan.erase(o.own_tp_plan.begin() + 3); };
  add("norms that are not told of the cut", "model_layouts", "with sequence_parallel: ").outline =
      [](Outline o, Request) {
        o.own_sequence_plan = {{"layers.0.norm", "sequence_parallel"},
                               {"norm", "sequence_parallel"}};
      };
  add("a loss by the samples of a call", "model_layouts", "1 rank: rank 0: the loss of step 1 is")
      .loss = [](Logits output, Logits targets, Logits weights, const VocabularyShard* shard) {
    return cross_entropy_sum(output, targets, shard, -100, weights) /
           static_cast<double>(targets.size(0));
  };
  add("float32 whatever is asked for", "model_layouts",
      "param_dtype = bfloat16: rank 0: error[E0421]: an exception of type std::runtime_error left "
      "the "
      "plugin: made for float32 (plugin net, in forward, on rank 0)")
      .float32_only = true;

  for (Mutant& mutant : mutants) {
    calls = 0;
    hooks = mutant.hooks;
    const conf::Report report = report_of(mutant.caught_by);
    const std::string text = said(report);
    const std::string name = mutant.name;
    CHECK_MESSAGE(report.verdict() == conf::Verdict::failed, name);
    CHECK_MESSAGE(text.find(mutant.said) != std::string::npos, name, " is told as\n", text,
                  report.why_skipped(), report.note());
  }
  kept.clear();
  hooks = {};
  CHECK(mutants.size() >= 45);
}

}  // namespace model_test
