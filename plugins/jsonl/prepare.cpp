#include "prepare.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "cached_store.h"
#include "kind.h"
#include "meshwright/error.h"
#include "row_pieces.h"
#include "sdk/base/beside.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::jsonl {

// What is saved beside a model that was tuned with other files than its own.
std::vector<LanguageFile> JsonlKind::language(const DatasetRequest& request) const {
  namespace fs = std::filesystem;
  const JsonlOptions options = JsonlOptions::read(request);
  std::vector<LanguageFile> out;
  if (request.options.is_set("tokenizer"))
    for (const std::string& file : options.language_files())
      if (file != options.chat_template)
        out.push_back({fs::path(file).lexically_relative(options.folder).generic_string(), file});
  if (options.chat_template.empty()) return out;
  const chat::Store store =
      chat::Store::open(options.folder, options.chat_template, options.table + ".chat_template");
  LanguageFile chosen{"chat_template.jinja", "", store.choose(false).text()};
  // Others of the tokenizer's folder would go before it: transformers takes tool_use for rows with
  // tools.
  std::erase_if(out, [&](const LanguageFile& file) {
    return file.name == chosen.name || file.name.starts_with("additional_chat_templates/");
  });
  out.push_back(std::move(chosen));
  return out;
}

namespace {

using chat::ChatTemplate;
using chat::Value;

// The variable that a message says is undefined; "": it says something else.
std::string undefined_variable(std::string_view message) {
  constexpr std::string_view kEnd = "' is undefined";
  if (!message.ends_with(kEnd)) return {};
  message.remove_suffix(kEnd.size());
  const size_t quote = message.rfind('\'');
  return quote == std::string_view::npos ? std::string() : std::string(message.substr(quote + 1));
}

bool refuses(const ChatTemplate& chat, ChatTemplate::Request request, const Value& messages) {
  request.messages = &messages;
  try {
    chat.render(request);
  } catch (const Error&) {
    return true;
  }
  return false;
}

// What a content says, as one string.
Value as_string(const Value* content) {
  std::string out;
  if (content != nullptr && content->is_list())
    for (const Value& part : content->as_list())
      if (const Value* text = part.get("text"); text != nullptr && text->is_string())
        out += text->as_string();
  return Value::string(std::move(out));
}

// Where the template would take the row if every content were a string: the first message whose
// content it does not take.
std::string content_help(const ChatTemplate& chat, const ChatTemplate::Request& request,
                         const Row& row, const std::string& table) {
  const Value::List& given = row.messages.as_list();
  Value mended = row.messages;
  std::vector<size_t> changed;
  for (size_t i = 0; i < given.size(); ++i) {
    const Value* content = given[i].get("content");
    if (content != nullptr && content->is_string()) continue;
    mended.as_list()[i].set("content", as_string(content));
    changed.push_back(i);
  }
  if (changed.empty() || refuses(chat, request, mended)) return {};
  for (const size_t i : changed) {
    Value one = mended;
    one.as_list()[i] = given[i];
    if (!refuses(chat, request, one)) continue;
    const Value* content = given[i].get("content");
    const bool texts = content != nullptr && content->is_list();
    return row.names[i] +
           (content == nullptr ? " has no \"content\""
            : texts            ? ".content is a list of texts"
                               : ".content is null") +
           ", which this template does not take: write " +
           (texts ? "its texts as one string" : "\"\" in its place") + ", or set " + table +
           ".chat_template to one that does";
  }
  return {};
}

}  // namespace

std::vector<std::string> template_help(const std::string& message, const ChatTemplate* chat,
                                       const ChatTemplate::Request& request, const Row& row,
                                       const std::string& table) {
  if (chat == nullptr) return {"mend the template, or set " + table + ".chat_template to another"};
  const std::string variable = undefined_variable(message);
  if (variable == "strftime_now")
    return {"set " + table + ".date = \"2024-07-26\": the day that strftime_now says"};
  if (std::string help = content_help(*chat, request, row, table); !help.empty()) return {help};
  if (!variable.empty())
    return {"if it is a variable of the template, set " + table + ".template_variables = { " +
            variable + " = ... }"};
  return {"change the row, or set " + table + ".chat_template to a template that takes it"};
}

