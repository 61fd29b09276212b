// Where the random numbers of a rank begin. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/resume.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <fstream>
#include <map>
#include <set>

#include "engine/train/run/tests/context_layouts.h"
#include "engine/train/run/tests/saved.h"
#include "engine/train/step/adapters.h"
#include "meshwright/nn/attention.h"
#include "meshwright/trainer.h"
#include "sdk/base/text.h"

#include <doctest/doctest.h>

namespace generators_test {

using namespace meshwright;

namespace {

plan::JobPlan plan_of(const char* strategy, int64_t world, int64_t rank,
                      const std::vector<std::string>& sets) {
  std::vector<std::string> all{"distributed.strategy=" + std::string(strategy)};
  all.insert(all.end(), sets.begin(), sets.end());
  Job job = Job::from_text("schema = 1\n", all);
  return plan::make_plan(job.impl(), {.world_size = world, .rank = rank, .assumed_world = true});
}

// What a rank would draw, by the names of the table in semantics 13.1.
struct Drawn {
  const char* numbers;
  std::vector<std::string> sets;  // beside tp, cp and pp
  std::function<std::string(const plan::JobPlan& plan)> by;
};

// The rows of the table: numbers, and the axes over which they are alike.
std::map<std::string, std::string> table_of_semantics() {
  std::ifstream in(MESHWRIGHT_SOURCE_DIR "/docs/semantics.md");
  std::map<std::string, std::string> out;
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("###")) here = line == "### 13.1 Random numbers";
    if (!here || !line.starts_with("| ") || line.starts_with("| numbers ")) continue;
    const std::vector<std::string> cells = text::split(line, '|');
    auto trimmed = [](const std::string& cell) { return cell.substr(1, cell.size() - 2); };
    out[trimmed(cells.at(1))] = trimmed(cells.at(2));
  }
  return out;
}

// The stage's first layer, of the rank.
int64_t first_layer(const plan::JobPlan& plan) {
  const Mesh& mesh = *plan.mesh.device_mesh;
  return mesh.size("pp") > 1 ? mesh.coordinate(plan.rank, "pp") : 0;
}
std::string of_model(const plan::JobPlan& plan) {
  return std::to_string(train::generator_seed(7, 3, plan)) + " " +
         std::to_string(
             train::forward_seed(7, 3, first_layer(plan), 0, train::place_of_draws(plan)));
}

}  // namespace

