// Rules between keys: settings that another one leaves without effect, the length of a run, and
// addresses to listen at.
#include "engine/config/cross_checks.h"

#include <initializer_list>

#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"

namespace cross_checks_test {

using namespace meshwright;
using namespace meshwright::config;
using namespace meshwright::config::testing;

namespace {

std::vector<std::string> notices(const std::vector<std::string>& sets) {
  const Loaded l = load("", sets);
  for (const Error& error : l.diagnostics.errors()) FAIL(error.what());
  return l.diagnostics.notices();
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
    const std::vector<std::string> said = notices({row.set, row.other});
    INFO(row.set, " beside ", row.other);
    REQUIRE(said.size() == 1);
    CHECK(said[0].find(row.notice) != std::string::npos);
  }
}

TEST_CASE("what a refused value would have left without effect is not told") {
  for (const char* wrong : {"lora.r=-1", "lora.r=1.5"}) {
    INFO(wrong);
    const Loaded l = load("", {"lora.alpha=8", "lora.dropout=0.1", wrong});
    CHECK(only_error(l).key() == "lora.r");
    CHECK(l.diagnostics.notices().empty());
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

TEST_CASE("steps and epochs of a run are one of the two, and epochs need data that ends") {
  struct Row {
    std::vector<std::string> sets;
    std::string message;
  };
  for (const Row& row : std::vector<Row>{
           {{}, ""},
           {{"step_scheduler.epochs=2"}, ""},
           {{"step_scheduler.epochs=2", "step_scheduler.max_steps=none"}, ""},
           {{"step_scheduler.epochs=none", "step_scheduler.max_steps=9"}, ""},
           {{"step_scheduler.epochs=2", "step_scheduler.max_steps=9"}, "leave out one of them"},
           {{"step_scheduler.max_steps=none"}, "are both \"none\""},
           {{"step_scheduler.epochs=0"}, "step_scheduler.epochs"},
           {{"step_scheduler.max_steps=none", "step_scheduler.epochs=0"},
            "step_scheduler.epochs = 0"},
           {{"step_scheduler.max_steps=none", "step_scheduler.epochs=1.5"},
            "step_scheduler.epochs wants"},
           {{"step_scheduler.epochs=2", "dataset.kind=mock"}, "without an end"}}) {
    INFO((row.sets.empty() ? "defaults" : row.sets.back()));
    const Loaded l = load("", row.sets);
    CHECK(l.diagnostics.ok() == row.message.empty());
    if (row.message.empty()) continue;
    const Error error = only_error(l);
    CHECK(error.message().find(row.message) != std::string::npos);
    CHECK(error.key().starts_with("step_scheduler."));
    CHECK(!error.helps().empty());
  }
}

TEST_CASE("what a run in epochs keeps of its configuration is read again") {
  const Config before = load("", {"step_scheduler.epochs=2"}).config;
  CHECK(!before.table("step_scheduler").is_set("max_steps"));
  const Loaded after = load(show_toml(before));
  CHECK(after.diagnostics.ok());
  CHECK(after.config.table("step_scheduler").find_int("epochs") == 2);
}

TEST_CASE("an address to listen at is this machine's own unless it says otherwise") {
  for (const auto& [text, wanted] : std::initializer_list<std::pair<const char*, ListenAddress>>{
           {"127.0.0.1:9400", {"127.0.0.1", 9400}},
           {"9400", {"127.0.0.1", 9400}},
           {":9400", {"127.0.0.1", 9400}},
           {":0", {"127.0.0.1", 0}},
           {"[::1]:65535", {"::1", 65535}},
           {"localhost:1", {"localhost", 1}},
           {"node-7.cluster:9400", {"node-7.cluster", 9400}},
           {"0.0.0.0:9400", {"0.0.0.0", 9400}},
           {"[::]:9400", {"::", 9400}},
           {"192.168.1.5:9400", {"192.168.1.5", 9400}}}) {
    CAPTURE(text);
    const ListenAddress found = parse_listen_address(text, "report.prometheus");
    CHECK(found.host == wanted.host);
    CHECK(found.port == wanted.port);
  }
}

TEST_CASE("what is no address is refused with what is wrong, and an address that is") {
  for (const auto& [text, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "it wants HOST:PORT"},
           {"localhost", "it wants HOST:PORT"},
           {"localhost:", "after the colon comes the number of a port"},
           {"localhost:http", "after the colon comes the number of a port"},
           {"localhost:-1", "after the colon comes the number of a port"},
           {"localhost:65536", "ports go up to 65535"},
           {"localhost:99999999999999999999", "ports go up to 65535"},
           {"::1:9400", "an IPv6 address stands in brackets"},
           {"[::1]", "after [ADDRESS] comes :PORT"},
           {"[::1:9400", "after [ADDRESS] comes"},
           {"[localhost]:9400", "\"localhost\" is no IPv6 address"},
           {"[0:0:0:0:0:0:0:0]:9400", "all interfaces are written [::]"},
           {"*:9400", "all interfaces are 0.0.0.0"},
           // The system would take these for addresses, the first two for all interfaces.
           {"0:9400", "\"0\" is no IPv4 address"},
           {"0x0:9400", "\"0x0\" is no IPv4 address"},
           {"127.1:9400", "\"127.1\" is no IPv4 address"},
           {"256.0.0.1:9400", "is no IPv4 address"},
           {"http://127.0.0.1:9400", "an IPv6 address stands in brackets"},
           {"a b:9400", "\"a b\" is no name of a host"},
           {"-a:9400", "is no name of a host"}}) {
    CAPTURE(text);
    try {
      parse_listen_address(text, "report.prometheus");
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(code_string(error.code()) == "E0204");
      CHECK(error.key() == "report.prometheus");
      CHECK(error.message().find(why) != std::string::npos);
      CHECK(error.helps().size() == 2);
    }
  }
}

TEST_CASE("an address that is none is found with its line before anything runs") {
  const Loaded l = load("[report]\nprometheus = \"nowhere\"\nprometheus_file = \"\"\n");
  REQUIRE(l.diagnostics.errors().size() == 2);
  for (const Error& error : l.diagnostics.errors()) {
    CHECK(code_string(error.code()) == "E0204");
    CHECK(error.origin().line == (error.key() == "report.prometheus" ? 2 : 3));
    CHECK(exit_status(error.code()) == 2);
  }
}

}  // namespace cross_checks_test
