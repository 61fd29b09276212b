// What happens beside the steps of a pipeline: validation, text, votes, loads of experts, values
// that are not finite, and a stage that fails. Before doctest: LibTorch has a CHECK of its own.
#include <stdexcept>

#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/trace_bars.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

#include "engine/train/step/sample.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/nn/stage.h"

namespace pipeline_edges_test {

using namespace meshwright;
using at::Tensor;

namespace {

const std::string kTurns = schedule("Interleaved1F1B"), kV = schedule("ZBVZeroBubble");

using Meshes = std::vector<std::pair<OnMesh, std::vector<std::string>>>;
// These alone give the bits of one process.
const Meshes kStages = {
    {{2, {kPp2}}, {}}, {{2, {kPp2}}, {kTurns}}, {{2, {kPp2}}, {kV}}, {{4, {kPp4}}, {}}};
const Meshes kBeside = {{{4, {kPp2}}, {kV}},
                        {{4, {kPp2, kTp2}}, {}},
                        {{4, {kPp2, kTp2}}, {kSequence, kTurns}},
                        {{4, {kPp2, kCp2}}, {kRing, kV}},
                        {{8, {kPp2, kCp2, kTp2}}, {kSequence}}};

Meshes all_meshes() {
  Meshes out = kStages;
  out.insert(out.end(), kBeside.begin(), kBeside.end());
  return out;
}

// Validation losses over every number of micro-batches, before the first step and after two each.
std::vector<double> validated(const Layout& layout, const std::vector<int64_t>& counts) {
  std::vector<double> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    const int64_t rows = rank.trainer.local_batch(), dp = rank.trainer.data_parallel_size();
    std::vector<double> mine;
    for (int step = 0; step < 3; ++step) {
      for (int64_t count : counts)
        mine.push_back(rank.trainer.evaluate(count, [&](int64_t micro, const Tensor& hidden) {
          const int64_t from = 1000 + (micro * dp + rank.trainer.data_parallel_rank()) * rows;
          return train::loss_of(rank.trainer, rank.net,
                                samples_of(from, rows, kLength, rank.net->outline().vocab_size),
                                hidden);
        }));
      for (int i = 0; i < 2; ++i) mine.push_back(rank.step().loss);
    }
    if (world->rank() == world->size() - 1) out = std::move(mine);
  });
  return out;
}

// Logits of the last position of texts of every length, on each rank, one rank after the other.
std::vector<std::vector<Tensor>> logits_on(const Layout& layout, int steps) {
  std::vector<std::vector<Tensor>> out(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    for (int step = 0; step < steps; ++step) rank.step();
    for (int64_t length : {1, 5, 8, 2, 13}) {
      const Tensor ids =
          samples_of(7, 2, length, rank.net->outline().vocab_size).narrow(1, 0, length);
      c10::NoGradGuard no_grad;
      const Tensor logits = train::logits_of(rank.trainer, rank.net, ids);
      out[static_cast<size_t>(world->rank())].push_back(
          logits.select(1, logits.size(1) - 1).to(at::kFloat).clone());
    }
    rank.step();  // and a step follows
  });
  return out;
}

// What went wrong on each rank.
std::vector<std::string> errors_of(const Layout& layout,
                                   const std::function<void(Rank& rank, const World&)>& body) {
  std::vector<std::string> out(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    try {
      body(rank, *world);
    } catch (const Error& error) {
      std::string& said = out[static_cast<size_t>(world->rank())];
      said = error.what();
      for (const std::string& note : error.notes()) said += "\n" + note;
    }
  });
  return out;
}

MicroBatchLoss loss_of(Rank& rank, int64_t micro, const Tensor& hidden) {
  const int64_t rows = rank.trainer.local_batch();
  return train::loss_of(rank.trainer, rank.net,
                        samples_of(micro * rows, rows, kLength, rank.net->outline().vocab_size),
                        hidden);
}

}  // namespace

