#include "engine/checkpoint/meta.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/checkpoint/checksum.h"
#include "sdk/base/tests/scratch.h"

using namespace meshwright;
using namespace meshwright::checkpoint;

namespace {

Meta example() {
  Meta meta;
  meta.step = 50;
  meta.created = "2026-11-21T12:00:00Z";
  meta.program = "0.1.0";
  meta.strategy = "fsdp2";
  meta.plugin_version = "0.1.0";
  meta.world_size = meta.data_parallel = 2;
  meta.axes = {"dp_shard", "tp"};
  meta.mesh_shape = {2, 1};
  meta.architecture = "LlamaForCausalLM";
  meta.optimizer = "adamw";
  meta.optimizer_steps = 50;
  meta.samples = 800;
  meta.seq_len = 512;
  meta.data_fingerprint = "00ff";
  meta.pretrained = "ff00";
  meta.seed = static_cast<uint64_t>(-3);
  meta.max_steps = 200;
  meta.lr = 0.1;
  meta.files = {{"model-00001-of-00002.safetensors", kBlock + 1, {1, 2}},
                {"source/a b.json", 0, {}},
                {"optimizer-00001-of-00002.safetensors", 5000, {~0ull}}};
  meta.tensors = {
      {"",
       "a.weight",
       DType::float32,
       {4, 6},
       {{0, "a.weight", Region::box({0, 0}, {3, 6})}, {2, "a.weight", Region::run(18, 24)}},
       DType::bfloat16},
      {"", "s", DType::float64, {}, {{0, "s", Region::box({}, {})}}, DType::float64},
      {"exp_avg",
       "a.weight",
       DType::float32,
       {4, 6},
       {{2, "exp_avg/a.weight", Region::box({0, 0}, {4, 2})},
        {2, "exp_avg/a.weight", Region::box({0, 2}, {4, 4})}},
       DType::float32},
      {"exp_avg",
       "f.weight",
       DType::float32,
       {6, 2},
       {{2, "exp_avg/f.weight", Region::run(0, 12)}},
       DType::float32,
       FusedRows{2, {1, 2}}}};
  meta.tensors.back().steps = 40;
  meta.generators = {{0, "cpu", 2, "rng/cpu"}};
  return meta;
}

// As a writer without scruples makes it: changed text, right checksum.
std::string resealed(const std::string& text) {
  size_t at = text.rfind(",\n  \"checksum\": \"");
  return text.substr(0, at) + ",\n  \"checksum\": \"" +
         to_hex(checksum(std::string_view(text).substr(0, at))) + "\"\n}\n";
}

std::string problem(const std::string& text) {
  return scratch::message_of([&] { parse_meta(text, "meta.json"); }, ErrorCode::bad_checkpoint);
}

}  // namespace

TEST_CASE("meta.json is read as it was written") {
  std::string text = to_json(example());
  Meta meta = parse_meta(text, "meta.json");
  CHECK(to_json(meta) == text);
  CHECK(meta.lr == 0.1);
  CHECK(meta.seed == static_cast<uint64_t>(-3));
  CHECK(meta.states() == std::vector<std::string>{"exp_avg"});
  REQUIRE(meta.find("exp_avg", "a.weight") != nullptr);
  CHECK(meta.find("exp_avg", "a.weight")->pieces[1].region == Region::box({0, 2}, {4, 4}));
  CHECK(meta.find("", "a.weight")->export_dtype == DType::bfloat16);
  CHECK_FALSE(meta.find("", "a.weight")->fused.has_value());
  CHECK(meta.find("exp_avg", "f.weight")->fused == FusedRows{2, {1, 2}});
  CHECK(meta.find("exp_avg", "f.weight")->steps == 40);
  CHECK_FALSE(meta.find("exp_avg", "a.weight")->steps.has_value());
  CHECK(meta.find("", "b") == nullptr);
  CHECK(meta.history.losses.empty());  // as those of before
}

