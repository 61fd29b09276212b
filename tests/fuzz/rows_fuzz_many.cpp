#include "rows_fuzz_many.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "plugins/jsonl/prepare.h"
#include "plugins/jsonl/row_pieces.h"
#include "rows_fuzz_inputs.h"
#include "rows_fuzz_samples.h"

namespace meshwright::fuzz {
namespace {

using namespace meshwright::jsonl;

constexpr const char* kName = "rows";  // of the file that they would be in

EncodeSettings some_settings(Random& random) {
  EncodeSettings out;
  out.train_on = static_cast<TrainOn>(random.below(3));
  if (!random.one_in(3)) out.special = static_cast<SpecialInContent>(random.below(3));
  if (random.one_in(4)) out.date = chat::Date{2024, 7, 26, 0, 0, 0};
  return out;
}

RowKind kind_named(const std::string& name) {
  for (const RowKind kind : {RowKind::messages, RowKind::prompt_completion})
    if (name_of(kind) == name) return kind;
  return RowKind::text;
}

// Nothing where they are a list that does not end, or is none.
std::vector<RowPiece> pieces_of(const std::string& text) try {
  std::vector<RowPiece> out;
  const RowFile file(text, kName);
  for (const Chunk& chunk : file.chunks()) {
    const std::vector<RowPiece> rows = file.rows(chunk);
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
} catch (const Error& error) {
  check(is_refusal(error), "an error of another kind");
  return {};
}

void check_encoded(const Encoded& encoded, int64_t vocabulary) {
  const Document& document = encoded.document;
  check(document.ids.size() == encoded.ranges.size(), "ids without a place in the text");
  for (size_t i = 0; i < document.ids.size(); ++i) {
    check(document.ids[i] >= 0 && document.ids[i] < vocabulary, "an id outside of the vocabulary");
    const Bytes& range = encoded.ranges[i];
    check(range.begin <= range.end && range.end <= encoded.text.size(),
          "a token outside of its row");
  }
  uint32_t before = 0;
  for (const Run& run : document.targets) {
    check(before <= run.begin && run.begin < run.end && run.end <= document.ids.size(),
          "a target outside of its document");
    before = run.end;
  }
  check(encoded.counts.rows == 1, "a row that does not count as one");
}

void check_same(const TokenStore& store, const std::vector<Document>& documents,
                const StoreCounts& counts) {
  check(store.documents() == documents.size(), "a file with other documents than its rows");
  check(store.origin().counts == counts, "a file with other counts than its rows");
  for (uint64_t i = 0; i < store.documents(); ++i) {
    const Document& document = documents[i];
    const auto targets = store.targets(i);
    check(store.tokens(i) == document.ids.size() && store.row(i) == document.row &&
              std::equal(targets.begin(), targets.end(), document.targets.begin(),
                         document.targets.end()),
          "a document of a file that is not its row's");
    for (uint64_t token = 0; token < store.tokens(i); ++token)
      check(store.id(i, token) == document.ids[token], "other ids from a file");
  }
}

}  // namespace

ManyRows::ManyRows(std::string folder, std::filesystem::path file)
    : folder_(std::move(folder)), file_(std::move(file)) {}

std::shared_ptr<const Language> ManyRows::language(const std::string& chat_template) {
  std::shared_ptr<const Language>& one = languages_[chat_template];
  if (!one) one = Language::read(folder_, chat_template);
  return one;
}

ManyRows::Counts ManyRows::run(Random& random) {
  const size_t of_kind = random.below(kRowKinds);
  const std::string text = many_rows(random, of_kind, 100 + random.below(901));
  JsonlOptions options;
  options.folder = folder_;
  options.chat_template = random.one_in(3) ? "chatml" : "";
  options.asked.format = kind_named(kFormats[of_kind]);
  options.encode = some_settings(random);
  options.threads = static_cast<int>(1 + random.below(3));
  const std::shared_ptr<const Language> words = language(options.chat_template);
  const RowEncoder encoder(words, options.encode);

  Counts counts;
  std::vector<Document> documents;
  StoreCounts met;
  std::optional<Form> form;
  const bool list = random.one_in(2);
  std::string fine = list ? "[" : "";
  const std::vector<RowPiece> pieces = pieces_of(text);
  if (pieces.empty()) return {0, 1};
  for (const RowPiece& piece : pieces) try {
      const std::string where = kName + (":" + std::to_string(piece.line));
      const chat::Value row = parse_row(piece.text, kName, piece.line, piece.column);
      // Of a file the first row decides.
      Form one = form ? *form : form_of(row, options.asked, where);
      const Encoded encoded = encoder.encode(read_row(row, one, where), where);
      if (!form) form = std::move(one);
      check_encoded(encoded, words->tokenizer.size());
      ++counts.encoded;
      if (!list && piece.text.find('\n') != std::string_view::npos) continue;
      if (list && !documents.empty()) fine += ",";
      documents.push_back(encoded.document);
      documents.back().row = fine.size();
      met += encoded.counts;
      fine += std::string(piece.text) + "\n";
    } catch (const Error& error) {
      if (!is_refusal(error)) throw;
      ++counts.refused;
    }
  if (documents.empty()) return counts;
  if (list) fine += "]";
  std::filesystem::remove(file_);
  std::ofstream(file_, std::ios::binary).write(fine.data(), std::ssize(fine));
  options.files = {file_.string()};
  const auto store = TokenStore::in_memory(build_store(
      options, std::string(32, 'a'), [](const Preparation&) {}, [](const std::string&) {}));
  check_same(*store, documents, met);
  return counts;
}

}  // namespace meshwright::fuzz