namespace {

namespace fs = std::filesystem;

struct Work {
  const DataFile* file = nullptr;
  const RowFile* rows = nullptr;
  Chunk chunk;
};
struct Made {
  std::optional<StoreWriter> writer;
  StoreCounts counts;
};

Made encode_chunk(const Work& work, const RowEncoder& encoder, const Form& form, bool wide) {
  Made out;
  out.writer.emplace(wide);
  work.file->mapped->check_size();
  for (const RowPiece& piece : work.rows->rows(work.chunk)) {
    const std::string where = work.file->path + ":" + std::to_string(piece.line);
    const chat::Value value = parse_row(piece.text, work.file->path, piece.line, piece.column);
    Encoded encoded = encoder.encode(read_row(value, form, where), where);
    encoded.document.row = work.file->before + piece.offset;
    out.writer->add(encoded.document);
    out.counts += encoded.counts;
  }
  return out;
}

// Takes chunks in order by several threads. The error of the earliest chunk is the one thrown.
std::vector<Made> encode_all(const std::vector<Work>& work, const RowEncoder& encoder,
                             const Form& form, bool wide, const JsonlOptions& options,
                             const std::function<void(int64_t bytes)>& done) {
  std::vector<Made> made(work.size());
  std::vector<std::exception_ptr> wrong(work.size());
  std::atomic<size_t> next{0}, stop{work.size()};
  std::mutex telling;
  auto take = [&] {
    for (size_t i; (i = next.fetch_add(1)) < stop.load();) try {
        made[i] = encode_chunk(work[i], encoder, form, wide);
        const std::lock_guard<std::mutex> lock(telling);
        done(static_cast<int64_t>(work[i].chunk.end - work[i].chunk.begin));
      } catch (...) {
        wrong[i] = std::current_exception();
        size_t before = stop.load();
        while (i < before && !stop.compare_exchange_weak(before, i)) {
        }
      }
  };
  {
    const size_t most = std::min(work.size(), static_cast<size_t>(std::max(options.threads, 1)));
    const auto others = detail::helpers(most > 0 ? most - 1 : 0, [&] { take(); });
    take();
  }
  for (const std::exception_ptr& one : wrong)
    if (one) std::rethrow_exception(one);
  return made;
}

// How the first row is read; none: there is no row.
std::optional<Form> first_form(const DataFile& file, const std::vector<RowPiece>& rows,
                               const Asked& asked) {
  if (rows.empty()) return std::nullopt;
  const RowPiece& piece = rows.front();
  return form_of(parse_row(piece.text, file.path, piece.line, piece.column), asked,
                 file.path + ":" + std::to_string(piece.line));
}

// Of a row that is shown: that of the first row where both are of one kind, and its own else, since
// what is wrong with others does not matter.
Form form_of_shown(const chat::Value& row, const std::optional<Form>& first, const Asked& asked,
                   const std::string& where) {
  if (first && first->by_fields) return *first;
  Form own = form_of(row, asked, where);
  return first && first->reading == own.reading ? *first : own;
}

Error no_rows(const JsonlOptions& options) {
  const std::vector<std::string>& files = options.files;
  return {ErrorCode::bad_dataset, (files.empty() ? std::string("no file") : files[0]) +
                                      (files.size() > 1 ? " and others have" : " has") +
                                      " no rows"};
}

// The rows of all files, chunk by chunk, until `take` returns false.
void each_chunk(const std::vector<DataFile>& files,
                const std::function<bool(const DataFile&, const std::vector<RowPiece>&)>& take) {
  for (const DataFile& file : files) {
    const RowFile rows(file.text(), file.path);
    for (const Chunk& chunk : rows.chunks()) {
      if (file.mapped) file.mapped->check_size();
      if (!take(file, rows.rows(chunk))) return;
    }
  }
}

}  // namespace

std::vector<std::string> JsonlOptions::language_files() const {
  std::vector<std::string> out;
  std::error_code failed;
  if (const std::optional<fs::path> file = tokenizer::tokenizer_file(folder))
    out.push_back(file->string());
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
    if (const fs::path path = fs::path(folder) / name; fs::is_regular_file(path, failed))
      out.push_back(path.string());
  std::vector<std::string> more;
  for (const auto& entry :
       fs::directory_iterator(fs::path(folder) / "additional_chat_templates", failed))
    if (entry.path().extension() == ".jinja") more.push_back(entry.path().string());
  std::sort(more.begin(), more.end());
  out.insert(out.end(), more.begin(), more.end());
  if (!chat_template.empty() && fs::is_regular_file(chat_template, failed))
    out.push_back(chat_template);
  return out;
}

std::vector<std::string> JsonlOptions::all_files() const {
  std::vector<std::string> out = files;
  for (std::string& file : language_files()) out.push_back(std::move(file));
  return out;
}