TEST_CASE("weights that a base model holds have its tensors in place of pieces") {
  Meta meta = example();
  meta.base = BaseRecord{"/models/a \"b\"", "0123456789abcdef"};
  meta.tensors[0].pieces.clear();
  meta.tensors[0].base = "transformer.a.weight";
  const std::string text = to_json(meta);
  const Meta read = parse_meta(text, "meta.json");
  CHECK(to_json(read) == text);
  CHECK(read.base->path == meta.base->path);
  CHECK(read.base->fingerprint == meta.base->fingerprint);
  CHECK(read.tensors[0].base == meta.tensors[0].base);
  CHECK_FALSE(read.tensors[1].base.has_value());
  const char* why = "is of a base model, which does not fit the rest";
  Meta wrong = meta;
  wrong.base.reset();
  CHECK(problem(to_json(wrong)).ends_with(why));
  wrong = meta;
  wrong.tensors[0].pieces = example().tensors[0].pieces;
  CHECK(problem(to_json(wrong)).ends_with(why));
  wrong = meta;
  wrong.tensors[2].pieces.clear();
  wrong.tensors[2].base = "a.weight";
  CHECK(problem(to_json(wrong)).ends_with(why));
}

TEST_CASE("what is usual in a run is read to the last bit") {
  Meta meta = example();
  meta.history = {{5.1234567890123456, 1e-300}, {0.1, 1.0 / 3}, 7, 2};
  const std::string text = to_json(meta);
  const StepHistory read = parse_meta(text, "meta.json").history;
  CHECK(read.losses == meta.history.losses);
  CHECK(read.grad_norms == meta.history.grad_norms);
  // To the last bit, of many.
  Meta many = meta;
  many.history.losses.clear();
  for (int i = 1; i <= 2000; ++i) many.history.losses.push_back(std::sqrt(static_cast<double>(i)));
  CHECK(parse_meta(to_json(many), "meta.json").history.losses == many.history.losses);
  CHECK(read.loss_scale == 0);
  meta.history.loss_scale = 4096;
  meta.history.even_steps = 1999;
  CHECK(to_json(parse_meta(to_json(meta), "meta.json")) == to_json(meta));
  CHECK(read.left_out == 7);
  CHECK(read.in_a_row == 2);
  for (const char* wrong : {"\"many\"", "\"\"", "\"0x1\"", "\"1e-300 \"", "true"}) {
    CAPTURE(wrong);
    std::string bad = text;
    bad.replace(bad.find("\"1e-300\""), 8, wrong);
    CHECK(problem(resealed(bad)).find("needs numbers in \"losses\"") != std::string::npos);
  }
}

TEST_CASE("every changed bit and every cut of meta.json is noticed") {
  std::string text = to_json(example());
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      if (problem(changed).empty()) FAIL_CHECK("bit " << bit << " of byte " << at);
    }
    if (problem(text.substr(0, at)).empty()) FAIL_CHECK("cut at " << at);
  }
}

