// config explain with words that are no key: what is printed, and the exit status.
#include <doctest/doctest.h>

#include <boost/json.hpp>

#include "ran.h"

namespace json = boost::json;

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
    CHECK(ran.out.find(row.also) != std::string::npos);
    CHECK(ran.out.find("\nkey ") != std::string::npos);
    for (size_t at = 0, end; (end = ran.out.find('\n', at)) != std::string::npos; at = end + 1)
      CHECK(end - at <= 100);
  }
  CHECK(run("config explain optimizer.lr").out.rfind("optimizer.lr\n", 0) == 0);
  Ran nothing = run("config explain sequence_paralel", "2>&1");
  CHECK(nothing.status == 2);
  CHECK(nothing.out.find("did you mean sequence_parallel?") != std::string::npos);
  json::object found = json::parse(run("config explain accumulation --json").out).as_object();
  CHECK(found.at("told").is_null());
  CHECK(found.at("keys").as_array()[0].as_object().at("key").as_string() ==
        "step_scheduler.global_batch_size");
  CHECK(found.at("keys").as_array()[0].as_object().at("found_in").as_string() == "other name");
}
