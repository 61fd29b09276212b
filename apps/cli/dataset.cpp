// dataset show, dataset stats: what a run would read, seen before there is one; and tokenize. Long
// because they show the same rows, samples and sources.
#include "engine/data/dataset.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "apps/cli/common.h"
#include "apps/cli/texts.h"
#include "apps/cli/verb.h"
#include "engine/config/sources.h"
#include "engine/data/mix.h"
#include "engine/data/read_ahead.h"
#include "engine/job/job.h"
#include "meshwright/data/dataset_inspector.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/text/corpus/corpus.h"
#include "sdk/text/tokenizer/folder.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/tokenizer.h"

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

// Those that --source chooses among; of sets one must be chosen.
data::DatasetConfig chosen(const Call& call, data::DatasetConfig config) {
  const std::string name = call.value("source");
  std::vector<std::string> names;
  for (data::DatasetConfig& one : config.sources) {
    if (one.name == name) return std::move(one);
    names.push_back(one.name);
  }
  if (!call.has("source") && (names.empty() || config.table == "dataset")) return config;
  Error error(ErrorCode::usage,
              names.empty() ? "--source " + name + ": [" + config.table + "] names no sources"
              : call.has("source")
                  ? "--source " + name + ": there is no [[" + config::sources_of(config.table) +
                        "]] of that name"
                  : "[" + config.table + "] has several sets: one of them is shown");
  if (names.empty()) throw error.help("leave out --source");
  for (const std::string& known : names) error.help("--source " + known);
  throw error;
}

int show_row(Call& call, const data::DatasetConfig& config, int64_t number) {
  const DatasetInspector* inspector = data::inspector_of(config);
  if (inspector == nullptr)
    throw Error(ErrorCode::usage,
                "the data set of " + config.table + " has no rows to show, only samples")
        .help(config.sources.empty() ? "--sample 0"
                                     : "--source " + config.sources.front().name +
                                           " for the rows of one of its sources");
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
  std::string whose;  // of a mix
  if (const auto* mix = dynamic_cast<const data::Mix*>(source.get()); mix != nullptr) {
    const data::MixOrder::Place place = mix->order(1).at(number);
    whose = mix->sources()[place.source].name;
  }
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
    json::object out{{"samples", source->samples()},
                     {"sample", number},
                     {"tokens", std::move(tokens)},
                     {"targets", std::move(targets)},
                     {"documents", std::move(documents)}};
    if (!whose.empty()) out["source"] = whose;
    call.print_json(out);
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
                 ", " + (whose.empty() ? "" : "of " + report::printable(whose) + ", in ") +
                 report::printable(source->describe()) + "\n\n" +
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
    const data::DatasetConfig config = chosen(call, config_of(*job, table));
    if (call.has("row")) return show_row(call, config, *call.number("row", 0));
    return show_sample(call, config, *call.number("sample", 0));
  } catch (const Error& error) {
    throw config::placed(error, job->config);
  }
}

// How far a step goes into [dataset], also as numbers of `one`. Empty for tokens without an end.
std::string tell_steps(const plan::Job& job, const data::DatasetConfig& config, int64_t samples,
                       std::optional<int64_t> documents, json::object& one) {
  if (!config.plugin && config.sources.empty() && config.kind == "mock") return {};
  // Of weights that change a mix has no end.
  if (std::ranges::any_of(config.sources,
                          [](const auto& source) { return !source.share.schedule.empty(); }))
    return {};
  const int64_t batch = job.config.table("step_scheduler").get_int("global_batch_size");
  one["samples_a_step"] = batch;
  one["steps_an_epoch"] = static_cast<double>(samples) / static_cast<double>(batch);
  if (documents) one["documents_a_step"] = data::documents_a_step(*documents, samples, batch);
  return data::tell_steps(samples, batch, documents);
}

// Each source of a mix as it is read over the run: lines, and the same as JSON.
std::vector<std::string> tell_mix(const plan::Job& job, const data::Mix& mix, json::object& one) {
  const std::vector<int64_t> read = data::read_by_run(job, mix), shares = mix.shares(0);
  const double all = static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
  json::array sources;
  for (size_t i = 0; i < read.size(); ++i) {
    const int64_t samples = mix.sources()[i].samples->samples();
    sources.push_back(
        json::object{{"name", mix.sources()[i].name},
                     {"share", static_cast<double>(shares[i]) / all},
                     {"samples", samples},
                     {"read", read[i]},
                     {"epochs", static_cast<double>(read[i]) / static_cast<double>(samples)}});
  }
  one["sources"] = std::move(sources);
  return data::lines_of(mix, read);
}

