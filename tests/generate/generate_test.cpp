// meshwright generate, as a user runs it: the same tokens as transformers and on every layout, text
// as it comes, and what is refused.
#include "ran.h"
#include "sdk/text/tokenizer/normalize.h"

namespace {

// The 256 letters and "th": 257 tokens, as llama_tied_257 has.
std::string small_tokenizer() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab[meshwright::tokenizer::letter_of(static_cast<uint8_t>(byte))] = byte;
  vocab["th"] = 256;
  return json::serialize(
      json::value{{"version", "1.0"},
                  {"added_tokens", json::array()},
                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{"t h"}}}}});
}

}  // namespace

TEST_CASE("greedy tokens are those of transformers, for every model that runs") {
  json::value golden =
      json::parse(contents(MESHWRIGHT_SOURCE_DIR "/tests/data/generate/greedy.json"));
  std::string prompt;
  for (const json::value& id : golden.at("prompt").as_array())
    prompt += (prompt.empty() ? "" : ",") + json::serialize(id);
  for (const auto& [name, ids] : golden.at("models").as_object()) {
    std::string folder(name);
    CAPTURE(folder);
    Ran ran = run("generate tests/data/nets/" + folder + " --tokens " + prompt +
                  " --temperature 0 --json --stop none --max-new " +
                  std::to_string(ids.as_array().size()));
    REQUIRE(ran.status == 0);
    json::value out = json::parse(ran.out);
    CHECK(json::serialize(out.at("new_ids")) == json::serialize(ids));
    CHECK(out.at("prompt_ids") == golden.at("prompt"));
    CHECK(out.at("stopped").as_string() == "length");
    CHECK(out.at("text").is_null());
    CHECK(out.at("tokens_per_second").as_double() > 0);
  }
}

TEST_CASE("tokens are the same on any number of ranks, drawn by --top-k and --top-p, too") {
  const std::string base =
      "generate tests/data/nets/qwen3 --tokens 4,5,6 --max-new 40 --seed 8 --top-k 7 --top-p 0.9 ";
  Ran alone = run(base);
  REQUIRE(alone.status == 0);
  CHECK(alone.out.starts_with("4,5,6,"));
  for (const char* layout : {"--nproc 2",
                             "--nproc 4 --set distributed.strategy=fsdp2 "
                             "--set distributed.dp_replicate_size=2"}) {
    Ran ran = run(base + layout);
    CAPTURE(layout);
    CHECK(ran.status == 0);
    CHECK(ran.out == alone.out);
  }
  std::string drawn = "generate tests/data/nets/qwen3 --tokens 4,5,6 --max-new 40 --seed ";
  CHECK(run(drawn + "7").out != run(drawn + "9").out);
}

TEST_CASE("tokens are the same on tensor and sequence parallel ranks, for texts of any length") {
  struct Row {
    const char *net, *prompt;
    int tp;
  };
  for (const Row& row : {Row{"qwen3", "4,5,6", 2}, {"llama_tied_257", "1,2,3,4,5", 4}}) {
    std::string base = std::string("generate tests/data/nets/") + row.net + " --tokens " +
                       row.prompt + " --max-new 15 --temperature 0.9 --seed 7";
    Ran alone = run(base);
    CAPTURE(base);
    REQUIRE(alone.status == 0);
    std::string tp =
        " --set distributed.strategy=fsdp2 --set distributed.tp_size=" + std::to_string(row.tp);
    for (std::string layout : {" --nproc " + std::to_string(row.tp) + tp,
                               " --nproc 4" + tp + " --set distributed.sequence_parallel=true"}) {
      Ran ran = run(base + layout, true);
      CAPTURE(layout);
      CAPTURE(ran.out);
      CHECK(ran.status == 0);
      CHECK(ran.out.find(alone.out) != std::string::npos);
    }
  }
}

TEST_CASE("tokens are the same through the stages of a pipeline") {
  const std::string base =
      "generate tests/data/nets/qwen3_moe_mixed --tokens 4,5,6 --max-new 6 --temperature 0";
  Ran alone = run(base);
  REQUIRE(alone.status == 0);
  for (const std::string schedule : {"1F1B", "ZBVZeroBubble"}) {
    Ran ran =
        run(base +
                " --nproc 2 --set distributed.strategy=fsdp2 --set distributed.pp_size=2 --set "
                "distributed.pipeline.pp_schedule=" +
                schedule,
            true);
    CAPTURE(schedule);
    CAPTURE(ran.out);
    CHECK(ran.status == 0);
    CHECK(ran.out.find(alone.out) != std::string::npos);
  }
}

