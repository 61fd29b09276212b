#include "apps/cli/common.h"
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

config::PluginSchemas schemas(const Call& call) {
  loader::Registry registry(search_path(call));
  return discovered_schemas(registry);
}

int run_schema(Call& call) {
  call.print_json(config::json_schema(schemas(call)));
  return 0;
}

int show_matches(Call& call, const std::string& what, const config::Matches& matches) {
  if (call.json) {
    call.print_json(config::search_json(what, matches));
    return 0;
  }
  std::string head =
      matches.told.empty() ? "keys that have to do with \"" + what + "\":" : matches.told;
  for (const std::string& line :
       report::wrap(report::printable(head), static_cast<size_t>(call.out_style.width)))
    call.out.write(line + "\n");
  if (matches.keys.empty()) return 0;
  std::vector<std::vector<std::string>> rows = {{"key", "default", "meaning"}};
  for (const config::Match& match : matches.keys)
    rows.push_back({match.key, config::default_text(*match.option), match.option->doc});
  call.out.write("\n" + report::table(call.out_style, rows) + "\nmeshwright config explain " +
                 matches.keys.front().key + " tells more\n");
  return 0;
}

int run_explain(Call& call) {
  config::PluginSchemas all = schemas(call);
  std::string what = call.positional(0);
  if (!call.has("reference") && !config::is_explained(what, all))
    if (config::Matches matches = config::search_options(what, all); !matches.empty())
      return show_matches(call, what, matches);
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
  return declare(run_show, R"(
config show FILE
Print every key with its value and where it came from

The output is TOML and reads back to the same values.

--set
--json
)");
}

Verb config_schema_verb() {
  return declare(run_schema, R"(
config schema
Print the JSON Schema of configuration files, for editors

Save it and name it in the first line of a file: #:schema ./meshwright.schema.json

--file FILE  Also look for plugins where this configuration says.
--json
)");
}

Verb config_explain_verb() {
  return declare(run_explain, R"(
config explain [KEY|TABLE|CODE|WORD]
Explain a key, a table or an error code, or find the keys for a word

  meshwright config explain optimizer.lr
  meshwright config explain distributed
  meshwright config explain E0301
  meshwright config explain bf16
  meshwright config explain gradient_accumulation_steps
Any other word is looked for in the names, the older names and those of other programs, the choices
and the descriptions of all keys.

--file FILE  Also look for plugins where this configuration says.
--reference  Print the whole reference page (Markdown).
--json
)");
}

}  // namespace meshwright::cli
