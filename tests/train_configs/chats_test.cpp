// Instruction data as a user trains on it. That packed documents are learnt as if each was alone,
// by every family and on every layout: engine/train/run/tests/packing_test.cpp and
// plugin_data_test.cpp.
#include <cmath>

#include "trained.h"

namespace chats_test {

const std::string kNoCache = " --set dataset.jsonl.cache=none ";

struct Steps {
  std::vector<double> losses, norms;
  std::vector<int64_t> tokens, targets;
};

Steps steps_of(const std::string& name) {
  Steps out;
  std::ifstream metrics(kRuns + "/" + name + "/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json::object row = json::parse(line).as_object();
    if (!row.contains("loss")) continue;
    out.losses.push_back(row.at("loss").to_number<double>());
    out.norms.push_back(row.at("grad_norm").to_number<double>());
    out.tokens.push_back(row.at("tokens").to_number<int64_t>());
    out.targets.push_back(row.at("target_tokens").to_number<int64_t>());
  }
  return out;
}

// All is computed in float32, whose own step is 6e-8 of a number.
void check_close(const char* what, const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(std::string(what) << " of step " << i + 1);
    const double distance = std::abs(a[i] - b[i]) / std::abs(b[i]);
    CHECK(distance <= 1e-6);
  }
}

// Rows of several lengths; the packs that hold all of them are one batch, as the rows alone are.
struct Rows {
  std::string path = kRuns + "/rows.jsonl";
  int64_t packs = 0;
  explicit Rows(int64_t count) {
    fs::create_directories(kRuns);
    std::ofstream out(path);
    for (int64_t i = 0; i < count; ++i)
      out << R"({"messages": [{"role": "user", "content": "How often x in )" << i
          << R"(?"}, {"role": "assistant", "content": ")"
          << std::string(static_cast<size_t>(3 + 11 * i % 37), static_cast<char>('a' + i))
          << "\"}]}\n";
    out.close();
    const json::object stats =
        json::parse(said("dataset stats configs/chat_tuning_cpu.toml --json" + settings("bfd", 1)))
            .as_object();
    packs = stats.at("dataset").as_object().at("samples").to_number<int64_t>();
  }
  std::string settings(const std::string& packing, int64_t batch) const {
    return kNoCache + "--set dataset.path='" + path + "' --set dataset.seq_len=192 --set " +
           "dataset.jsonl.packing=" + packing +
           " --set step_scheduler.max_steps=3 --set lr_scheduler.lr_warmup_steps=1 --set " +
           "step_scheduler.global_batch_size=" + std::to_string(batch) + " ";
  }
};

TEST_CASE("a row of weight 2 is learnt as one that is there twice, and one of 0 as none") {
  fs::create_directories(kRuns);
  const std::string a = R"({"question": "How far?", "answer": "A mile.", "w": )",
                    b = R"({"question": "How long is it?", "answer": "Two days", "w": )";
  auto steps = [&](const std::string& name, const std::string& rows, int batch,
                   const std::string& packing) {
    std::ofstream(kRuns + "/weights.jsonl") << rows;
    Trained run = train(
        "configs/chat_tuning_cpu.toml" + kNoCache + "--set dataset.path='" + kRuns +
            "/weights.jsonl' --set dataset.seq_len=128 --set " +
            "dataset.jsonl.fields.weight=w --set dataset.jsonl.packing=" + packing +
            " --set step_scheduler.max_steps=3 --set step_scheduler.local_batch_size=1 --set " +
            "lr_scheduler.lr_warmup_steps=1 --set step_scheduler.global_batch_size=" +
            std::to_string(batch),
        name);
    INFO(run.out);
    REQUIRE(run.status == 0);
    return steps_of(name);
  };
  const Steps twice = steps("twice", a + "1}\n" + a + "1}\n" + b + "1}\n", 3, "none");
  for (const std::string packing : {"none", "bfd"}) {
    CAPTURE(packing);
    const Steps weighed = steps("weighed_" + packing, a + "0.5}\n" + b + "0.25}\n" + b + "0}\n",
                                packing == "none" ? 2 : 1, packing);
    check_close("the loss", weighed.losses, twice.losses);
    // Of the first step: Adam makes more of what is rounded otherwise.
    check_close("the norm", {weighed.norms.front()}, {twice.norms.front()});
  }
  const Steps once = steps("once", a + "1}\n" + b + "1}\n", 2, "none");
  CHECK(std::abs(once.losses.back() - twice.losses.back()) > 1e-4);
}

