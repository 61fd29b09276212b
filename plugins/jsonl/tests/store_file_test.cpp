// A store that is written as it comes is the one that is made at once.
#include "plugins/jsonl/store_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "given.h"
#include "meshwright/error.h"

namespace store_file_test {

namespace fs = std::filesystem;
using jsonl_test::TemporaryFolder;
using jsonl_test::thrown;
using meshwright::ErrorCode;
using meshwright::jsonl::Document;
using meshwright::jsonl::Run;
using meshwright::jsonl::StoreCounts;
using meshwright::jsonl::StoreFile;
using meshwright::jsonl::StoreOrigin;
using meshwright::jsonl::StoreWriter;

std::vector<Document> documents(size_t count, bool wide) {
  std::vector<Document> out;
  for (size_t i = 0; i < count; ++i) {
    Document one;
    for (size_t k = 0; k <= i % 7; ++k)
      one.ids.push_back(static_cast<int64_t>((i * 31 + k) % (wide ? 100'000 : 60'000)));
    one.targets = {Run{0, static_cast<uint32_t>(one.ids.size())}};
    one.row = 3 * i;
    out.push_back(std::move(one));
  }
  return out;
}

std::string contents(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST_CASE("the bytes of a store are in the other order, and what is in it is the same") {
  const TemporaryFolder folder;
  const StoreOrigin origin{"0123456789abcdef0123456789abcdef", "", {}, "{\"a\": 1}"};
  for (const bool wide : {false, true})
    // One piece of each column, and several.
    for (const size_t count : {size_t{1}, size_t{10}, size_t{300'000}}) {
      CAPTURE(wide);
      CAPTURE(count);
      const std::vector<Document> all = documents(count, wide);
      StoreWriter writer(wide);
      const std::string path = folder / "store";
      StoreFile file(path, wide, origin);
      bool same = true;
      for (const Document& one : all) {
        writer.add(one);
        // In parts, and with one that has no tokens in between.
        const std::span<const int64_t> ids = one.ids;
        file.add(ids.first(ids.size() / 2));
        file.add(ids.subspan(ids.size() / 2));
        same = same && file.end_document(one.row) && !file.end_document(one.row + 1);
      }
      StoreCounts counts;
      counts.rows = static_cast<int64_t>(count);
      file.finish(counts);
      CHECK(std::distance(fs::directory_iterator(folder.string()), {}) == 1);
      const auto found = file.open();
      const auto expected =
          meshwright::jsonl::TokenStore::in_memory(writer.bytes({origin.key, "", counts}));
      REQUIRE(found->documents() == count);
      CHECK(found->origin().key == origin.key);
      CHECK(found->origin().parts == "{\"a\":1}");
      CHECK(found->origin().counts == counts);
      CHECK(found->tokens() == expected->tokens());
      CHECK(found->largest_id() == expected->largest_id());
      for (uint64_t i = 0; i < count; ++i) {
        same = same && found->tokens(i) == expected->tokens(i) && found->row(i) == 3 * i &&
               found->targets(i).size() == 1 && found->targets(i)[0] == expected->targets(i)[0];
        for (uint64_t k = 0; k < expected->tokens(i) && same; ++k)
          same = found->id(i, k) == expected->id(i, k);
        same = same && found->document_of(found->begin(i)) == i &&
               found->document_of(found->begin(i + 1) - 1) == i;
      }
      CHECK(same);
    }
}

TEST_CASE("one in memory has no file, and a bound") {
  StoreFile file("", false, {"k", "", {}, ""}, 1 << 20);
  const std::vector<int64_t> ids(1000, 7);
  file.add(ids);
  CHECK(file.end_document(0));
  file.finish({});
  CHECK(file.open()->tokens() == 1000);
  StoreFile large("", false, {"k", "", {}, ""}, 1 << 20);
  const auto error = thrown([&] {
    for (int i = 0; i < 1000; ++i) large.add(ids);
  });
  CHECK(error.code() == ErrorCode::out_of_range);
  CHECK(error.message() == "the tokens have more than 1 MiB");
}

TEST_CASE("one that is not finished leaves nothing, and one that cannot be written says so") {
  const TemporaryFolder folder;
  {
    StoreFile file(folder / "store", false, {"k", "", {}, ""});
    file.add(std::vector<int64_t>(2'000'000, 1));
    CHECK(fs::exists(folder / "store"));
  }
  CHECK(fs::is_empty(folder.string()));
  const auto absent = thrown([&] { StoreFile(folder / "no/store", false, {"k", "", {}, ""}); });
  CHECK(absent.code() == ErrorCode::output_unwritable);
  CHECK(absent.message().find(folder / "no/store") != std::string::npos);
  CHECK(contents(folder / "store").empty());
}

}  // namespace store_file_test
