// [[dataset.mix]] and [[validation_dataset.set]]: what a source says, what its table says in its
// place, and what is refused at its line.
#include "engine/config/sources.h"

#include <array>

#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"

namespace sources_test {

using namespace meshwright;
using namespace meshwright::config;
using config::testing::Around, config::testing::Loaded, config::testing::load,
    config::testing::only_error, config::testing::says;

namespace {

const std::string kMix =
    "[dataset]\nkind = \"tokens\"\ndtype = \"uint16\"\nseq_len = 64\n\n"
    "[[dataset.mix]]\nname = \"web\"\npath = \"web.bin\"\nweight = 0.7\n"
    "schedule = { 1000 = 0.2, 20 = 0.5 }\n\n"
    "[[dataset.mix]]\nname = \"notes\"\nkind = \"text\"\npath = \"notes/*.txt\"\nweight = 0.3\n";

}  // namespace

TEST_CASE("sources: each takes what it does not say from its table") {
  const Loaded l = load(kMix);
  for (const Error& error : l.diagnostics.errors()) MESSAGE(std::string(error.what()));
  REQUIRE(l.diagnostics.ok());
  const std::vector<NamedSource> mix = named_sources(l.config, "dataset");
  REQUIRE(mix.size() == 2);
  CHECK(mix[0].name == "web");
  CHECK(mix[0].options.get_string("kind") == "tokens");
  CHECK(mix[0].options.get_string("dtype") == "uint16");
  CHECK(mix[0].options.get_string("path") == "web.bin");
  CHECK(mix[0].options.origin("path").line == 8);
  CHECK(mix[0].weight == 0.7);
  CHECK(mix[0].schedule == std::vector<std::pair<int64_t, double>>{{20, 0.5}, {1000, 0.2}});
  CHECK(mix[1].options.get_string("kind") == "text");
  CHECK(mix[1].options.get_int("seq_len") == 64);
  CHECK(mix[1].place.line == 13);
  CHECK(names_data(l.config, "dataset"));
  CHECK_FALSE(reads_bytes(l.config, "dataset"));
  CHECK_FALSE(names_data(l.config, "validation_dataset"));
  CHECK(named_sources(load("").config, "dataset").empty());

  const Loaded sets = load(
      "[validation_dataset]\nevery_steps = 5\n[[validation_dataset.set]]\nname = \"a\"\npath = "
      "\"a.txt\"\n[[validation_dataset.set]]\nname = \"b\"\npath = \"b.txt\"\n");
  REQUIRE(sets.diagnostics.ok());
  CHECK(named_sources(sets.config, "validation_dataset").size() == 2);
  CHECK(reads_bytes(sets.config, "validation_dataset"));
}

TEST_CASE("a tokenizer beside model.config reads texts, as that of model.pretrained does") {
  const std::string models = MESHWRIGHT_SOURCE_DIR "/configs/models", chat = models + "/chat-tiny";
  struct Row {
    std::vector<std::string> sets;
    std::string folder;  // whose tokens the texts become
  };
  for (const Row& row : std::initializer_list<Row>{
           {{"model.config=" + chat + "/config.json"}, chat},
           {{"model.config=" + chat + "/of_a_plugin.txt", "model.plugin=x"}, chat},
           {{"model.config=" + chat}, chat},
           {{"model.config=" + models + "/llama-tiny.json"}, ""},
           {{"model.config=llama-tiny.json"}, ""},
           {{"model.config=" + chat + "/config.json", "model.pretrained=" + models}, ""},
           {{"model.config=" + models + "/llama-tiny.json", "model.pretrained=" + chat}, chat},
           {{"model.config=" + chat + "/config.json", "dataset.tokenizer=bytes"}, ""},
           {{"model.config=" + chat + "/config.json", "dataset.tokenizer=other"}, "other"},
           {{"model.config=" + chat + "/config.json", "dataset.kind=tokens"}, ""},
       }) {
    CAPTURE(row.sets);
    Diagnostics diagnostics;
    LoadOptions options;
    options.sets = row.sets;
    const Source source = Source::parse("[dataset]\npath = \"a.txt\"\n", options, diagnostics);
    CHECK(diagnostics.ok());
    CHECK(source.tokenizer("dataset") == row.folder);
    CHECK(source.component("dataset") == (row.folder.empty() ? "" : kTextComponent));
  }
  CHECK(language_folder("", chat + "/config.json").key == "config");
  CHECK(language_folder("a", chat + "/config.json").key == "pretrained");
}

TEST_CASE("sources: shown, they are read back to the same, also by --set") {
  const Loaded l = load(kMix), again = load(show_toml(l.config));
  for (const Error& error : again.diagnostics.errors()) MESSAGE(error.what());
  REQUIRE(again.diagnostics.ok());
  CHECK(value_toml(again.config, "dataset.mix") != "[]");
  CHECK(named_sources(again.config, "dataset")[0].schedule ==
        named_sources(l.config, "dataset")[0].schedule);
  CHECK(show_toml(again.config).size() > 0);
  const Loaded set = load("", {"dataset.mix=" + value_toml(l.config, "dataset.mix")});
  REQUIRE(set.diagnostics.ok());
  CHECK(named_sources(set.config, "dataset")[1].options.get_string("path") == "notes/*.txt");
}

// The options of a plugin, as one says them.
constexpr std::array kPlugin = {option("field", MESHWRIGHT_STRING, "\"text\"", "Which."),
                                bool_option("packing", true, "Whether.")};
Around with_plugin() {
  return {.plugins = {{},
                      {{make_schema("dataset.rows", "rows", kPlugin), true},
                       {make_schema("dataset.text", "text", kPlugin), true}}}};
}

TEST_CASE("sources: each has options of its plugin of its own, before those of all") {
  const std::string job =
      "[dataset.rows]\nfield = \"all\"\npacking = false\n"
      "[[dataset.mix]]\nname = \"a\"\nplugin = \"rows\"\npath = \"a\"\n"
      "[dataset.mix.rows]\nfield = \"own\"\n"
      "[[dataset.mix]]\nname = \"b\"\nplugin = \"rows\"\npath = \"b\"\n"
      "[[dataset.mix]]\nname = \"c\"\nkind = \"mock\"\n";
  const Loaded l = load(job, {}, with_plugin());
  for (const Error& error : l.diagnostics.errors()) MESSAGE(error.what());
  REQUIRE(l.diagnostics.ok());
  const Loaded shown = load(show_toml(l.config), {}, with_plugin()),
               set = load("[dataset.rows]\nfield = \"all\"\npacking = false\n",
                          {"dataset.mix=" + value_toml(l.config, "dataset.mix")}, with_plugin());
  for (const Loaded* one : {&l, &shown, &set}) {
    for (const Error& error : one->diagnostics.errors()) MESSAGE(std::string(error.what()));
    REQUIRE(one->diagnostics.ok());
    const std::vector<NamedSource> mix = named_sources(one->config, "dataset");
    REQUIRE(mix.size() == 3);
    REQUIRE(mix[0].plugin.has_value());
    REQUIRE(mix[1].plugin.has_value());
    CHECK(mix[0].plugin->get_string("field") == "own");
    CHECK(mix[1].plugin->get_string("field") == "all");
    CHECK_FALSE(mix[0].plugin->get_bool("packing"));
    CHECK_FALSE(mix[1].plugin->get_bool("packing"));
    CHECK_FALSE(mix[2].plugin.has_value());
  }
  CHECK(named_sources(l.config, "dataset")[0].plugin->origin("field").line == 9);
  CHECK(show_json(l.config).at("dataset.mix").at(0).at("rows").as_object().size() == 1);

  const std::string a = "[[dataset.mix]]\nname = \"a\"\nplugin = \"rows\"\npath = \"a\"\n",
                    text = "[[dataset.mix]]\nname = \"a\"\nkind = \"text\"\npath = \"a\"\n";
  struct Row {
    std::string text;
    const char *code, *key, *help;
    int line;
  };
  for (const Row& row : std::vector<Row>{
           {a + "[dataset.mix.rows]\nfeild = \"x\"\n", "E0202", "dataset.mix.rows.feild",
            "did you mean dataset.mix.rows.field?", 6},
           {a + "[dataset.mix.rows]\npacking = 3\n", "E0203", "dataset.mix.rows.packing", "", 6},
           {a + "[dataset.mix.nobody]\nfield = \"x\"\n", "E0202", "dataset.mix.nobody", "", 5},
           {a + "rows = 3\n", "E0202", "dataset.mix.rows", "", 5},
           {text + "[dataset.mix.rows]\nfield = \"x\"\n", "E0208", "dataset.mix.kind",
            "set plugin = \"rows\"", 3},
           {a + "[dataset.mix.text]\nfield = \"x\"\n", "E0208", "dataset.mix.plugin",
            "leave out [dataset.mix.text]", 3},
           {text + "tokenizer = \"bytes\"\n[dataset.mix.text]\nfield = \"x\"\n", "E0208",
            "dataset.mix.tokenizer", "leave out [dataset.mix.text]", 5}}) {
    INFO(row.text);
    const Error error = only_error(load(row.text, {}, with_plugin()));
    CHECK_MESSAGE(code_string(error.code()) == row.code, error.what());
    CHECK(error.key() == row.key);
    CHECK(error.origin().line == row.line);
    if (*row.help != '\0') CHECK(says(error.helps(), row.help));
  }
  CHECK(load(text + "[dataset.mix.text]\nfield = \"x\"\n", {}, with_plugin()).diagnostics.ok());
  const PluginSchemas plugins = with_plugin().plugins;
  CHECK(explain("dataset.mix.rows.field", plugins) == explain("dataset.rows.field", plugins));
  CHECK_FALSE(is_explained("dataset.mix.seq_len", plugins));
}

TEST_CASE("sources: a key of one that does nothing is told with its name") {
  const std::string a = "[[dataset.mix]]\nname = \"a\"\n", path = "path = \"a\"\n",
                    b = "[[dataset.mix]]\nname = \"b\"\nkind = \"mock\"\n";
  struct Row {
    std::string keys, said;
  };
  for (const Row& row : std::vector<Row>{
           {path + "dtype = \"uint16\"\n", "dtype of \"a\" has no effect unless kind = \"tokens\""},
           {path + "dtype = \"auto\"\n", ""},
           {path + "kind = \"tokens\"\ndtype = \"uint16\"\n", ""},
           {path + "kind = \"tokens\"\ntokenizer = \"t\"\n",
            "tokenizer of \"a\" has no effect unless kind = \"text\""},
           {path + "tokenizer = \"t\"\n", ""},
           {path + "plugin = \"rows\"\ntokenizer = \"t\"\n",
            "tokenizer of \"a\" has no effect with plugin"},
           {path + "kind = \"mock\"\n", "path of \"a\" has no effect with kind = \"mock\""},
           {path + "kind = \"tokens\"\ndocument_end = 2\n",
            "document_end of \"a\" has no effect without packing = true"},
           {path + "kind = \"tokens\"\ndocument_end = 2\npacking = true\n", ""}}) {
    INFO(row.keys);
    const Loaded l = load(a + row.keys + b, {}, with_plugin());
    CHECK(l.diagnostics.ok());
    CHECK(l.diagnostics.notices() == (row.said.empty()
                                          ? std::vector<std::string>{}
                                          : std::vector<std::string>{"dataset.mix." + row.said}));
  }
}

TEST_CASE("sources: what is wrong is refused with its key and its line") {
  const std::string a = "[[dataset.mix]]\nname = \"a\"\npath = \"a\"\n", b = "[[dataset.mix]]\n"
                                                                             "name = \"b\"\npath "
                                                                             "= \"b\"\n";
  struct Row {
    std::string text;
    const char *code, *key, *help;
    int line;
  };
  for (const Row& row : std::vector<Row>{
           {a + "weight = 0\n" + b, "E0204", "dataset.mix.weight", "set weight = 1", 4},
           {a + "weight = -1\n" + b, "E0204", "dataset.mix.weight", "", 4},
           {a + "weight = nan\n" + b, "E0203", "dataset.mix.weight", "", 4},
           {a + "weight = inf\n" + b, "E0203", "dataset.mix.weight", "", 4},
           {a + "epochs = 0\n", "E0204", "dataset.mix.epochs", "", 4},
           {a + "weight = 1\nepochs = 2\n", "E0208", "dataset.mix.epochs", "leave out epochs", 5},
           {a + "epochs = 2\n" + b, "E0208", "dataset.mix.epochs", "set epochs = 1", 6},
           {a + "epochs = 2\n" + b + "weight = 2\n", "E0208", "dataset.mix.weight",
            "set epochs = 1", 8},
           {a + "epochs = 2\nschedule = { 5 = 1 }\n", "E0208", "dataset.mix.schedule",
            "leave out schedule", 5},
           {a + "schedule = { 0 = 1 }\n", "E0204", "dataset.mix.schedule", "set weight", 4},
           {a + "schedule = { soon = 1 }\n", "E0204", "dataset.mix.schedule", "1000 = 1", 4},
           {a + "schedule = { 9 = -1 }\n", "E0204", "dataset.mix.schedule", "9 = 0.5", 4},
           {a + "schedule = { 9 = 1, 09 = 2 }\n", "E0208", "dataset.mix.schedule", "keep one", 4},
           {a + "schedule = { 9 = 0 }\n", "E0204", "dataset.mix.schedule", "from step 9 on", 4},
           {a + "weight = 0\nschedule = { 9 = 1 }\n", "E0204", "dataset.mix.schedule",
            "from step 0 on", 5},
           {a + a, "E0208", "dataset.mix.name", "set name = \"a_2\"", 5},
           {"[[dataset.mix]]\npath = \"a\"\n", "E0206", "dataset.mix.name", "add name", 1},
           {"[[dataset.mix]]\nname = \"a\"\n", "E0206", "dataset.mix.path", "add path", 2},
           {"[dataset]\npath = \"b\"\n" + a, "E0208", "dataset.path", "\"none\"", 2},
           {a + "plugin = \"jsonl\"\nkind = \"text\"\n", "E0208", "dataset.mix.kind",
            "leave out kind", 5},
           {a + "packing = true\n", "E0206", "dataset.mix.document_end", "add document_end", 2},
           {a + "weigth = 1\n", "E0202", "dataset.mix.weigth", "did you mean dataset.mix.weight?",
            4},
           {a + "schedule = { 5 = 2 }\n" + "[step_scheduler]\nepochs = 2\n", "E0208",
            "step_scheduler.epochs", "max_steps", 6},
           {"[[validation_dataset.set]]\nname = \"v\"\n", "E0206", "validation_dataset.set.path",
            "add path", 2},
           {"[[validation_dataset.set]]\nname = \"v\"\npath = \"v\"\nweight = 2\n", "E0202",
            "validation_dataset.set.weight", "", 4},
       }) {
    INFO(row.text);
    const Loaded l = load(row.text);
    for (const Error& error : l.diagnostics.errors()) INFO(error.what());
    const Error error = only_error(l);
    CHECK_MESSAGE(code_string(error.code()) == row.code, error.what());
    CHECK(error.key() == row.key);
    CHECK(error.origin().line == row.line);
    const std::vector<std::string>& helps = error.helps();
    if (*row.help != '\0') CHECK_MESSAGE(says(helps, row.help), (helps.empty() ? "" : helps[0]));
  }
}

}  // namespace sources_test
