#include "apps/performance/forecast/forecast.h"

#include <boost/json.hpp>

#include "apps/performance/steptime/kernels.h"
#include "planned.h"

namespace meshwright::forecast {
namespace {

using doctest::Approx;

double planned_bytes(const plan::JobPlan& plan) {
  const Bytes& b = plan.footprint->bytes;
  return static_cast<double>(b.weights + b.gradients + b.optimizer + b.transient + b.activations);
}

// What the pure model says where the plan's rows are not given.
steptime::Parts without_rows(const Forecast& f) {
  steptime::Job job = f.job;
  job.tp_seconds = job.cp_seconds = job.ep_seconds = -1;
  return steptime::predict(f.machine, f.shape, job).parts;
}

std::string text_of(const Forecast& f) {
  return draw({.colour = false, .unicode = false, .width = 120}, f);
}

Communication row(const char* axis, const char* op, int64_t ranks, int64_t count, int64_t payload,
                  Communication::Phase phase = Communication::Phase::forward) {
  return {
      .phase = phase, .axis = axis, .op = op, .ranks = ranks, .count = count, .payload = payload};
}

TEST_CASE("a pipeline's fullest and slowest rank count, whichever rank the plan is of") {
  const std::vector<std::string> sets = {"distributed.pp_size=2",
                                         "distributed.pipeline.pp_schedule=1F1B",
                                         "distributed.pipeline.layers_per_stage=16",
                                         "distributed.pipeline.pp_microbatch_size=4",
                                         "distributed.activation_checkpointing=full",
                                         "model.torch_dtype=bfloat16",
                                         "step_scheduler.local_batch_size=16",
                                         "step_scheduler.global_batch_size=64"};
  const Planned first = planned_8b(8, sets, 0), last = planned_8b(8, sets, 7),
                second = planned_8b(8, sets, 4);
  const double first_bytes = planned_bytes(first.plan), second_bytes = planned_bytes(second.plan);
  REQUIRE(first_bytes != second_bytes);
  const Forecast a = first.on(h100()), b = last.on(h100());
  for (const Forecast* f : {&a, &b}) {
    CHECK(f->memory == Approx(std::max(first_bytes, second_bytes)).epsilon(1e-12));
    REQUIRE(f->fullest.has_value());
    CHECK(f->fullest->rank == (second_bytes > first_bytes ? 4 : 0));
    CHECK(f->fullest->stage_rank == (second_bytes > first_bytes ? 1 : 0));
    CHECK(f->host_memory == 0);
    // The last stage has the head and the loss beside as many layers.
    CHECK(f->slowest->rank == 4);
  }
  CHECK(a.time.seconds == b.time.seconds);
  CHECK(a.tokens_a_second == b.tokens_a_second);
  // Of another rank the plan is what make_plan() says.
  const plan::JobPlan other = plan::plan_of_rank(first.job, first.plan, 4);
  CHECK(planned_bytes(other) == second_bytes);
  REQUIRE(other.footprint->wire.size() == second.plan.footprint->wire.size());
  for (size_t i = 0; i < other.footprint->wire.size(); ++i)
    CHECK(other.footprint->wire[i].bytes == second.plan.footprint->wire[i].bytes);
  // It is named, in words and for programs.
  CHECK(text_of(a).find(a.fullest->text()) != std::string::npos);
  const boost::json::object told = to_json(b);
  CHECK(told.at("memory").at("fullest").at("rank").to_number<int64_t>() == b.fullest->rank);
  CHECK(told.at("memory").at("fullest").at("pp").to_number<int64_t>() == b.fullest->stage_rank);
  CHECK(told.at("slowest").at("rank").to_number<int64_t>() == b.slowest->rank);
}

TEST_CASE(
    "a job whose products of float32 may be in TF32 is predicted, and measured, by its peak") {
  auto with = [](const std::string& dtype, const std::string& precision) {
    return planned_8b(64, {"distributed.mp_policy.param_dtype=" + dtype,
                           "distributed.mp_policy.output_dtype=" + dtype,
                           "run.float32_matmul_precision=" + precision})
        .on(h100());
  };
  const Forecast full = with("float32", "highest"), tf32 = with("float32", "high");
  CHECK(tf32.time.parts.products < 0.2 * full.time.parts.products);
  CHECK(tf32.time.parts.attention == full.time.parts.attention);
  CHECK(tf32.mfu ==
        Approx(tf32.tokens_a_second * tf32.shape.flop_a_token(tf32.job.length) / h100().peak_tf32));
  CHECK(with("bfloat16", "high").time.seconds == with("bfloat16", "highest").time.seconds);
}

TEST_CASE("Linears in 8-bit floats are predicted by the peak of these, where a machine has one") {
  auto on = [](const std::string& machine, const std::string& wanted) {
    return planned_8b(64, {"model.float8_linear=" + wanted})
        .on(steptime::find_machine(machine, MESHWRIGHT_SOURCE_DIR "/configs/machines"));
  };
  auto tells = [](const Forecast& f) {
    return std::ranges::any_of(
        f.rough, [](const std::string& why) { return why.starts_with("8-bit floats"); });
  };
  const Forecast plain = on("h100", "false"), narrow = on("h100", "true");
  CHECK(!plain.job.fp8);
  CHECK(narrow.job.fp8);
  steptime::Job job = plain.job;
  job.fp8 = true;
  CHECK(narrow.time.seconds == steptime::predict(plain.machine, plain.shape, job).seconds);
  CHECK(narrow.time.seconds != plain.time.seconds);
  CHECK(narrow.time.parts.attention == plain.time.parts.attention);
  CHECK(narrow.memory == plain.memory);
  CHECK(tells(narrow));
  CHECK(!tells(plain));
  // Devices of before 8.9 have no such products.
  CHECK(on("a100-80", "false").time.seconds > 0);
  try {
    on("a100-80", "true");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::missing_key);
    CHECK(error.key() == "peak.fp8");
    CHECK(error.helps().front() == "set model.float8_linear = false");
  }
  const Forecast processor = on("cpu", "true");
  CHECK(!processor.job.fp8);
  CHECK(tells(processor));
  CHECK(processor.time.seconds == on("cpu", "false").time.seconds);
}

TEST_CASE("without a pipeline all ranks are alike, and no stage is named") {
  const Forecast f = planned_8b(8, {}, 5).on(h100());
  CHECK(f.fullest->rank == 0);
  CHECK(!f.fullest->stage_rank.has_value());
  CHECK(text_of(f).find("fullest") == std::string::npos);
  CHECK(to_json(f).at("memory").at("fullest").at("pp").is_null());
  CHECK(f.memory == planned_bytes(planned_8b(8, {}, 0).plan));
}

TEST_CASE("a level that shards nothing reduces and updates like whole copies") {
  auto level = [](int n) {
    return planned_8b(64, {"distributed.strategy=megatron_fsdp",
                           "distributed.megatron_fsdp.zero_dp_strategy=" + std::to_string(n)})
        .on(h100());
  };
  const Forecast none = level(0), ddp = planned_8b(64, {"distributed.strategy=ddp"}).on(h100());
  CHECK(none.job.shard == 1);
  CHECK(none.job.replicas() == 64);
  // 44 bytes a parameter at 0.8 of 3.35 TB/s.
  CHECK(none.time.parts.optimizer == Approx(44 * none.shape.parameters() / (0.8 * 3.35e12)));
  CHECK(none.time.parts.optimizer == Approx(ddp.time.parts.optimizer));
  CHECK(none.job.data.layer_summed == Approx(ddp.job.data.layer_summed).epsilon(0.01));
  CHECK(none.time.parts.shard == Approx(ddp.time.parts.shard).epsilon(0.02));
  CHECK(none.time.seconds == Approx(ddp.time.seconds).epsilon(0.02));
  const Forecast one = level(1);
  CHECK(one.job.shard == 64);
  CHECK(one.time.parts.optimizer == Approx(none.time.parts.optimizer / 64));
}

TEST_CASE("an optimizer with fewer states than AdamW reads and writes fewer bytes") {
  auto seconds = [](const std::vector<std::string>& sets) {
    return planned_8b(64, sets).on(h100()).time.parts.optimizer;
  };
  const double adamw = seconds({});
  CHECK(seconds({"optimizer.name=sgd", "optimizer.momentum=0.9"}) == Approx(adamw * 36 / 44));
  CHECK(seconds({"optimizer.name=sgd", "optimizer.momentum=0"}) == Approx(adamw * 28 / 44));
}

TEST_CASE("options that a level leaves without effect change no prediction") {
  auto seconds = [](int level, const std::string& option) {
    std::vector<std::string> sets = {
        "distributed.strategy=megatron_fsdp",
        "distributed.megatron_fsdp.zero_dp_strategy=" + std::to_string(level)};
    if (!option.empty()) sets.push_back("distributed.megatron_fsdp." + option + "=false");
    return planned_8b(64, sets).on(h100()).time.seconds;
  };
  CHECK(seconds(3, "overlap_param_gather") == seconds(3, ""));
  CHECK(seconds(3, "overlap_grad_reduce") == seconds(3, ""));
  CHECK(seconds(2, "overlap_grad_reduce") == seconds(2, ""));
  // Where they have one, the step takes longer.
  CHECK(seconds(1, "overlap_param_gather") > seconds(1, ""));
  CHECK(seconds(1, "overlap_grad_reduce") > seconds(1, ""));
  CHECK(seconds(2, "overlap_param_gather") > seconds(2, ""));
  CHECK(seconds(0, "overlap_grad_reduce") > seconds(0, ""));
}

TEST_CASE("what somebody's policy says of overlap counts where the run would heed it") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    const DataMoved moved = data_moved(
        planned_8b(8, {"distributed.strategy=megatron_fsdp",
                       "distributed.megatron_fsdp.zero_dp_strategy=" + std::to_string(level),
                       "distributed.megatron_fsdp.overlap_param_gather=false",
                       "distributed.megatron_fsdp.overlap_grad_reduce=false"})
            .plan);
    CHECK(moved.hidden == (level >= 2));
    CHECK(moved.fetched_ahead == (level == 3));
    CHECK((moved.gathered_again > 0) == (level == 3));
  }
  CHECK(data_moved(planned_8b(8, {}).plan).fetched_ahead);
  const Planned none_ahead = planned_8b(8, {"distributed.fsdp2.enable_fsdp2_prefetch=true",
                                            "distributed.fsdp2.fsdp2_forward_prefetch_depth=0",
                                            "distributed.fsdp2.fsdp2_backward_prefetch_depth=0"});
  CHECK_FALSE(data_moved(none_ahead.plan).fetched_ahead);
  CHECK(data_moved(planned_8b(8, {"distributed.strategy=ddp"}).plan).hidden);
}

