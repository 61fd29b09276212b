// Texts and chats as Parquet are those of the same rows as JSON lines (tests/data/parquet/make.py).
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "plugins/jsonl/kind.h"
#include "plugins/jsonl/tests/given.h"
#include "plugins/jsonl/text_kind.h"
#include "plugins/jsonl/text_options.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/unpack/tests/packed.h"

namespace parquet_kinds_test {

namespace fs = std::filesystem;
using jsonl_test::Given;
using jsonl_test::TemporaryFolder;
using jsonl_test::thrown;
using meshwright::DatasetKind;
using meshwright::DatasetRequest;
using meshwright::Error;
using meshwright::ErrorCode;
using meshwright::SampleView;
using meshwright::jsonl::JsonlKind;
using meshwright::jsonl::TextKind;

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/parquet/";

struct Sample {
  std::vector<int64_t> tokens, targets;
  std::vector<int32_t> documents;
  bool operator==(const Sample&) const = default;
};

// All that a step would read.
std::vector<Sample> samples_of(const DatasetKind& kind, const DatasetRequest& request) {
  kind.prepare(request);
  const auto source = kind.open(request);
  std::vector<Sample> out;
  const auto length = static_cast<size_t>(request.seq_len);
  for (int64_t i = 0; i < source->samples(); ++i) {
    Sample& one = out.emplace_back();
    one.tokens.resize(length);
    one.targets.resize(length);
    one.documents.resize(source->has_documents() ? length : 0);
    source->read(i, SampleView{one.tokens, one.targets, one.documents, {}});
  }
  return out;
}

DatasetRequest texts(const std::string& path, const std::string& field = "content") {
  DatasetRequest out;
  out.options = meshwright::Options(
      meshwright::make_schema("dataset.text", "text", meshwright::jsonl::kTextOptions));
  out.path = path;
  out.seq_len = 32;
  out.seed = 1;
  out.pretrained = jsonl_test::kTokenizer;
  out.options.set("cache", std::string("none"));
  out.options.set("text_field", field);
  return out;
}

TEST_CASE("texts of Parquet have the samples of JSON lines") {
  const TextKind kind;
  const std::vector<Sample> wanted = samples_of(kind, texts(kData + "texts.jsonl"));
  CHECK(wanted.size() > 50);
  for (const char* packed : {"none", "snappy", "gzip", "zstd"})
    CHECK(samples_of(kind, texts(kData + "texts_" + packed + ".parquet")) == wanted);
  const std::string file = kData + "texts_zstd.parquet";
  for (const int64_t row : {0, 24, 25, 59}) {
    const auto shown = kind.row(texts(file), row);
    CHECK(shown.place == file + ":" + std::to_string(row + 1));
    CHECK(shown.text == kind.row(texts(kData + "texts.jsonl"), row).text);
  }
  CHECK(kind.rows(texts(file)) == 60);
  // By its first bytes, whatever it is called.
  const TemporaryFolder folder;
  fs::copy_file(file, folder / "texts");
  CHECK(samples_of(kind, texts(folder / "texts")) == wanted);
}

TEST_CASE("chats of Parquet have the samples of JSON lines") {
  const JsonlKind kind;
  for (const char* name : {"chats", "sharegpt"}) {
    CAPTURE(name);
    const std::vector<Sample> wanted = samples_of(kind, Given(kData + name + ".jsonl").request);
    CHECK(wanted.size() > 5);
    CHECK(samples_of(kind, Given(kData + name + ".parquet").request) == wanted);
  }
  const std::vector<Sample> wanted = samples_of(kind, Given(kData + "chats.jsonl").request);
  const std::string file = kData + "chats.parquet";
  const meshwright::StringMap fields{{"messages", "messages"}};
  CHECK(samples_of(kind, Given(file).set("fields", fields).request) == wanted);
  // Of a folder all that end so.
  const TemporaryFolder folder;
  fs::copy_file(file, folder / "a.parquet");
  CHECK(samples_of(kind, Given(folder.string()).request) == wanted);
}

TEST_CASE("another file of Parquet is another key, and the same rows are found again") {
  const TemporaryFolder folder;
  const std::string file = folder / "a.parquet", cache = folder / "cache";
  auto stores = [&] {
    int64_t out = 0;
    for (const auto& entry : fs::directory_iterator(cache))
      out += entry.path().extension() == ".mwtokens" ? 1 : 0;
    return out;
  };
  fs::copy_file(kData + "chats.parquet", file);
  const std::vector<Sample> first = samples_of(JsonlKind(), Given(file, cache).request);
  CHECK(samples_of(JsonlKind(), Given(file, cache).request) == first);
  CHECK(stores() == 1);
  fs::copy_file(kData + "sharegpt.parquet", file, fs::copy_options::overwrite_existing);
  samples_of(JsonlKind(), Given(file, cache).request);
  CHECK(stores() == 2);
}

TEST_CASE("what is wrong with Parquet names the setting") {
  const std::string file = kData + "texts_none.parquet";
  const Error absent = thrown([&] { TextKind().prepare(texts(file, "text")); });
  CHECK(absent.code() == ErrorCode::bad_dataset);
  CHECK(absent.message() ==
        file + ": there is no column \"text\", but these: id, content, image, tags");
  CHECK(absent.key() == "dataset.text.text_field");
  CHECK(absent.helps().front() == "set dataset.text.text_field to a column of texts");
  CHECK(thrown([&] { TextKind().prepare(texts(file, "id")); }).message() ==
        file + ":1: the row has no string \"id\"");
  const Error bytes = thrown([&] { JsonlKind().prepare(Given(file).request); });
  CHECK(bytes.key() == "dataset.jsonl.fields");
  CHECK(bytes.message() == file + ": column \"image\" is of type binary, which is not read");
  // What the help says is done.
  const meshwright::StringMap fields{{"text", "content"}};
  CHECK(samples_of(JsonlKind(), Given(file).set("fields", fields).request).size() > 5);
  const meshwright::StringMap other{{"text", "said"}};
  CHECK(thrown([&] { JsonlKind().prepare(Given(file).set("fields", other).request); }).message() ==
        file + ": there is no column \"said\", but these: id, content, image, tags");
  const TemporaryFolder folder;
  jsonl_test::write(folder / "b.parquet", meshwright::base::read_file(file).substr(0, 3000));
  CHECK(thrown([&] { JsonlKind().prepare(Given(folder / "b.parquet").request); })
            .message()
            .starts_with((folder / "b.parquet") + ": its Parquet data is damaged ("));
  jsonl_test::write(folder / "c.jsonl.gz", packed_files::gzip(meshwright::base::read_file(file)));
  CHECK(thrown([&] { JsonlKind().prepare(Given(folder / "c.jsonl.gz").request); }).message() ==
        (folder / "c.jsonl.gz") + ": the file is packed, and what comes out is Parquet");
}

}  // namespace parquet_kinds_test