// What there is to say of one data set, as JSON.
json::object count(Call& call, const plan::Job& job, const data::DatasetConfig& config,
                   bool first) {
  data::prepare_data(config);
  const std::unique_ptr<SampleSource> source = data::open_samples(config);
  std::vector<std::string> lines = source->report();
  std::vector<std::pair<std::string, int64_t>> numbers;
  if (const DatasetInspector* inspector = data::inspector_of(config))
    numbers = inspector->numbers(data::request_of(config));
  json::object one{{"describe", source->describe()},
                   {"samples", source->samples()},
                   {"seq_len", config.seq_len},
                   {"report", json::array(lines.begin(), lines.end())}};
  for (const auto& [name, value] : numbers) one[name] = value;
  if (const auto* mix = dynamic_cast<const data::Mix*>(source.get()); mix != nullptr)
    for (std::string& line : tell_mix(job, *mix, one)) lines.push_back(std::move(line));
  std::string steps;
  if (config.table == "dataset")
    steps = tell_steps(job, config, source->samples(), data::documents_in(numbers), one);
  if (call.json) return one;
  const std::string header = config.name.empty()
                                 ? "[" + config.table + "]"
                                 : "[[" + config.table + "]] " + report::printable(config.name);
  call.out.write((first ? "" : "\n") + report::paint(call.out_style, Tone::bold, header) + " " +
                 report::printable(source->describe()) + ": " +
                 report::counted(source->samples(), "sample", "samples") + " of " +
                 report::human_count(config.seq_len) + "\n");
  for (const std::string& line : lines) call.out.write("  " + report::printable(line) + "\n");
  if (!steps.empty()) call.out.write("  " + steps + "\n");
  return one;
}

int run_stats(Call& call) {
  int status = 0;
  std::optional<plan::Job> job = load_job(call, status);
  if (!job) return status;
  json::object all;
  for (const char* table : {"dataset", "validation_dataset"}) {
    if (!config::names_data(job->config, table)) continue;
    try {
      const data::DatasetConfig config = config_of(*job, table);
      const bool sets = config.table != "dataset" && !config.sources.empty();
      if (!sets) {
        all[table] = count(call, *job, config, all.empty());
        continue;
      }
      json::object named;
      for (const data::DatasetConfig& one : config.sources)
        named[one.name] = count(call, *job, one, all.empty() && named.empty());
      all[table] = json::object{{"sets", std::move(named)}};
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

--row N        The row, from 0 on; of data sets that have rows.
--sample N     The sample, from 0 on.
--validation   Of [validation_dataset].
--source NAME  Of that [[dataset.mix]], or [[validation_dataset.set]].
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

// tokenize: text files to one file of tokens.

namespace {

namespace fs = std::filesystem;

Error wrong(const std::string& message) { return {ErrorCode::usage, message}; }

// A JSON object beside the tokenizer; empty when the file is not there.
json::object settings(const fs::path& file) {
  std::error_code failed;
  if (!fs::is_regular_file(file, failed)) return {};
  const std::string text = base::read_foreign(file, base::kSmallFile, ErrorCode::file_unreadable);
  try {
    json::value parsed = base::parse_strictly(text, {.depth = 32, .elements = 1 << 20});
    return parsed.is_object() ? parsed.as_object() : json::object();
  } catch (const base::JsonProblem& problem) {
    throw Error(ErrorCode::bad_tokenizer, file.string() + ": " + problem.what + " (at byte " +
                                              std::to_string(problem.offset) + ")");
  }
}

// The end-of-text token that the files beside a tokenizer.json name.
std::optional<int64_t> eos_of(const tokenizer::Tokenizer& tokenizer, const fs::path& folder) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const json::object all = settings(folder / name);
    const json::value* token = all.if_contains("eos_token");
    if (token != nullptr && token->is_object()) token = token->get_object().if_contains("content");
    if (token == nullptr || !token->is_string()) continue;
    const json::string& text = token->get_string();
    if (std::optional<int64_t> id = tokenizer.id_of({text.data(), text.size()})) return id;
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    json::object all = settings(folder / name);
    const json::value* id = all.if_contains("eos_token_id");
    if (id != nullptr && id->is_array() && !id->as_array().empty()) id = &id->as_array()[0];
    if (id != nullptr && id->is_int64() && id->as_int64() >= 0 && id->as_int64() < tokenizer.size())
      return id->as_int64();
  }
  return std::nullopt;
}

int64_t document_end(const tokenizer::Tokenizer& tokenizer, const fs::path& folder,
                     const std::string& wanted) {
  if (wanted == "eos") {
    if (std::optional<int64_t> id = eos_of(tokenizer, folder)) return *id;
    throw wrong(
        "--document-end eos: no eos_token in tokenizer_config.json or special_tokens_map.json of " +
        folder.string() + ", and no eos_token_id in generation_config.json or config.json")
        .help("--document-end '<|endoftext|>', the token as the tokenizer has it")
        .help("--document-end 2, its id");
  }
  // A number is an id, also where a token is written like it: no text ends with the digit three.
  int64_t id = -1;
  auto [end, failed] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), id);
  if (failed == std::errc() && end == wanted.data() + wanted.size()) {
    if (id >= 0 && id < tokenizer.size()) return id;
  } else if (std::optional<int64_t> named = tokenizer.id_of(wanted)) {
    return *named;
  }
  throw wrong("--document-end " + wanted +
              ": the tokenizer has no such token, and its ids are 0 to " +
              std::to_string(tokenizer.size() - 1))
      .help("--document-end eos, the token that the folder names as the end of a text");
}