TEST_CASE("the plan's all-reduces of tp take what the model says of as many") {
  const Forecast f =
      planned_8b(8, {"distributed.tp_size=8", "distributed.sequence_parallel=false"}).on(h100());
  REQUIRE(f.time.parts.tp > 0);
  CHECK(f.time.parts.tp == Approx(without_rows(f).tp).epsilon(0.03));
}

TEST_CASE("a ring of context parallelism lies beside attention, a gather does not") {
  auto with = [](const char* method) {
    return planned_8b(
        8, {"distributed.cp_size=4", std::string("distributed.context.method=") + method});
  };
  auto bare = [](const Planned& one) {
    return seconds_of_rows(h100(), one.plan.footprint->schedule, "cp", {4, 1, 8});
  };
  const Planned ring = with("ring"), gather = with("all_gather");
  // Keys of 8,192 tokens are around before their attention is computed.
  CHECK(ring.on(h100()).time.parts.cp == Approx(0.15 * bare(ring)));
  CHECK(gather.on(h100()).time.parts.cp == Approx(bare(gather)));
}

TEST_CASE("tokens go to experts as the model that is held to published runs says") {
  for (const char* recompute : {"none", "full"}) {
    CAPTURE(std::string(recompute));
    const Forecast f =
        planned("moe_ep", 32, {std::string("distributed.activation_checkpointing=") + recompute})
            .on(h100());
    REQUIRE(f.time.parts.ep > 0);
    CHECK(f.time.parts.ep == Approx(without_rows(f).ep));
  }
  // Where tokens are gathered instead, the rows count.
  const Planned gathers = planned("moe_ep", 32, {"distributed.moe.dispatcher=all_gather"});
  CHECK(gathers.on(h100()).time.parts.ep ==
        Approx(seconds_of_rows(h100(), gathers.plan.footprint->schedule, "ep", {8, 1, 8})));
}

