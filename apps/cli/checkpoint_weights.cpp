// checkpoint export and checkpoint diff.
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <optional>

#include "apps/cli/verb.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/config/config.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;
using checkpoint::TensorDifference;
using report::Tone;

// "5GB", "500 MB", "1.5GiB", "100000": units of 1000 as transformers reads them, GiB and the like
// of 1024.
int64_t size_of(const std::string& flag, const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9}, {"TB", 1e12}, {"KIB", 1024.0},
      {"MIB", 1048576.0}, {"GIB", 1073741824.0}, {"B", 1.0},  {"", 1.0}};
  size_t digits = text.find_first_not_of("0123456789.");
  std::string number = text.substr(0, digits),
              unit = digits == std::string::npos ? "" : text.substr(digits);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  char* end = nullptr;
  double value = text::read_real(number.c_str(), &end);
  for (const auto& [name, times] : kUnits)
    if (unit == name && !number.empty() && *end == '\0' && value * times >= 1 &&
        value * times < 9e18)
      return static_cast<int64_t>(value * times);
  throw Error(ErrorCode::usage,
              "--" + flag + " wants a size of at least one byte, found \"" + text + "\"")
      .help("--" + flag + " 5GB")
      .help("--" + flag + " 500MB");
}

// Changes below half a step of a narrow dtype are lost.
std::string merge_line(const checkpoint::MergeCount& merged) {
  return checkpoint::merge_text(merged) + (2 * merged.unchanged > merged.elements
                                               ? "; --dtype float32 keeps smaller changes\n"
                                               : "\n");
}

// The model that the checkpoint's run began with, as its folder says; empty: that is not known.
fs::path begun_with(const fs::path& checkpoint) {
  std::error_code failed;
  const fs::path file =
      fs::weakly_canonical(checkpoint, failed).parent_path().parent_path() / config::kResolvedFile;
  if (failed || !fs::is_regular_file(file, failed)) return {};
  Diagnostics ignored;  // of a file that somebody has edited
  for (const config::Setting& setting :
       config::settings_of(base::read_file(file), file.string(), ignored)) {
    if (setting.key != "model.pretrained") continue;
    if (const std::optional<std::string> text = config::text_of(setting.value);
        text && *text != "none")
      return *text;
  }
  return {};
}

// Nothing is written before.
void check_keeps_models(checkpoint::Source& source, const fs::path& target) {
  checkpoint::check_keeps_base(source, target);
  if (source.checkpoint() == nullptr) return;
  if (const fs::path begun = begun_with(source.path());
      !begun.empty() && weights::would_replace(target, begun))
    throw Error(ErrorCode::output_unwritable,
                "an export to " + target.string() + " would take away " + begun.string() +
                    ", the model that the run of " + source.path().string() + " began with")
        .help("name a folder that does not exist yet");
}

