// Two sources of a mix whose rows have other columns: each says its own, [dataset.mix.jsonl], and
// the mix trains to the last bit as if all rows had the same ones.
#include <map>
#include <optional>

#include "trained.h"

namespace mix_options_test {

const std::string kFolder = kRuns + "/mix_options";

// Questions weigh 0.5 and 2 in turns, tasks 1.
void write_rows(const std::string& file, const std::vector<std::string>& columns, bool asks) {
  fs::create_directories(kFolder);
  std::ofstream out(kFolder + "/" + file);
  for (int i = 0; i < 40; ++i) {
    out << "{\"" << columns[0] << "\": \"" << (asks ? "How far is " : "Say ") << i * 7 % 23
        << "?\", \"" << columns[1] << "\": \"" << std::string(1 + i % 9, char('a' + i % 26)) << " "
        << i << "\"";
    out << ", \"" << columns[2] << "\": " << (!asks ? "1" : i % 2 == 0 ? "0.5" : "2") << "}\n";
  }
}

std::string source(const std::string& name, const std::string& file, const std::string& own) {
  return "[[dataset.mix]]\nname = \"" + name + "\"\npath = \"" + kFolder + "/" + file + "\"\n" +
         (own.empty() ? "" : "[dataset.mix.jsonl]\n" + own);
}

// `all`: what [dataset.jsonl] says beside the tokenizer.
std::string job(const std::string& name, const std::string& all, const std::string& sources) {
  std::ifstream ready(MESHWRIGHT_SOURCE_DIR "/configs/chat_tuning_cpu.toml");
  std::string text{std::istreambuf_iterator<char>(ready), {}};
  text = text.substr(0, text.find("[dataset]"));
  std::ofstream(kFolder + "/" + name + ".toml")
      << text << "[dataset]\nplugin = \"jsonl\"\nseq_len = 64\n\n[dataset.jsonl]\n"
      << "tokenizer = \"configs/models/chat-tiny\"\n"
      << all << "\n"
      << sources;
  return kFolder + "/" + name + ".toml";
}

const std::string kShort =
    " --set step_scheduler.max_steps=6 --set step_scheduler.global_batch_size=8 --set "
    "step_scheduler.local_batch_size=4 --set lr_scheduler.lr_warmup_steps=1 --set "
    "checkpoint.every_steps=3 ";
const std::string kQuestions =
                      "fields = { prompt = \"frage\", completion = \"antwort\", weight = \"w\" }\n",
                  kTasks =
                      "fields = { prompt = \"in\", completion = \"out\", weight = \"much\" }\n",
                  kAll = "packing = \"bfd\"\ncache = \"none\"\n";

std::string own_columns(const std::string& tasks = kTasks) {
  write_rows("questions.jsonl", {"frage", "antwort", "w"}, true);
  write_rows("tasks.jsonl", {"in", "out", "much"}, false);
  return job(
      "own", kAll,
      source("questions", "questions.jsonl", kQuestions) + source("tasks", "tasks.jsonl", tasks));
}

// Lines of steps, with what is measured left out.
std::vector<std::string> figures(const std::string& name) {
  std::vector<std::string> out;
  std::ifstream metrics(kRuns + "/" + name + "/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json::object row = json::parse(line).as_object();
    if (!row.contains("loss")) continue;
    json::object kept;
    for (const char* key : {"step", "loss", "grad_norm", "source_samples", "source_losses",
                            "source_target_tokens", "source_target_weights"})
      kept[key] = row.at(key);
    out.push_back(json::serialize(kept));
  }
  return out;
}

TEST_CASE("mix: sources with columns of their own train bitwise as rows of the same columns") {
  const std::string own = own_columns();
  write_rows("questions_renamed.jsonl", {"p", "c", "w"}, true);
  write_rows("tasks_renamed.jsonl", {"p", "c", "w"}, false);
  const std::string alike =
      job("alike", kAll + "fields = { prompt = \"p\", completion = \"c\", weight = \"w\" }\n",
          source("questions", "questions_renamed.jsonl", "") +
              source("tasks", "tasks_renamed.jsonl", ""));
  std::vector<double> alone;
  for (const std::string ranks : {"1", "2"}) {
    CAPTURE(ranks);
    const std::string here = kShort + "--nproc " + ranks;
    const Trained a = train(own + here, "own_" + ranks), b = train(alike + here, "alike_" + ranks);
    INFO(a.out);
    INFO(b.out);
    REQUIRE(a.status == 0);
    REQUIRE(b.status == 0);
    CHECK(a.losses.size() == 6);
    if (ranks == "1") alone = a.losses;
    check_equal(a.losses, alone);
    CHECK(figures("own_" + ranks) == figures("alike_" + ranks));
  }
  const std::vector<std::string> one = figures("own_1");
  // From the middle on, and what the run then says that it did.
  const Trained on = train(own + kShort + "--nproc 1 --set checkpoint.resume='" + kRuns +
                               "/own_1/checkpoints/step_00000003'",
                           "own_on");
  INFO(on.out);
  REQUIRE(on.status == 0);
  CHECK(figures("own_on") == std::vector<std::string>(one.begin() + 3, one.end()));
  CHECK(on.out.find("done: 6 steps, the last 3 of them (4 to 6) in ") != std::string::npos);
}

TEST_CASE("mix: the losses of sources add up to the step's by the weights of their targets") {
  const std::string own = own_columns();
  for (const std::string layout :
       {"--nproc 1", "--nproc 2", "--nproc 2 --set distributed.tp_size=2"}) {
    CAPTURE(layout);
    const Trained run = train(own + kShort + layout, "own_weights");
    INFO(run.out);
    REQUIRE(run.status == 0);
    for (const std::string& line : figures("own_weights")) {
      const json::object row = json::parse(line).as_object();
      double sum = 0, all = 0;
      for (const auto& [name, loss] : row.at("source_losses").as_object()) {
        if (loss.is_null()) continue;
        const double weight = row.at("source_target_weights").at(name).to_number<double>();
        const auto targets = row.at("source_target_tokens").at(name).to_number<double>();
        CHECK((weight == targets) == (name == "tasks"));
        sum += loss.to_number<double>() * weight;
        all += weight;
      }
      const double loss = row.at("loss").to_number<double>();
      CAPTURE(std::abs(sum / all - loss) / loss);
      CHECK(std::abs(sum / all - loss) <= 1e-7 * loss);
    }
  }
}

TEST_CASE("mix: a source's own options are part of what it is, and are told with their place") {
  const std::string own = own_columns();
  const Trained whole = train(own + kShort + "--nproc 1", "own_whole");
  INFO(whole.out);
  REQUIRE(whole.status == 0);
  const std::string on =
      " --set checkpoint.resume='" + kRuns + "/own_whole/checkpoints/step_00000003' --nproc 1";
  const Trained other =
      train(own_columns("fields = { prompt = \"out\", completion = \"in\", weight = \"much\" }\n") +
                kShort + on,
            "own_other");
  INFO(other.out);
  CHECK(other.status != 0);
  CHECK(other.out.find("it was trained on other data than [[dataset.mix]] \"tasks\"") !=
        std::string::npos);
  struct Row {
    std::string tasks, said;
  };
  const std::string place = kFolder + "/own.toml:";
  for (const Row& row : std::vector<Row>{
           {"feilds = { prompt = \"in\" }\n", "unknown table [dataset.mix.jsonl.feilds]"},
           {"date = \"1 May\"\nfields = { prompt = \"in\", completion = \"out\" }\n",
            "dataset.mix.jsonl.date: \"1 May\" is no date"}}) {
    CAPTURE(row.tasks);
    const std::string file = own_columns(row.tasks);
    std::ifstream written(file);
    int line = 0, at = 0;
    for (std::string text; std::getline(written, text);)
      if (++line; row.tasks.starts_with(text + "\n")) at = line;
    int status = 0;
    const std::string out = said("validate " + file, &status);
    INFO(out);
    CHECK(status != 0);
    CHECK(out.find(row.said) != std::string::npos);
    CHECK(out.find(place + std::to_string(at)) != std::string::npos);
  }
  int status = 0;
  const std::string missing = said(
      "validate " + own_columns("fields = { prompt = \"im\", completion = \"out\" }\n"), &status);
  INFO(missing);
  CHECK(status != 0);
  CHECK(missing.find("did you mean \"in\"? set dataset.mix.jsonl.fields.prompt = \"in\"") !=
        std::string::npos);
  CHECK(missing.find("of [[dataset.mix]] \"tasks\"") != std::string::npos);
  // Who reads texts has named no plugin.
  std::ofstream(kFolder + "/text.jsonl") << "{\"text\": 3}\n";
  const std::string texts = said(
      "validate configs/text_cpu.toml --set dataset.path='" + kFolder + "/text.jsonl'", &status);
  INFO(texts);
  CHECK(texts.find("text.jsonl:1: the row has no string \"text\"") != std::string::npos);
  CHECK(texts.find("plugin jsonl") == std::string::npos);
  const std::string out =
      said("config explain dataset.mix.jsonl.fields --file " + own_columns(), &status);
  INFO(out);
  CHECK(status == 0);
  CHECK(out.find("dataset.jsonl.fields") != std::string::npos);
}

}  // namespace mix_options_test
