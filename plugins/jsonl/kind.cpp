#include "kind.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include "packed_source.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"
#include "text_documents.h"

namespace meshwright::jsonl {

namespace {

void tell(const std::string& line) { std::fprintf(stderr, "jsonl: %s\n", line.c_str()); }

std::string names_of(const StoreCounts::Names& names) {
  std::string out;
  for (const auto& [name, times] : names.named) out += (out.empty() ? "" : ", ") + name;
  return out + (names.others > 0 ? ", ..." : "");
}

Error about(const DatasetRequest& request, const char* option, ErrorCode code,
            const std::string& message) {
  return Error(code, request.options.schema().table + "." + option + ": " + message)
      .key(request.options.schema().table + "." + option)
      .at(request.options.origin(option));
}

std::optional<chat::Date> date_of(const DatasetRequest& request) {
  if (!request.options.is_set("date")) return std::nullopt;
  const std::string text = request.options.get_string("date");
  chat::Date out;
  auto read = [&](size_t at, size_t size, int& to) {
    return std::from_chars(text.data() + at, text.data() + at + size, to).ptr ==
           text.data() + at + size;
  };
  const bool fine =
      text.size() == 10 && text[4] == '-' && text[7] == '-' && read(0, 4, out.year) &&
      read(5, 2, out.month) && read(8, 2, out.day) && out.year >= 1 && out.month >= 1 &&
      out.day >= 1 &&
      std::chrono::year_month_day(std::chrono::year(out.year),
                                  std::chrono::month(static_cast<unsigned>(out.month)),
                                  std::chrono::day(static_cast<unsigned>(out.day)))
          .ok();
  if (!fine)
    throw about(request, "date", ErrorCode::bad_choice, "\"" + text + "\" is no date")
        .help("set " + request.options.schema().table + ".date = \"2024-07-26\", or \"none\"");
  return out;
}

using chat::Value;

// "a.b" is the member b of the variable a, which is a table in the file.
void put_variable(Value& variables, std::string_view name, Value value) {
  const size_t dot = name.find('.');
  std::string first(name.substr(0, dot));
  if (dot != std::string_view::npos) {
    const Value* known = variables.get(first);
    Value inner = known != nullptr && known->is_dict() ? *known : Value::dict();
    put_variable(inner, name.substr(dot + 1), std::move(value));
    value = std::move(inner);
  }
  variables.set(std::move(first), std::move(value));
}

Value variables_of(const DatasetRequest& request) {
  Value out = Value::dict();
  const auto& value = request.options.value("template_variables");
  if (const auto* map = std::get_if<StringMap>(&value))
    for (const auto& [key, text] : *map) {
      Value held;
      try {
        held = chat::parse_json(text);
      } catch (const Error&) {
        held = Value::string(text);
      }
      put_variable(out, key, std::move(held));
    }
  return out;
}

Asked asked_of(const DatasetRequest& request) {
  Asked out;
  out.table = request.options.schema().table;
  const std::string format = request.options.get_string("format");
  for (RowKind kind : {RowKind::messages, RowKind::prompt_completion, RowKind::text})
    if (format == name_of(kind)) out.format = kind;
  try {
    if (const auto* map = std::get_if<StringMap>(&request.options.value("fields")))
      for (const auto& [part, column] : *map) out.set(part, column);
    out.check();
  } catch (Error& error) {
    throw error.at(request.options.origin("fields"));
  }
  return out;
}

// Of a folder those files of rows that have none: of no bytes, and links that lead nowhere.
std::vector<std::string> empty_files(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string file = at->path().string();
    if (!is_rows_name(file) || is_hidden(file, folder)) continue;
    std::error_code unseen;
    const fs::file_status status = fs::status(at->path(), unseen);
    if (!fs::exists(status) || (fs::is_regular_file(status) && fs::file_size(file, unseen) == 0))
      out.push_back(file);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void read_files(const DatasetRequest& request, JsonlOptions& out) {
  const std::string key = request.table + ".path";
  std::error_code failed;
  try {
    out.files = base::list_files(request.path, key, "");
  } catch (const Error& error) {
    Error told(error);
    if (!std::filesystem::exists(request.path, failed))
      told.help("set " + key +
                " to a file, a folder (its *.jsonl, *.json and *.parquet), or a pattern: "
                "\"data/*.jsonl\"");
    throw told;
  }
  if (!std::filesystem::is_directory(request.path, failed)) return;
  out.empty = empty_files(request.path);
  const auto rest =
      std::stable_partition(out.files.begin(), out.files.end(), [&](const std::string& file) {
        return is_rows_name(file) && !is_hidden(file, request.path);
      });
  out.left_out.assign(rest, out.files.end());
  out.files.erase(rest, out.files.end());
  if (out.files.empty())
    throw Error(ErrorCode::bad_dataset,
                request.path + ": none of " +
                    text::counted(static_cast<int64_t>(out.left_out.size()), "file") +
                    " in it ends in .jsonl, .json or .parquet")
        .key(key)
        .help("name the files by a pattern: set " + key + " = \"" +
              (std::filesystem::path(request.path) / "*.txt").string() + "\"");
}

template <class Enum>
Enum chosen(const Options& options, const char* name,
            std::initializer_list<std::pair<const char*, Enum>> choices) {
  const std::string value = options.get_string(name);
  for (const auto& [text, out] : choices)
    if (value == text) return out;
  throw Error(ErrorCode::internal, std::string("no choice of ") + name + ": " + value);
}

SampleSettings settings_of(const DatasetRequest& request, const JsonlOptions& options) {
  const Options& given = request.options;
  return {request.seq_len,
          chosen<Truncate>(
              given, "truncate",
              {{"right", Truncate::right}, {"left", Truncate::left}, {"drop", Truncate::drop}}),
          chosen<Packing>(given, "packing",
                          {{"bfd", Packing::best_fit},
                           {"sequential", Packing::sequential},
                           {"none", Packing::none}}),
          request.seed,
          request.vocab_size,
          request.table,
          request.path,
          options.all_files(),
          options.left_out,
          options.empty};
}

// Rows want a tokenizer, and neither they nor the model name a folder with one.
Error no_folder(const DatasetRequest& request) {
  return about(request, "tokenizer", ErrorCode::bad_tokenizer,
               "there is no tokenizer, since the model has no folder with one")
      .help("set " + request.options.schema().table + ".tokenizer to a folder with tokenizer.json")
      .help("or set model.pretrained to one, or put tokenizer.json beside model.config");
}

}  // namespace

JsonlOptions JsonlOptions::read(const DatasetRequest& request) {
  const Options& given = request.options;
  JsonlOptions out;
  out.table = request.options.schema().table;
  read_files(request, out);
  out.folder = given.is_set("tokenizer") ? given.get_string("tokenizer") : request.pretrained;
  if (out.folder.empty()) throw no_folder(request);
  if (!tokenizer::tokenizer_file(out.folder))
    throw about(request, "tokenizer", ErrorCode::bad_tokenizer,
                out.folder + " " + tokenizer::kNoTokenizer)
        .help("name the folder of a Hugging Face tokenizer");
  out.chat_template = given.get_string("chat_template");
  out.asked = asked_of(request);
  out.encode.train_on = chosen<TrainOn>(
      given, "train_on",
      {{"assistant", TrainOn::assistant}, {"last", TrainOn::last}, {"all", TrainOn::all}});
  out.encode.special = chosen<SpecialInContent>(given, "special_tokens_in_content",
                                                {{"text", SpecialInContent::text},
                                                 {"parse", SpecialInContent::parse},
                                                 {"error", SpecialInContent::error}});
  out.encode.variables = variables_of(request);
  out.encode.table = out.table;
  out.encode.date = date_of(request);
  out.cache = cache_place(request.options.get_string("cache"), out.table + ".cache");
  const int64_t threads = given.get_int("threads");
  out.threads = threads > 0 ? static_cast<int>(threads)
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const char* name : {"format", "chat_template", "template_variables", "date", "train_on",
                           "special_tokens_in_content", "fields"})
    // One that came later has its place where it is set: other keys are those of earlier versions.
    if (name != std::string_view("fields") || given.is_set(name))
      out.key += std::string(name) + " = " + to_toml(given.value(name)) + "\n";
  return out;
}

void JsonlKind::validate(const DatasetRequest& request, Diagnostics& found) const {
  auto check = [&](auto&& what) {
    try {
      what();
    } catch (const Error& error) {
      found.add(error);
    }
  };
  check([&] { date_of(request); });
  check([&] { asked_of(request); });
  if (request.path.empty())
    found.add(Error(ErrorCode::missing_key, request.table + ".path is needed: the rows")
                  .key(request.table + ".path")
                  .help("set " + request.table + ".path = \"data/chats.jsonl\""));
  if (request.pretrained.empty() && !request.options.is_set("tokenizer"))
    found.add(no_folder(request));
}
void JsonlKind::prepare(const DatasetRequest& request) const {
  store_of(JsonlOptions::read(request));
}

std::unique_ptr<SampleSource> JsonlKind::open(const DatasetRequest& request) const {
  return packed(request);
}

std::unique_ptr<PackedSource> JsonlKind::packed(const DatasetRequest& request) const {
  const JsonlOptions options = JsonlOptions::read(request);
  auto out = std::make_unique<PackedSource>(store_of(options), settings_of(request, options));
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_.insert_or_assign({out->fingerprint(), request.vocab_size}, out->counts());
  return out;
}

void* JsonlKind::extension(uint32_t id) {
  if (id == kDatasetInspector) return static_cast<DatasetInspector*>(this);
  return id == kDatasetLanguage ? static_cast<DatasetLanguage*>(this) : nullptr;
}

int64_t JsonlKind::rows(const DatasetRequest& request) const {
  return count_rows(JsonlOptions::read(request));
}

DatasetRow JsonlKind::row(const DatasetRequest& request, int64_t number) const {
  const JsonlOptions options = JsonlOptions::read(request);
  if (const int64_t rows = count_rows(options); number < 0 || number >= rows)
    throw Error(ErrorCode::usage, "there is no row " + std::to_string(number) + ": " +
                                      request.path + " has rows 0 to " + std::to_string(rows - 1));
  ShownRow shown = show_row(options, number);
  if (const StoreCounts::Names& unread = shown.encoded.counts.columns; unread.all() > 0)
    tell("keys of this row that are not read: " + names_of(unread));
  if (!shown.form.empty()) tell(shown.form);
  if (const float weight = shown.encoded.document.weight; weight != 1)
    tell("this row has a weight of " + chat::python_float(double{weight}) + " in the loss" +
         (weight == 0 ? ": it is left out" : ""));
  DatasetRow out{std::move(shown.place), std::move(shown.encoded.text), {}};
  const Document& document = shown.encoded.document;
  for (size_t i = 0; i < document.ids.size(); ++i)
    out.tokens.push_back(
        {document.ids[i], shown.encoded.ranges[i].begin, shown.encoded.ranges[i].end, false});
  for (const Run& run : document.targets)
    for (uint32_t i = run.begin; i < run.end; ++i) out.tokens[i].target = true;
  return out;
}

std::vector<std::pair<std::string, int64_t>> JsonlKind::numbers(
    const DatasetRequest& request) const {
  const JsonlOptions options = JsonlOptions::read(request);
  const std::shared_ptr<const TokenStore> store = store_of(options);
  const std::pair<uint64_t, int64_t> key{fingerprint_of(*store, settings_of(request, options)),
                                         request.vocab_size};
  std::optional<SampleCounts> known;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = counts_.find(key); found != counts_.end()) known = found->second;
  }
  const SampleCounts counts = known ? *known : packed(request)->counts();
  const StoreCounts& met = store->origin().counts;
  return {{"rows", met.rows},
          {"tokens", static_cast<int64_t>(store->tokens())},
          {"used", counts.used},
          {"truncated", counts.truncated},
          {"too_long", counts.too_long},
          {"without_targets", counts.without_targets},
          {"of_weight_0", counts.of_weight_0},
          {"positions", counts.positions},
          {"targets", counts.targets},
          {"longest", counts.longest},
          {"special_tokens_kept_as_text", met.kept_as_text},
          {"answers_without_end", met.open_ends},
          {"texts_without_end", met.endless_texts},
          {"double_begins", met.double_begins},
          {"messages_of_unknown_roles", met.roles.all()},
          {"calls_left_out", met.calls_left_out},
          {"rows_with_tools_left_out", met.tools_left_out},
          {"rows_with_own_system", met.own_systems},
          {"rows_with_own_variables", met.own_variables},
          {"roles_of_other_names", met.renamed},
          {"keys_not_read", met.columns.all()},
          {"young_characters", met.young}};
}

std::shared_ptr<const TokenStore> JsonlKind::store_of(const JsonlOptions& options) const {
  std::string name = options.key;
  for (const std::string& file : options.all_files()) name += '\n' + file;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const TokenStore>& store = stores_[name];
  if (!store) store = prepare_store(options, tell);
  return store;
}
}  // namespace meshwright::jsonl