int run_export(Call& call) {
  if (!call.has("out") || call.value("out").empty())
    throw Error(ErrorCode::usage,
                "meshwright checkpoint export wants --out DIR, the folder to write")
        .help("--out exported");
  checkpoint::ExportChoice choice;
  if (call.has("dtype")) {
    choice.dtype = parse_dtype(call.value("dtype"));
    if (!weights::is_floating(*choice.dtype))
      throw Error(ErrorCode::bad_dtype,
                  "--dtype wants a floating dtype, found " + std::string(dtype_name(*choice.dtype)))
          .help("--dtype bfloat16")
          .help("--dtype float32");
  }
  if (call.has("shard-size")) choice.shard_bytes = size_of("shard-size", call.value("shard-size"));
  if (call.has("merged")) choice.form = checkpoint::ExportForm::merged;
  fs::path target = call.value("out");
  weights::check_target(target);
  checkpoint::Source source(call.positional(0), call.has("base") ? call.value("base") : "");
  check_keeps_models(source, target);
  if (call.has("base") && (source.checkpoint() == nullptr || !source.checkpoint()->meta().base))
    throw Error(ErrorCode::usage, source.path().string() +
                                      " holds all of its model, which --base would be another of")
        .help("leave out --base");
  const bool adapters = checkpoint::adapters_of(source).has_value(),
             alone = adapters && choice.form == checkpoint::ExportForm::adapter;
  if (call.has("merged") && !adapters)
    throw Error(ErrorCode::usage,
                source.path().string() + " has no adapters that --merged could join with weights")
        .help("leave out --merged");
  if (source.weights() != nullptr && fs::is_directory(source.path())) {
    Diagnostics said;
    for (const std::string& notice : weights::carried_files(source.path()).notices)
      said.notice(notice);
    call.say(said);
  }
  if (source.checkpoint() != nullptr)
    if (const std::string notice = checkpoint::carried_by(*source.checkpoint()).notice;
        !notice.empty()) {
      Diagnostics said;
      said.notice(notice);
      call.say(said);
    }
  weights::Exported done;
  checkpoint::MergeCount merged;
  {
    report::ByteProgress progress(call.err, call.err_style, ::isatty(2) == 1, "exporting",
                                  checkpoint::export_bytes(source, choice));
    choice.progress = [&](int64_t bytes) { progress.add(bytes); };
    done = checkpoint::export_folder(source, target, choice, &merged);
  }
  if (call.json) {
    json::object told{{"source", source.path().string()},
                      {"folder", done.folder.string()},
                      {"files", json::array(done.files.begin(), done.files.end())},
                      {"bytes", done.bytes}};
    if (alone) {
      const std::vector<std::string> lacks = checkpoint::trained_whole(source);
      told["trained_whole"] = json::array(lacks.begin(), lacks.end());
    }
    if (merged.elements > 0)
      told["merged"] = json::object{{"elements", merged.elements}, {"unchanged", merged.unchanged}};
    call.print_json(told);
    return 0;
  }
  call.out.write("wrote " + report::printable(target.string()) + ": " +
                 report::counted(static_cast<int64_t>(done.files.size()), "file", "files") + ", " +
                 report::human_bytes(done.bytes) + ", from " +
                 report::printable(source.path().string()) + "\n");
  if (merged.elements > 0) call.out.write(merge_line(merged));
  call.out.flush();
  if (const std::string lacks = alone ? checkpoint::trained_whole_text(source) : ""; !lacks.empty())
    call.err.write(report::format_warning(
        call.err_style, lacks + "; --merged writes the whole model with them in its weights"));
  if (!alone && std::find(done.files.begin(), done.files.end(), "config.json") == done.files.end())
    call.err.write(report::format_warning(
        call.err_style,
        "there was no config.json to write; transformers needs one beside the weights"));
  return 0;
}

std::string name_of(const TensorDifference& t) {
  return t.state.empty() ? t.name : t.state + " of " + t.name;
}

// Those that differ, the most different first: another shape or dtype, then by relative difference.
std::vector<const TensorDifference*> by_difference(const checkpoint::Difference& difference) {
  std::vector<const TensorDifference*> out;
  for (const TensorDifference& t : difference.both)
    if (!t.equal()) out.push_back(&t);
  std::stable_sort(out.begin(), out.end(),
                   [](const TensorDifference* a, const TensorDifference* b) {
                     if (a->same_shape() != b->same_shape()) return !a->same_shape();
                     return a->relative > b->relative;
                   });
  return out;
}

// JSON has no infinity.
json::value number(double value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}

json::object difference_json(const TensorDifference& t) {
  json::object row{{"name", t.name},
                   {"state", t.state.empty() ? json::value(nullptr) : json::value(t.state)}};
  row["dtype"] =
      json::array{std::string(dtype_name(t.dtype_a)), std::string(dtype_name(t.dtype_b))};
  row["shape"] = json::array{json::array(t.shape_a.begin(), t.shape_a.end()),
                             json::array(t.shape_b.begin(), t.shape_b.end())};
  if (!t.same_shape()) return row;
  row["elements"] = t.elements;
  row["differing"] = t.differing;
  row["max_abs"] = number(t.max_abs);
  row["relative"] = number(t.relative);
  row["worst_element"] = t.worst < 0 ? json::value(nullptr) : json::value(t.worst);
  return row;
}

void print_difference(Call& call, const checkpoint::Difference& difference,
                      const std::vector<const TensorDifference*>& different) {
  const report::Style& style = call.out_style;
  constexpr size_t kMost = 20;
  size_t shown = call.has("all") ? different.size() : std::min(kMost, different.size());
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "what differs", "elements", "max abs", "relative"}};
  for (size_t i = 0; i < shown; ++i) {
    const TensorDifference& t = *different[i];
    if (!t.same_shape()) {
      rows.push_back(
          {report::printable(name_of(t)),
           "shape " + report::shape_text(t.shape_a) + " and " + report::shape_text(t.shape_b), "",
           "", ""});
      continue;
    }
    std::string what = t.differing == 0 ? "" : "values";
    if (t.dtype_a != t.dtype_b)
      what = std::string(dtype_name(t.dtype_a)) + " and " + std::string(dtype_name(t.dtype_b)) +
             (what.empty() ? ", same values" : ", values");
    rows.push_back({report::printable(name_of(t)), what,
                    report::human_count(t.differing) + " of " + report::human_count(t.elements),
                    t.differing == 0 ? "0" : text::short_number(t.max_abs),
                    t.differing == 0 ? "0" : text::short_number(t.relative)});
  }
  constexpr size_t kRight[] = {2, 3, 4};
  if (rows.size() > 1) call.out.write(report::table(style, rows, kRight));
  if (shown < different.size())
    call.out.write("and " + std::to_string(different.size() - shown) + " more; --all shows them\n");
  for (const auto& [names, which] :
       {std::pair(&difference.only_a, "first"), std::pair(&difference.only_b, "second")}) {
    size_t most = call.has("all") ? names->size() : std::min(kMost, names->size());
    for (size_t i = 0; i < most; ++i)
      call.out.write(std::string("only in the ") + which + ": " + report::printable((*names)[i]) +
                     "\n");
    if (most < names->size())
      call.out.write("and " + std::to_string(names->size() - most) + " more only in the " + which +
                     "; --all shows them\n");
  }
}