TEST_CASE("drawing from the most likely token alone is greedy") {
  std::string base = "generate tests/data/nets/mistral_window --tokens 9,8 --max-new 30 ";
  Ran greedy = run(base + "--temperature 0");
  REQUIRE(greedy.status == 0);
  CHECK(run(base + "--temperature 1.5 --top-k 1").out == greedy.out);
  CHECK(run(base + "--temperature 1.5 --top-p 1e-9").out == greedy.out);
  CHECK(run(base + "--temperature 1.5").out != greedy.out);
}

TEST_CASE("a text ends at the folder's end tokens, or those of --stop") {
  Folder folder;
  fs::path net = folder.net("llama");  // greedy after 1,2,3: 33,34,20,31,...
  std::string base =
      "generate " + quoted(net) + " --tokens 1,2,3 --temperature 0 --max-new 6 --json ";
  auto ids = [&](const std::string& more) {
    Ran ran = run(base + more);
    REQUIRE(ran.status == 0);
    json::value out = json::parse(ran.out);
    return std::string(out.at("stopped").as_string()) + json::serialize(out.at("new_ids"));
  };
  CHECK(ids("") == "length[33,34,20,31,56,16]");
  CHECK(ids("--stop 20") == "stop[33,34,20]");
  json::object config = json::parse(contents(net / "config.json")).as_object();
  config["eos_token_id"] = 31;
  put(net / "config.json", json::serialize(config));
  CHECK(ids("") == "stop[33,34,20,31]");
  CHECK(ids("--stop none") == "length[33,34,20,31,56,16]");
  put(net / "generation_config.json", R"({"eos_token_id": [34, 60000]})");
  CHECK(ids("") == "stop[33,34]");
  CHECK(run("generate " + quoted(net) + " --tokens 1,2,3 --temperature 0").out ==
        "1,2,3,33\n");  // the end token is no part of the text
  put(net / "generation_config.json", R"({"eos_token_id": "x"})");
  Ran broken = run(base, true);
  CHECK(broken.status == 2);
  CHECK(broken.out.find("generation_config.json") != std::string::npos);
}

TEST_CASE("with a tokenizer.json text goes in and comes out, and ids stay ids") {
  Folder folder;
  fs::path net = folder.net("llama_tied_257");
  put(net / "tokenizer.json", small_tokenizer());
  Ran ids = run("generate " + quoted(net) + " --tokens 256,101 --temperature 0 --max-new 8");
  REQUIRE(ids.status == 0);
  CHECK(ids.out.starts_with("256,101,"));
  Ran ran =
      run("generate " + quoted(net) + " --prompt the --temperature 0 --max-new 8 --json --nproc 2");
  REQUIRE(ran.status == 0);
  json::value out = json::parse(ran.out);
  CHECK(json::serialize(out.at("prompt_ids")) == "[256,101]");
  std::string bytes = "the";
  for (const json::value& id : out.at("new_ids").as_array())
    bytes += id.as_int64() == 256 ? "th" : std::string(1, static_cast<char>(id.as_int64()));
  meshwright::tokenizer::Utf8Stream stream;
  std::string text = stream.add(bytes);
  text += stream.finish();
  CHECK(std::string(out.at("text").as_string()) == text);
  CHECK(run("generate " + quoted(net) + " --prompt the --temperature 0 --max-new 8").out ==
        text + "\n");
  put(net / "tokenizer.json", R"({"model": {"type": "Sorted", "vocab": []}})");
  Ran refused = run("generate " + quoted(net) + " --prompt the", true);
  CHECK(refused.status == 7);
  CHECK(refused.out.find("E0706") != std::string::npos);
  CHECK(refused.out.find("\"Sorted\"") != std::string::npos);
}

