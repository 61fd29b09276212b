#include "text_kind.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "meshwright/error.h"
#include "packed_source.h"
#include "prepare.h"
#include "text_source.h"

namespace meshwright::jsonl {

namespace fs = std::filesystem;

namespace {

void tell_of_text(const std::string& line) { std::fprintf(stderr, "text: %s\n", line.c_str()); }

bool is_stream(const DatasetRequest& request) {
  return request.options.get_string("packing") == "stream";
}

StreamSettings stream_settings(const DatasetRequest& request, const TextOptions& options) {
  return {request.seq_len,
          request.vocab_size,
          request.options.get_string("attention") == "document",
          request.table,
          request.path,
          options.all_files(),
          options.left_out,
          std::ssize(options.files),
          options.cache.folder};
}

SampleSettings pack_settings(const DatasetRequest& request, const TextOptions& options) {
  const std::string packing = request.options.get_string("packing");
  SampleSettings out;
  out.seq_len = request.seq_len;
  out.truncate = Truncate::split;
  out.packing = packing == "none"         ? Packing::none
                : packing == "sequential" ? Packing::sequential
                                          : Packing::best_fit;
  out.seed = request.seed;
  out.vocab_size = request.vocab_size;
  out.table = request.table;
  out.path = request.path;
  out.files = options.all_files();
  out.options = options.table;
  out.unit = "document";
  return out;
}

}  // namespace

void TextKind::validate(const DatasetRequest& request, Diagnostics& found) const {
  const std::string table = request.options.schema().table;
  if (request.path.empty())
    found.add(Error(ErrorCode::missing_key, request.table + ".path is needed: the texts")
                  .key(request.table + ".path")
                  .help("set " + request.table + ".path = \"data/*.txt\""));
  if (request.pretrained.empty())
    found.add(Error(ErrorCode::bad_tokenizer,
                    "there is no tokenizer: the model has no folder with one, and none is named")
                  .key(request.table + ".tokenizer")
                  .help("set " + request.table + ".tokenizer to a folder with tokenizer.json"));
  if (request.options.get_string("attention") == "sample" && !is_stream(request))
    found.add(Error(ErrorCode::conflict, table + ".attention = \"sample\" with " + table +
                                             ".packing = \"" +
                                             request.options.get_string("packing") +
                                             "\", whose documents lie in a sample in any order")
                  .key(table + ".attention")
                  .at(request.options.origin("attention"))
                  .help("set " + table + ".packing = \"stream\"")
                  .help("set " + table + ".attention = \"document\""));
}

void TextKind::prepare(const DatasetRequest& request) const {
  store_of(TextOptions::read(request));
}

std::unique_ptr<SampleSource> TextKind::open(const DatasetRequest& request) const try {
  const TextOptions options = TextOptions::read(request);
  std::shared_ptr<const TokenStore> store = store_of(options);
  if (is_stream(request))
    return std::make_unique<StreamSource>(std::move(store), stream_settings(request, options));
  return std::make_unique<PackedSource>(std::move(store), pack_settings(request, options));
} catch (const Error& error) {
  // A model of bytes beside whose config.json some tokenizer lies.
  if (error.code() != ErrorCode::bad_token || request.vocab_size < 256) throw;
  throw Error(error).help("set " + request.table +
                          ".tokenizer = \"bytes\" to learn the bytes of the texts");
}

void* TextKind::extension(uint32_t id) {
  if (id == kDatasetInspector) return static_cast<DatasetInspector*>(this);
  return id == kDatasetLanguage ? static_cast<DatasetLanguage*>(this) : nullptr;
}

int64_t TextKind::rows(const DatasetRequest& request) const {
  return static_cast<int64_t>(store_of(TextOptions::read(request))->documents());
}

DatasetRow TextKind::row(const DatasetRequest& request, int64_t number) const {
  const TextOptions options = TextOptions::read(request);
  const TextEncoder encoder(options);
  // Long documents are shown from their beginning on.
  constexpr size_t kMostShown = 1 << 20;
  TextPieces pieces(options.files, options.rules, encoder.cuts(), kMostShown);
  std::optional<DatasetRow> out;
  int64_t met = 0;
  while (!out) {
    const std::unique_ptr<TextPiece> piece = pieces.next();
    if (!piece)
      throw Error(ErrorCode::usage, "there is no document " + std::to_string(number) + ": " +
                                        request.path + " has " + std::to_string(met) +
                                        ", counted from 0 on");
    const std::string& name = options.files[piece->file];
    each_document(*piece, options.rules, name, [&](const DocumentPart& part) {
      if (out || !part.begins || met++ != number) return;
      out = DatasetRow{name + ":" + std::to_string(part.line), std::string(part.text), {}};
      if (!part.ends) out->place += ", its beginning";
      tokenizer::Encoded encoded =
          encoder.tokenizer().encode_ranges(part.text, {.special = part.ends});
      if (encoder.end() && part.ends &&
          (encoded.ids.empty() || encoded.ids.back() != *encoder.end())) {
        encoded.ids.push_back(*encoder.end());
        encoded.ranges.push_back({part.text.size(), part.text.size()});
      }
      // What stands before the whole stands before its beginning.
      if (!part.ends && encoder.frame())
        for (const int64_t id : encoder.frame()->before) out->tokens.push_back({id, 0, 0, true});
      for (size_t i = 0; i < encoded.ids.size(); ++i)
        out->tokens.push_back(
            {encoded.ids[i], encoded.ranges[i].begin, encoded.ranges[i].end, true});
    });
  }
  return *std::move(out);
}

std::vector<std::pair<std::string, int64_t>> TextKind::numbers(
    const DatasetRequest& request) const {
  const TextOptions options = TextOptions::read(request);
  const std::shared_ptr<const TokenStore> store = store_of(options);
  const StoreCounts& met = store->origin().counts;
  std::vector<std::pair<std::string, int64_t>> out = {
      {"documents", met.rows},
      {"tokens", static_cast<int64_t>(store->tokens())},
      {"used", met.rows},
      {"texts_without_end", met.endless_texts},
      {"young_characters", met.young}};
  if (is_stream(request)) return out;
  const SampleCounts counts = PackedSource(store, pack_settings(request, options)).counts();
  out[2].second = counts.used;
  for (const auto& [name, value] : {std::pair("divided", counts.divided),
                                    {"without_targets", counts.without_targets},
                                    {"positions", counts.positions},
                                    {"targets", counts.targets},
                                    {"longest", counts.longest}})
    out.emplace_back(name, value);
  return out;
}

// What is saved beside a model that learnt with another tokenizer than its own folder's.
std::vector<LanguageFile> TextKind::language(const DatasetRequest& request) const {
  const TextOptions options = TextOptions::read(request);
  std::vector<LanguageFile> out;
  for (const std::string& file : options.language_files())
    out.push_back({fs::path(file).lexically_relative(options.folder).generic_string(), file});
  return out;
}

std::shared_ptr<const TokenStore> TextKind::store_of(const TextOptions& options) const {
  std::string name = options.key;
  for (const std::string& file : options.all_files()) name += '\n' + file;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const TokenStore>& store = stores_[name];
  if (!store) store = text_store(options, tell_of_text);
  return store;
}

}  // namespace meshwright::jsonl
