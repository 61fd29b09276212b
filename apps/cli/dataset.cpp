// dataset show, dataset stats: what a run would read, seen before there is one.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "apps/cli/common.h"
#include "engine/data/plugin_data.h"
#include "engine/data/sample_buffer.h"
#include "engine/job/job_data.h"
#include "engine/job/step_share.h"
#include "meshwright/data/dataset_inspector.h"

namespace meshwright::cli {
namespace {

namespace json = boost::json;
using report::Tone;

data::DatasetConfig config_of(const plan::Job& job, const std::string& table) {
  int64_t vocabulary = 0;
  if (const std::optional<plan::JobModel> model = plan::model_of(job))
    vocabulary = model->outline(job.config).vocab_size;
  return data::dataset_config(job, table, vocabulary,
                              static_cast<uint64_t>(job.config.table("run").get_int("seed")));
}

// The text, what is learnt marked: by colour, or by brackets where there is none.
std::string marked(const report::Style& style, const DatasetRow& row) {
  std::string out;
  size_t done = 0;
  auto copy_to = [&](size_t end, bool target) {
    if (end <= done) return;
    const std::string text = report::printable(std::string_view(row.text).substr(done, end - done));
    out += target && style.colour ? report::paint(style, Tone::green, text) : text;
    done = end;
  };
  const char* const open = style.colour ? "" : style.unicode ? "⟦" : "[[";
  const char* const close = style.colour ? "" : style.unicode ? "⟧" : "]]";
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const DatasetRow::Token& token = row.tokens[i];
    if (!token.target) continue;
    const bool begins = i == 0 || !row.tokens[i - 1].target;
    const bool ends = i + 1 == row.tokens.size() || !row.tokens[i + 1].target;
    if (begins) {
      copy_to(std::min(token.begin, row.text.size()), false);
      out += open;
    }
    if (!ends) continue;
    // A run of targets at once: a token may hold a piece of a character.
    copy_to(std::min(token.end, row.text.size()), true);
    out += close;
  }
  copy_to(row.text.size(), false);
  if (out.empty() || out.back() != '\n') out += '\n';
  return out;
}

std::string ids_text(const report::Style& style, const DatasetRow& row) {
  std::string out, line;
  size_t width = 0;
  for (const DatasetRow::Token& token : row.tokens) {
    const std::string id = std::to_string(token.id) + (token.target && !style.colour ? "*" : "");
    if (width + id.size() + 1 > static_cast<size_t>(std::max(style.width, 20))) {
      out += line + "\n";
      line.clear();
      width = 0;
    }
    line += (width == 0 ? "" : " ") +
            (token.target && style.colour ? report::paint(style, Tone::green, id) : id);
    width += id.size() + 1;
  }
  return out + line + "\n";
}

json::object row_json(int64_t rows, int64_t number, const DatasetRow& row) {
  json::array tokens;
  for (const DatasetRow::Token& token : row.tokens)
    tokens.push_back(json::object{
        {"id", token.id}, {"begin", token.begin}, {"end", token.end}, {"target", token.target}});
  return {{"rows", rows},
          {"row", number},
          {"place", row.place},
          {"text", row.text},
          {"tokens", std::move(tokens)}};
}

int show_row(Call& call, const data::DatasetConfig& config, int64_t number) {
  const DatasetInspector* inspector = data::inspector_of(config);
  if (inspector == nullptr)
    throw Error(ErrorCode::usage,
                "the data set of " + config.table + " has no rows to show, only samples")
        .help("--sample 0");
  const DatasetRequest request = data::request_of(config);
  const int64_t rows = inspector->rows(request);
  const DatasetRow row = inspector->row(request, number);
  if (call.json) {
    call.print_json(row_json(rows, number, row));
    return 0;
  }
  const auto targets = std::count_if(row.tokens.begin(), row.tokens.end(),
                                     [](const DatasetRow::Token& token) { return token.target; });
  call.out.write(
      report::paint(call.out_style, Tone::bold,
                    "row " + report::human_count(number) + " of " + report::human_count(rows)) +
      ", " + report::printable(row.place) + ": " +
      report::counted(static_cast<int64_t>(row.tokens.size()), "token", "tokens") + ", " +
      report::human_count(targets) + " learnt (" +
      (call.out_style.colour    ? "green"
       : call.out_style.unicode ? "⟦ ⟧ and *"
                                : "[[ ]] and *") +
      ")\n\n" + marked(call.out_style, row) + "\n" + ids_text(call.out_style, row));
  return 0;
}

// One sample as a strip: a letter a document, large where there are targets, . for what pads, from
// position `padding` on.
std::string strip(const SampleView& view, size_t padding, size_t width) {
  const size_t positions = view.tokens.size(), cells = std::min(width, positions);
  std::string out;
  for (size_t cell = 0; cell < cells; ++cell) {
    const size_t begin = cell * positions / cells, end = (cell + 1) * positions / cells;
    if (begin >= padding) {
      out += '.';
      continue;
    }
    const int32_t document = view.documents.empty() ? 0 : view.documents[begin];
    const bool target = std::any_of(view.targets.begin() + static_cast<std::ptrdiff_t>(begin),
                                    view.targets.begin() + static_cast<std::ptrdiff_t>(end),
                                    [](int64_t id) { return id != kNoTarget; });
    const auto letter = static_cast<char>('a' + document % 26);
    out += target ? static_cast<char>(letter - 'a' + 'A') : letter;
  }
  return out + "\n";
}

int show_sample(Call& call, const data::DatasetConfig& config, int64_t number) {
  data::prepare_data(config);
  const std::unique_ptr<SampleSource> source = data::open_samples(config);
  if (number >= source->samples())
    throw Error(ErrorCode::usage, "--sample " + std::to_string(number) +
                                      ": the data set has samples 0 to " +
                                      std::to_string(source->samples() - 1))
        .help("--sample " + std::to_string(source->samples() - 1));
  data::SampleBuffer buffer(*source, config.seq_len);
  const SampleView view = buffer.view();
  source->read(number, view);
  struct Part {
    int64_t positions = 0, targets = 0;
  };
  std::map<int32_t, Part> parts;
  const size_t padding = data::padding_begin(view.targets, view.documents);
  for (size_t i = 0; i < padding; ++i) {
    Part& part = parts[view.documents.empty() ? 0 : view.documents[i]];
    ++part.positions;
    part.targets += view.targets[i] != kNoTarget ? 1 : 0;
  }
  if (call.json) {
    json::array tokens(view.tokens.begin(), view.tokens.end());
    json::array targets(view.targets.begin(), view.targets.end());
    json::array documents(view.documents.begin(), view.documents.end());
    call.print_json(json::object{{"samples", source->samples()},
                                 {"sample", number},
                                 {"tokens", std::move(tokens)},
                                 {"targets", std::move(targets)},
                                 {"documents", std::move(documents)}});
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"document", "positions", "targets"}};
  for (const auto& [document, part] : parts)
    rows.push_back({std::string(1, static_cast<char>('a' + document % 26)),
                    report::human_count(part.positions), report::human_count(part.targets)});
  if (const size_t pads = view.tokens.size() - padding; pads > 0)
    rows.push_back({".", report::human_count(static_cast<int64_t>(pads)), "0"});
  const std::vector<size_t> right{1, 2};
  call.out.write(report::paint(call.out_style, Tone::bold,
                               "sample " + report::human_count(number) + " of " +
                                   report::human_count(source->samples())) +
                 ", " + report::printable(source->describe()) + "\n\n" +
                 strip(view, padding, static_cast<size_t>(std::max(call.out_style.width, 20))) +
                 "a letter a document, a capital where something is learnt, . for what pads\n\n" +
                 report::table(call.out_style, rows, right));
  return 0;
}

