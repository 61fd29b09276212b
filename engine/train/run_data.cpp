#include "engine/train/run_data.h"

#include "engine/checkpoint/checksum.h"

namespace meshwright::train {

RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed) {
  RunData out;
  out.config = data::dataset_config(job.table("dataset"), vocab, seed);
  data::check_text_model(out.config, job.table("model").get_string("pretrained"));
  out.train = data::open_dataset(out.config);
  out.fingerprint = checkpoint::to_hex(out.train->fingerprint());
  out.files.push_back(
      {"dataset.path", "files of the training data", data::dataset_files(out.config)});
  const Options& validation = job.table("validation_dataset");
  if (validation.is_set("path") ||
      (validation.is_given("kind") && validation.get_string("kind") == "mock")) {
    const data::DatasetConfig config = data::dataset_config(validation, vocab, seed + 1);
    out.validation = data::open_dataset(config);
    out.files.push_back(
        {"validation_dataset.path", "files of the validation data", data::dataset_files(config)});
  }
  return out;
}

}  // namespace meshwright::train