TEST_CASE("pipeline edges: validation has the losses of one process, however many micro-batches") {
  TestFolder folder("pipeline_validation");
  const std::string model = write_model(folder.path, kStaged);
  const std::vector<int64_t> counts = {1, 3, 4, 5, 1};
  const std::vector<double> truth = validated(staged_layout(model, kAlone), counts);
  REQUIRE(truth.size() == 3 * (counts.size() + 2));
  for (const auto& [mesh, more] : kStages) {
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    CHECK(validated(layout, counts) == truth);
  }
  for (const auto& [mesh, more] : kBeside) {
    if (mesh.sets.size() == 1) continue;  // two shards: twice the samples
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    CHECK(farthest(validated(layout, counts), truth) < 1e-6);
  }
  const std::vector<double> twice = validated(staged_layout(model, {2, {}}), counts);
  CHECK(validated(staged_layout(model, {4, {kPp2}}, {kV}), counts) == twice);
}

TEST_CASE("pipeline edges: logits are those of one process on every rank, before and after steps") {
  TestFolder folder("pipeline_logits");
  size_t number = 0;  // half: of depth, steps and mesh every pair
  for (const SmallModel& m : {kStaged, kDeep}) {
    size_t of_mesh = number++;
    const std::string model = write_model(folder.path, m);
    for (int steps : {0, 2}) {
      size_t turn = of_mesh++;
      const std::vector<Tensor> truth = logits_on(staged_layout(model, kAlone), steps).at(0);
      for (const auto& [mesh, more] : all_meshes()) {
        if (!sampled(turn++, 2)) continue;
        const Layout layout = staged_layout(model, mesh, more);
        INFO(layout.text() << " after " << steps);
        // Two shards add up other micro-batches.
        const bool bits = mesh.sets.size() == 1 && (mesh.ranks == 2 || mesh.sets[0] == kPp4);
        for (const std::vector<Tensor>& mine : logits_on(layout, steps)) {
          REQUIRE(mine.size() == truth.size());
          for (size_t i = 0; i < truth.size(); ++i)
            CHECK(farthest(mine[i], truth[i]) <= (bits ? 0 : 1e-5));
        }
      }
    }
  }
}

TEST_CASE("pipeline edges: text is that of one process on every rank") {
  TestFolder folder("pipeline_text");
  SmallModel m = kStaged;
  m.vocab = 256;
  const std::string model = write_model(folder.path, m);
  auto texts_on = [&](const Layout& layout) {
    std::vector<std::string> out(static_cast<size_t>(layout.ranks));
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      rank.step();
      modules::RunningCausalLM net(rank.net);
      out[static_cast<size_t>(world->rank())] =
          generate::write_sample(rank.trainer, net, {"ab", 20, 0.7, 5}, kLength);
    });
    return out;
  };
  const std::string truth = texts_on(staged_layout(model, kAlone)).at(0);
  CHECK(truth.size() == 22);
  for (const auto& [mesh, more] : all_meshes()) {
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    for (const std::string& text : texts_on(layout)) CHECK(text == truth);
  }
}

TEST_CASE("pipeline edges: a vote of any rank is heard once, in the same step, by all") {
  TestFolder folder("pipeline_votes");
  const std::string model = write_model(folder.path, kStaged);
  size_t number = 0;  // half: on each mesh the first rank or the last
  for (const auto& [mesh, more] : all_meshes()) {
    size_t turn = number++;
    const Layout layout = staged_layout(model, mesh, more);
    for (int64_t voter : {int64_t{0}, layout.ranks - 1}) {
      if (!sampled(turn++, 2)) continue;
      INFO(layout.text() << ", vote of rank " << voter);
      std::vector<std::vector<int64_t>> heard(static_cast<size_t>(layout.ranks));
      run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        for (int step = 0; step < 3; ++step) {
          if (step == 1 && world->rank() == voter) rank.trainer.vote(RankSignal::stop);
          if (step == 2) rank.trainer.vote(RankSignal::background_done);
          const StepResult result = rank.step();
          for (int64_t count : result.vote_counts)
            heard[static_cast<size_t>(world->rank())].push_back(count);
        }
      });
      for (const std::vector<int64_t>& mine : heard)
        CHECK(mine == std::vector<int64_t>{0, 0, 0, 0, 1, 0, 0, 0, 0, layout.ranks, 0, 0});
    }
  }
}

