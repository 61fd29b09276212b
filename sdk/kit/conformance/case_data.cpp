// Data sets: that they open, what a sample holds, that it depends on its number alone, and that the
// fingerprint is that of the samples.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sdk/base/files/temporary_folder.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

// What the cases about data sets share. Not for use outside the kit.

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

// Throws what read() throws.
Sample read_sample(const SampleSource& source, int64_t seq_len, int64_t sample) {
  Sample out(source, seq_len);
  source.read(sample, out.view());
  return out;
}

// Numbers of up to `most` samples, the first and the last among them.
std::vector<int64_t> some_samples(int64_t samples, int64_t most) {
  const int64_t many = std::min(samples, most), gaps = std::max<int64_t>(many - 1, 1);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < many; ++i)
    out.push_back((samples - 1) / gaps * i + (samples - 1) % gaps * i / gaps);
  return out;
}

// What a sample may not hold, "" where all is well: "position 3: the token was not written".
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

// The data set of the request, or nullptr with what refused it in the report.
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

// True, and the case skipped, where no job was named.
bool no_request(const Subject& subject, Report& report) {
  if (subject.request == nullptr)
    report.skip("no data to open: name a job that reads it with --file JOB");
  return subject.request == nullptr;
}

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSome = 24;  // samples that a case reads

std::string named(int64_t sample) { return "sample " + std::to_string(sample); }

// The fingerprint with some samples; nullopt where it does not open.
struct Seen {
  uint64_t fingerprint = 0;
  int64_t samples = 0;
  std::vector<Sample> some;
  bool same_data(const Seen& other) const { return samples == other.samples && some == other.some; }
};

std::optional<Seen> look(const DatasetKind& kind, const DatasetRequest& request) {
  auto answer = ask([&] {
    kind.prepare(request);
    const std::unique_ptr<SampleSource> source = kind.open(request);
    Seen out;
    if (!source) return out;
    out.fingerprint = source->fingerprint();
    out.samples = source->samples();
    for (int64_t sample : some_samples(out.samples, kSome))
      out.some.push_back(read_sample(*source, request.seq_len, sample));
    return out;
  });
  return answer.value;
}

// A copy of the request's file that lacks its end, cut at a line where it has lines.
bool write_shorter(const fs::path& from, const fs::path& to) {
  std::ifstream in(from, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t keep = bytes.size() * 3 / 5;
  if (const size_t line = bytes.rfind('\n', keep); line != std::string::npos) keep = line + 1;
  if (keep == 0) return false;
  std::ofstream(to, std::ios::binary) << bytes.substr(0, keep);
  return true;
}

}  // namespace

void check_data_lifecycle(const Subject& subject, Report& report) {
  check_growth([&] { KindInstance instance(subject); }, report);
  KindInstance kind(subject);
  check_unknown_extension(*kind, report);
  const OptionSchema schema = schema_of(subject);
  Random random(11);
  for (int i = 0; i < 200 && !report.full(); ++i) {
    DatasetRequest request;
    request.options = i > 0 ? random_options(schema, random) : Options(schema);
    request.seq_len = 1 + random.below(64);
    request.vocab_size = 256;
    Diagnostics diagnostics;
    check_answers([&] { kind->validate(request, diagnostics); }, report);
  }
}

