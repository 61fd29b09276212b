// rows_fuzz COUNT SEED SECONDS FOLDER [ROWS]: files of rows for the plugin jsonl, and token stores,
// made and changed in thousands of ways; FOLDER has a tokenizer.
//
// An input is either hundreds of rows that are encoded one by one (rows_fuzz_many.h), files of
// rows, opened as the engine opens them under every packing, truncation and mask, with and without
// a cache that is damaged in between; or a store of documents of its own. What is opened holds:
// each document that has targets lies once in the samples, cut as `truncate` says, with the targets
// that `dataset show` shows; no pack could have been spared; the counts are those of the samples;
// the cache gives the same, however it was damaged. What is refused is refused with an Error of 2xx
// or 7xx, for a reason that a row has. Anything else ends the run with the seed, which makes the
// input again. SECONDS ends the run early, and so do ROWS rows, encoded or refused.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fuzz.h"
#include "meshwright/error.h"
#include "plugins/jsonl/kind.h"
#include "plugins/jsonl/options.h"
#include "plugins/jsonl/packed_source.h"
#include "plugins/jsonl/prepare.h"
#include "plugins/jsonl/token_store.h"
#include "rows_fuzz_inputs.h"
#include "rows_fuzz_many.h"
#include "rows_fuzz_samples.h"
#include "tests/contents.h"