std::vector<std::string> inputs(const Call& call, const fs::path& out) {
  std::vector<std::string> files = text_files(call, "tokenize");
  std::error_code failed;
  for (const std::string& file : files)
    if (fs::equivalent(file, out, failed))
      throw wrong("--out " + out.string() + " is one of the files to tokenize")
          .help("--out another.bin");
  return files;
}

// --out, which must not be there yet unless --force replaces it.
fs::path output(const Call& call) {
  fs::path out = call.value("out");
  std::error_code failed;
  if (fs::is_directory(out, failed))
    throw wrong("--out " + out.string() + " is a folder")
        .help("--out " + (out / "train.bin").string());
  if (fs::exists(fs::symlink_status(out, failed)) && !call.has("force"))
    throw wrong("--out " + out.string() + " is already there")
        .help("--force replaces it once the new one is complete")
        .help("--out another.bin");
  return out;
}

// `folder`: where the tokenizer lies, with what else is said of it.
tokenizer::CorpusOptions read_options(const Call& call, const tokenizer::Tokenizer& tokenizer,
                                      const fs::path& folder) {
  const TextOptions texts = text_options(call);
  tokenizer::CorpusOptions options;
  options.documents = texts.documents;
  options.text_key = texts.text_key;
  options.threads = texts.threads;
  options.special = !call.has("no-special");
  if (call.has("document-end"))
    options.document_end = document_end(tokenizer, folder, call.value("document-end"));
  return options;
}

// What was made, and how fast.
struct Made {
  fs::path out;
  int64_t files = 0, vocabulary = 0;
  std::string dtype;
  std::optional<int64_t> document_end;
  tokenizer::CorpusCounts counts;
  double seconds = 0;
};