int run_diff(Call& call) {
  checkpoint::Source a(call.positional(0)), b(call.positional(1));
  checkpoint::Difference difference;
  {
    report::ByteProgress progress(call.err, call.err_style, ::isatty(2) == 1, "comparing",
                                  checkpoint::diff_bytes(a, b));
    difference = checkpoint::compare(a, b, [&](int64_t bytes) { progress.add(bytes); });
  }
  std::vector<const TensorDifference*> different = by_difference(difference);
  const int status = difference.equal() ? 0 : exit_status(ErrorCode::weights_mismatch);
  if (call.json) {
    json::array rows;
    for (const TensorDifference* t : different) rows.push_back(difference_json(*t));
    call.print_json(
        json::object{{"a", a.path().string()},
                     {"b", b.path().string()},
                     {"equal", difference.equal()},
                     {"compared", difference.both.size()},
                     {"optimizer_compared", difference.optimizer_compared},
                     {"different", rows},
                     {"only_a", json::array(difference.only_a.begin(), difference.only_a.end())},
                     {"only_b", json::array(difference.only_b.begin(), difference.only_b.end())}});
    return status;
  }
  print_difference(call, difference, different);
  std::string summary =
      report::counted(static_cast<int64_t>(difference.both.size()), "tensor", "tensors") +
      " in both" + (difference.optimizer_compared ? ", the optimizer's among them" : "") + ": " +
      (different.empty() ? "all equal"
                         : report::human_count(static_cast<int64_t>(different.size())) + " differ");
  call.out.write(
      report::paint(call.out_style, difference.equal() ? Tone::green : Tone::yellow, summary) +
      "\n");
  call.out.flush();
  if (difference.optimizer_a != difference.optimizer_b)
    call.err.write(report::format_notice(
        call.err_style, std::string("only the ") + (difference.optimizer_a ? "first" : "second") +
                            " has an optimizer's state; weights alone were compared"));
  return status;
}

}  // namespace

Verb checkpoint_export_verb() {
  return declare(run_export, R"(
checkpoint export FOLDER
Write a checkpoint as a Hugging Face folder, without starting ranks

FOLDER is a checkpoint, or a run whose latest is taken; a Hugging Face folder is written
anew. Shards of any layout are merged tensor by tensor, each byte checked against its checksum,
dtypes as in the folder the run started from. config.json stays as it was (with --dtype the dtype
it names follows), and so do the tokenizer and the other files of that folder. Of a run with
adapters these are written alone, as peft reads them; with --merged the whole model is, its weights
and the adapters' added up. DIR is put in place in one go; one that is there already must be an
earlier export, and not the model that the run began with.
  meshwright checkpoint export runs/first --out first-hf
  meshwright checkpoint export runs/first/checkpoints/step_00000050 --out half --dtype bfloat16

--out DIR          The folder to write.
--merged           Write the whole model, adapters in its weights.
--base DIR         Where the model now is that the run with adapters started from. Default: where
                   it was then.
--dtype DTYPE      Convert all floating weights: float32, bfloat16, float16 or float64.
--shard-size SIZE  Most bytes of one safetensors file (500MB, 5GB). Default: 5GB.
--json
)");
}

Verb checkpoint_diff_verb() {
  return declare(run_diff, R"(
checkpoint diff A B
Compare two checkpoints or Hugging Face folders tensor by tensor

Compares names, shapes, dtypes and every element, whatever layout each was saved in, and the
optimizer's state when both have one. The exit status is 0 when all is equal and 7 when something
differs or cannot be read.
  meshwright checkpoint diff runs/first runs/second
  meshwright checkpoint diff runs/first/hf models/Llama-3.2-1B

--all   Show every difference, not only the largest 20.
--json
)");
}

}  // namespace meshwright::cli