TEST_CASE("what a sealed meta.json may not say") {
  struct Row {
    const char *from, *to, *why;
  };
  const Row rows[] = {
      {"meshwright checkpoint", "another", "the file is not a checkpoint's"},
      {"\"version\": 1", "\"version\": 2", "is of version 2, this program reads version 1"},
      {"\"step\": 50", "\"step\": -1", "the file needs a whole number of at least 0 as \"step\""},
      {"\"step\": 50", "\"step\": 1e99", "needs a whole number"},
      {"\"step\": 50", "\"stop\": 50", "lacks \"step\""},
      {"\"step\": 50", "\"step\": 50, \"more\": 1", "has fields this version does not know"},
      {"source/a b.json", "../a", "has a name that is not a file of the checkpoint's folder"},
      {"source/a b.json", "/etc/passwd", "has a name that is not"},
      {"source/a b.json", "source/./a", "has a name that is not"},
      {"source/a b.json", "source//a", "has a name that is not"},
      {"source/a b.json", "a\\u0000b", "has a name that is not"},
      {"source/a b.json", "meta.json", "has a name that is not"},
      {"source/a b.json", "model-00001-of-00002.safetensors",
       "lists the file model-00001-of-00002.safetensors twice"},
      {"\"bytes\": 5000", "\"bytes\": 1048577",
       "needs 2 checksums of 16 digits for its 1048577 bytes"},
      {"\"bytes\": 5000", "\"bytes\": 9223372036854775807", "needs 8796093022208 checksums"},
      {"ffffffffffffffff", "fffffffffffffffg", "is not hexadecimal"},
      {"\"shape\": [4, 6]", "\"shape\": [9223372036854775807, 6]", "is larger than any file"},
      {"\"shape\": [4, 6]", "\"shape\": [4, 7]", "do not cover its shape [4, 7] exactly once"},
      {"[0, [0, 0], [3, 6]]", "[0, [0, 0], [5, 6]]", "has a piece outside of its shape [4, 6]"},
      {"[0, [0, 0], [3, 6]]", "[0, [1, 0], [3, 6]]", "do not cover"},
      {"[0, [0, 0], [3, 6]]", "[7, [0, 0], [3, 6]]", "has a piece in a file that is not listed"},
      {"[2, [18, 24]]", "[2, [18]]", "has a run without two ends"},
      {"[2, [18, 24]]", "[2]", "has a piece of a wrong form"},
      {"[2, [0, 2], [4, 4]]", "[2, [0, 1], [4, 4]]", "do not cover"},
      {"\"dtype\": \"float64\"", "\"dtype\": \"float65\"", "has an unknown dtype float65"},
      {"{\"state\": \"exp_avg\", \"name\": \"a.weight\"",
       "{\"state\": \"exp/avg\", \"name\": \"a.weight\"", "unusable name"},
      {"\"name\": \"s\"", "\"name\": \"a.weight\"", "lists a.weight twice"},
      {"\"groups\": 2", "\"groups\": 3", "has fused parts that do not make up its shape [6, 2]"},
      {"\"groups\": 2", "\"groups\": 0", "needs a whole number of at least 1 as \"groups\""},
      {"\"groups\": 2", "\"groups\": 4611686018427387904", "has fused parts that do not make up"},
      {"\"groups\": 2, ", "", "lacks \"groups\""},
      {"\"groups\": 2", "\"groups\": 2, \"more\": 1", "has fields this version does not know"},
      {"\"parts\": [1, 2]", "\"parts\": [1, 2, 0]", "has fused parts that do not make up"},
      {"\"parts\": [1, 2]", "\"parts\": [1, 9223372036854775807]",
       "has fused parts that do not make up"},
      {"\"parts\": [1, 2]", "\"parts\": []", "has fused parts that do not make up"},
      {"\"parts\": [1, 2]", "\"parts\": [1, -2]", "something else than whole numbers"},
      {"{\"groups\": 2, \"parts\": [1, 2]}", "[2, 1, 2]", "is not an object"},
      {"\"steps\": 40", "\"steps\": 51",
       "(f.weight) has had more updates than the optimizer has done"},
      {"\"steps\": 40", "\"steps\": -1", "needs a whole number of at least 0 as \"steps\""},
      {"\"name\": \"s\"", "\"steps\": 1, \"name\": \"s\"", "has fields this version does not know"},
      {"\"rank\": 0", "\"rank\": 2", "names a file or rank that is not there"},
      {"\"mesh\": [2, 1]", "\"mesh\": [2]", "needs one size an axis"},
      {"\"lr\": 0.10000000000000001", "\"lr\": 0.1, \"lr\": 0.2", "lists \"lr\" twice"},
  };
  std::string text = to_json(example());
  for (const Row& row : rows) {
    INFO(row.from << " -> " << row.to);
    std::string changed = text;
    size_t at = changed.find(row.from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, std::string(row.from).size(), row.to);
    std::string why = problem(resealed(changed));
    INFO(why);
    CHECK(why.find(row.why) != std::string::npos);
  }
}

TEST_CASE("checksums of blocks do not depend on how the bytes come") {
  std::string bytes(static_cast<size_t>(2 * kBlock + 777), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
  auto span = std::as_bytes(std::span(bytes.data(), bytes.size()));
  BlockChecksums whole;
  whole.add(span);
  std::vector<uint64_t> expected = whole.finish();
  REQUIRE(expected.size() == 3);
  CHECK(expected[1] ==
        checksum(span.subspan(static_cast<size_t>(kBlock), static_cast<size_t>(kBlock))));
  for (size_t piece : {1000u, 65536u, 1048577u}) {
    BlockChecksums pieces;
    for (size_t at = 0; at < bytes.size(); at += piece)
      pieces.add(span.subspan(at, std::min(piece, bytes.size() - at)));
    CHECK(pieces.finish() == expected);
  }
  CHECK(checksum("") == 0x2d06800538d394c2u);  // xxHash's own vector for XXH3-64 of nothing
}
