// Settings that another one leaves without effect are told, once, to those who asked for something.
#include "engine/config/cross_checks.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace meshwright;
using namespace meshwright::config;

namespace {

std::vector<std::string> notices(const std::vector<std::string>& sets) {
  Diagnostics diagnostics;
  Source source = Source::load({.file = {}, .sets = sets, .environment = {}}, diagnostics);
  resolve(source, {}, "", diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL(error.what());
  return diagnostics.notices();
}

}  // namespace

TEST_CASE("a setting that another one leaves without effect is told once") {
  struct Row {
    std::string set, other, notice;
  };
  for (const Row& row : {
           Row{"run.float32_matmul_precision=high", "dist_env.device=cpu",
               "run.float32_matmul_precision has no effect with dist_env.device = \"cpu\""},
           Row{"dist_env.expandable_segments=true", "dist_env.device=cpu",
               "dist_env.expandable_segments has no effect with dist_env.device = \"cpu\""},
           Row{"optimizer.betas=[0.5, 0.6]", "optimizer.name=sgd",
               "optimizer.betas has no effect with optimizer.name = \"sgd\""},
           Row{"optimizer.eps=1e-6", "optimizer.name=sgd", "optimizer.eps has no effect with"},
           Row{"optimizer.momentum=0.9", "optimizer.name=adamw",
               "optimizer.momentum has no effect with"},
           Row{"lr_scheduler.min_lr=1e-5", "lr_scheduler.lr_decay_style=constant",
               "lr_scheduler.min_lr has no effect with"},
           Row{"dataset.path=x", "dataset.kind=mock", "dataset.path has no effect with"},
           Row{"dataset.dtype=uint16", "dataset.kind=text", "dataset.dtype has no effect unless"},
           Row{"validation_dataset.path=x", "validation_dataset.kind=mock",
               "validation_dataset.path has no effect with"},
           Row{"validation_dataset.dtype=uint16", "validation_dataset.kind=text",
               "validation_dataset.dtype has no effect unless"},
           Row{"distributed.tp_plan=base", "distributed.tp_size=1",
               "distributed.tp_plan has no effect with distributed.tp_size = 1"},
           Row{"distributed.activation_checkpointing_scope=language",
               "distributed.activation_checkpointing=none",
               "distributed.activation_checkpointing_scope has no effect with"},
           Row{"distributed.moe.dispatcher=all_gather", "distributed.ep_size=1",
               "distributed.moe.dispatcher has no effect with"},
           Row{"distributed.moe.wrap_outer_model=false", "distributed.ep_size=1",
               "distributed.moe.wrap_outer_model has no effect with"},
           Row{"distributed.moe.lm_head_precision=float32", "distributed.ep_size=1",
               "distributed.moe.lm_head_precision has no effect with"},
           Row{"distributed.moe.lm_head_precision=bfloat16", "distributed.ep_size=2",
               "only \"float32\" has"},
           Row{"distributed.moe.mp_policy.param_dtype=float32", "distributed.ep_size=1",
               "distributed.moe.mp_policy.param_dtype has no effect with"},
       }) {
    std::vector<std::string> said = notices({row.set, row.other});
    INFO(row.set, " beside ", row.other);
    REQUIRE(said.size() == 1);
    CHECK(said[0].find(row.notice) != std::string::npos);
  }
}

TEST_CASE("what a refused value would have left without effect is not told") {
  for (const char* wrong : {"lora.r=-1", "lora.r=1.5"}) {
    INFO(wrong);
    Diagnostics diagnostics;
    Source source = Source::load(
        {.file = {}, .sets = {"lora.alpha=8", "lora.dropout=0.1", wrong}, .environment = {}},
        diagnostics);
    resolve(source, {}, "", diagnostics);
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].key() == "lora.r");
    CHECK(diagnostics.notices().empty());
  }
  CHECK(notices({"lora.alpha=8", "lora.r=0"}).size() == 1);
}

TEST_CASE("defaults that are written down, and settings that do something, are not told") {
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {},
           {"optimizer.momentum=0", "lr_scheduler.min_lr=0", "dataset.dtype=auto",
            "distributed.moe.dispatcher=auto"},
           {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.betas=[0.9, 0.95]"},
           {"distributed.tp_size=2", "distributed.tp_plan=base"},
           {"run.float32_matmul_precision=high", "dist_env.expandable_segments=true"},
           {"run.float32_matmul_precision=highest", "dist_env.device=cpu"},
           {"distributed.ep_size=2", "distributed.moe.dispatcher=all_gather",
            "distributed.moe.lm_head_precision=float32"},
           {"dataset.kind=tokens", "dataset.dtype=uint16", "dataset.path=x"}}) {
    INFO((sets.empty() ? "nothing set" : sets[0]));
    CHECK(notices(sets).empty());
  }
}
