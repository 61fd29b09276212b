#include "engine/cli/common.h"
#include "engine/config/describe.h"

namespace meshwright::cli {
namespace {

int run_show(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  if (call.json)
    call.print_json(config::show_json(job->config));
  else
    call.out.write(config::show_toml(job->config));
  return 0;
}

std::vector<config::StrategySchema> schemas(const Call& call) {
  plugins::SearchPath search;
  if (!call.positional(1).empty() || call.has("file")) {
    Diagnostics diagnostics;
    config::LoadOptions options;
    options.file = call.value("file");
    config::Source source = config::Source::load(options, diagnostics);
    diagnostics.throw_if_any();
    search.files = source.plugin_files();
    search.folders = source.plugin_folders();
  }
  plugins::Registry registry(search);
  return discovered_schemas(registry);
}

constexpr Flag kFileFlag{.name = "file", .argument = "FILE", .doc = "Also look for plugins where this configuration says."};

int run_schema(Call& call) {
  call.print_json(config::json_schema(schemas(call)));
  return 0;
}

int run_explain(Call& call) {
  std::vector<config::StrategySchema> all = schemas(call);
  if (call.has("reference"))
    call.out.write(config::reference_markdown(all));
  else if (call.json)
    call.print_json(config::explain_json(call.positional(0), all));
  else
    call.out.write(config::explain(call.positional(0), all));
  return 0;
}

}  // namespace

Verb config_show_verb() {
  return {.name = "config show",
          .summary = "Print every key with its value and where it came from",
          .details = "The output is TOML and reads back to the same values.",
          .positionals = {{"FILE"}},
          .flags = {kSetFlag, kJsonFlag},
          .run = run_show};
}

Verb config_schema_verb() {
  return {.name = "config schema",
          .summary = "Print the JSON Schema of configuration files, for editors",
          .details = "Save it and name it in the first line of a file: #:schema ./meshwright.schema.json",
          .flags = {kFileFlag, kJsonFlag},
          .run = run_schema};
}

Verb config_explain_verb() {
  return {.name = "config explain",
          .summary = "Explain a key, a table or an error code",
          .details = "  meshwright config explain optimizer.lr\n  meshwright config explain distributed\n  meshwright config explain E0301",
          .positionals = {{"KEY|TABLE|CODE", false}},
          .flags = {kFileFlag, {.name = "reference", .doc = "Print the whole reference page (Markdown)."}, kJsonFlag},
          .run = run_explain};
}

}  // namespace meshwright::cli
