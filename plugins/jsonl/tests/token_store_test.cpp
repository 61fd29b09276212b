// Stores give back what was put into them, and refuse what does not hold together.
#include "plugins/jsonl/token_store.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "given.h"
#include "meshwright/error.h"

namespace token_store_test {

using meshwright::Error;
using meshwright::jsonl::Document;
using meshwright::jsonl::Run;
using meshwright::jsonl::StoreCounts;
using meshwright::jsonl::StoreOrigin;
using meshwright::jsonl::StoreWriter;
using meshwright::jsonl::TokenStore;

const StoreOrigin kOrigin{"0123456789abcdef0123456789abcdef",
                          "feed",
                          {3,
                           1,
                           2,
                           4,
                           1,
                           5,
                           6,
                           7,
                           11,
                           12,
                           16,
                           13,
                           {{{"asistant", 8}, {std::string(40, 'x'), 9}}, 10},
                           {{{"source", 14}}, 15}},
                          "",
                          "rows are alpaca: \x01"};

std::vector<Document> documents(bool wide) {
  return {{{1, 2, wide ? 70000 : 65535, 4}, {{1, 2}, {3, 4}}, 0},
          {{}, {}, 17},
          {{7}, {{0, 1}}, 40},
          {{9, 8, 7, 6, 5}, {}, 99}};
}

std::vector<std::byte> made(bool wide) {
  StoreWriter writer(wide);
  for (const Document& document : documents(wide)) writer.add(document);
  return writer.bytes(kOrigin);
}

void check(const TokenStore& store, bool wide) {
  const std::vector<Document> expected = documents(wide);
  REQUIRE(store.documents() == expected.size());
  CHECK(store.origin().key == kOrigin.key);
  CHECK(store.origin().template_hash == "feed");
  CHECK(store.origin().form == kOrigin.form);
  CHECK_FALSE(store.has_weights());
  CHECK(store.origin().counts == kOrigin.counts);
  CHECK(store.tokens() == 10);
  CHECK(store.largest_id() == (wide ? 70000 : 65535));
  for (uint64_t d = 0; d < expected.size(); ++d) {
    CAPTURE(d);
    REQUIRE(store.tokens(d) == expected[d].ids.size());
    for (uint64_t t = 0; t < store.tokens(d); ++t) CHECK(store.id(d, t) == expected[d].ids[t]);
    CHECK(std::vector<Run>(store.targets(d).begin(), store.targets(d).end()) ==
          expected[d].targets);
    CHECK(store.row(d) == expected[d].row);
  }
}

TEST_CASE("documents come back, from memory and from a file") {
  const jsonl_test::TemporaryFolder folder;
  for (bool wide : {false, true}) {
    const std::vector<std::byte> bytes = made(wide);
    CHECK(bytes.size() % 64 == 0);
    check(*TokenStore::in_memory(bytes), wide);
    jsonl_test::write(folder / "a", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    check(*TokenStore::open(folder / "a"), wide);
  }
}

TEST_CASE("what the key was made of stands at the beginning of the file, however long it is") {
  StoreWriter writer(false);
  for (const Document& document : documents(false)) writer.add(document);
  for (const size_t length : {size_t{1}, size_t{5000}, size_t{300000}}) {
    CAPTURE(length);
    StoreOrigin origin = kOrigin;
    origin.parts = R"({"key_version":3,"options":[")" + std::string(length, 'o') + R"("]})";
    const std::vector<std::byte> bytes = writer.bytes(origin);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    CHECK(text.starts_with("MWTOKENS"));
    CHECK(text.substr(24).starts_with(R"({"version":7,"key":")" + kOrigin.key + R"(","parts":)" +
                                      origin.parts + ","));
    const auto store = TokenStore::in_memory(bytes);
    check(*store, false);
    CHECK(store->origin().parts == origin.parts);
  }
  // A store that does not say it is one all the same.
  CHECK(TokenStore::in_memory(made(false))->origin().parts.empty());
}

TEST_CASE("weights come back to the bit, and are kept where one is not 1") {
  const std::vector<float> weights{1, 0.1F, 0, 3e38F};
  auto store_of = [](const std::vector<float>& given) {
    StoreWriter first(false), second(false);
    for (size_t i = 0; i < given.size(); ++i)
      (i < 2 ? first : second).add({{1, 2}, {{1, 2}}, i, given[i]});
    first.append(std::move(second));
    return TokenStore::in_memory(first.bytes(kOrigin));
  };
  const auto store = store_of(weights);
  REQUIRE(store->has_weights());
  for (size_t i = 0; i < weights.size(); ++i) CHECK(store->weight(i) == weights[i]);
  CHECK_FALSE(store_of({1, 1, 1, 1})->has_weights());
  CHECK(store_of({1, 1, 1, 1})->weight(3) == 1);
  // None of them is what the loss cannot be counted by, though its checksum is right.
  for (const float wrong :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    CHECK(jsonl_test::thrown([&] { store_of({1, wrong}); }).message().find("no weight") !=
          std::string::npos);
}

TEST_CASE("a store of parts is the store of the whole") {
  for (bool wide : {false, true}) {
    StoreWriter first(wide), second(wide), nothing(wide);
    const std::vector<Document> all = documents(wide);
    for (size_t i = 0; i < all.size(); ++i) (i < 2 ? first : second).add(all[i]);
    StoreWriter joined(wide);
    joined.append(std::move(first));
    joined.append(std::move(nothing));
    joined.append(std::move(second));
    CHECK(joined.bytes(kOrigin) == made(wide));
  }
}

TEST_CASE("damage is found, wherever it is") {
  const jsonl_test::TemporaryFolder folder;
  const std::vector<std::byte> bytes = made(true);
  auto open = [&](const std::vector<std::byte>& damaged) {
    jsonl_test::write(folder / "d",
                      {reinterpret_cast<const char*>(damaged.data()), damaged.size()});
    const std::string said = jsonl_test::thrown([&] { TokenStore::open(folder / "d"); }).message();
    return said == "nothing" ? "" : said;
  };
  CHECK(open(bytes).empty());
  // Every byte but those that align sections. In memory: what is read of a file is the same.
  size_t silent = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x41};
    const std::string said = jsonl_test::thrown([&] { TokenStore::in_memory(damaged); }).message();
    if (said == "nothing") {
      ++silent;
      CHECK_MESSAGE(bytes[at] == std::byte{0}, at);
    } else {
      CHECK(said.starts_with("a token store in memory: "));
    }
  }
  CHECK(silent < 6 * 64);
  for (size_t size : {size_t{1}, size_t{15}, size_t{16}, size_t{100}, size_t{4000}, size_t{4200},
                      bytes.size() - 1, bytes.size() - 63}) {
    const std::vector<std::byte> shorter(bytes.begin(), bytes.begin() + static_cast<long>(size));
    if (size < bytes.size() - 40) CHECK(open(shorter).find(folder / "d") != std::string::npos);
  }
  CHECK(open({}).find("d") != std::string::npos);
}

TEST_CASE("targets outside of their document are refused though their checksum is right") {
  for (const std::vector<Run>& runs : std::vector<std::vector<Run>>{
           {{0, 4}}, {{2, 2}}, {{2, 1}}, {{0, 2}, {1, 3}}, {{1, 2}, {0, 1}}}) {
    StoreWriter writer(false);
    writer.add({{1, 2, 3}, runs, 0});
    CHECK_THROWS_AS(TokenStore::in_memory(writer.bytes(kOrigin)), Error);
  }
}

TEST_CASE("counts of names are the same in any order, and few however many names there are") {
  using Names = StoreCounts::Names;
  Names forward, backward, halves, half;
  for (int i = 0; i < 40; ++i) {
    forward.add("r" + std::to_string(100 + i));
    backward.add("r" + std::to_string(139 - i));
    (i < 30 ? halves : half).add("r" + std::to_string(100 + i * 7 % 40));
  }
  halves += half;
  CHECK(forward.named.size() == Names::kMost);
  CHECK(forward.named.begin()->first == "r100");
  CHECK(forward.named.rbegin()->first == "r115");
  CHECK(forward.others == 24);
  CHECK(forward.all() == 40);
  CHECK(forward == backward);
  CHECK(forward == halves);
  Names longer;
  longer.add(std::string(1000, 'a'), 3);
  longer.add(std::string(36, 'b') + "\u00e9\u00e9\u00e9");  // is not cut within a character
  longer.add("c\x1b[31m\u202e");                            // nor reaches a terminal
  CHECK(longer.named == std::map<std::string, int64_t>{{std::string(37, 'a') + "...", 3},
                                                       {std::string(36, 'b') + "...", 1},
                                                       {"c\uFFFD[31m\uFFFD", 1}});
  // The most that a header holds.
  StoreCounts most;
  for (char c = 'a'; c < 'a' + 20; ++c) {
    most.roles.add(std::string(50, c), INT64_MAX / 32);
    most.columns.add(std::string(1, c) + std::string(50, '"'), INT64_MAX / 32);
  }
  StoreWriter writer(false);
  writer.add({{1, 2}, {{1, 2}}, 0});
  const auto store = TokenStore::in_memory(writer.bytes({std::string(32, 'k'), "feed", most}));
  CHECK(store->origin().counts == most);
}

}  // namespace token_store_test