TEST_CASE("pipeline edges: every rank has the expert loads of one process, by name") {
  TestFolder folder("pipeline_loads");
  for (SmallModel m : {kMixtral, kQwen3Moe}) {
    const std::string fields =
        std::string(m.more) + R"(, "num_hidden_layers": 4, "tie_word_embeddings": false)";
    m.more = fields.c_str();
    const std::string model = write_model(folder.path, m);
    using Loads = std::vector<std::pair<std::string, std::vector<int64_t>>>;
    auto loads_on = [&](const Layout& layout) {
      std::vector<Loads> out(static_cast<size_t>(layout.ranks));
      run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        for (int step = 0; step < 3; ++step)
          for (const ExpertLoad& load : rank.step().experts)
            out[static_cast<size_t>(world->rank())].emplace_back(load.block, load.tokens);
      });
      return out;
    };
    const Loads truth = loads_on(staged_layout(model, kAlone, {}, 3)).at(0);
    REQUIRE(truth.size() >= 9);
    for (const auto& [mesh, more] :
         Meshes{{{2, {kPp2}}, {}},
                {{2, {kPp2}}, {kV}},
                {{4, {kPp4}}, {}},
                {{4, {kPp2, kEp2}}, {kTurns}},
                {{4, {kPp2}}, {"distributed.activation_checkpointing=\"full\""}}}) {
      const Layout layout = staged_layout(model, mesh, more, 3);
      INFO(m.name << ": " << layout.text());
      for (const Loads& mine : loads_on(layout)) CHECK(mine == truth);
    }
  }
}

TEST_CASE("pipeline edges: what is not finite is named on every rank, whichever stage has it") {
  TestFolder folder("pipeline_nonfinite");
  const std::string model = write_model(folder.path, kStaged);
  size_t turn = 0;  // half: on each mesh the one weight or the other
  for (const auto& [mesh, more] : all_meshes()) {
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    ++turn;
    // A weight of the last stage, and one of the first.
    for (const std::string name : {"lm_head.weight", "model.embed_tokens.weight"}) {
      if (!sampled(turn++, 2)) continue;
      CAPTURE(name);
      for (const std::string& said : errors_of(layout, [&](Rank& rank, const World&) {
             rank.step();
             for (const ParallelParameter& p : rank.trainer.model().parameters())
               if (p.name == name && p.local.numel() > 0) p.local.detach().fill_(NAN);
             rank.trainer.model().after_optimizer_step();
             rank.step();
           })) {
        CAPTURE(said);
        CHECK(said.find("error[E0801]: step 1: the loss is nan") == 0);
        CHECK(said.find("the weight " + name + " (of stage ") != std::string::npos);
        CHECK(said.find(") already holds values that are not finite") != std::string::npos);
      }
    }
    // Gradients alone: those behind the first stage's output.
    int64_t stages = 0;
    for (const std::string& said : errors_of(layout, [&](Rank& rank, const World& world) {
           rank.trainer.step([&](int64_t micro, const Tensor& hidden) {
             MicroBatchLoss loss = loss_of(rank, micro, hidden);
             if (world.rank() == 0 && !hidden.defined() && micro == 1 && ++stages > 0)
               loss.sum.register_hook([](const Tensor& gradient) { return gradient * NAN; });
             return loss;
           });
         })) {
      CAPTURE(said);
      CHECK(said.find("error[E0801]: step 0: the gradient norm is nan") == 0);
      CHECK(said.find("the gradient of model.embed_tokens.weight (of stage 0) is not finite; all "
                      "weights are") != std::string::npos);
    }
    CHECK(stages == 1);
  }
}

