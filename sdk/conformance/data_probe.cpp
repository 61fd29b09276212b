#include "sdk/conformance/data_probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace meshwright::conformance {

namespace {

constexpr int64_t kUnwritten = std::numeric_limits<int64_t>::min();
constexpr int32_t kNoDocument = std::numeric_limits<int32_t>::min();
constexpr float kNoWeight = -12345.5F;

std::string at(size_t position) { return "position " + std::to_string(position) + ": "; }

std::string outside(const std::string& the, size_t position, int64_t id, int64_t vocabulary) {
  if (id == kUnwritten) return at(position) + the + " was not written";
  if (id >= 0 && (vocabulary <= 0 || id < vocabulary)) return "";
  return at(position) + the + " is " + std::to_string(id) + ", outside of the vocabulary of " +
         std::to_string(vocabulary);
}

}  // namespace

Sample::Sample(const SampleSource& source, int64_t seq_len)
    : tokens(static_cast<size_t>(seq_len), kUnwritten),
      targets(tokens.size(), kUnwritten),
      documents(source.has_documents() ? tokens.size() : 0, kNoDocument),
      weights(source.has_weights() ? tokens.size() : 0, kNoWeight) {}

Sample read_sample(const SampleSource& source, int64_t seq_len, int64_t sample) {
  Sample out(source, seq_len);
  source.read(sample, out.view());
  return out;
}

std::vector<int64_t> some_samples(int64_t samples, int64_t most) {
  const int64_t many = std::min(samples, most), gaps = std::max<int64_t>(many - 1, 1);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < many; ++i)
    out.push_back((samples - 1) / gaps * i + (samples - 1) % gaps * i / gaps);
  return out;
}

std::string problem_of(const Sample& sample, int64_t vocabulary) {
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    if (std::string bad = outside("the token", i, sample.tokens[i], vocabulary); !bad.empty())
      return bad;
    if (sample.targets[i] == kNoTarget) continue;
    if (std::string bad = outside("the target", i, sample.targets[i], vocabulary); !bad.empty())
      return bad + (bad.find("written") == std::string::npos
                        ? " (" + std::to_string(kNoTarget) + " says that there is none)"
                        : "");
  }
  for (size_t i = 0; i < sample.documents.size(); ++i) {
    if (sample.documents[i] == kNoDocument) return at(i) + "the document was not written";
    const int32_t before = i == 0 ? 0 : sample.documents[i - 1];
    if (sample.documents[i] < before)
      return at(i) + "the document is " + std::to_string(sample.documents[i]) + ", below " +
             std::to_string(before) + ": documents ascend from 0";
  }
  for (size_t i = 0; i < sample.weights.size(); ++i) {
    if (sample.weights[i] == kNoWeight) return at(i) + "the weight was not written";
    if (!std::isfinite(sample.weights[i]) || sample.weights[i] < 0)
      return at(i) + "the weight is " + std::to_string(sample.weights[i]) +
             ", but it must be 0 or more";
  }
  return "";
}

std::unique_ptr<SampleSource> open_or_fail(const DatasetKind& kind, const DatasetRequest& request,
                                           const std::string& what, Report& report) {
  auto answer = ask([&] {
    kind.prepare(request);
    return kind.open(request);
  });
  if (answer.error) report.fail(what + ": " + one_line(*answer.error));
  if (!answer.foreign.empty()) report.fail(what + ": open threw " + answer.foreign);
  if (!answer.value) return nullptr;
  if (!*answer.value) report.fail(what + ": open returned nothing");
  return std::move(*answer.value);
}

bool no_request(const Subject& subject, Report& report) {
  if (subject.request == nullptr)
    report.skip("no data to open: name a job that reads it with --file JOB");
  return subject.request == nullptr;
}

}  // namespace meshwright::conformance
