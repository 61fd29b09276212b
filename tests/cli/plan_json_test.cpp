// The machine form of plans.
#include <map>

#include "ran.h"

namespace plan_json_test {

namespace {

json::object plan(const std::string& arguments) {
  return answer("plan configs/first_fsdp2_cpu.toml --set step_scheduler.global_batch_size=960 " +
                arguments);
}

int64_t elements_of(const json::object& parameter) {
  int64_t out = 1;
  for (const json::value& size : parameter.at("global_shape").as_array()) out *= size.as_int64();
  return out;
}

}  // namespace

TEST_CASE("plan --json has the documented form for a sharded mesh") {
  json::object p = plan(
      "--world-size 8 --set distributed.dp_replicate_size=2 --set distributed.tp_size=2 --rank 5");
  CHECK(text(p.at("strategy")) == "\"fsdp2\"");
  CHECK(text(p.at("requested_strategy")) == "\"fsdp2\"");
  CHECK(text(p.at("world_size")) == "8");
  CHECK(text(p.at("device_mesh")) ==
        R"({"axes":["pp","dp_replicate","dp_shard","cp","tp"],"shape":[1,2,2,1,2]})");
  CHECK(p.at("moe_mesh").is_null());
  CHECK(
      text(p.at("flattened")) ==
      R"({"dp":["dp_replicate","dp_shard"],"dp_shard_cp":["dp_shard","cp"],"dp_cp":["dp_replicate","dp_shard","cp"]})");
  CHECK(text(p.at("fsdp_mesh")) == R"(["dp_replicate","dp_shard"])");
  json::object& rank = p.at("rank").as_object();
  CHECK(text(rank.at("rank")) == "5");
  CHECK(text(rank.at("coordinates")) == R"({"pp":0,"dp_replicate":1,"dp_shard":0,"cp":0,"tp":1})");
  CHECK(
      text(rank.at("groups")) ==
      R"({"pp":[5],"dp_replicate":[1,5],"dp_shard":[5,7],"cp":[5],"tp":[4,5],"dp":[1,3,5,7],"dp_shard_cp":[5,7],"dp_cp":[1,3,5,7]})");
  CHECK(text(p.at("units")) == R"(["model.layers.0","model.layers.1","root"])");
  CHECK(p.at("pipeline").is_null());
  bool seen = false;
  for (const json::value& value : p.at("parameters").as_array()) {
    const json::object& parameter = value.as_object();
    if (parameter.at("name") != "model.layers.0.self_attn.q_proj.weight") continue;
    seen = true;
    CHECK(text(parameter.at("global_shape")) == "[64,64]");
    CHECK(text(parameter.at("local_shape")) == "[16,64]");
    CHECK(text(parameter.at("placement")) ==
          R"json({"dp_replicate":"replicate","dp_shard":"shard(0)","tp":"shard(0)"})json");
  }
  CHECK(seen);
  const json::object& entry = p.at("tp_plan").as_array()[0].as_object();
  CHECK(text(entry.at("pattern")) == "\"model.embed_tokens\"");
  CHECK(text(entry.at("style")) == "\"rowwise\"");
  CHECK(text(entry.at("input")) == "\"replicate\"");
  CHECK(text(entry.at("output")) == "\"replicate\"");
  CHECK(text(entry.at("kind")) == "\"plain\"");
  for (const char* key : {"weights", "gradients", "optimizer", "transient"})
    CHECK(p.at("bytes").as_object().at(key).is_int64());
}

TEST_CASE("plan counts the adapters of Llama 3 8B: 41,943,040 on all Linears with r = 16") {
  for (const char* layout : {"--world-size 1 --set distributed.strategy=ddp ",
                             "--world-size 8 --set distributed.tp_size=2 "}) {
    CAPTURE(std::string(layout));
    json::object p = plan(std::string(layout) +
                          "--set model.config=configs/models/llama-3-8b.json --set lora.r=16");
    int64_t trains = 0, stays = 0;
    for (const json::value& value : p.at("parameters").as_array()) {
      const json::object& row = value.as_object();
      const bool factor = row.at("name").as_string().find(".lora_") != json::string::npos;
      const int64_t count = elements_of(row);
      CHECK(row.at("trainable").as_bool() == factor);
      (factor ? trains : stays) += count;
    }
    CHECK(trains == 41'943'040);  // 32 layers of 16 (in + out)
    CHECK(stays == 8'030'261'248);
  }
}

TEST_CASE("plan --json tells what a pipeline does, action by action") {
  Ran ran =
      run("plan configs/pipeline_interleaved.toml --json --world-size 32 --set "
          "distributed.pipeline.pp_batch_size=8");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  json::object whole = json::parse(ran.out).as_object();
  json::object& p = whole.at("pipeline").as_object();
  CHECK(text(p.at("micro_batches")) == "8");
  CHECK(text(p.at("in_flight")) == "[11,9,7,5]");
  CHECK(text(p.at("runs")) == "4");
  CHECK(p.at("bubble").as_double() == doctest::Approx(3.0 / 19));
  REQUIRE(p.at("actions").as_array().size() == 4);
  CHECK(p.at("actions").as_array()[0].as_string().starts_with("0F0,0F1,0F2,0F3,4F0,4F1"));
  CHECK(p.at("actions").as_array()[3].as_string().ends_with("3B6,3B7"));
}

TEST_CASE("the wire rows are the closed form") {
  // 2 ranks, one micro-batch: gathers of each unit, one reduce of each, rows padded to a multiple
  // of the ranks.
  json::object p = plan("--world-size 2 --set step_scheduler.global_batch_size=8");
  int64_t gathered = 0, reduced = 0;
  std::map<std::string, int64_t> unit;
  for (const json::value& value : p.at("unit_details").as_array()) {
    const json::object& u = value.as_object();
    int64_t bytes = u.at("padded_bytes").as_int64();
    gathered += (u.at("reshards").as_bool() ? 2 : 1) * bytes / 2;
    reduced += bytes / 2;
  }
  std::map<std::string, int64_t> wire;
  for (const json::value& value : p.at("wire").as_array())
    wire[std::string(value.as_object().at("axis").as_string()) + " " +
         std::string(value.as_object().at("op").as_string())] =
        value.as_object().at("bytes").as_int64();
  CHECK(wire == std::map<std::string, int64_t>{{"dp_shard all_gather", gathered},
                                               {"dp_shard reduce_scatter", reduced}});
  json::object ddp = plan(
      "--world-size 4 --set distributed.strategy=ddp --set step_scheduler.global_batch_size=16");
  int64_t parameters = 0;
  for (const json::value& value : ddp.at("parameters").as_array()) {
    parameters += elements_of(value.as_object());
  }
  const json::object& row = ddp.at("wire").as_array()[0].as_object();
  CHECK(text(row.at("axis")) == "\"dp\"");
  CHECK(text(row.at("op")) == "\"all_reduce\"");
  CHECK(row.at("bytes").as_int64() == 2 * parameters * 4 * 3 / 4);
}

TEST_CASE("ddp has no mesh, megatron_fsdp its own, expert parallelism its second one") {
  json::object ddp = plan("--world-size 4 --set distributed.strategy=ddp");
  for (const char* key : {"device_mesh", "moe_mesh", "fsdp_mesh"}) CHECK(ddp.at(key).is_null());
  CHECK(text(ddp.at("rank").as_object().at("groups")) == R"({"dp":[0,1,2,3]})");
  json::object mega = plan("--world-size 4 --set distributed.strategy=mfsdp");
  CHECK(text(mega.at("strategy")) == "\"megatron_fsdp\"");
  CHECK(text(mega.at("requested_strategy")) == "\"mfsdp\"");
  CHECK(text(mega.at("device_mesh")) == R"({"axes":["dp","cp","tp"],"shape":[4,1,1]})");
  CHECK(text(mega.at("fsdp_mesh")) == R"(["dp"])");
  CHECK(text(mega.at("flattened")) == "{}");
  const json::object& flat = mega.at("parameters").as_array()[1].as_object();
  CHECK(text(flat.at("placement")) == R"({"dp":"flat"})");
  CHECK(flat.contains("local_range"));
  CHECK(text(plan("--world-size 4 --set distributed.strategy=mfsdp --set distributed.cp_size=2")
                 .at("fsdp_mesh")) == R"(["dp_cp"])");
  Ran moe = run("plan configs/moe_ep.toml --world-size 32 --json");
  REQUIRE(moe.status == 0);
  json::object m = json::parse(moe.out).as_object();
  CHECK(text(m.at("strategy")) == "\"moe_ep\"");
  CHECK(text(m.at("requested_strategy")) == "\"fsdp2\"");
  CHECK(text(m.at("moe_mesh")) == R"({"axes":["pp","ep_shard","ep"],"shape":[1,4,8]})");
  CHECK(text(m.at("rank").as_object().at("groups").as_object().at("ep")) == "[0,1,2,3,4,5,6,7]");
  CHECK(text(m.at("rank").as_object().at("groups").as_object().at("ep_shard")) == "[0,8,16,24]");
  Ran pp = run("plan configs/pipeline_interleaved.toml --world-size 32 --json --rank 9");
  REQUIRE(pp.status == 0);
  json::object stages = json::parse(pp.out).as_object().at("pipeline").as_object();
  CHECK(stages.at("stages").as_array().size() == 8);
  CHECK(text(stages.at("stages_of_rank").as_array()[1]) == "[1,5]");
}

TEST_CASE("plan --json says what trains and how, and counts no memory for what is frozen") {
  const std::string groups =
      " --set 'optimizer.group=[{pattern=\"model.layers.0.*\", frozen=true}, "
      "{pattern=\"*embed*\", lr_factor=0.5, weight_decay=0.25}]'";
  for (const char* strategy : {"ddp", "fsdp2", "megatron_fsdp"}) {
    const std::string sets = "--world-size 2 --set distributed.strategy=" + std::string(strategy);
    const json::object before = plan(sets), after = plan(sets + groups);
    INFO(std::string(strategy));
    int64_t frozen = 0;  // elements of this rank
    for (const json::value& value : after.at("parameters").as_array()) {
      const json::object& p = value.as_object();
      const std::string name = p.at("name").as_string().c_str();
      CAPTURE(name);
      const bool stays = name.starts_with("model.layers.0.");
      CHECK(p.at("trainable").as_bool() == !stays);
      CHECK(p.contains("lr_factor") == !stays);
      if (name == "model.embed_tokens.weight") {
        CHECK(p.at("lr_factor").to_number<double>() == 0.5);
        CHECK(p.at("weight_decay").to_number<double>() == 0.25);
      }
      const int64_t elements = elements_of(p);
      if (stays) frozen += elements;
    }
    for (const json::value& value : before.at("parameters").as_array())
      CHECK(value.as_object().at("trainable").as_bool());
    CHECK(frozen > 0);
    const int64_t share = std::string(strategy) == "ddp" ? frozen : frozen / 2;
    auto bytes = [](const json::object& of, const char* kind) {
      return of.at("bytes").as_object().at(kind).as_int64();
    };
    CHECK(bytes(before, "gradients") - bytes(after, "gradients") == 4 * share);
    CHECK(bytes(before, "optimizer") - bytes(after, "optimizer") == 8 * share);
  }
}

}  // namespace plan_json_test
