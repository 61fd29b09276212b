// report: runs beside each other, read from their folders.
#include <filesystem>
#include <set>

#include "apps/cli/verb.h"
#include "apps/observe/monitors/sinks.h"
#include "apps/observe/report/report.h"
#include "sdk/base/files/durable.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

std::vector<runs::RunRecord> read_runs(Call& call) {
  std::vector<runs::RunRecord> out;
  std::set<fs::path> seen;
  Diagnostics said;
  for (const std::string& path : call.positionals) {
    std::error_code failed;
    const fs::path real = fs::weakly_canonical(path, failed);
    if (!seen.insert(failed ? fs::path(path) : real).second) {
      said.notice(path + " was named before; it is shown once");
      continue;
    }
    out.push_back(runs::read_run(path));
    for (const std::string& problem : out.back().problems) said.warning(problem);
  }
  call.say(said);
  return out;
}

// A result that may go into a file: --output, or else `path`; "-" prints it.
int put(Call& call, const fs::path& path, const std::string& contents) {
  if (path == "-") {
    call.out.write_data(contents);
    return 0;
  }
  try {
    base::write_durably(path, contents);
  } catch (const Error& error) {
    throw Error(error).help("--output FILE names another place, --output - prints it");
  }
  call.out.write("wrote " + report::printable(path.string()) + ", " +
                 report::human_bytes(static_cast<int64_t>(contents.size())) + "\n");
  return 0;
}

int write_csv(Call& call, const std::vector<runs::RunRecord>& all) {
  if (all.size() > 1)
    throw Error(ErrorCode::usage,
                "--csv writes the steps of one run, and there are " + std::to_string(all.size()))
        .help("meshwright report " + all[0].name + " --csv");
  const fs::path path = call.has("output") ? call.value("output") : "-";
  return put(call, path, monitor::csv_of(runs::metrics_taken(all[0].folder / "metrics.jsonl")));
}

// Where the page goes: of one run into its folder.
fs::path page_path(const Call& call, const std::vector<runs::RunRecord>& all) {
  if (call.has("output")) return call.value("output");
  return all.size() == 1 ? all[0].folder / "report.html" : fs::path("report.html");
}

bool asked(const Call& call, const std::string& flag) {
  return flag == "json" ? call.json : call.has(flag);
}

int run_report(Call& call) {
  for (const auto& [one, other] :
       {std::pair("text", "json"), std::pair("csv", "json"), std::pair("csv", "text")})
    if (asked(call, one) && asked(call, other))
      throw Error(ErrorCode::usage, "--" + std::string(one) + " and --" + other +
                                        " both say what is printed; only one can be")
          .help("leave out --" + std::string(one))
          .help("leave out --" + std::string(other));
  if (call.has("output") && (call.has("text") || call.json))
    throw Error(ErrorCode::usage, "--output names the page, but " +
                                      std::string(call.json ? "--json" : "--text") +
                                      " makes none: it prints")
        .help("leave out --output, and send what is printed to a file: > report.txt")
        .help(std::string("leave out ") + (call.json ? "--json" : "--text"));
  if (call.has("output") && call.value("output").empty())
    throw Error(ErrorCode::usage, "--output is empty").help("--output report.html");
  const std::vector<runs::RunRecord> all = read_runs(call);
  if (call.json) {
    call.print_json(runs::report_json(all));
    return 0;
  }
  if (call.has("text")) {
    call.out.write(runs::text_report(call.out_style, all));
    return 0;
  }
  if (call.has("csv")) return write_csv(call, all);
  return put(call, page_path(call, all), runs::html_page(all, base::utc_now()));
}

}  // namespace

Verb report_verb() {
  return declare(run_report, R"(
report RUN...
Draw the curves of runs, their plans, and what happened, as a page

RUN is the folder of a run: runs/first. Curves of several lie over each other, and what their
configurations differ in is told. The page is one file that needs no network; it is written into
the folder of the run, or as report.html where there are several.
A run that still trains, or that died half-way, is shown as far as its files go; what is missing or
broken in them is told.

  meshwright report runs/first
  meshwright report runs/first runs/second --output compared.html
  meshwright report runs/first --text
  meshwright report runs/first --csv --output first.csv

--output FILE  Where the page goes; - prints it. Default: RUN/report.html, or report.html. With
               --csv, where the table goes; it is printed otherwise.
--text         Draw in the terminal instead.
--csv          Print what was measured after each step of the one RUN as comma-separated values.
--json
)");
}

}  // namespace meshwright::cli
