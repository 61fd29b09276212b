// Samples divided over ranks, through a whole run: training, validation of another length, and
// text. By every method and for every family: engine/train/run/tests/context_*_test.cpp.
#include "trained.h"

namespace {

size_t times_in(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a run with cp_size has the losses, the validation and the text of one process" *
          doctest::test_suite("whole")) {
  fs::create_directories(kRuns);
  const std::string model = kRuns + "/context.json";
  std::ofstream(model)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 72,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 256, "max_position_embeddings": 256,
    "initializer_range": 0.2})";
  // 61 tokens, and 50 in validation, are no multiple of 2 * 3.
  const std::string base =
      "configs/quickstart.toml --set step_scheduler.max_steps=2 --set "
      "step_scheduler.global_batch_size=4 --set step_scheduler.local_batch_size=2 --set "
      "dataset.seq_len=61 --set validation_dataset.seq_len=50 "
      "--set 'dataset.path=" MESHWRIGHT_TORCH_INCLUDE
      "/c10/*/[a-sA-S]*.h' --set 'validation_dataset.path=" MESHWRIGHT_TORCH_INCLUDE
      "/c10/*/[t-zT-Z]*.h' --sample 40 --prompt 'int main' --set model.config=" +
      model + " ";
  const std::string fsdp2 = "--set distributed.strategy=fsdp2 ",
                    notice = "notice: a text is not divided over the ranks of cp: each of the ";
  const Trained alone = train(base, "context_alone");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  REQUIRE(alone.losses.size() == 2);
  REQUIRE(alone.validation.size() == 1);
  CHECK(alone.out.find(notice) == std::string::npos);
  const std::string text = "generate " + kRuns + "/context_alone --prompt 'int ' --max-new 30 ";
  int status = 1;
  std::string written = said(text, &status);
  REQUIRE(status == 0);
  written.resize(written.find('\n'));
  const std::string cp =
      fsdp2 + "--nproc 3 --set distributed.cp_size=3 --set distributed.context.method=ring ";
  const Trained run = train(base + cp, "context_run");
  INFO(run.out);
  REQUIRE(run.status == 0);
  check_equal(run.losses, alone.losses);
  check_equal(run.validation, alone.validation);
  CHECK(run.sample == alone.sample);
  CHECK(times_in(run.out, notice + "3") == 1);
  // Tensor and sequence parallelism beside it, whose ranks must divide the samples nobody reads.
  const std::string out = said(text + fsdp2 +
                                   "--nproc 6 --set distributed.cp_size=2 --set "
                                   "distributed.tp_size=3 --set distributed.sequence_parallel=true "
                                   "--set distributed.tp_plan=base",
                               &status);
  INFO(out);
  CHECK(times_in(out, notice + "2") == 1);
  CHECK(status == 0);
  CHECK(out.find(written) != std::string::npos);
}