TEST_CASE("generators: each draws alike over the axes that semantics 13.1 names, and no others") {
  const std::string model = MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json";
  const std::string sequence = "distributed.sequence_parallel=true";
  // Whether the rank's part is that of the whole: then ranks without parts draw alike, too.
  auto half = [](const at::Tensor& whole, int64_t dim, const plan::JobPlan& plan) {
    const int64_t rows = whole.size(dim) / 2;
    return whole.narrow(dim, plan.mesh.device_mesh->coordinate(plan.rank, "tp") * rows, rows);
  };
  const std::vector<Drawn> rows = {
      {"initial values of parameters and adapters",
       {},
       [&](const plan::JobPlan& plan) {
         const modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
         auto drawn = [&](const Region& region) {
           ParallelParameter p;
           p.name = "model.layers.0.self_attn.q_proj.weight";
           p.global_shape = net->named_parameters()[p.name].sizes().vec();
           p.region = region;
           p.local = at::zeros(region.sizes);
           modules::initialize(*net, p, 7);
           return p.local;
         };
         const at::Tensor whole = drawn(Region::whole(
             net->named_parameters()["model.layers.0.self_attn.q_proj.weight"].sizes().vec()));
         Region mine = Region::whole(whole.sizes().vec());
         mine.sizes[0] /= 2;
         mine.offsets[0] = plan.mesh.device_mesh->coordinate(plan.rank, "tp") * mine.sizes[0];
         return std::string(drawn(mine).equal(half(whole, 0, plan)) ? "the whole's" : "another");
       }},
      {"dropout of adapters (`lora.dropout`)",
       {},
       [&](const plan::JobPlan& plan) {
         auto drawn = [](int64_t rank, int64_t ranks, int64_t columns) {
           train::AdapterDropout dropout(0.5, 7, rank, ranks);
           dropout.begin({3, 0, 1});
           return dropout.dropped(at::zeros({1, 8, columns}), "q_proj", 16);
         };
         const int64_t rank = plan.mesh.device_mesh->coordinate(plan.rank, "tp");
         return std::string(drawn(rank, 2, 8).equal(half(drawn(0, 1, 16), 2, plan)) ? "the whole's"
                                                                                    : "another");
       }},
      {"dropout in a model", {}, of_model},
      {"dropout where tp cuts the sequence", {sequence}, of_model},
      // A case of its own follows.
      {"dropout of attention where tp cuts heads", {sequence}, of_model},
  };
  const std::map<std::string, std::string> told = table_of_semantics();
  CHECK(told.size() == rows.size());
  for (const Drawn& row : rows) {
    INFO(std::string(row.numbers));
    REQUIRE(told.contains(row.numbers));
    const std::string& alike = told.at(row.numbers);
    std::map<int64_t, std::string> drawn;
    std::vector<std::string> sets = row.sets;
    for (const char* axis : {"tp", "cp", "pp"})
      sets.push_back("distributed." + std::string(axis) + "_size=2");
    sets.push_back("model.config=" + model);
    for (int64_t rank = 0; rank < 16; ++rank) {
      drawn[rank] = row.by(plan_of("fsdp2", 16, rank, sets));
      CHECK(drawn[rank] != "another");
    }
    const Mesh mesh = *plan_of("fsdp2", 16, 0, sets).mesh.device_mesh;
    for (const char* axis : {"dp", "cp", "pp", "tp"}) {
      CAPTURE(axis);
      const bool same =
          alike == "all axes" ||
          (", " + alike + ",").find(", " + std::string(axis) + ",") != std::string::npos;
      for (int64_t rank = 0; rank < 16; ++rank)
        for (int64_t other : mesh.group(rank, axis))
          if (other != rank) CHECK((drawn[rank] == drawn[other]) == same);
    }
  }
  for (const char* strategy : {"ddp", "megatron_fsdp"}) {
    std::set<uint64_t> replicas;
    for (int64_t rank = 0; rank < 3; ++rank)
      replicas.insert(train::generator_seed(7, 0, plan_of(strategy, 3, rank, {})));
    CHECK(replicas.size() == 3);
  }
  CHECK(train::generator_seed(7, 4, plan_of("ddp", 1, 0, {})) !=
        train::generator_seed(7, 3, plan_of("ddp", 1, 0, {})));
  CHECK(train::generator_seed(8, 3, plan_of("ddp", 1, 0, {})) !=
        train::generator_seed(7, 3, plan_of("ddp", 1, 0, {})));
}

TEST_CASE(
    "generators: heads of each rank of tp drop probabilities of their own, and draws after "
    "them are alike") {
  TestFolder folder("generators_attention");
  const SmallModel dropping{
      "dropping", "LlamaForCausalLM",
      "llama",    32,
      4,          4,
      64,         R"(, "tie_word_embeddings": false, "attention_dropout": 0.5)"};
  const std::string model = write_model(folder.path, dropping);
  std::mutex mutex;  // ranks are threads of one process, whose generator is one
  std::vector<at::Tensor> out, again, next;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank({"fsdp2", 2, {kTp2}, model}, world);
    auto [name, core] = find_attention_cores(*rank.net).front();
    AttentionCore held(
        std::dynamic_pointer_cast<Hooked<AttentionCoreImpl>>(core->shared_from_this()));
    held->train();
    const at::Tensor x = at::ones({1, 8, 2, 8});
    std::lock_guard lock(mutex);
    at::manual_seed(5);
    out.push_back(held(x, x, x));
    next.push_back(at::rand({4}));
    at::manual_seed(5);
    again.push_back(held(x, x, x));
  });
  CHECK_FALSE(out[0].equal(out[1]));
  CHECK(next[0].equal(next[1]));
  CHECK(again[0].equal(out[0]));
}

TEST_CASE("generators: a checkpoint restores them where the same ranks draw alike") {
  TestFolder folder("generators");
  const Layout dp{"fsdp2", 2}, cp{"fsdp2", 2, {kCp2, kRing}}, tp{"fsdp2", 2, {kTp2}};
  for (const Layout* from : {&dp, &cp, &tp}) {
    const std::filesystem::path saved = folder.path / ("of " + from->text());
    losses_of(*from, {}, 1, saved, 1);
    for (const Layout* to : {&dp, &cp, &tp}) {
      std::mutex mutex;
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        Rank rank(*to, world);
        checkpoint::Checkpoint read(saved / "step_00000001");
        const bool restored = train::load_checkpoint(rank.trainer, read);
        std::lock_guard lock(mutex);
        INFO(from->text() << ", then " << to->text());
        CHECK(restored == (from == to));
      });
    }
  }
}

}  // namespace generators_test
