// config explain with words that are no key: what is printed, and the exit status; and the
// reference page, which is made from the option schemas.
#include "ran.h"
#include "tests/contents.h"

TEST_CASE("config explain answers a word with a table of the keys that have to do with it") {
  struct Row {
    const char *word, *first, *also;
  };
  for (const Row& row :
       {Row{"bf16", "bf16 is distributed.mp_policy.param_dtype here: \"bfloat16\"",
            "\nmodel.torch_dtype  "},
        {"activation",
         "keys that have to do with \"activation\":", "\ndistributed.activation_checkpointing  "},
        {"accumulation",
         "keys that have to do with \"accumulation\":", "\nstep_scheduler.global_batch_size  "},
        {"seq_len", "keys that have to do with \"seq_len\":", "\nvalidation_dataset.seq_len "},
        {"optimizer.learning_rate", "optimizer.learning_rate is optimizer.lr here\n",
         "\noptimizer.lr  "}}) {
    Ran ran = run(std::string("config explain ") + row.word, "2>&1", "COLUMNS=100");
    INFO(ran.out);
    CHECK(ran.status == 0);
    CHECK(ran.out.rfind(row.first, 0) == 0);
    CHECK(ran.says(row.also));
    CHECK(ran.says("\nkey "));
    for (size_t at = 0, end; (end = ran.out.find('\n', at)) != std::string::npos; at = end + 1)
      CHECK(end - at <= 100);
  }
  CHECK(run("config explain optimizer.lr").out.rfind("optimizer.lr\n", 0) == 0);
  Ran nothing = run("config explain sequence_paralel", "2>&1");
  CHECK(nothing.status == 2);
  CHECK(nothing.says("did you mean sequence_parallel?"));
  json::object found = json::parse(run("config explain accumulation --json").out).as_object();
  CHECK(found.at("told").is_null());
  CHECK(found.at("keys").as_array()[0].as_object().at("key").as_string() ==
        "step_scheduler.global_batch_size");
  CHECK(found.at("keys").as_array()[0].as_object().at("found_in").as_string() == "other name");
}

TEST_CASE(
    "a flag or a word that other programs take is answered with the flag or --set that does it") {
  check_said(
      "",
      {{"train job.toml --learning_rate 1e-4", 2, "help: --set optimizer.lr=1e-4\n"},
       {"train job.toml --set optimizer.lr 1e-4", 2, "help: --set optimizer.lr=1e-4\n"},
       {"train job.toml --weight_decay 0.1", 2, "help: --set optimizer.weight_decay=0.1\n"},
       {"train job.toml --tp 2", 2, "help: --set distributed.tp_size=2\n"},
       {"train job.toml --ep 2", 2, "help: --set distributed.ep_size=2\n"},
       {"train job.toml --compile", 2, "help: --set distributed.fsdp2.enable_compile=true: "},
       {"train job.toml --fp16", 2, "help: --set distributed.mp_policy.param_dtype=float16: "},
       {"evaluate runs/a --limit 3", 2, "help: --samples 3\n"},
       {"evaluate runs/a --max_samples 3", 2, "help: --samples 3\n"},
       {"generate runs/a --do_sample", 2, "help: --temperature T\n"},
       {"train job.toml --optimizer.lr=1e-4", 2, "help: --set optimizer.lr=1e-4\n"},
       {"train job.toml optimizer.lr=1e-4", 2, "help: --set optimizer.lr=1e-4\n"},
       {"validate +training.steps=9", 2, "help: --set step_scheduler.max_steps=9\n"},
       {"plan job.toml --betas '[0.9, 0.99]'", 2, "help: --set 'optimizer.betas=[0.9, 0.99]'\n"},
       {"generate model --max-new-tokens 5", 2, "help: --max-new 5\n"},
       {"train job.toml --max-new-tokens 5", 2, "help: meshwright generate has --max-new 5\n"},
       {"train job.toml --nproc_per_node=4", 2, "help: --nproc 4\n"},
       {"train job.toml --wandb.project x", 2, "wandb.project has no counterpart here: "},
       {"config schema --lr 1", 2, "for verbs that take one: --set optimizer.lr=1\n"},
       {"train job.toml --nprc 4", 2, "help: did you mean --nproc?\n"}});
}

TEST_CASE("the reference page is what the program prints") {
  CHECK_MESSAGE(
      contents(MESHWRIGHT_SOURCE_DIR "/docs/reference.md") == run("config explain --reference").out,
      "refresh it: build/bin/meshwright config explain --reference > docs/reference.md");
}
