#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/cli/common.h"
#include "apps/migrate/migrate.h"
#include "engine/config/describe.h"
#include "engine/config/toml_value.h"
#include "sdk/base/files/durable.h"

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

// config migrate: a configuration of another program as one of ours.

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<config::Migration::Line>;

std::string contents(const fs::path& file) {
  std::error_code failed;
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::file_unreadable, file.string() + ": " + why)
        .help("name a TOML file of torchtitan, or a YAML file of Automodel, axolotl or TRL");
  };
  if (!fs::exists(file, failed)) throw refuse("there is no such file");
  if (!fs::is_regular_file(file, failed)) throw refuse("this is not a regular file");
  if (uintmax_t size = fs::file_size(file, failed); failed || size > config::kMaxFileBytes)
    throw refuse("too large for a configuration");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw refuse("cannot be read");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void say(Call& call, const std::string& head, const Lines& lines, bool ours) {
  if (lines.empty()) return;
  std::vector<std::vector<std::string>> rows = {{"line", "there", ours ? "here" : "why"}};
  for (const config::Migration::Line& line : lines)
    rows.push_back({line.line > 0 ? std::to_string(line.line) : "-",
                    report::printable(line.key + (line.value.empty() ? "" : " = " + line.value)),
                    report::printable(line.text)});
  constexpr size_t kRight[] = {0};
  call.err.write("\n" + head + "\n" + report::table(call.err_style, rows, kRight));
}

int run_migrate(Call& call) {
  fs::path file = call.positional(0), out = call.value("out");
  std::error_code failed;
  if (call.has("out") && out.empty())
    throw Error(ErrorCode::usage, "--out wants the file to write").help("--out job.toml");
  if (!out.empty() && fs::exists(fs::symlink_status(out, failed)))
    throw Error(ErrorCode::usage, "--out " + out.string() + " is already there")
        .help("name another file, or remove that one");
  loader::Registry registry({});
  config::Migration done =
      config::migrate(contents(file), file.string(), discovered_schemas(registry));
  if (!out.empty()) base::write_durably(out, done.toml);
  if (call.json) {
    call.print_json(config::migration_json(done));
    return 0;
  }
  if (out.empty()) {
    call.out.write(done.toml);
    call.out.flush();
  }
  auto count = [](const Lines& lines) { return static_cast<int64_t>(lines.size()); };
  call.err.write((out.empty() ? "" : report::printable(out.string()) + ": ") + "from " +
                 done.program + " (it has " + done.known_by +
                 "): " + report::counted(count(done.carried), "key", "keys") + " carried over, " +
                 std::to_string(count(done.guessed)) + " guessed, " +
                 std::to_string(count(done.left)) + " not carried over\n");
  say(call, "guessed: look at these", done.guessed, true);
  say(call, "not carried over", done.left, false);
  say(call, "still to be said before it can train", done.missing, false);
  call.err.flush();
  return 0;
}

}  // namespace

Verb config_migrate_verb() {
  return declare(run_migrate, R"(
config migrate FILE
Turn a configuration of torchtitan, Automodel, axolotl or TRL into one of Meshwright

Reads torchtitan's TOML and the YAML of Automodel, axolotl and TRL (what `trl sft --config` takes),
told apart by what is in them, and prints TOML. What was guessed, what could not be carried over and
what is still missing is listed, and stands in the file as comments.
  meshwright config migrate llama3_8b.toml --out job.toml
  meshwright config migrate llama3_2_1b_squad.yaml
  meshwright config migrate axolotl/qlora.yml --out job.toml

--out NEW.toml  Write the configuration to this file. Default: standard output.
--json
)");
}

}  // namespace meshwright::cli