std::vector<std::byte> build_store(const JsonlOptions& options, const std::string& key,
                                   const std::function<void(const Preparation&)>& progress,
                                   const Tell& tell) {
  const std::vector<DataFile> files =
      open_files(options.files, Packed::unpacked, options.asked.columns());
  std::vector<RowFile> row_files;
  row_files.reserve(files.size());
  std::vector<Work> work;
  Preparation at;
  for (const DataFile& file : files) {
    const RowFile& rows = row_files.emplace_back(file.text(), file.path);
    for (const Chunk& chunk : rows.chunks()) work.push_back({&file, &rows, chunk});
    at.total += static_cast<int64_t>(file.text().size());
  }
  std::optional<Form> form;
  for (const Work& one : work)
    if ((form = first_form(*one.file, one.rows->rows(one.chunk), options.asked))) break;
  if (!form) throw no_rows(options);
  const auto language = Language::read(options.folder, options.chat_template, options.table);
  for (const std::string& note : language->tokenizer.notes()) tell(note);
  const RowEncoder encoder(language, options.encode);
  const bool wide = language->tokenizer.size() > 65536;
  std::vector<Made> made = encode_all(work, encoder, *form, wide, options, [&](int64_t bytes) {
    at.bytes += bytes;
    progress(at);
  });
  StoreWriter all(wide);
  StoreOrigin origin;
  origin.key = key;
  origin.parts = key_parts(options);
  origin.form = form->told;
  for (Made& one : made) {
    all.append(std::move(*one.writer));
    one.writer.reset();
    origin.counts += one.counts;
  }
  if (origin.counts.chats > 0) origin.template_hash = template_hash(language->templates);
  return all.bytes(origin);
}

int64_t count_rows(const JsonlOptions& options) {
  int64_t out = 0;
  each_chunk(open_files(options.files, Packed::unpacked, options.asked.columns()),
             [&](const DataFile&, const std::vector<RowPiece>& rows) {
               out += static_cast<int64_t>(rows.size());
               return true;
             });
  if (out == 0) throw no_rows(options);
  return out;
}

ShownRow show_row(const JsonlOptions& options, int64_t number) {
  std::optional<ShownRow> out;
  std::optional<Form> first;
  bool began = false;
  int64_t before = 0;
  each_chunk(open_files(options.files, Packed::unpacked, options.asked.columns()),
             [&](const DataFile& file, const std::vector<RowPiece>& rows) {
               if (!began && !rows.empty()) {
                 began = true;
                 try {
                   first = first_form(file, rows, options.asked);
                 } catch (const Error&) {  // Told where the whole is read.
                 }
               }
               const int64_t within = number - before;
               before += static_cast<int64_t>(rows.size());
               if (number >= before) return true;
               const RowPiece& piece = rows[static_cast<size_t>(within)];
               const std::string place = file.path + ":" + std::to_string(piece.line);
               const chat::Value value = parse_row(piece.text, file.path, piece.line, piece.column);
               const Form form = form_of_shown(value, first, options.asked, place);
               const Row row = read_row(value, form, place);
               const RowEncoder encoder(
                   Language::read(options.folder, options.chat_template, options.table),
                   options.encode);
               out = ShownRow{place, encoder.encode(row, place), form.told};
               return false;
             });
  if (!out)
    throw Error(ErrorCode::bad_dataset,
                options.files.front() + ": the rows have changed meanwhile");
  return *std::move(out);
}

std::shared_ptr<const TokenStore> prepare_store(
    const JsonlOptions& options, const std::function<void(const std::string&)>& tell) {
  const std::string key = cache_key(options);
  const auto progress = telling_progress(tell);
  try {
    auto build = [&] {
      std::vector<std::byte> built = build_store(options, key, progress, tell);
      // Others may have waited for it for long, and would go by what the key says.
      if (cache_key(options) != key)
        throw Error(ErrorCode::bad_dataset,
                    options.files.front() +
                        ": the rows, the tokenizer or the template have changed while they were "
                        "tokenized")
            .key(options.table + ".path")
            .help("start again when nobody writes to them");
      return built;
    };
    return cached_store(options.cache, key, build, tell);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::output_unwritable) throw;
    throw Error(error.code(), error.message())
        .key(options.table + ".cache")
        .help("set " + options.table + ".cache to a folder that may be written to, or to \"none\"");
  }
}

}  // namespace meshwright::jsonl