void check_data_open(const Subject& subject, Report& report) {
  if (no_request(subject, report)) return;
  KindInstance kind(subject);
  DatasetRequest request = *subject.request;
  Diagnostics said;
  kind->validate(request, said);
  for (const Error& error : said.errors())
    report.fail("validate refuses the job's options: " + one_line(error));
  const auto source = open_or_fail(*kind, request, "the job's data", report);
  if (!source) return;
  const std::string about = source->describe();
  if (about.empty()) report.fail("describe() is empty");
  if (about.find('\n') != std::string::npos) report.fail("describe() has more than one line");
  for (const std::string& line : source->report())
    if (line.empty() || line.find('\n') != std::string::npos)
      report.fail("report() has a line that is empty or two");
  const int64_t samples = source->samples();
  if (samples < 1) report.fail("samples() is " + std::to_string(samples));
  for (const std::string& file : source->files()) {
    std::error_code failed;
    if (!fs::is_regular_file(file, failed))
      report.fail("files() names " + file + ", which is no file");
  }
  if (samples >= 1)
    for (int64_t beyond : {samples, int64_t{-1}}) {
      const auto answer = ask([&] { return read_sample(*source, request.seq_len, beyond); });
      if (!answer.foreign.empty())
        report.fail("read(" + std::to_string(beyond) + ") of " + std::to_string(samples) +
                    " samples threw " + answer.foreign);
      if (answer.value)
        report.fail("read(" + std::to_string(beyond) + ") of " + std::to_string(samples) +
                    " samples gives something");
    }
  if (!request.path.empty()) {
    request.path = "/no/such/data/anywhere";
    const auto answer = ask([&] {
      kind->prepare(request);
      return kind->open(request) != nullptr;
    });
    if (answer.value) report.fail("a path where nothing is opens");
    if (!answer.foreign.empty())
      report.fail("a path where nothing is: open threw " + answer.foreign);
    if (answer.error && answer.error->message().find(request.path) == std::string::npos)
      report.fail("what refuses a path where nothing is does not name it: " +
                  one_line(*answer.error));
  }
  report.note(about, samples);
}

void check_data_read(const Subject& subject, Report& report) {
  if (no_request(subject, report)) return;
  KindInstance kind(subject);
  int64_t read = 0;
  for (const int64_t seq_len :
       {subject.request->seq_len, int64_t{1}, int64_t{7}, subject.request->seq_len / 2 + 1}) {
    DatasetRequest request = *subject.request;
    request.seq_len = seq_len;
    const std::string of = "seq_len " + std::to_string(seq_len);
    // Only the job's own length must be possible.
    if (seq_len != subject.request->seq_len && !look(*kind, request)) continue;
    const auto source = open_or_fail(*kind, request, of, report);
    if (!source) return;
    for (int64_t sample : some_samples(source->samples(), kSome)) {
      const auto answer = ask([&] { return read_sample(*source, seq_len, sample); });
      const std::string what = of + ", " + named(sample) + ": ";
      if (answer.error) report.fail(what + one_line(*answer.error));
      if (!answer.foreign.empty()) report.fail(what + "read threw " + answer.foreign);
      if (!answer.value) continue;
      ++read;
      if (const std::string bad = problem_of(*answer.value, request.vocab_size); !bad.empty())
        report.fail(what + bad);
    }
    if (report.full()) break;
  }
  // Of a vocabulary that is too small either open() or read() says so, or the ids are below it.
  DatasetRequest request = *subject.request;
  request.vocab_size = 2;
  const auto answer = ask([&] {
    std::string bad;
    if (const auto source = kind->open(request))
      for (int64_t sample : some_samples(source->samples(), kSome))
        if (bad.empty()) bad = problem_of(read_sample(*source, request.seq_len, sample), 2);
    return bad;
  });
  if (answer.value && !answer.value->empty())
    report.fail("with a vocabulary of 2: " + *answer.value + "; neither open nor read refused it");
  if (!answer.foreign.empty()) report.fail("with a vocabulary of 2: " + answer.foreign);
  report.note(std::to_string(read) + " samples", read);
}

