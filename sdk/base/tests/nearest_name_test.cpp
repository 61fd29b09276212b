// Suggestions for a mistyped name: given when they help, left out when they would mislead.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "meshwright/error.h"

using meshwright::nearest_name;

TEST_CASE("the nearest name is a slip of the finger away, or none is suggested") {
  struct Row {
    const char* word;
    std::vector<std::string> candidates;
    const char* nearest;
  };
  for (const Row& row :
       {Row{"tp_sise", {"dp_size", "tp_size"}, "tp_size"},
        {"tp_szie", {"cp_size", "tp_size"}, "tp_size"},
        {"tokenz", {"text", "tokens"}, "tokens"},
        {"activation_checkpoint", {"activation_checkpointing"}, "activation_checkpointing"},
        {"checkpoint list", {"checkpoint diff", "checkpoint ls"}, "checkpoint ls"},
        {"fdsp2", {"ddp", "fsdp2"}, "fsdp2"},
        {"adam", {"adamw", "sgd"}, "adamw"},
        {"lrr", {"lr", "eps"}, "lr"},
        // The beginning of one name.
        {"global_batch", {"local_batch_size", "global_batch_size"}, "global_batch_size"},
        {"global_batch", {"global_batch_size", "global_batch_tokens"}, ""},
        {"expo", {"exponential"}, ""},
        // Half of the letters differ, or only a long ending is the same.
        {"name", {"lr", "betas", "same"}, "same"},
        {"name", {"eps", "table", "none"}, ""},
        {"SmolLM3ForCausalLM", {"Gemma3ForCausalLM"}, ""},
        {"gradient_accumulation_steps", {"gradient_calculation", "every_steps"}, ""},
        {"x", {"lr", "abc"}, ""}}) {
    INFO(row.word);
    CHECK(nearest_name(row.word, row.candidates) == row.nearest);
  }
}