int run_show_dataset(Call& call) {
  if (call.has("row") == call.has("sample"))
    throw Error(ErrorCode::usage, call.has("row") ? "--row and --sample are two questions"
                                                  : "which row or sample is to be shown?")
        .help("--row 0")
        .help("--sample 0");
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  const std::string table = call.has("validation") ? "validation_dataset" : "dataset";
  try {
    const data::DatasetConfig config = config_of(*job, table);
    if (call.has("row")) return show_row(call, config, *call.number("row", 0));
    return show_sample(call, config, *call.number("sample", 0));
  } catch (const Error& error) {
    throw config::placed(error, job->config);
  }
}

// How far a step goes into [dataset], also as numbers of `one`. Empty for tokens without an end.
std::string tell_steps(const plan::Job& job, const data::DatasetConfig& config, int64_t samples,
                       std::optional<int64_t> documents, json::object& one) {
  if (!config.plugin && config.kind == "mock") return {};
  const int64_t batch = job.config.table("step_scheduler").get_int("global_batch_size");
  one["samples_a_step"] = batch;
  one["steps_an_epoch"] = static_cast<double>(samples) / static_cast<double>(batch);
  if (documents) one["documents_a_step"] = data::documents_a_step(*documents, samples, batch);
  return data::tell_steps(samples, batch, documents);
}

