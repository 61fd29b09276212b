// What a remark is about, what is left out where a key's value is in doubt, and suggestions for a
// mistyped name: given when they help, left out when they would mislead.
#include <doctest/doctest.h>

#include "meshwright/error.h"

namespace error_test {

using namespace meshwright;

TEST_CASE("remarks about a key in doubt are left out, those about none never") {
  const Error plain(ErrorCode::conflict, "no key");
  CHECK(plain.keys().empty());
  const Error both = Error(ErrorCode::conflict, "two keys").key("a.b").about("a.c");
  CHECK(both.keys() == std::vector<std::string>{"a.b", "a.c"});

  Diagnostics found({"", "a.c"});
  found.add(plain);
  found.add(both);
  found.add(Error(ErrorCode::conflict, "another key").key("a.b"));
  found.notice("of a key", {"a.c"});
  found.notice("of no key");
  found.warning("of two", {"a.b", "a.c"});
  REQUIRE(found.errors().size() == 2);
  CHECK(found.errors()[0].message() == "no key");
  CHECK(found.errors()[1].message() == "another key");
  CHECK(found.notices() == std::vector<std::string>{"of no key"});
  CHECK(found.warnings().empty());
}

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

}  // namespace error_test