void tell(Call& call, const Made& made) {
  const tokenizer::CorpusCounts& counts = made.counts;
  if (counts.whole > 0)
    call.err.write(report::format_notice(
        call.err_style, "pieces of up to " + report::human_bytes(counts.whole) +
                            " were encoded at once, because this tokenizer's parts are not known "
                            "to allow a cut; that takes memory, not accuracy"));
  if (counts.young > 0)
    call.err.write(report::format_notice(call.err_style, tokenizer::tell_young(counts.young)));
  if (call.json) {
    call.print_json(
        json::object{{"out", made.out.string()},
                     {"tokens", counts.tokens},
                     {"bytes", counts.bytes},
                     {"files", made.files},
                     {"documents", counts.documents},
                     {"young_characters", counts.young},
                     {"dtype", made.dtype},
                     {"vocab_size", made.vocabulary},
                     {"document_end",
                      made.document_end ? json::value(*made.document_end) : json::value(nullptr)},
                     {"seconds", made.seconds}});
    return;
  }
  auto rate =
      static_cast<int64_t>(static_cast<double>(counts.bytes) / std::max(made.seconds, 1e-3));
  const std::string out = report::printable(made.out.string());
  call.out.write(out + ": " + report::human_count(counts.tokens) + " tokens (" + made.dtype +
                 ") of " + report::counted(counts.documents, "document", "documents") + " in " +
                 report::counted(made.files, "file", "files") + ", " +
                 report::human_bytes(counts.bytes) + " in " + time_taken(made.seconds) + ", " +
                 report::human_bytes(rate) + "/s\n" +
                 "set dataset.kind = \"tokens\" and dataset.path = \"" + out +
                 "\" to train on them; the model's vocab_size has to be at least " +
                 std::to_string(made.vocabulary) + "\n");
}

int run_tokenize(Call& call) {
  want_flags(
      call, "tokenize",
      {{"tokenizer", "FOLDER, where tokenizer.json lies"},
       {"out", "X.bin, the file of tokens to write"}},
      "meshwright tokenize 'data/*.txt' --tokenizer models/Llama-3.2-1B --out data/train.bin");
  const fs::path out = output(call);
  fs::path file = call.value("tokenizer"), folder = file;
  std::error_code failed;
  if (fs::is_directory(file, failed))
    file = tokenizer::tokenizer_file(folder).value_or(folder / "tokenizer.json");
  else
    folder = file.has_parent_path() ? file.parent_path() : ".";
  tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(file);
  for (const std::string& note : tokenizer.notes())
    call.err.write(report::format_notice(call.err_style, note));
  const tokenizer::CorpusOptions options = read_options(call, tokenizer, folder);
  std::vector<std::string> files = inputs(call, out);

  auto begin = std::chrono::steady_clock::now();
  data::TokenWriter writer(out, tokenizer.size());
  tokenizer::CorpusCounts counts;
  {
    report::ByteProgress progress(call.err, call.err_style, ::isatty(2) == 1, "tokenizing",
                                  bytes_of(files));
    counts = tokenizer::encode_files(tokenizer, files, options,
                                     [&](std::span<const int64_t> ids, int64_t bytes) {
                                       writer.append(ids);
                                       progress.add(bytes);
                                     });
  }
  if (counts.tokens == 0)
    throw Error(ErrorCode::bad_dataset, "the files hold no text: nothing was written")
        .help("blank lines are no documents; --documents file");
  writer.finish();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tell(call, {out, static_cast<int64_t>(files.size()), tokenizer.size(), writer.type_name(),
              options.document_end, counts, seconds});
  return 0;
}

}  // namespace

Verb tokenize_verb() {
  return declare(run_tokenize, R"(
tokenize FILES...
Turn text files into one file of tokens

The file is what dataset.kind = "tokens" reads; ids are those of the tokenizers library.
  meshwright tokenize 'data/*.txt' --tokenizer models/Llama-3.2-1B --out data/train.bin --document-end eos
  meshwright tokenize rows.jsonl --documents json --text-key text --tokenizer models/Qwen3-0.6B --out data/train.bin
FILES are files, folders and quoted patterns, each sorted by name; *.gz and *.zst are unpacked, and
of *.parquet the rows are read as with --documents json. A document gets what the tokenizer's
template puts around a text, a beginning-of-text token perhaps, and the token of --document-end at
its end. Tokens have two bytes where the vocabulary allows it, else four.

--tokenizer FOLDER    A folder with tokenizer.json, tokenizer.model or tekken.json, or that file.
--out X.bin           The file to write. It appears once it is complete.
--force               Replace a file that is already there.
--documents KIND      What a document is: file, line (every line that is not blank), or json (a
                      JSON object on every line). Default: file.
--text-key KEY        The field that holds the text of --documents json. Default: text.
--document-end TOKEN  Put this token after every document: eos, a token or an id. Default: nothing.
--no-special          Leave out what the tokenizer's template puts around a document.
--threads N           Encode in N threads; the tokens are the same. Default: one a core.
--json
)");
}

}  // namespace meshwright::cli
