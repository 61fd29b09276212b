// Gradients that are approximate on purpose: the kit holds them to the tolerance of their plan, and
// to all else as it holds exact ones.
#include <ATen/ops/zeros_like.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "ef_sign.h"
#include "mutants.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace approximate_test {

using namespace meshwright;
using mutants_test::Job;
using mutants_test::Model;

namespace {

struct Change {
  std::optional<double> tolerance = 0.9;
  std::function<Model(Model, Job&)> wrap = {};
  bool exact_alone = false;  // a rank without replicas says that its gradients are exact
};
Change change;

class Variant final : public ef_sign::EfSign {
 public:
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan plan = EfSign::plan_sharding(request);
    const bool alone = request.mesh.device_mesh->size("dp_replicate") == 1;
    if (!(alone && change.exact_alone))
      plan.gradient_tolerance = change.tolerance;
    else
      plan.gradient_tolerance.reset();
    return plan;
  }
  Model parallelize(Job& job) override {
    Model model = EfSign::parallelize(job);
    return change.wrap ? change.wrap(std::move(model), job) : std::move(model);
  }
};

template <class Kind>
std::function<Model(Model, Job&)> wrapped() {
  return
      [](Model inner, Job& job) -> Model { return std::make_unique<Kind>(std::move(inner), job); };
}

struct Forgets : mutants_test::Wrapped {  // to go on with the residual that was loaded
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    copies_.clear();
  }
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Wrapped::state_tensors();
    if (copies_.empty())
      for (const StateTensor& kept : out) copies_.push_back(kept.local.clone());
    for (size_t i = 0; i < out.size(); ++i) out[i].local = copies_[i];
    return out;
  }
  mutable std::vector<at::Tensor> copies_;
};
struct Omits : mutants_test::Wrapped {  // what it owes from checkpoints
  using Wrapped::Wrapped;
  std::vector<StateTensor> state_tensors() const override { return {}; }
};
struct SaysEqual : mutants_test::Wrapped {  // that all replicas owe the same
  using Wrapped::Wrapped;
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Wrapped::state_tensors();
    for (StateTensor& kept : out) kept.replica.reset();
    return out;
  }
};
struct SaysMore : mutants_test::Wrapped {  // that there is one replica more
  using Wrapped::Wrapped;
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Wrapped::state_tensors();
    for (StateTensor& kept : out) ++kept.replica->count;
    return out;
  }
};
struct SaysNobody : mutants_test::Wrapped {  // that it is a replica that there is not
  using Wrapped::Wrapped;
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Wrapped::state_tensors();
    for (StateTensor& kept : out) kept.replica->index = kept.replica->count;
    return out;
  }
};
struct Lost : mutants_test::Wrapped {  // all of a step's gradients
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    scale_gradients(0);
  }
};
struct OneDiffers : mutants_test::Wrapped {  // what one replica applies
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    if (world_->rank() == 1) scale_gradients(1.001);
  }
};

std::string found(const char* until = nullptr) {
  static const meshwright_strategy about =
      describe<Variant>({.name = "ef_sign", .summary = "For tests"});
  return mutants_test::kit_says({.strategy = &about}, until);
}

}  // namespace

TEST_CASE("compressed gradients pass within the tolerance of their plan") {
  for (const bool exact_alone : {false, true}) {
    change = {.exact_alone = exact_alone};
    const std::string lines = found();
    INFO(lines);
    CHECK(lines.starts_with("note: trained on 1, 2, 3 ranks as a plain loop"));
    CHECK(lines.find("with dp_replicate_size = 2 on 4 ranks") != std::string::npos);
    CHECK(lines.find("; gradients measured off by up to 0.") != std::string::npos);
    CHECK(lines.find(", gradient_tolerance declares 0.9") != std::string::npos);
  }
  change = {};
}

TEST_CASE("what is wrong in a strategy with compressed gradients is found and named") {
  struct Row {
    const char* name;
    const char* says;
    Change change;
  };
  for (const Row& row : {
           Row{"the tolerance is too small",
               "2 ranks: rank 0: step 1: the sum of its gradients so far is off by 0.",
               {.tolerance = 0.05}},
           Row{"gradients are said to be exact",
               "2 ranks: rank 0: step 1: the gradient of ",
               {.tolerance = std::nullopt}},
           Row{"any error would do",
               "the gradient_tolerance of its plan is 1.5, which is not above",
               {.tolerance = 1.5}},
           Row{"gradients are sums",
               "times as long along the exact one",
               {.wrap = wrapped<mutants_test::Summed>()}},
           Row{"gradients are lost",
               "is off by 1 of the exact one's L2 norm, the gradient_tolerance "
               "of its plan declares at most 0.9",
               {.wrap = wrapped<Lost>()}},
           Row{"max_norm is ignored",
               "step 4: the sum of its gradients so far is off by ",
               {.wrap = wrapped<mutants_test::NeverClips>()}},
           Row{"the norm is of one rank",
               ", that of the gradients ",
               {.wrap = wrapped<mutants_test::OwnNorm>()}},
           Row{"replicas apply other gradients",
               ", the mean over the ranks that hold it ",
               {.wrap = wrapped<OneDiffers>()}},
           Row{"replicas drift apart",
               "saves of replicas that differ: rank ",
               {.wrap = wrapped<mutants_test::ReplicasDrift>()}},
           Row{"the optimizer's work is undone",
               "the loss of step 2 is ",
               {.wrap = wrapped<mutants_test::Undoes>()}},
           Row{"what a checkpoint says of the residual is not used",
               ": its gradients follow from something that state_tensors() lacks",
               {.wrap = wrapped<Forgets>()}},
           Row{"the residual is in no checkpoint",
               "bytes of the optimizer's state",
               {.wrap = wrapped<Omits>()}},
           Row{"the residual is said to be equal",
               "saves of replicas that differ: rank 1 holds ",
               {.wrap = wrapped<SaysEqual>()}},
           Row{"there are fewer replicas than it says",
               "replicas, but no rank holds the state residual of ",
               {.wrap = wrapped<SaysMore>()}},
           Row{"it is a replica that there is not",
               "but it has no replica 1 of 1",
               {.wrap = wrapped<SaysNobody>()}},
       }) {
    const std::string name = row.name;
    CAPTURE(name);
    change = row.change;
    const std::string lines = found(row.says);
    INFO(lines);
    CHECK(lines.find(row.says) != std::string::npos);
  }
  change = {};
}

TEST_CASE("the page shows the example that is tested here") {
  auto read = [](const std::string& path) {
    std::ifstream in(MESHWRIGHT_SOURCE_DIR "/" + path);
    REQUIRE(in);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string page = read("docs/plugins.md"), mark = "// [example]\n";
  for (const char* file :
       {"sdk/kit/conformance/tests/training/ef_sign.h", "tests/fixtures/plugins/ef_sign.cpp"}) {
    const std::string own = read(file);
    const size_t begin = own.find(mark) + mark.size(), end = own.rfind(mark);
    REQUIRE(begin < end);
    CHECK(page.find(own.substr(begin, end - begin)) != std::string::npos);
  }
}

}  // namespace approximate_test