TEST_CASE("states that are offloaded lie on the host, and take its link and memory") {
  const Planned off = planned_8b(8, {"distributed.fsdp2.offload_policy=cpu"});
  const Forecast f = off.on(h100()), stays = planned_8b(8, {}).on(h100());
  const Bytes& b = off.plan.footprint->bytes;
  CHECK(f.memory == static_cast<double>(b.transient + b.activations));
  CHECK(f.host_memory == static_cast<double>(b.weights + b.gradients + b.optimizer));
  // Each rank brings its eighth of each gather, of which it sends seven; gradients go back once.
  double sent = 0;
  for (const WireRow& row : off.plan.footprint->wire)
    if (row.op == "all_gather") sent += static_cast<double>(row.bytes);
  REQUIRE(sent > 0);
  const double copied = sent / 7 + static_cast<double>(b.gradients);
  CHECK(f.job.offload.copied == Approx(copied).epsilon(1e-3));
  CHECK(f.time.parts.shard - stays.time.parts.shard == Approx(copied / 25e9).epsilon(1e-3));
  CHECK(f.time.parts.optimizer == Approx(44 * f.shape.parameters() / 8 / 20e9));
  CHECK(text_of(f).find("memory of the host") != std::string::npos);
  REQUIRE(!f.rough.empty());
  CHECK(text_of(f).find("states on the host") != std::string::npos);
  CHECK(text_of(stays).find("the host") == std::string::npos);
  // On a CPU there is nowhere else.
  const steptime::Machine cpu =
      steptime::find_machine("cpu", MESHWRIGHT_SOURCE_DIR "/configs/machines");
  CHECK(!off.on(cpu).job.offload.on);
  CHECK(off.on(cpu).memory == planned_bytes(off.plan));
}