TEST_CASE("the ready configuration tunes on chats") {
  Trained run =
      train("configs/chat_tuning_cpu.toml --nproc 2 --set step_scheduler.max_steps=3" + kNoCache,
            "chats");
  INFO(run.out);
  REQUIRE(run.status == 0);
  REQUIRE(run.losses.size() == 3);
  CHECK(run.losses.front() == doctest::Approx(std::log(320.0)).epsilon(0.05));
  CHECK(run.losses.back() < run.losses.front());
  CHECK(run.out.find("200 rows, 200 used") != std::string::npos);
  // What a step reads is said without epochs, too: 200 chats in so many packs, 8 of them a step.
  const double packs =
      json::parse(said("dataset stats configs/chat_tuning_cpu.toml --json" + kNoCache))
          .as_object()
          .at("dataset")
          .as_object()
          .at("samples")
          .to_number<double>();
  char documents[48];
  std::snprintf(documents, sizeof documents, " steps of 8 samples, %.1f documents a step\n",
                200 * 8 / packs);
  CHECK(run.out.find("\ndataset: an epoch is ") != std::string::npos);
  CHECK(run.out.find(documents) != std::string::npos);
}

TEST_CASE("epochs of chats are as many steps as their packs fill") {
  const std::string
      file = "configs/chat_tuning_cpu.toml",
      whole = kNoCache +
              "--set step_scheduler.max_steps=none --set step_scheduler.global_batch_size=32 " +
              "--set dataset.seq_len=256 --set lr_scheduler.lr_warmup_steps=1 --set "
              "step_scheduler.epochs=";
  const int64_t packs = json::parse(said("dataset stats " + file + " --json" + whole + "1"))
                            .as_object()
                            .at("dataset")
                            .as_object()
                            .at("samples")
                            .to_number<int64_t>();
  auto steps = [&](int64_t epochs) { return static_cast<size_t>((packs * epochs + 31) / 32); };
  Trained run = train(file + " --nproc 2" + whole + "1", "epochs");
  INFO(run.out);
  REQUIRE(run.status == 0);
  CHECK(run.losses.size() == steps(1));
  CHECK(run.out.find("step_scheduler.epochs = 1 is " + std::to_string(steps(1)) + " steps") !=
        std::string::npos);
  CHECK(run.rates.back() == doctest::Approx(2e-4));  // the schedule ends with the last step
  // Another epoch of the same data, from where the first one ended; then there is nothing to do.
  run = train(file + whole + "2", "epochs_2", "epochs");
  INFO(run.out);
  REQUIRE(run.status == 0);
  CHECK(run.losses.size() == steps(2));
  run = train(file + whole + "2", "epochs_3", "epochs_2");
  CHECK(run.status == 0);
  CHECK(run.out.find("--set step_scheduler.epochs=4   to train on") != std::string::npos);
  // As many epochs of longer packs are fewer steps, but of other data.
  run = train(file + whole + "2 --set dataset.seq_len=512", "epochs_4", "epochs_2");
  INFO(run.out);
  CHECK(run.status != 0);
  CHECK(run.out.find("E0713") != std::string::npos);
}

TEST_CASE("a plan knows the steps of epochs of any data that it can read") {
  const std::string job =
      "plan configs/chat_tuning_cpu.toml --json --set dataset.plugin=none --set "
      "step_scheduler.max_steps=none --set step_scheduler.epochs=3 --set dataset.seq_len=64 ";
  auto steps = [&](const std::string& path) {
    const std::string text = said(job + "--set dataset.path=" + path);  // notices come first
    INFO(text);
    REQUIRE(text.find('{') != std::string::npos);
    return json::parse(text.substr(text.find('{'))).as_object().at("max_steps");
  };
  const auto bytes = static_cast<int64_t>(fs::file_size(MESHWRIGHT_SOURCE_DIR "/LICENSE"));
  CHECK(steps("LICENSE").to_number<int64_t>() == ((bytes - 1) / 64 * 3 + 7) / 8);
  CHECK(steps("not_there.txt").is_null());
}