int run_stats(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  json::object all;
  bool first = true;
  for (const char* table : {"dataset", "validation_dataset"}) {
    const Options& options = job->config.table(table);
    if (!data::names_data(options)) continue;
    try {
      const data::DatasetConfig config = config_of(*job, table);
      data::prepare_data(config);
      const std::unique_ptr<SampleSource> source = data::open_samples(config);
      const std::vector<std::string> lines = source->report();
      std::vector<std::pair<std::string, int64_t>> numbers;
      if (const DatasetInspector* inspector = data::inspector_of(config))
        numbers = inspector->numbers(data::request_of(config));
      json::object one{{"describe", source->describe()},
                       {"samples", source->samples()},
                       {"seq_len", config.seq_len},
                       {"report", json::array(lines.begin(), lines.end())}};
      for (const auto& [name, value] : numbers) one[name] = value;
      std::string steps;
      if (config.table == "dataset")
        steps = tell_steps(*job, config, source->samples(), data::documents_in(numbers), one);
      all[table] = std::move(one);
      if (call.json) continue;
      call.out.write((first ? "" : "\n") +
                     report::paint(call.out_style, Tone::bold, std::string("[") + table + "]") +
                     " " + report::printable(source->describe()) + ": " +
                     report::counted(source->samples(), "sample", "samples") + " of " +
                     report::human_count(config.seq_len) + "\n");
      for (const std::string& line : lines) call.out.write("  " + report::printable(line) + "\n");
      if (!steps.empty()) call.out.write("  " + steps + "\n");
      first = false;
    } catch (const Error& error) {
      throw config::placed(error, job->config);
    }
  }
  if (all.empty())
    throw Error(ErrorCode::missing_key, "the file names no data")
        .key("dataset.path")
        .help("set dataset.path = \"data/*.txt\"");
  if (call.json) call.print_json(all);
  return 0;
}

}  // namespace

Verb dataset_show_verb() {
  return declare(run_show_dataset, R"(
dataset show FILE
Show a row of the data as the model learns it, or a sample as a step reads it

A row is shown whole: its text as the chat template makes it, what is learnt of it marked, and its
token ids. A sample is what one sequence of a batch holds: which documents, and where something is
learnt.
  meshwright dataset show configs/chat_tuning_cpu.toml --row 3
  meshwright dataset show configs/chat_tuning_cpu.toml --sample 0

--row N       The row, from 0 on; of data sets that have rows.
--sample N    The sample, from 0 on.
--validation  Of [validation_dataset].
--set
--json
)");
}

Verb dataset_stats_verb() {
  return declare(run_stats, R"(
dataset stats FILE
Count what a run would read: rows, tokens, targets, what is cut or left out, steps an epoch

  meshwright dataset stats configs/chat_tuning_cpu.toml

--set
--json
)");
}

}  // namespace meshwright::cli
