// What the engine asks of the data set, with the small tokenizer and without a cache.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/data/dataset_kind.h"
#include "plugins/jsonl/options.h"
#include "temporary_folder.h"

namespace jsonl_test {

using meshwright::DatasetRequest;
using meshwright::OptionValue;
using meshwright::jsonl::kOptions;

struct Given {
  DatasetRequest request;
  explicit Given(const std::string& path, const std::string& cache = "none") {
    request.options =
        meshwright::Options(meshwright::make_schema("dataset.jsonl", "jsonl", kOptions));
    request.path = path;
    request.seq_len = 128;
    request.vocab_size = 320;
    request.seed = 1;
    request.options.set("cache", cache);
    request.options.set("tokenizer", std::string(jsonl_test::kTokenizer));
  }
  Given& set(const char* name, const OptionValue& value) {
    request.options.set(name, value);
    return *this;
  }
};

}  // namespace jsonl_test