TEST_CASE("an all-reduce of tp may be in the switch, and a small one over hosts is a tree") {
  const steptime::Machine machine = h100();
  // 10 of 1 GB over 8 ranks of a host: 2 (7 steps + 7/8 GB over 1.29 times the bus).
  const CommunicationSchedule large = {row("tp", "all_reduce", 8, 10, 1'000'000'000),
                                       row("cp", "all_reduce", 8, 99, 1'000'000'000)};
  CHECK(seconds_of_rows(machine, large, "tp", {8, 1, 8}) ==
        Approx(10 * 2 * (7 * 3.3e-6 + 0.875e9 / (1.29 * 362e9))));
  // 1 MB over 8 hosts of 8: 4 (3 + 3 + 1) steps of 3.3 * 7/8 + 6.151 / 8 us, 2.1 MB over the bus.
  const CommunicationSchedule small = {row("tp", "all_reduce", 64, 1, 1'000'000)};
  CHECK(seconds_of_rows(machine, small, "tp", {64, 1, 8}) ==
        Approx(28 * 3.656375e-6 + 2.1e6 / 362e9));
  // What is gathered is a ring: 3 steps each.
  const CommunicationSchedule gathered = {row("tp", "all_gather", 4, 2, 2'000'000)};
  CHECK(seconds_of_rows(machine, gathered, "tp", {4, 1, 8}) == Approx(6 * 3.3e-6 + 3e6 / 362e9));
}

TEST_CASE("of a ring of keys what exceeds attention counts, and 15% of all") {
  steptime::Machine machine = h100();
  steptime::Shape shape;
  shape.layers = 2;
  shape.heads = 32;
  shape.head_dim = 128;
  shape.hidden = 4096;
  steptime::Job job;
  job.cp = 4;
  job.length = 8192;
  const steptime::Core core = steptime::attention_core(machine, job, 32, 128);
  // Of each layer 3 messages in forward, 3 of keys and 3 of their gradients, twice as wide, in
  // backward.
  using Phase = Communication::Phase;
  auto rows = [](int64_t unit, int64_t forwards) {
    return CommunicationSchedule{row("cp", "send", 4, forwards * 2 * 3, unit),
                                 row("cp", "send", 4, 2 * 3, unit, Phase::backward),
                                 row("cp", "send", 4, 2 * 3, 2 * unit, Phase::backward)};
  };
  auto all = [&](int64_t unit) { return 18 * 3.3e-6 + 24 * static_cast<double>(unit) / 362e9; };
  auto took = [&](int64_t unit, bool ring) {
    job.context = ring ? steptime::ContextWay::ring : steptime::ContextWay::gather;
    return context_seconds(machine, rows(unit, 1), shape, job);
  };
  CHECK(took(1'000'000, true) == Approx(0.15 * all(1'000'000)));
  CHECK(took(1'000'000'000, true) ==
        Approx(1.15 * all(1'000'000'000) - 2 * (core.forward + core.backward)));
  CHECK(took(1'000'000, false) == Approx(all(1'000'000)));
  // Full recomputation sends and computes the forward once more.
  job.recompute = steptime::Recompute::full;
  job.context = steptime::ContextWay::ring;
  CHECK(context_seconds(machine, rows(1'000'000'000, 2), shape, job) ==
        Approx(1.15 * (24 * 3.3e-6 + 30e9 / 362e9) - 2 * (2 * core.forward + core.backward)));
  machine.overlap.adds = true;  // nothing lies beside anything where cores are shared
  job.recompute = steptime::Recompute::none;
  CHECK(took(1'000'000, true) == Approx(all(1'000'000)));
}

TEST_CASE("an all-reduce among the ranks that share a shard costs both its ways") {
  Planned one = planned_8b(8, {});
  const DataMoved before = data_moved(one.plan);
  CHECK(shard_ranks(one.plan.footprint->schedule) == 8);
  CHECK(before.summed == 0);
  REQUIRE(before.reduced > 0);
  // As somebody's strategy may do it that gathers parameters and reduces whole gradients.
  for (Communication& each : one.plan.footprint->schedule)
    if (each.op == "reduce_scatter") each.op = "all_reduce";
  const DataMoved after = data_moved(one.plan);
  CHECK(after.reduced == Approx(2 * before.reduced));
  CHECK(after.summed == 0);
  CHECK(after.gathered == before.gathered);
  for (Communication& each : one.plan.footprint->schedule)
    if (each.op == "all_gather") each.op = "broadcast";  // of what each has updated
  CHECK(shard_ranks(one.plan.footprint->schedule) == 8);
  CHECK(data_moved(one.plan).gathered == before.gathered);
  // Without gathers they are copies, whatever the mesh calls its axes.
  std::erase_if(one.plan.footprint->schedule,
                [](const Communication& each) { return each.op == "broadcast"; });
  CHECK(shard_ranks(one.plan.footprint->schedule) == 1);
  CHECK(data_moved(one.plan).summed == Approx(before.reduced));
  CHECK(data_moved(one.plan).reduced == 0);
}

TEST_CASE("adapters count by the Linears that they lie beside") {
  auto adapted = [](const std::string& targets) {
    return planned_8b(8, {"lora.r=16", "lora.target_modules=" + targets})
        .on(h100())
        .shape.frozen.adapted;
  };
  CHECK(planned_8b(8, {}).on(h100()).shape.frozen.adapted == 0);
  CHECK(adapted("all-linear") == 1);
  // In and out of q_proj and v_proj 8,192 and 5,120 elements, of all Linears of a layer 81,920.
  CHECK(adapted("[\"q_proj\", \"v_proj\"]") == Approx(13312.0 / 81920));
}

TEST_CASE("of the figures that a machine guesses those are named that a forecast goes by") {
  // The list that the output repeats; empty: nothing guessed is in use.
  auto guessed = [](const Planned& job, const std::string& machine) {
    const std::string begin = "guessed figures of the machine: ";
    const Forecast f =
        job.on(steptime::find_machine(machine, MESHWRIGHT_SOURCE_DIR "/configs/machines"));
    for (const std::string& why : f.rough)
      if (why.starts_with(begin)) return ", " + why.substr(begin.size()) + ",";
    return std::string();
  };
  auto has = [](const std::string& list, const std::string& key) {
    return list.find(", " + key + ",") != std::string::npos;
  };
  // Products, attention and what hides are that device's; fp8 and older kernels not in the job.
  const std::string b200 = guessed(planned_8b(8, {}), "b200x8"),
                    b200s = guessed(planned_8b(16, {}), "b200x8");
  CHECK(b200 == ", rate.product, rate.attention, overlap.kappa,");
  for (const char* key : {"network.nic_attained", "network.step_outside", "overlap.jitter"}) {
    CAPTURE(key);
    CHECK(has(b200s, key));
  }
  CHECK(guessed(planned_8b(8, {}), "h100x8").empty());
  // One rank exchanges nothing; eight of one host not with another host; sixteen do.
  const std::string one = guessed(planned_8b(1, {}), "cpu"),
                    host = guessed(planned_8b(8, {}), "cpu"),
                    hosts = guessed(planned_8b(16, {}), "cpu");
  for (const char* key : {"device.memory", "device.outside", "peak.bf16", "rate.product",
                          "rate.elementwise", "rate.attention", "host.fixed"}) {
    CAPTURE(key);
    for (const std::string* list : {&one, &host, &hosts}) CHECK(has(*list, key));
  }
  CHECK(one.find("network.") == std::string::npos);
  CHECK(has(host, "network.step_inside"));
  for (const char* key : {"network.nic", "network.nic_attained", "network.step_outside"}) {
    CAPTURE(key);
    CHECK(!has(host, key));
    CHECK(has(hosts, key));
  }
  // Nothing hides there, so what hiding costs is not asked.
  CHECK(!has(hosts, "overlap.kappa"));
  // In float32 the other peak counts.
  const std::string full = guessed(planned_8b(1, {"distributed.mp_policy.param_dtype=float32",
                                                  "distributed.mp_policy.output_dtype=float32"}),
                                   "cpu");
  CHECK(!has(full, "peak.bf16"));
}

TEST_CASE("a figure that calibrate left at a bound makes forecasts rough that go by it") {
  steptime::Machine machine = h100();
  machine.at_bound = {"rate.product", "overlap.async_tp"};
  const Forecast f = planned_8b(8, {}).on(machine);
  const std::string told = "figures of the machine that were left at a bound: rate.product";
  CHECK(std::ranges::find(f.rough, told) != f.rough.end());
}

TEST_CASE("a job that just fits is not called over") {
  Forecast f;
  f.machine.name = "a device";
  f.time.seconds = f.time.parts.products = 1;
  f.memory = 98e9;
  f.usable = 100e9;
  CHECK(text_of(f).find("2% to spare (very tight)") != std::string::npos);
  CHECK(to_json(f).at("memory").at("fits").as_bool());
  CHECK(to_json(f).at("memory").at("fit") == "very tight");
  f.memory = 90e9;
  CHECK(to_json(f).at("memory").at("fit") == "tight");
  f.memory = 101e9;
  CHECK(text_of(f).find("does not fit") != std::string::npos);
  CHECK(!to_json(f).at("memory").at("fits").as_bool());
  CHECK(to_json(f).at("memory").at("fit") == "too large");
  CHECK(to_json(f).at("memory").at("fullest").is_null());
}

}  // namespace
}  // namespace meshwright::forecast