void check_data_pure(const Subject& subject, Report& report) {
  if (no_request(subject, report)) return;
  KindInstance kind(subject), other(subject);
  const DatasetRequest& request = *subject.request;
  const auto source = open_or_fail(*kind, request, "the job's data", report),
             again = open_or_fail(*other, request, "the job's data, once more", report);
  if (!source || !again) return;
  const std::vector<int64_t> some = some_samples(source->samples(), kSome);
  std::vector<Sample> truth;
  auto failed = ask([&] {
    for (int64_t sample : some) truth.push_back(read_sample(*source, request.seq_len, sample));
    return true;
  });
  if (!failed.value) return report.fail("a sample cannot be read; data_read says more");
  for (size_t i = some.size(); i-- > 0 && !report.full();) {
    if (!(read_sample(*source, request.seq_len, some[i]) == truth[i]))
      report.fail(named(some[i]) + " is another one when it is read again, in another order");
    if (!(read_sample(*again, request.seq_len, some[i]) == truth[i]))
      report.fail(named(some[i]) + " is another one when the data are opened again");
  }
  if (again->samples() != source->samples())
    report.fail("the data have " + std::to_string(again->samples()) +
                " samples when opened again, " + std::to_string(source->samples()) + " before");
  // Each thread in an order of its own, so that they meet in the same places and in others.
  constexpr size_t kThreads = 6, kRounds = 20;
  std::vector<std::string> found(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Random random(t + 1);
      for (size_t i = 0; i < kRounds * some.size() && found[t].empty(); ++i) {
        const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(some.size())));
        const auto answer = ask([&] { return read_sample(*source, request.seq_len, some[which]); });
        if (answer.error) found[t] = named(some[which]) + ": " + one_line(*answer.error);
        if (!answer.foreign.empty()) found[t] = named(some[which]) + ": " + answer.foreign;
        if (answer.value && !(*answer.value == truth[which]))
          found[t] = named(some[which]) + " is another one while other threads read";
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : found)
    if (!problem.empty() && !report.full()) report.fail(problem);
  report.note(std::to_string(some.size()) + " samples, " + std::to_string(kThreads) + " threads",
              std::ssize(some));
}

void check_data_fingerprint(const Subject& subject, Report& report) {
  if (no_request(subject, report)) return;
  KindInstance kind(subject), other(subject);
  const DatasetRequest& request = *subject.request;
  const std::optional<Seen> truth = look(*kind, request), again = look(*other, request);
  if (!truth || !again) return report.fail("the data cannot be read; data_read says more");
  if (truth->fingerprint != again->fingerprint)
    report.fail("the fingerprint is another one when the data are opened again");
  int compared = 0;
  // Which data another request makes; the same fingerprint must mean the same samples.
  auto compare = [&](const DatasetRequest& changed, const std::string& what) {
    const std::optional<Seen> seen = look(*kind, changed);
    if (!seen || report.full()) return;
    ++compared;
    if (!seen->same_data(*truth) && seen->fingerprint == truth->fingerprint)
      report.fail(what +
                  " makes other samples with the same fingerprint: a checkpoint would be "
                  "continued on them");
  };
  Random random(5);
  for (const meshwright_option* option : schema_of(subject).options)
    for (int i = 0; i < 6; ++i) {
      DatasetRequest changed = request;
      const OptionValue value = random_value(*option, random);
      if (ask([&] {
            changed.options.set(option->name, value);
            return true;
          }).value)
        compare(changed, std::string(option->name) + " = " + to_toml(value));
    }
  std::error_code failed;
  const fs::path file = request.path;
  if (fs::is_regular_file(file, failed)) {
    const base::TemporaryFolder folder("meshwright_check");
    if (folder.path().empty()) return report.fail(folder.why());
    DatasetRequest changed = request;
    const fs::path copy = folder.path() / file.filename(), shorter_folder = folder.path() / "b";
    fs::copy_file(file, copy, failed);
    changed.path = copy.string();
    const std::optional<Seen> of_copy = look(*kind, changed);
    if (!of_copy)
      report.fail("a copy of " + file.string() + " in another folder does not open");
    else if (of_copy->fingerprint != truth->fingerprint)
      report.fail("a copy of " + file.string() +
                  " in another folder has another fingerprint: no other host could go on");
    fs::create_directory(shorter_folder, failed);
    changed.path = (shorter_folder / file.filename()).string();
    if (write_shorter(file, changed.path)) compare(changed, "a file that lacks its end");
  }
  report.note(std::to_string(compared) + " other data sets", compared);
}

}  // namespace meshwright::conformance