TEST_CASE("packs are the same in the same step for any number of ranks and split of the batch" *
          doctest::test_suite("whole")) {
  const std::string job =
      "configs/chat_tuning_cpu.toml --set step_scheduler.max_steps=4 --set dataset.seq_len=256 "
      "--set step_scheduler.global_batch_size=12 --set step_scheduler.local_batch_size=";
  const Trained alone = train(job + "12" + kNoCache, "packs_1");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  const Trained split = train(job + "1 --nproc 6" + kNoCache, "packs_6_split");
  INFO(split.out);
  REQUIRE(split.status == 0);
  check_equal(split.losses, alone.losses);
}

// A chat a sample, then packs of them: the same losses and norms.
TEST_CASE("packed documents are learnt as if each was alone") {
  constexpr int64_t kChats = 8;
  const Rows rows(kChats);
  REQUIRE(rows.packs > 1);
  REQUIRE(rows.packs < kChats);
  const std::string file = "configs/chat_tuning_cpu.toml --set step_scheduler.local_batch_size=1 ";
  const Trained alone = train(
      file + rows.settings("none", kChats) + "--set distributed.strategy=ddp", "packed_alone");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  const Steps expected = steps_of("packed_alone");
  REQUIRE(expected.losses.size() == 3);
  CHECK(expected.targets[0] > 0);
  CHECK(expected.targets[0] < expected.tokens[0]);
  CHECK(expected.tokens[0] < kChats * 192);
  for (const char* layout : {"--set distributed.strategy=ddp",
                             "--nproc 2 --set distributed.pp_size=2 "
                             "--set distributed.pp.schedule=1f1b"}) {
    CAPTURE(layout);
    const Trained run = train(file + rows.settings("bfd", rows.packs) + layout, "packed");
    INFO(run.out);
    REQUIRE(run.status == 0);
    const Steps steps = steps_of("packed");
    check_close("loss", steps.losses, expected.losses);
    check_close("norm", steps.norms, expected.norms);
    CHECK(steps.tokens == expected.tokens);  // what pads is none of them
    CHECK(steps.targets == expected.targets);
  }
}

TEST_CASE("an export has the template and the tokenizer that the model has learnt by") {
  const fs::path folder = kRuns + "/other_language";
  fs::remove_all(folder);
  fs::create_directories(folder / "tokenizer");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(std::string(MESHWRIGHT_SOURCE_DIR "/configs/models/chat-tiny/") + file,
                  folder / "tokenizer" / file);
  std::ofstream(folder / "tokenizer/special_tokens_map.json") << R"({"pad_token": "<pad>"})";
  const std::string plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  std::ofstream(folder / "plain.jinja") << plain;
  const std::string named =
      " --set dataset.jsonl.chat_template='" + (folder / "plain.jinja").string() + "' ";
  const std::string own =
      contents(MESHWRIGHT_SOURCE_DIR "/configs/models/chat-tiny/chat_template.jinja");
  REQUIRE(own != plain);
  const auto exported = [&](const std::string& name, const std::string& settings) {
    const Trained run =
        train("configs/chat_tuning_cpu.toml --set step_scheduler.max_steps=1" + kNoCache + settings,
              name);
    INFO(run.out);
    REQUIRE(run.status == 0);
    int status = 0;
    const fs::path out = folder / name;
    const std::string told = said(
        "checkpoint export '" + kRuns + "/" + name + "' --out '" + out.string() + "'", &status);
    INFO(told);
    REQUIRE(status == 0);
    return out;
  };
  CHECK(contents(exported("own_language", "") / "chat_template.jinja") == own);
  CHECK(contents(exported("other_template", named) / "chat_template.jinja") == plain);
  const std::string chatml = contents(
      exported("chatml", " --set dataset.jsonl.chat_template=chatml ") / "chat_template.jinja");
  CHECK(chatml.find("<|im_start|>") != std::string::npos);
  CHECK(chatml != own);
  const fs::path both = exported("other_tokenizer", named + "--set dataset.jsonl.tokenizer='" +
                                                        (folder / "tokenizer").string() + "' ");
  CHECK(contents(both / "chat_template.jinja") == plain);
  CHECK(contents(both / "special_tokens_map.json") == R"({"pad_token": "<pad>"})");
}

