// Layers and samples divided over ranks, through whole runs: training, validation of another length
// and text. Under every schedule and method, beside every axis and with checkpoints:
// engine/train/run/tests/layouts_test.cpp.
#include <cmath>

#include "trained.h"

namespace {

// Four layers, so that two ranks can have two stages each.
std::string pipeline_base(const std::string& dropout = "0.0") {
  fs::create_directories(kRuns);
  const std::string model = kRuns + "/pipeline_" + dropout + ".json";
  std::ofstream(model)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 72,
    "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 256, "max_position_embeddings": 256,
    "initializer_range": 0.2, "attention_dropout": )"
      << dropout << "}";
  return "configs/quickstart.toml --set step_scheduler.global_batch_size=4 --set "
         "step_scheduler.local_batch_size=1 --set dataset.seq_len=61 --set "
         "validation_dataset.seq_len=50 --set 'dataset.path=" MESHWRIGHT_TORCH_INCLUDE
         "/c10/*/[a-sA-S]*.h' --set 'validation_dataset.path=" MESHWRIGHT_TORCH_INCLUDE
         "/c10/*/[t-zT-Z]*.h' --set distributed.strategy=fsdp2 --set model.config=" +
         model + " ";
}

std::string pipeline_of(int ranks, const std::string& schedule) {
  return "--nproc " + std::to_string(ranks) +
         " --set distributed.pp_size=2 --set distributed.pipeline.pp_schedule=" + schedule + " ";
}

size_t times_in(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE(
    "a run with pp_size or cp_size has the losses, the validation and the text of one process" *
    doctest::test_suite("whole")) {
  const std::string base =
      pipeline_base() + "--set step_scheduler.max_steps=2 --sample 30 --prompt 'int main' ";
  const Trained alone = train(base, "pipeline_alone");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  REQUIRE(alone.losses.size() == 2);
  REQUIRE(alone.validation.size() == 1);
  CHECK(alone.out.find("pipeline:") == std::string::npos);
  const std::string notice = "notice: a text is not divided over the ranks of cp: each of the ";
  CHECK(alone.out.find(notice) == std::string::npos);
  const std::string text = "generate " + kRuns + "/pipeline_alone --prompt 'int ' --max-new 20 ";
  int status = 1;
  std::string written = said(text, &status);
  REQUIRE(status == 0);
  written.resize(written.find('\n'));
  struct Row {
    std::string sets, says;
  };
  int number = 0;
  for (const Row& row :
       {Row{pipeline_of(2, "1F1B"),
            "pipeline: 1F1B, 2 stages, 4 micro-batches a run, idle 20% of it\n"},
        Row{pipeline_of(2, "ZBVZeroBubble") + "--set distributed.pipeline.pp_batch_size=2 ",
            "pipeline: ZBVZeroBubble, 4 stages, 2 micro-batches a run, idle "}}) {
    const Trained run = train(base + row.sets, "pipeline_" + std::to_string(++number));
    INFO(row.sets, run.out);
    REQUIRE(run.status == 0);
    CHECK(run.out.find(row.says) != std::string::npos);
    check_equal(run.losses, alone.losses);
    check_equal(run.validation, alone.validation);
    CHECK(run.sample == alone.sample);
    const std::string out = said(text + "--set distributed.strategy=fsdp2 " + row.sets, &status);
    INFO(out);
    CHECK(status == 0);
    CHECK(out.find(written) != std::string::npos);
  }
  // 61 tokens, and 50 in validation, are no multiple of 2 * 3.
  const Trained run =
      train(base + "--nproc 3 --set distributed.cp_size=3 --set distributed.context.method=ring ",
            "context_run");
  INFO(run.out);
  REQUIRE(run.status == 0);
  check_equal(run.losses, alone.losses);
  check_equal(run.validation, alone.validation);
  CHECK(run.sample == alone.sample);
  CHECK(times_in(run.out, notice + "3") == 1);
  // Tensor and sequence parallelism beside it, whose ranks must divide the samples nobody reads.
  const std::string out =
      said(text +
               "--set distributed.strategy=fsdp2 --nproc 6 --set distributed.cp_size=2 --set "
               "distributed.tp_size=3 --set distributed.sequence_parallel=true "
               "--set distributed.tp_plan=base",
           &status);
  INFO(out);
  CHECK(times_in(out, notice + "2") == 1);
  CHECK(status == 0);
  CHECK(out.find(written) != std::string::npos);
}

// The seed is one of step, micro-batch and first layer: stages run in another order under each
// schedule, and a run that goes on has drawn nothing yet.
TEST_CASE("what stages draw depends on neither the schedule nor a pause" *
          doctest::test_suite("whole")) {
  const std::string base = pipeline_base("0.3") + "--set lr_scheduler.lr_decay_style=constant ",
                    four = "--set step_scheduler.max_steps=4";
  const Trained turns = train(base + pipeline_of(2, "Interleaved1F1B") + four, "drawn_turns"),
                breadth = train(base + pipeline_of(2, "LoopedBFS") + four, "drawn_breadth"),
                none = train(pipeline_base() + "--set lr_scheduler.lr_decay_style=constant " +
                                 pipeline_of(2, "LoopedBFS") + four,
                             "drawn_none");
  INFO(turns.out, breadth.out);
  REQUIRE(turns.losses.size() == 4);
  check_equal(breadth.losses, turns.losses);
  REQUIRE(none.losses.size() == 4);
  CHECK(std::abs(none.losses[0] / turns.losses[0] - 1) > 1e-4);
  const std::string two = "--set step_scheduler.max_steps=2";
  REQUIRE(train(base + pipeline_of(2, "Interleaved1F1B") + two, "drawn_half").status == 0);
  const Trained on =
      train(base + pipeline_of(2, "Interleaved1F1B") + four, "drawn_on", "drawn_half");
  INFO(on.out);
  check_equal(on.losses, turns.losses);
}