TEST_CASE(
    "a byte model's checkpoint goes on with text, as train --sample does, from any folder of the "
    "run") {
  Folder folder;
  put(folder.path / "text.txt", contents(MESHWRIGHT_SOURCE_DIR "/README.md"));
  Ran trained =
      run("train configs/first_fsdp2_cpu.toml --nproc 2 --sample 120 --prompt 'The ' --set "
          "step_scheduler.max_steps=12 --set "
          "optimizer.lr=5e-3 --set dataset.kind=text --set dataset.path=" +
              quoted(folder.path / "text.txt") + " --set run.dir=" + quoted(folder.path),
          true);
  INFO(trained.out);
  REQUIRE(trained.status == 0);
  fs::path run_folder = folder.path / "first";
  std::string sample = contents(run_folder / "sample.txt");
  REQUIRE(sample.size() == 124);
  meshwright::tokenizer::Utf8Stream stream;
  std::string expected = stream.add(sample);
  expected += stream.finish() + "\n";
  for (const fs::path& from : {run_folder, run_folder / "checkpoints" / "latest"})
    CHECK(run("generate " + quoted(from) + " --prompt 'The ' --max-new 120").out == expected);
  std::string base = "generate " + quoted(run_folder) + " --prompt 'The ' --max-new 120 ";
  CHECK(run(base + "--nproc 3 --set distributed.strategy=fsdp2").out == expected);
  Ran live = run(base);
  CHECK(live.pieces > 20);  // not all at once
  CHECK(run("generate " + quoted(run_folder) + " --prompt ''", true).status == 2);
  Ran timed = run(base, true);
  CHECK(timed.out.find("120 tokens in ") != std::string::npos);
  CHECK(timed.out.find(" tokens/s") != std::string::npos);
  // Ids are as good for bytes.
  CHECK(run("generate " + quoted(run_folder) + " --tokens 84,104 --max-new 2 --temperature 0")
            .out.starts_with("84,104,"));
  // Small files too are held to their checksums.
  fs::path config = run_folder / "checkpoints" / "step_00000012" / "config.json";
  std::string whole = contents(config), other = whole;
  other[other.find("256")] = '3';
  put(config, other);
  Ran tampered = run(base, true);
  CAPTURE(tampered.out);
  CHECK(tampered.status == 7);
  CHECK(tampered.out.find("config.json") != std::string::npos);
  put(config, whole);
  // Damage is found before anything is written.
  for (const fs::directory_entry& file :
       fs::directory_iterator(run_folder / "checkpoints" / "step_00000012"))
    if (file.path().filename().string().starts_with("model-00001")) {
      std::string bytes = contents(file.path());
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      put(file.path(), bytes);
    }
  for (std::string ranks : {"1", "2"}) {
    Ran damaged = run(base + "--nproc " + ranks, true);
    CAPTURE(damaged.out);
    CHECK(damaged.status == 7);
    CHECK(damaged.out.find("E0711") != std::string::npos);
  }
}

TEST_CASE("what cannot be is refused before a rank starts, with words that help") {
  const std::string net = "tests/data/nets/llama";
  Folder folder;
  fs::path bare = folder.path / "bare";
  fs::create_directories(bare);
  fs::copy_file(fs::path(MESHWRIGHT_SOURCE_DIR) / net / "model.safetensors",
                bare / "model.safetensors");
  const fs::path shape = folder.path / "shape", llama_cpp = folder.path / "llama_cpp";
  fs::create_directories(shape);
  fs::create_directories(llama_cpp);
  fs::copy_file(fs::path(MESHWRIGHT_SOURCE_DIR) / net / "config.json", shape / "config.json");
  put(llama_cpp / "q4.gguf", "GGUF");
  check_refused(
      {{"/nowhere --prompt x", 2, "there is no folder /nowhere"},
       {"README.md --prompt x", 2, "README.md is not a folder"},
       {"tests --prompt x", 7, "E0712"},
       {quoted(bare) + " --tokens 1", 2, "no config.json"},
       {quoted(shape) + " --tokens 1", 7, "is a model without weights"},
       {quoted(llama_cpp) + " --tokens 1", 7, "gguf_file=\"q4.gguf\""},
       {quoted(llama_cpp / "q4.gguf") + " --tokens 1", 2, "GGUF is llama.cpp's format"},
       {net, 2, "something to continue"},
       {net + " --prompt hello", 2,
        "no tokenizer.json, tokenizer.model or tekken.json, and the model's vocabulary has 61 "
        "entries"},
       {net + " --prompt x --tokens 1", 2, "one of them"},
       {net + " --tokens 1,61", 7, "the token 61, but the model's vocabulary has 61 entries"},
       {net + " --tokens=-1", 7, "tokens are 0 to 60"},
       {net + " --tokens ''", 2, "found \"\""},
       {net + " --tokens 1,,2", 2, "wants token ids with commas"},
       {net + " --tokens 1,x", 2, "found \"x\""},
       {net + " --tokens 99999999999999999999", 2, "wants token ids"},
       {net + " --tokens 1 --stop 61", 7, "--stop has the token 61"},
       {net + " --tokens 1 --max-new 0", 2, "at least 1"},
       {net + " --tokens 1 --temperature -1", 2, "--temperature wants"},
       {net + " --tokens 1 --temperature nan", 2, "--temperature wants"},
       {net + " --tokens 1 --top-p 0", 2, "--top-p wants"},
       {net + " --tokens 1 --top-p 1.1", 2, "--top-p wants"},
       {net + " --tokens 1 --top-k -1", 2, "--top-k wants"},
       {net + " --tokens 1 --set optimizer.lr=1", 2, "optimizer.lr has no part in generating"},
       {net + " --tokens 1 --set distributed.strategy=nope", 2, "E0401"},
       {net + " --tokens 1 --set distributed.dp_size=3 --nproc 2", 3, "E03"}});
}
