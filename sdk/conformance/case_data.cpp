// Data sets: that they open, what a sample holds, that it depends on its number alone, and that the
// fingerprint is that of the samples.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "sdk/conformance/cases.h"
#include "sdk/conformance/data_probe.h"

namespace meshwright::conformance {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSome = 24;  // samples that a case reads

std::string named(int64_t sample) { return "sample " + std::to_string(sample); }

// A folder that goes away.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "meshwright_check_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Scratch() {
    std::error_code failed;
    if (!path_.empty()) fs::remove_all(path_, failed);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

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
    const Scratch scratch;
    DatasetRequest changed = request;
    const fs::path copy = scratch.path() / file.filename(), shorter_folder = scratch.path() / "b";
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
