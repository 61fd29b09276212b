// Adapters as a user trains them: exported, merged, and begun with again.
#include <cmath>

#include "trained.h"

namespace lora_test {

const std::string kJob =
    "configs/lora_cpu.toml --set dataset.jsonl.cache=none --set dataset.seq_len=256 ";

double loss_of(const std::string& path, const std::string& more = "") {
  int status = 0;
  const std::string out =
      said("evaluate '" + path + "' --kind mock --seq-len 64 --samples 8 --json " + more, &status);
  INFO(out);
  REQUIRE(status == 0);
  const json::object all = json::parse(out.substr(out.find('{'))).as_object();
  return all.at("evaluations").as_array().back().as_object().at("loss").to_number<double>();
}

std::string exported(const std::string& run, const std::string& to, const std::string& more = "") {
  int status = 0;
  const std::string out =
      said("checkpoint export '" + kRuns + "/" + run + "' --out '" + kRuns + "/" + to + "' " + more,
           &status);
  INFO(out);
  REQUIRE(status == 0);
  return out;
}

TEST_CASE("the ready configuration tunes adapters, alike under every strategy") {
  const Trained run = train(kJob + "--nproc 2 --set step_scheduler.max_steps=4", "lora");
  INFO(run.out);
  REQUIRE(run.status == 0);
  REQUIRE(run.losses.size() == 4);
  CHECK(run.losses.back() < run.losses.front());
  CHECK(run.out.find("of which") != std::string::npos);
  const Trained alone =
      train(kJob + "--set step_scheduler.max_steps=4 --set distributed.strategy=ddp", "lora_alone");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  check_equal(run.losses, alone.losses);
}

TEST_CASE("adapters go out to a folder and come back from it") {
  const std::string ddp = "--set distributed.strategy=ddp --set checkpoint.export=final ";
  const Trained run = train(kJob + ddp + "--set step_scheduler.max_steps=4", "lora_out");
  INFO(run.out);
  REQUIRE(run.status == 0);
  const fs::path adapter = kRuns + "/lora_out/hf";
  CHECK(fs::exists(adapter / "adapter_model.safetensors"));
  CHECK(fs::exists(adapter / "tokenizer.json"));
  CHECK_FALSE(fs::exists(adapter / "config.json"));
  const json::object config = json::parse(contents(adapter / "adapter_config.json")).as_object();
  CHECK(config.at("r").as_int64() == 8);
  CHECK(config.at("lora_alpha").as_int64() == 16);

  const std::string begin = kJob + ddp + "--set step_scheduler.max_steps=0 --set 'lora.adapter=\"" +
                            adapter.string() + "\"' ";
  const Trained again = train(begin, "lora_in");
  INFO(again.out);
  REQUIRE(again.status == 0);
  CHECK(contents(kRuns + "/lora_in/hf/adapter_model.safetensors") ==
        contents(adapter / "adapter_model.safetensors"));

  for (const char* wanted : {"both", "none"}) {
    const Trained exports = train(begin + "--set lora.export=" + wanted, "lora_exports");
    INFO(exports.out);
    REQUIRE(exports.status == 0);
    const fs::path here = kRuns + "/lora_exports";
    const bool both = std::string(wanted) == "both";
    CHECK(fs::exists(here / "hf/model.safetensors") == both);
    CHECK(fs::exists(here / "hf/config.json") == both);
    CHECK(fs::exists(here / "hf_adapter/adapter_model.safetensors") == both);
    CHECK((exports.out.find("exported for Hugging Face: ") != std::string::npos) == both);
    if (!both) continue;
    // The folder that it began with is not read again, and adapters of before do not stay.
    const Trained gone_on = train(begin +
                                      "--set lora.export=merged --set step_scheduler.max_steps=1 "
                                      "--set lora.adapter=nowhere",
                                  "lora_exports_on", "lora_exports");
    INFO(gone_on.out);
    CHECK(gone_on.status == 0);
    CHECK(fs::exists(kRuns + "/lora_exports_on/hf/model.safetensors"));
    CHECK_FALSE(fs::exists(kRuns + "/lora_exports_on/hf_adapter"));
  }

  const Trained other = train(begin + "--set lora.r=4", "lora_other");
  CHECK(other.status == 2);
  CHECK(other.out.find("E0208") != std::string::npos);
  CHECK(other.out.find("set lora.r = 8") != std::string::npos);
  const Trained fewer = train(begin + "--set lora.target_modules=q_proj", "lora_fewer");
  CHECK(fewer.status == 7);
  CHECK(fewer.out.find("which no adapter of this job takes") != std::string::npos);
}

TEST_CASE("what a checkpoint with adapters computes, its merged folder computes") {
  const Trained run =
      train(kJob + "--set distributed.strategy=ddp --set step_scheduler.max_steps=6", "lora_merge");
  INFO(run.out);
  REQUIRE(run.status == 0);
  const std::string said_merged = exported("lora_merge", "lora_merged", "--merged");
  CHECK(said_merged.find("merged the adapters into weights of") != std::string::npos);
  CHECK(fs::exists(kRuns + "/lora_merged/model.safetensors"));
  CHECK_FALSE(fs::exists(kRuns + "/lora_merged/adapter_config.json"));
  const double trained = loss_of(kRuns + "/lora_merge"), merged = loss_of(kRuns + "/lora_merged");
  CHECK(merged == doctest::Approx(trained).epsilon(1e-6));
  const Trained begun =
      train(kJob + "--set distributed.strategy=ddp --set step_scheduler.max_steps=0", "lora_begun");
  REQUIRE(begun.status == 0);
  CHECK(std::abs(loss_of(kRuns + "/lora_begun") - trained) > 1e-4);
  int status = 0;
  const std::string out =
      said("generate '" + kRuns + "/lora_merge' --prompt 'How' --max-new 4 --json", &status);
  INFO(out);
  CHECK(status == 0);
  const std::string refused = said(
      "checkpoint export '" + kRuns + "/lora_merged' --out '" + kRuns + "/lora_nothing' --merged",
      &status);
  CHECK(status == 2);
  CHECK(refused.find("has no adapters that --merged could join") != std::string::npos);
}

int64_t weight_bytes(const fs::path& run) {
  int64_t out = 0;
  for (const auto& file : fs::directory_iterator(run / "checkpoints/latest/"))
    if (file.path().filename().string().starts_with("model-"))
      out += static_cast<int64_t>(fs::file_size(file.path()));
  return out;
}

TEST_CASE("a checkpoint beside a folder of weights holds what trains, and goes on beside it" *
          doctest::test_suite("whole")) {
  const std::string ddp = "--set distributed.strategy=ddp ";
  const Trained whole = train(
      kJob + ddp + "--set step_scheduler.max_steps=0 --set lora.r=0 --set checkpoint.export=final",
      "lora_base");
  INFO(whole.out);
  REQUIRE(whole.status == 0);
  const fs::path base = kRuns + "/lora_base/hf";
  auto beside = [&](const fs::path& folder, int steps, const std::string& more) {
    return kJob + "--set model.config=none --set 'model.pretrained=\"" + folder.string() +
           "\"' --set 'optimizer.group=[{pattern = \"model.norm.weight\", frozen = false}]' " +
           "--set step_scheduler.max_steps=" + std::to_string(steps) + " " + more;
  };
  // Half of it under one strategy, half under another, and all at once.
  const Trained begun = train(beside(base, 4,
                                     "--set distributed.strategy=fsdp2 --nproc 2 "
                                     "--set lr_scheduler.lr_decay_style=constant"),
                              "lora_beside");
  INFO(begun.out);
  REQUIRE(begun.status == 0);
  // The adapters alone would be another model: that is told, at the end of a run and by an export.
  const std::string lacks =
      "the adapters alone are not this model: model.norm.weight trained whole beside them";
  int told = 0;
  fs::remove_all(kRuns + "/lora_beside_alone");
  CHECK(
      said("checkpoint export '" + kRuns + "/lora_beside' --out '" + kRuns + "/lora_beside_alone'",
           &told)
          .find(lacks + "; --merged writes the whole model") != std::string::npos);
  CHECK(told == 0);
  CHECK(weight_bytes(kRuns + "/lora_beside") < weight_bytes(kRuns + "/lora_base") / 2);
  const Trained at_once =
      train(beside(base, 6, ddp + "--set lr_scheduler.lr_decay_style=constant"), "lora_at_once");
  REQUIRE(at_once.status == 0);
  const Trained gone_on = train(beside(base, 6,
                                       ddp + "--set lr_scheduler.lr_decay_style=constant "
                                             "--set checkpoint.export=final"),
                                "lora_gone_on", "lora_beside");
  INFO(gone_on.out);
  REQUIRE(gone_on.status == 0);
  CHECK(gone_on.out.find("notice: " + lacks) != std::string::npos);
  check_equal(gone_on.losses, at_once.losses);

  exported("lora_gone_on", "lora_gone_on_merged", "--merged");
  CHECK(loss_of(kRuns + "/lora_gone_on_merged") ==
        doctest::Approx(loss_of(kRuns + "/lora_gone_on")).epsilon(1e-6));
  int status = 0;
  const std::string verified = said("checkpoint verify '" + kRuns + "/lora_gone_on'", &status);
  INFO(verified);
  CHECK(status == 0);
  CHECK(verified.find("the weights that did not train are in " + base.string()) !=
        std::string::npos);

  // Elsewhere it is the same model; other weights are not.
  const fs::path moved = kRuns + "/lora_base_moved";
  fs::remove_all(moved);
  fs::rename(base, moved);
  CHECK(said("evaluate '" + kRuns + "/lora_gone_on' --kind mock --seq-len 64 --samples 8", &status)
            .find("E0209") != std::string::npos);
  exported("lora_gone_on", "lora_gone_on_again", "--merged --base '" + moved.string() + "'");
  CHECK(contents(kRuns + "/lora_gone_on_again/model.safetensors") ==
        contents(kRuns + "/lora_gone_on_merged/model.safetensors"));
  fs::remove_all(kRuns + "/lora_gone_on_wrong");
  const std::string wrong =
      said("checkpoint export '" + kRuns + "/lora_gone_on' --out '" + kRuns +
               "/lora_gone_on_wrong' --merged --base '" + kRuns + "/lora_gone_on_merged'",
           &status);
  INFO(wrong);
  CHECK(status == 7);
  CHECK(wrong.find("help: --base FOLDER: the folder of the model that the run started from, which "
                   "was " +
                   base.string()) != std::string::npos);
  CHECK(wrong.find("model.pretrained") == std::string::npos);
  CHECK_FALSE(fs::exists(kRuns + "/lora_gone_on_wrong"));
  // In fewer digits than before, which is told.
  const Trained elsewhere = train(beside(moved, 7, ddp + "--set lora.base_dtype=bfloat16"),
                                  "lora_elsewhere", "lora_gone_on");
  INFO(elsewhere.out);
  CHECK(elsewhere.status == 0);
  CHECK(elsewhere.out.find("are float32, and beside the adapters they are stored in bfloat16") !=
        std::string::npos);
  const Trained scaled =
      train(beside(moved, 7, ddp + "--set lora.alpha=5"), "lora_scaled", "lora_gone_on");
  INFO(scaled.out);
  CHECK(scaled.status == 7);
  CHECK(scaled.out.find("set lora.alpha = 16") != std::string::npos);
  const Trained other =
      train(beside(kRuns + "/lora_gone_on_merged", 7, ddp), "lora_of_another", "lora_gone_on");
  INFO(other.out);
  CHECK(other.status == 7);
  CHECK(other.out.find("E0713") != std::string::npos);
  CHECK(other.out.find("set model.pretrained = \"" + base.string() + "\"") != std::string::npos);
  const Trained full = train(beside(moved, 7, ddp + "--set lora.r=0"), "lora_full", "lora_gone_on");
  INFO(full.out);
  CHECK(full.out.find("E0713") != std::string::npos);
  CHECK(full.out.find("set run.name to another name") != std::string::npos);
}

TEST_CASE("the model that adapters need is never taken away by an export") {
  const std::string ddp =
      "--set distributed.strategy=ddp --set checkpoint.export=final --set "
      "step_scheduler.max_steps=1 ";
  const Trained first = train(kJob + ddp + "--set lora.r=0", "lora_chain");
  INFO(first.out);
  REQUIRE(first.status == 0);
  const fs::path hf = kRuns + "/lora_chain/hf", link = kRuns + "/lora_chain_link";
  const std::string before = contents(hf / "model.safetensors");
  REQUIRE(!before.empty());
  // A run of that name begins with its own export: told before anything is there.
  const std::string chain = kJob + ddp + "--set model.config=none --set 'model.pretrained=\"" +
                            hf.string() + "\"' --set checkpoint.resume=none ",
                    named = "--set run.dir='" + kRuns + "' --set run.name=lora_chain";
  for (const std::string& command :
       {"validate " + chain + named, "train " + chain + named,
        "train " + chain + named + " --nproc 2", "train " + chain + named + " --set lora.r=0"}) {
    int status = 0;
    const std::string out = said(command, &status);
    INFO(command, "\n", out);
    CHECK(status == 7);
    CHECK(out.find("error[E0705]: checkpoint.export = \"final\" would take away ") !=
          std::string::npos);
    CHECK(out.find("help: set run.name to another name") != std::string::npos);
    CHECK(out.find("step 1/1") == std::string::npos);
    CHECK(contents(hf / "model.safetensors") == before);
  }
  const Trained second = train(chain, "lora_chain_2");
  INFO(second.out);
  REQUIRE(second.status == 0);
  CHECK(contents(hf / "model.safetensors") == before);

  // Neither does an export by hand, whatever its target is called.
  fs::remove(link);
  fs::create_directory_symlink(hf, link);
  for (const std::string run : {"lora_chain_2", "lora_chain_full"}) {
    if (run == "lora_chain_full")  // all of it is in its checkpoint
      REQUIRE(train(chain + "--set lora.r=0", run).status == 0);
    for (const fs::path& target : {hf, link, hf / "../hf"})
      for (const char* how : {"", "--merged"}) {
        if (run == "lora_chain_full" && *how != '\0') continue;
        int status = 0;
        const std::string out = said(
            "checkpoint export '" + kRuns + "/" + run + "' --out '" + target.string() + "' " + how,
            &status);
        INFO(run, " ", how, "\n", out);
        CHECK(status == 7);
        CHECK(out.find("error[E0705]: an export to " + target.string() + " would take away ") !=
              std::string::npos);
        CHECK(contents(hf / "model.safetensors") == before);
      }
  }
  const fs::path copy = kRuns + "/lora_chain_copy";
  fs::remove_all(copy);
  fs::copy(hf, copy, fs::copy_options::recursive);
  int status = 0;
  said("checkpoint export '" + kRuns + "/lora_chain_2' --merged --base '" + copy.string() +
           "' --out '" + copy.string() + "'",
       &status);
  CHECK(status == 7);
  CHECK(contents(copy / "model.safetensors") == before);
  exported("lora_chain_2", "lora_chain_out", "--merged --base '" + copy.string() + "'");
}

TEST_CASE("a run with adapters takes the memory of its plan, whatever it computes in" *
          doctest::test_suite("whole")) {
  for (const char* dtype : {"float32", "bfloat16", "float32 with dropout"})
    for (const char* strategy : {"ddp", "fsdp2"}) {
      CAPTURE(std::string(dtype));
      CAPTURE(std::string(strategy));
      const bool drops = std::string_view(dtype).find(' ') != std::string_view::npos;
      const std::string job = kJob +
                              "--set step_scheduler.max_steps=3 --set "
                              "step_scheduler.global_batch_size=4 --set distributed.strategy=" +
                              strategy + " --set distributed.mp_policy.param_dtype=" +
                              (drops ? "float32 --set lora.dropout=0.1" : dtype);
      int status = 1;
      const std::string text = said("plan " + job + " --world-size 1 --json", &status);
      INFO(text);
      REQUIRE(status == 0);
      const json::value planned = json::parse(text.substr(text.find('{')));
      double bytes = 0;
      for (const char* part : {"weights", "gradients", "optimizer", "transient", "activations"})
        bytes += planned.at("bytes").at(part).to_number<double>();
      const Trained run = train(job, "lora_memory");
      INFO(run.out);
      REQUIRE(run.status == 0);
      REQUIRE(run.memory.size() == 3);
      MESSAGE(dtype, " ", strategy, ": ", static_cast<double>(run.memory.back()) / bytes,
              " times the plan");
      CHECK(static_cast<double>(run.memory.back()) == doctest::Approx(bytes).epsilon(0.1));
    }
}

TEST_CASE("adapters do not go on from a checkpoint that trained the whole model") {
  const std::string ddp = "--set distributed.strategy=ddp ";
  const Trained whole =
      train(kJob + ddp + "--set step_scheduler.max_steps=1 --set lora.r=0", "lora_of_none");
  INFO(whole.out);
  REQUIRE(whole.status == 0);
  const std::string tuned = kJob + ddp + "--set step_scheduler.max_steps=2 ";
  const Trained refused = train(tuned, "lora_of_whole", "lora_of_none");
  INFO(refused.out);
  CHECK(refused.status == 7);
  CHECK(refused.out.find("E0713") != std::string::npos);
  CHECK(refused.out.find("set run.name to another name") != std::string::npos);
  CHECK(refused.out.find("set checkpoint.resume = \"none\"") != std::string::npos);
  const Trained afresh =
      train(tuned + "--set checkpoint.resume=none", "lora_afresh", "lora_of_none");
  INFO(afresh.out);
  CHECK(afresh.status == 0);
}

TEST_CASE("adapters go out with every checkpoint where that is asked for") {
  const std::string ddp =
      "--set distributed.strategy=ddp --set checkpoint.every_steps=1 --set checkpoint.export=";
  const auto adapter = [](const std::string& folder) {
    return contents(kRuns + "/" + folder + "/adapter_model.safetensors");
  };
  const Trained run = train(
      kJob + ddp + "every --set lora.export=both --set step_scheduler.max_steps=2", "lora_every");
  INFO(run.out);
  REQUIRE(run.status == 0);
  exported("lora_every", "lora_every_adapter");
  exported("lora_every", "lora_every_merged", "--merged");
  CHECK(!adapter("lora_every/hf_adapter").empty());
  CHECK(adapter("lora_every/hf_adapter") == adapter("lora_every_adapter"));
  CHECK(contents(kRuns + "/lora_every/hf/model.safetensors") ==
        contents(kRuns + "/lora_every_merged/model.safetensors"));
  // A run that fails in its second step, where the weights of the first one are too large.
  for (const char* when : {"every", "final"}) {
    CAPTURE(when);
    const Trained failed = train(kJob + ddp + when +
                                     " --set step_scheduler.max_steps=3 --set optimizer.lr=1e30 "
                                     "--set lr_scheduler.lr_decay_style=constant --set "
                                     "run.stop_on_nonfinite=true",
                                 "lora_failed");
    INFO(failed.out);
    CHECK(failed.status == 5);
    REQUIRE(failed.losses.size() == 1);
    const bool every = std::string(when) == "every";
    CHECK(fs::exists(kRuns + "/lora_failed/hf/adapter_config.json") == every);
    if (!every) continue;
    exported("lora_failed", "lora_failed_adapter");
    CHECK(!adapter("lora_failed/hf").empty());
    CHECK(adapter("lora_failed/hf") == adapter("lora_failed_adapter"));
  }
}

}  // namespace lora_test