namespace {

namespace fs = std::filesystem;
using namespace meshwright;
using namespace meshwright::jsonl;
using fuzz::check, fuzz::check_packs, fuzz::damaged, fuzz::Expected, fuzz::forged, fuzz::is_refusal,
    fuzz::kRowKinds, fuzz::Positions, fuzz::Random, fuzz::read_all, fuzz::some_file;

// Files in memory, where there is such a place: the disk is not what is tested.
struct Workshop {
  fs::path path;
  Workshop() {
    std::error_code failed;
    const fs::path base = fs::is_directory("/dev/shm", failed) && ::access("/dev/shm", W_OK) == 0
                              ? fs::path("/dev/shm")
                              : fs::temp_directory_path();
    path = base / ("meshwright_rows_fuzz_" + std::to_string(::getpid()));
    fs::create_directories(path);
  }
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// A new file: one that is mapped stays what it is.
void put(const fs::path& path, std::string_view bytes) {
  fs::remove(path);
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool same(const TokenStore& one, const TokenStore& other) {
  if (one.documents() != other.documents() || one.tokens() != other.tokens() ||
      one.origin().key != other.origin().key ||
      one.origin().template_hash != other.origin().template_hash ||
      !(one.origin().counts == other.origin().counts))
    return false;
  for (uint64_t document = 0; document < one.documents(); ++document) {
    const auto a = one.targets(document), b = other.targets(document);
    if (one.tokens(document) != other.tokens(document) ||
        one.row(document) != other.row(document) ||
        !std::equal(a.begin(), a.end(), b.begin(), b.end()))
      return false;
    for (uint64_t token = 0; token < one.tokens(document); ++token)
      if (one.id(document, token) != other.id(document, token)) return false;
  }
  return true;
}

// Whatever was opened is read to its last token, and as samples.
void read_store(const std::shared_ptr<const TokenStore>& store, Random& random) {
  uint64_t tokens = 0;
  for (uint64_t document = 0; document < store->documents(); ++document) {
    for (uint64_t token = 0; token < store->tokens(document); ++token) {
      const int64_t id = store->id(document, token);
      check(id >= 0 && id <= store->largest_id(), "an id above the largest one");
    }
    tokens += store->tokens(document);
    uint32_t before = 0;
    for (const Run& run : store->targets(document)) {
      check(before <= run.begin && run.begin < run.end && run.end <= store->tokens(document),
            "a target outside of its document");
      before = run.end;
    }
  }
  check(tokens == store->tokens(), "documents that are not all tokens");
  SampleSettings settings;
  settings.seq_len = static_cast<int64_t>(1 + random.below(40));
  settings.truncate = static_cast<Truncate>(random.below(3));
  settings.packing = static_cast<Packing>(random.below(3));
  settings.seed = random.next();
  settings.path = "store";
  const PackedSource source(store, settings);
  const auto packs = read_all(source, settings.seq_len, store->largest_id() + 1);
  check(source.report().size() >= 2, "no report");
  if (settings.packing != Packing::none)
    check_packs(packs, settings.packing == Packing::best_fit ? "bfd" : "sequential",
                static_cast<size_t>(settings.seq_len));
}

// What `make` gives; nullopt where it refuses. What nobody should throw is thrown.
template <class Make>
auto unless_refused(Make&& make) -> std::optional<decltype(make())> {
  try {
    return make();
  } catch (const Error& error) {
    if (!is_refusal(error)) throw;
    return std::nullopt;
  }
}

class Fuzz {
 public:
  explicit Fuzz(std::string tokenizer)
      : tokenizer_(std::move(tokenizer)), many_(tokenizer_, workshop_.path / "many.jsonl") {}

  // Whether any was encoded.
  bool many(Random& random) {
    const fuzz::ManyRows::Counts counts = many_.run(random);
    encoded_ += counts.encoded;
    refused_ += counts.refused;
    return counts.encoded > 0;
  }
  // Of all inputs until now.
  uint64_t encoded() const { return encoded_; }
  uint64_t refused() const { return refused_; }

  // Whether it was opened.
  bool rows(Random& random) {
    const fs::path folder = workshop_.path / "rows";
    fs::remove_all(folder);
    fs::create_directories(folder);
    const size_t kind = random.below(kRowKinds);
    const bool several = random.one_in(4);
    put(folder / "a.jsonl", some_file(random, kind));
    if (several) put(folder / "b.json", some_file(random, kind));
    if (several && random.one_in(2)) put(folder / "notes.txt", "no rows");
    DatasetRequest request = some_request(random);
    request.path = (several ? folder : folder / "a.jsonl").string();
    const bool of_one_format = !random.one_in(3);
    if (of_one_format) request.options.set("format", std::string(fuzz::kFormats[kind]));

    JsonlKind data;
    Diagnostics found;
    data.validate(request, found);
    found.throw_if_any();
    const std::optional<int64_t> rows = unless_refused([&] { return data.rows(request); });
    Expected expected;
    bool all_shown = rows.has_value();
    for (int64_t row = 0; row < rows.value_or(0); ++row) {
      const auto shown = unless_refused([&] { return data.row(request, row); });
      all_shown = all_shown && shown;
      if (shown) expected.add(*shown, request.seq_len, request.options.get_string("truncate"));
      ++(shown ? encoded_ : refused_);
    }
    const auto source = unless_refused([&] { return data.open(request); });
    if (!source) {
      // Rows of several kinds are each fine by themselves.
      const bool fits = request.vocab_size == 0 || expected.largest_id < request.vocab_size;
      check(!of_one_format || !all_shown || expected.documents.empty() || !fits,
            "refused though every row is fine");
      return false;
    }
    check(all_shown, "opened though a row is refused");
    check_source(**source, data, request, *rows, std::move(expected));
    if (random.one_in(3)) check_cache(**source, request, random);
    return true;
  }

  bool store(Random& random) {
    const bool wide = random.one_in(2);
    StoreWriter writer(wide);
    StoreOrigin origin{std::string(32, 'a'), random.one_in(2) ? "feed" : "", {}};
    for (size_t documents = random.below(12); documents > 0; --documents) {
      Document document;
      for (size_t tokens = random.one_in(20) ? 500 : random.below(50); tokens > 0; --tokens)
        document.ids.push_back(static_cast<int64_t>(random.below(wide ? 200000 : 65536)));
      const auto size = static_cast<uint32_t>(document.ids.size());
      for (uint32_t at = 0; at < size;) {
        const uint32_t begin = at + static_cast<uint32_t>(random.below(9));
        const uint32_t end = begin + 1 + static_cast<uint32_t>(random.below(9));
        if (end <= size) document.targets.push_back({begin, end});
        at = end + 1;
      }
      document.row = random.next() >> 40;
      writer.add(document);
      ++origin.counts.rows;
    }
    std::string bytes = as_text(writer.bytes(origin));
    if (!random.one_in(8))
      bytes = random.one_in(4) ? damaged(bytes, random) : forged(bytes, random);
    const fs::path path = workshop_.path / "store.mwtokens";
    put(path, bytes);
    return unless_refused([&] {
             read_store(TokenStore::open(path.string()), random);
             return true;
           })
        .value_or(false);
  }

 private:
  DatasetRequest some_request(Random& random) const {
    constexpr int64_t kLengths[] = {1, 2, 7, 33, 128, 500},
                      kVocabularies[] = {0, 320, 320, 259, 200};
    DatasetRequest out;
    out.options = Options(make_schema("dataset.jsonl", "jsonl", kOptions));
    out.seq_len = kLengths[random.below(std::size(kLengths))];
    out.vocab_size = kVocabularies[random.below(std::size(kVocabularies))];
    out.seed = random.below(1000);
    auto set = [&](const char* name, std::initializer_list<const char*> choices) {
      out.options.set(name, std::string(choices.begin()[random.below(choices.size())]));
    };
    out.options.set("tokenizer", tokenizer_);
    out.options.set("cache", std::string("none"));
    out.options.set("threads", static_cast<int64_t>(1 + random.below(3)));
    set("packing", {"bfd", "sequential", "none"});
    set("truncate", {"right", "left", "drop"});
    set("train_on", {"assistant", "last", "all"});
    set("special_tokens_in_content", {"text", "text", "parse", "error"});
    if (random.one_in(3)) out.options.set("chat_template", std::string("chatml"));
    return out;
  }

  static void check_source(const SampleSource& source, const JsonlKind& data,
                           const DatasetRequest& request, int64_t rows, Expected expected) {
    const std::string packing = request.options.get_string("packing");
    const auto used = static_cast<int64_t>(expected.documents.size());
    check(source.has_documents() == (packing != "none"), "has_documents");
    const auto packs = read_all(source, request.seq_len, request.vocab_size);
    check_packs(packs, packing, static_cast<size_t>(request.seq_len));
    std::vector<Positions> documents;
    for (const std::vector<Positions>& pack : packs)
      documents.insert(documents.end(), pack.begin(), pack.end());
    if (packing == "none")
      for (Positions& document : expected.documents)
        document.resize(static_cast<size_t>(request.seq_len), {0, kNoTarget});
    std::sort(documents.begin(), documents.end());
    std::sort(expected.documents.begin(), expected.documents.end());
    check(documents == expected.documents, "samples have other documents than the rows");
    const auto told = data.numbers(request);
    const std::map<std::string, int64_t> numbers(told.begin(), told.end());
    const std::map<std::string, int64_t> counted = {{"rows", rows},
                                                    {"used", used},
                                                    {"truncated", expected.truncated},
                                                    {"too_long", expected.too_long},
                                                    {"without_targets", expected.without},
                                                    {"positions", expected.positions},
                                                    {"targets", expected.targets},
                                                    {"longest", expected.longest}};
    for (const auto& [name, value] : counted)
      if (numbers.at(name) != value)
        throw std::runtime_error(name + " is " + std::to_string(numbers.at(name)) + ", not " +
                                 std::to_string(value));
    check(source.report().size() >= 2, "no report");
  }

  // The same data through a cache: made, mapped, damaged and forged.
  void check_cache(const SampleSource& source, DatasetRequest request, Random& random) const {
    const fs::path folder = workshop_.path / "cache";
    fs::remove_all(folder);
    request.options.set("cache", folder.string());
    const auto truth = read_all(source, request.seq_len, request.vocab_size);
    for (int time = 0; time < 2; ++time) {  // made, and mapped
      const JsonlKind data;
      const auto cached = data.open(request);
      check(cached->fingerprint() == source.fingerprint(), "a cache with another fingerprint");
      check(read_all(*cached, request.seq_len, request.vocab_size) == truth,
            "a cache with other samples");
    }
    const JsonlOptions options = JsonlOptions::read(request);
    const fs::path path = folder / (cache_key(options) + ".mwtokens");
    const std::string whole = contents(path);
    const auto store =
        TokenStore::in_memory({reinterpret_cast<const std::byte*>(whole.data()),
                               reinterpret_cast<const std::byte*>(whole.data()) + whole.size()});
    for (int time = 0; time < 3; ++time) {
      const std::string other = damaged(whole, random);
      put(path, other);
      std::vector<std::string> told;
      const auto mended =
          prepare_store(options, [&](const std::string& line) { told.push_back(line); });
      check(same(*mended, *store), "a damaged cache was believed");
      // Believed is what its checksums cover, which is all but what lies between sections.
      check(contents(path) == (told.empty() ? other : whole), "a cache was not made as it was");
      check(told.empty() || told[0].starts_with("the cache is made anew: "), "another notice");
    }
    put(path, forged(whole, random));
    const auto opened = unless_refused([&] { return TokenStore::open(path.string()); });
    if (opened)
      unless_refused([&] {
        read_store(*opened, random);
        return true;
      });
  }

  Workshop workshop_;
  std::string tokenizer_;
  fuzz::ManyRows many_;
  uint64_t encoded_ = 0, refused_ = 0;  // rows
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr, "usage: rows_fuzz COUNT SEED SECONDS FOLDER [ROWS]\n");
    return 2;
  }
  const uint64_t count = std::strtoull(argv[1], nullptr, 10),
                 first = std::strtoull(argv[2], nullptr, 10);
  const std::chrono::duration<double> limit(std::strtod(argv[3], nullptr));
  const uint64_t most = argc == 6 ? std::strtoull(argv[5], nullptr, 10) : UINT64_MAX;
  Fuzz fuzz(argv[4]);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t done = 0, opened[3] = {}, refused[3] = {};
  for (; done < count && std::chrono::steady_clock::now() - begin < limit &&
         fuzz.encoded() + fuzz.refused() < most;
       ++done) {
    fuzz::watch(first + done);
    Random random{first + done};
    const size_t kind = random.below(3);
    try {
      const bool fine = kind == 0   ? fuzz.rows(random)
                        : kind == 1 ? fuzz.store(random)
                                    : fuzz.many(random);
      ++(fine ? opened : refused)[kind];
    } catch (const std::exception& error) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(first + done),
                   error.what());
      return 1;
    }
  }
  ::alarm(0);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%llu inputs from seed %llu in %.0f s\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first), seconds);
  constexpr const char* kKinds[] = {"files of rows", "stores", "hundreds of rows"};
  for (const size_t kind : {0, 1, 2})
    std::printf("%s: %llu opened, %llu refused\n", kKinds[kind],
                static_cast<unsigned long long>(opened[kind]),
                static_cast<unsigned long long>(refused[kind]));
  std::printf("%llu rows: %llu encoded, %llu refused\n",
              static_cast<unsigned long long>(fuzz.encoded() + fuzz.refused()),
              static_cast<unsigned long long>(fuzz.encoded()),
              static_cast<unsigned long long>(fuzz.refused()));
  // Both must occur, or nothing was tested.
  constexpr uint64_t kEnough = 200;
  const bool lively =
      done < kEnough || (opened[0] > 0 && opened[1] > 0 && opened[2] > 0 && refused[0] > 0 &&
                         refused[1] > 0 && fuzz.encoded() > 0 && fuzz.refused() > 0);
  if (!lively) std::fprintf(stderr, "of some kind all inputs were opened, or none\n");
  return lively ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rows_fuzz: %s\n", error.what());
  return 2;
}