TEST_CASE("a run goes on with the same documents only") {
  const std::string job =
      "configs/chat_tuning_cpu.toml --set dataset.seq_len=256 --set checkpoint.every_steps=2 --set "
      "lr_scheduler.lr_decay_style=constant" +  // the rates do not follow from max_steps
      kNoCache;
  const Trained first = train(job + "--set step_scheduler.max_steps=4", "chats_4");
  INFO(first.out);
  REQUIRE(first.status == 0);
  const Trained whole = train(job + "--set step_scheduler.max_steps=6", "chats_6");
  INFO(whole.out);
  REQUIRE(whole.losses.size() == 6);
  // In the middle of an epoch, on as many ranks and on others.
  for (const char* ranks : {"", "--nproc 2 "}) {
    CAPTURE(ranks);
    const Trained more =
        train(job + ranks + "--set step_scheduler.max_steps=6 --set checkpoint.resume=auto",
              "chats_more", "chats_4");
    INFO(more.out);
    REQUIRE(more.status == 0);
    check_equal(more.losses, whole.losses);
  }
  auto refused = [&](const std::string& other, const std::string& says, const std::string& from) {
    CAPTURE(other);
    const Trained run = train(job +
                                  "--set step_scheduler.max_steps=6 --set "
                                  "checkpoint.resume=auto " +
                                  other,
                              "chats_refused", from);
    INFO(run.out);
    CHECK(run.status == 7);
    CHECK(run.out.find("E0713") != std::string::npos);
    CHECK(run.out.find(says) != std::string::npos);
  };
  // The setting that is another one is named, with what it was.
  refused("--set dataset.seq_len=128", "its seq_len is 256", "chats_4");
  refused("--set run.seed=77", "its run.seed, which orders the samples, is ", "chats_4");
  refused("--set dataset.jsonl.packing=sequential",
          "now names: dataset.jsonl.packing = \"sequential\" (was \"bfd\")", "chats_4");
  refused("--set dataset.jsonl.train_on=last", "set dataset.jsonl.train_on = \"assistant\"",
          "chats_4");
  refused("--set dataset.jsonl.truncate=left",
          "now names: dataset.jsonl.truncate = \"left\" (was \"right\")", "chats_4");
  // Where the run's folder has no configuration any more, its checkpoint has.
  fs::remove_all(kRuns + "/chats_bare");
  fs::copy(kRuns + "/chats_4", kRuns + "/chats_bare",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(kRuns + "/chats_bare/config.resolved.toml");
  refused("--set dataset.jsonl.truncate=left",
          "now names: dataset.jsonl.truncate = \"left\" (was \"right\")", "chats_bare");
}

TEST_CASE("a tokenizer that was changed in its folder is told as that, with the run's own") {
  const fs::path folder = kRuns + "/tokenizer_to_edit";
  fs::create_directories(folder);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(std::string("configs/models/chat-tiny/") + file, folder / file,
                  fs::copy_options::overwrite_existing);
  const std::string job = "configs/text_cpu.toml --set dataset.tokenizer='" + folder.string() +
                          "' --set checkpoint.every_steps=2 --set lr_scheduler.lr_warmup_steps=1 "
                          "--set dataset.text.cache=none ";
  const Trained first = train(job + "--set step_scheduler.max_steps=2", "edited_tokenizer");
  INFO(first.out);
  REQUIRE(first.status == 0);
  std::ofstream(folder / "tokenizer_config.json", std::ios::app) << " ";
  const std::string again = "--set step_scheduler.max_steps=4 --set checkpoint.resume=auto ";
  const Trained more = train(job + again, "edited_tokenizer_more", "edited_tokenizer");
  INFO(more.out);
  CHECK(more.status == 7);
  CHECK(more.out.find(
            "trained with another tokenizer: " + (folder / "tokenizer_config.json").string() +
            " has changed") != std::string::npos);
  // Its help works.
  const std::string help = "set dataset.tokenizer = \"";
  const size_t at = more.out.find(help);
  REQUIRE(at != std::string::npos);
  const size_t begin = at + help.size();
  const std::string own = more.out.substr(begin, more.out.find('"', begin) - begin);
  const Trained mended = train(job + again + "--set dataset.tokenizer='" + own + "'",
                               "edited_tokenizer_more", "edited_tokenizer");
  INFO(mended.out);
  CHECK(mended.status == 0);
}

TEST_CASE(
    "a tokenizer that came beside model.config: its tokens are learnt, the run on bytes told") {
  const fs::path folder = kRuns + "/from_nothing", chat = "configs/models/chat-tiny";
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy_file(chat / "config.json", folder / "config.json");
  const std::string set = " --set ",
                    model = set + "model.config='" + folder.string() + "/config.json' ",
                    job = "configs/text_cpu.toml" + model +
                          "--set lr_scheduler.lr_warmup_steps=1 --set dataset.text.cache=none ",
                    beside = job + "--set dataset.tokenizer=none --set step_scheduler.max_steps=";
  const Trained bytes = train(beside + "2", "bytes_at_first");
  INFO(bytes.out);
  REQUIRE(bytes.status == 0);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    fs::copy_file(chat / file, folder / file);

  const Trained tokens = train(beside + "2", "tokens_beside");
  INFO(tokens.out);
  REQUIRE(tokens.status == 0);
  check_equal(tokens.losses,
              train(job + "--set step_scheduler.max_steps=2", "tokens_named").losses);
  CHECK(std::abs(tokens.losses.at(0) - bytes.losses.at(0)) > 1e-3);

  const std::string again = beside + "4 --set checkpoint.resume=auto ";
  const Trained told = train(again, "bytes_go_on", "bytes_at_first");
  INFO(told.out);
  CHECK(told.status == 7);
  CHECK(told.out.find("error[E0713]") != std::string::npos);
  CHECK(told.out.find("dataset.tokenizer = \"" + folder.string() + "\" (was \"none\")") !=
        std::string::npos);
  CHECK(told.out.find("set dataset.tokenizer = \"bytes\", which the run learnt") !=
        std::string::npos);
  const Trained kept =
      train(again + "--set dataset.tokenizer=bytes ", "bytes_go_on", "bytes_at_first");
  INFO(kept.out);
  CHECK(kept.status == 0);

  // Rows take it, too, and its chat template.
  auto stats = [&](const std::string& tokenizer) {
    json::object all = json::parse(said("dataset stats configs/chat_tuning_cpu.toml --json" +
                                        kNoCache + model + set + tokenizer))
                           .as_object();
    return json::serialize(all.at("dataset"));
  };
  CHECK(stats("dataset.jsonl.tokenizer=auto") ==
        stats("dataset.jsonl.tokenizer=configs/models/chat-tiny"));

  std::string small = contents(folder / "config.json");
  const std::string size = "\"vocab_size\": 320";
  REQUIRE(small.find(size) != std::string::npos);
  std::ofstream(folder / "config.json")
      << small.replace(small.find(size), size.size(), "\"vocab_size\": 256");
  const Trained refused = train(beside + "2", "small_vocabulary");
  INFO(refused.out);
  CHECK(refused.status == 7);
  CHECK(refused.out.find("error[E0702]") != std::string::npos);
  CHECK(refused.out.find("but the model's vocabulary has 256 entries") != std::string::npos);
  CHECK(refused.out.find("set dataset.tokenizer = \"bytes\"") != std::string::npos);
}

TEST_CASE("a run whose rows have changed says that its settings have not") {
  const std::string
      path = kRuns + "/edited.jsonl",
      job = "configs/chat_tuning_cpu.toml --set dataset.path='" + path +
            "' --set step_scheduler.global_batch_size=1 --set "
            "step_scheduler.local_batch_size=1 --set lr_scheduler.lr_warmup_steps=1 --set "
            "lr_scheduler.lr_decay_style=constant --set checkpoint.every_steps=2" +
            kNoCache;
  fs::create_directories(kRuns);
  std::ofstream(path) << "{\"text\": \"abc\"}\n";
  const Trained first = train(job + "--set step_scheduler.max_steps=2", "edited");
  INFO(first.out);
  REQUIRE(first.status == 0);
  std::ofstream(path) << "{\"text\": \"abd\"}\n";
  const Trained more = train(job +
                                 "--set step_scheduler.max_steps=4 --set checkpoint.resume=auto "
                                 "--set dataset.jsonl.threads=2 ",
                             "edited_more", "edited");
  INFO(more.out);
  CHECK(more.status == 7);
  CHECK(more.out.find("E0713") != std::string::npos);
  CHECK(more.out.find("those of the run: the files behind them have changed") != std::string::npos);
  CHECK(more.out.find("jsonl.threads = ") == std::string::npos);
}

}  // namespace chats_test
