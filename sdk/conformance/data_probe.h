// What the cases about data sets share. Not for use outside the kit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sdk/conformance/probe.h"

namespace meshwright::conformance {

struct KindInstance : MadeBy<meshwright_component, DatasetKind> {
  explicit KindInstance(const Subject& subject) : MadeBy(*subject.dataset) {}
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
