// What the cases about data sets share. Not for use outside the kit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sdk/conformance/probe.h"

namespace meshwright::conformance {

// One instance, made and destroyed through the descriptor. Throws std::runtime_error with the
// plugin's message when create() fails.
class KindInstance {
 public:
  explicit KindInstance(const Subject& subject);
  KindInstance(const KindInstance&) = delete;
  KindInstance& operator=(const KindInstance&) = delete;
  ~KindInstance();
  DatasetKind& operator*() const { return *kind_; }
  DatasetKind* operator->() const { return kind_; }

 private:
  const meshwright_component& about_;
  DatasetKind* kind_ = nullptr;
};

// Room for one sample, filled with what no sample holds.
struct Sample {
  std::vector<int64_t> tokens, targets;
  std::vector<int32_t> documents;
  std::vector<float> weights;

  Sample() = default;
  Sample(const SampleSource& source, int64_t seq_len);
  SampleView view() { return {tokens, targets, documents, weights}; }
  bool operator==(const Sample&) const = default;
};
// Throws what read() throws.
Sample read_sample(const SampleSource& source, int64_t seq_len, int64_t sample);
// Numbers of up to `most` samples, the first and the last among them.
std::vector<int64_t> some_samples(int64_t samples, int64_t most);
// What a sample may not hold, "" where all is well: "position 3: the token was not written".
std::string problem_of(const Sample& sample, int64_t vocabulary);

// The data set of the request, or nullptr with what refused it in the report.
std::unique_ptr<SampleSource> open_or_fail(const DatasetKind& kind, const DatasetRequest& request,
                                           const std::string& what, Report& report);
// True, and the case skipped, where no job was named.
bool no_request(const Subject& subject, Report& report);

}  // namespace meshwright::conformance
