// What a pipeline refuses, before anything starts: code, exit status, key, and settings that work.
#include <regex>
#include <utility>

#include "ran.h"

namespace pipeline_test {

namespace {

std::string write_model(const Folder& folder, const std::string& name, const std::string& fields) {
  return folder.put(name + ".json",
                    R"({"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":4,)"
                    R"("head_dim":16,"intermediate_size":96,"vocab_size":256,)"
                    R"("num_hidden_layers":4,"tie_word_embeddings":false,)" +
                        fields + "}\n");
}

using Sets = std::vector<std::string>;  // "key=value"

std::string said(const Sets& sets) {
  std::string out;
  for (const std::string& set : sets) out += " --set '" + set + "'";
  return out;
}

// The settings after each line "help: set KEY = VALUE" or "help: leave out KEY" of a refusal.
std::vector<Sets> helped(const std::string& out, const Sets& sets) {
  static const std::regex line(
      R"(= help: (set|leave out) ((?:distributed|step_scheduler)[a-z_.]*)(?: = ([^\n]*))?)");
  std::vector<Sets> all;
  for (std::sregex_iterator at(out.begin(), out.end(), line), end; at != end; ++at) {
    const std::string key = at->str(2);
    Sets left = sets;
    std::erase_if(left, [&](const std::string& set) { return set.starts_with(key + "="); });
    if (at->str(1) == "set") left.push_back(key + "=" + at->str(3));
    all.push_back(left);
  }
  return all;
}

}  // namespace

TEST_CASE("what a pipeline cannot do is refused before a rank starts, with settings that work") {
  Folder folder;
  const std::string llama =
      write_model(folder, "llama", R"("architectures":["LlamaForCausalLM"],"model_type":"llama")");
  struct Row {
    Sets sets;
    int status;
    std::string code, key;
    size_t helps = 1;
  };
  const std::string table = "distributed.pipeline.";
  bool every_verb = true;
  for (const Row& row : {
           Row{{table + "scale_grads_in_schedule=true"},
               2,
               "E0212",
               table + "scale_grads_in_schedule"},
           Row{{table + "pp_seq_len=64"}, 2, "E0208", table + "pp_seq_len"},
           Row{{table + "pp_batch_size=3"}, 3, "E0310", table + "pp_batch_size", 2},
           Row{{table + "pp_batch_size=32"}, 3, "E0310", table + "pp_batch_size", 2},
           Row{{table + "pp_microbatch_size=3"}, 3, "E0310", table + "pp_microbatch_size", 2},
           Row{{table + "pp_microbatch_size=32"}, 3, "E0310", table + "pp_microbatch_size", 2},
           Row{{table + "pp_microbatch_size=6", "step_scheduler.global_batch_size=15",
                "step_scheduler.local_batch_size=4"},
               3,
               "E0310",
               "step_scheduler.global_batch_size",
               2},
           Row{{table + "first_stage_less_layers=5"},
               3,
               "E0309",
               table + "first_stage_less_layers",
               2},
           Row{{table + "last_stage_less_layers=5"},
               3,
               "E0309",
               table + "last_stage_less_layers",
               2},
           Row{{table + "pp_schedule=Interleaved1F1B", table + "first_stage_less_layers=2"},
               3,
               "E0309",
               table + "first_stage_less_layers"},
           Row{{table + "pp_schedule=DualPipeV", table + "pp_batch_size=2"},
               3,
               "E0309",
               table + "pp_batch_size"},
           Row{{table + "pp_schedule=Interleaved1F1B", table + "pp_batch_size=4",
                "distributed.pp_size=3"},
               3,
               "E0301",
               "distributed.pp_size"},
           Row{{"distributed.strategy=ddp"}, 3, "E0306", "distributed.pp_size", 2},
           Row{{"distributed.strategy=megatron_fsdp"}, 3, "E0306", "distributed.pp_size", 2},
       }) {
    Sets sets = {"model.config=" + llama};
    if (row.code != "E0301") sets.push_back("distributed.pp_size=2");
    sets.insert(sets.end(), row.sets.begin(), row.sets.end());
    CAPTURE(said(row.sets));
    const std::string file = "configs/first_fsdp2_cpu.toml";
    const bool all = std::exchange(every_verb, false);  // what each verb asks first is the same
    for (const std::string& verb :
         {"plan " + file + " --world-size 2", "train " + file + " --nproc 2"})
      if (all || verb.starts_with("train"))
        check_said(verb, {{said(sets), row.status, "error[" + row.code + "]", row.key}});
    const Ran first = run("validate " + file + " --world-size 2" + said(sets), "2>&1");
    CHECK(first.status == row.status);
    CHECK(first.says("error[" + row.code + "]"));
    CHECK(first.says(row.key));
    if (row.code == "E0301") continue;
    const std::vector<Sets> helps = helped(first.out, sets);
    INFO(first.out);
    CHECK(helps.size() >= row.helps);
    size_t working = 0;
    for (const Sets& help : helps) {
      const Ran works = run("validate " + file + " --world-size 2" + said(help), "2>&1");
      CAPTURE(said(help));
      INFO(works.out);
      // What a schedule can run is known before the samples of a step are.
      if (row.code != "E0309" || row.key != table + "pp_batch_size") CHECK(works.status == 0);
      working += works.status == 0;
    }
    CHECK(working > 0);
  }
}

TEST_CASE("samples of a step need not divide by a local_batch_size that nobody wrote") {
  const Folder folder;
  const std::string model = write_model(folder, "llama",
                                        R"("model_type":"llama",)"
                                        R"("architectures":["LlamaForCausalLM"])");
  folder.put("job.toml",
             "schema = 1\n[model]\nconfig = \"" + model +
                 "\"\n[distributed]\npp_size = 2\n[dataset]\nkind = \"mock\"\nseq_len = 8\n"
                 "[step_scheduler]\nglobal_batch_size = 6\n");
  check_said("plan " + folder.quoted("job.toml") + " --world-size 2",
             {{"", 0, "6 micro-batches"},
              {" --set step_scheduler.local_batch_size=4", 3, "E0310"},
              {" --set distributed.pp_size=1", 3}});  // a factor of the batch there
}

}  // namespace pipeline_test
