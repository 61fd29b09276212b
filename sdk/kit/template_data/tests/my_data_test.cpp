// What samples hold, and what is refused.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/components.h"
#include "meshwright/data/dataset_kind.h"

namespace mw = meshwright;

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

// As the engine finds it.
const meshwright_component& component() {
  const meshwright_extension* block = meshwright_plugin_v1.extensions;
  while (block->id != MESHWRIGHT_DATASETS) block = block->next;
  return *reinterpret_cast<const meshwright_components*>(block)->components;
}

std::unique_ptr<mw::SampleSource> open(const std::string& path, int64_t seq_len,
                                       int64_t vocabulary = 256) {
  std::unique_ptr<mw::DatasetKind> kind(static_cast<mw::DatasetKind*>(component().create(nullptr)));
  mw::DatasetRequest request;
  request.options = mw::Options(mw::make_schema("dataset.my_data", "my_data",
                                                {component().options, component().option_count}));
  request.path = path;
  request.seq_len = seq_len;
  request.vocab_size = vocabulary;
  return kind->open(request);
}

}  // namespace

TEST_CASE("samples hold bytes, and lines know nothing of each other") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("my_data_test_" + std::to_string(::getpid()));
  std::ofstream(path) << "ab\ncdefg\n";
  const auto source = open(path, 4);
  CHECK(source->samples() == 2);
  std::vector<int64_t> tokens(4), targets(4);
  std::vector<int32_t> documents(4);
  std::vector<float> weights(4);
  source->read(0, {tokens, targets, documents, weights});
  CHECK(tokens == std::vector<int64_t>{'a', 'b', '\n', 'c'});
  CHECK(targets == std::vector<int64_t>{'b', '\n', mw::kNoTarget, 'd'});
  CHECK(documents == std::vector<int32_t>{0, 0, 0, 1});
  CHECK_THROWS_AS(source->read(2, {tokens, targets, documents, weights}), mw::Error);
  const auto narrow = open(path, 4, 50);
  CHECK_THROWS_AS(narrow->read(0, {tokens, targets, documents, weights}), mw::Error);
  CHECK_THROWS_AS(open(path, 9), mw::Error);
  CHECK_THROWS_AS(open(path + ".none", 4), mw::Error);
  std::remove(path.c_str());
}