TEST_CASE("pipeline edges: a step that was refused leaves nothing behind") {
  TestFolder folder("pipeline_refused");
  const std::string model = write_model(folder.path, kStaged);
  size_t turn = 0;  // half of the meshes
  for (const auto& [mesh, more] : all_meshes()) {
    if (!sampled(turn++, 2)) continue;
    const Layout layout = staged_layout(model, mesh, more);
    INFO(layout.text());
    const Curve truth = curve_of(layout, 2, 2);
    std::vector<double> losses;
    const std::vector<std::string> said = errors_of(layout, [&](Rank& rank, const World& world) {
      bool refused = false;
      try {
        rank.trainer.step([&](int64_t micro, const Tensor& hidden) {
          MicroBatchLoss loss = loss_of(rank, micro, hidden);
          if (current_stage().last) loss.sum = loss.sum * NAN;
          return loss;
        });
      } catch (const Error& error) {
        refused = error.code() == ErrorCode::nonfinite;
      }
      if (!refused) throw std::runtime_error("a loss of NaN went through");
      for (int step = 0; step < 2; ++step) {
        const double loss = rank.step().loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    CHECK(losses == truth.losses);
  }
}

TEST_CASE(
    "pipeline edges: an exception in one stage ends the step of every rank, with its action") {
  TestFolder folder("pipeline_exceptions");
  const std::string model = write_model(folder.path, kStaged);
  for (const auto& [mesh, more] : kStages)
    for (int64_t failing = 0; failing < mesh.ranks; ++failing) {
      const Layout layout = staged_layout(model, mesh, more);
      INFO(layout.text() << ", rank " << failing);
      std::vector<std::string> said(static_cast<size_t>(mesh.ranks));
      auto body = [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        rank.step();
        try {
          rank.trainer.step([&](int64_t micro, const Tensor& hidden) {
            if (world->rank() == failing && micro == 5)
              throw std::runtime_error("this stage fails");
            return loss_of(rank, micro, hidden);
          });
        } catch (const std::exception& error) {
          said[static_cast<size_t>(world->rank())] = error.what();
          throw;
        }
      };
      CHECK_THROWS(run_ranks(layout.ranks, body));
      for (int64_t rank = 0; rank < mesh.ranks; ++rank) {
        const std::string& mine = said[static_cast<size_t>(rank)];
        CAPTURE(mine);
        if (rank == failing) {
          CHECK(mine == "this stage fails");
          continue;
        }
        CHECK(mine.find(" of the pipeline, which ") != std::string::npos);
        const bool names_peer = mine.find(" from rank ") != std::string::npos ||
                                mine.find(" to rank ") != std::string::npos;
        CHECK(names_peer);
      }
    }
}

TEST_CASE("pipeline edges: a loop or a model that knows no stages is refused, with what works") {
  TestFolder folder("pipeline_strangers");
  const std::string model = write_model(folder.path, kStaged);
  const Layout layout = staged_layout(model, {2, {kPp2}});
  std::vector<Error> errors;
  std::mutex mutex;
  bool ends_all = false;  // the other rank waits for this one
  auto refused = [&](const std::function<void(Rank&)>& body) {
    errors.clear();
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      try {
        body(rank);
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        errors.push_back(error);
        if (ends_all) throw;
      }
    });
  };
  auto whole = [](Rank& rank) {
    return [&rank](int64_t micro) { return loss_of(rank, micro, Tensor()); };
  };
  for (bool training : {true, false}) {
    refused([&](Rank& rank) {
      if (training)
        rank.trainer.step(Trainer::Forward(whole(rank)));
      else
        rank.trainer.evaluate(2, Trainer::Forward(whole(rank)));
    });
    REQUIRE(errors.size() == 2);
    for (const Error& error : errors) {
      CHECK(error.code() == ErrorCode::bad_module);
      CHECK(std::string(error.what()).find("takes no hidden states of the stage before") !=
            std::string::npos);
      CHECK(error.helps().back() == "set distributed.pp_size = 1");
    }
  }
  // A forward that asks nothing.
  ends_all = true;
  CHECK_THROWS(refused([&](Rank& rank) {
    rank.trainer.step([&](int64_t, const Tensor&) {
      return MicroBatchLoss{at::empty({1, kLength, 32}), kLength};
    });
  }));
  REQUIRE(!errors.empty());
  CHECK(std::any_of(errors.begin(), errors.end(), [](const Error& error) {
    return error.code() == ErrorCode::bad_module &&
           std::string(error.what()).find("LlamaForCausalLM does not compute stage by stage") !=
               std::string::npos &&
           error.helps().back() == "set distributed.pp_size = 1";
  }));
}

TEST_CASE("pipelines: what the last stage is done with is reduced while the first goes on") {
  TestFolder folder("pipeline_roots");
  const std::string model = write_model(folder.path, kStaged);
  const std::vector<Bar> bars = trace_of(staged_layout(model, {4, {kPp2}}, {kV}), 1);
  int64_t last = 0, reduced = 0, early = 0;  // of the first rank, which has both
  for (const Bar& bar : bars)
    if (bar.name.starts_with("0")) last = std::max<int64_t>(last, bar.begin);
  for (const Bar& bar : bars)
    if (bar.name == "dp_shard reduce_scatter") ++reduced, early += bar.begin < last ? 1 : 0;
  CHECK(reduced == 4);  // a layer and what is around it, of each
  CHECK(early == 2);
}

}  // namespace pipeline_edges_test
