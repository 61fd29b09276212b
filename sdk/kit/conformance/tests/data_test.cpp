// Data sets that are wrong in one way each: a case fails, and says what it is.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>
#include <thread>

#include "meshwright/plugin_main.h"
#include "sdk/base/conformance.h"

using namespace meshwright;
namespace conf = meshwright::conformance;
namespace fs = std::filesystem;

namespace {

// What a row of the table replaces; the data set below is right wherever nothing is.
struct Hooks {
  std::function<void()> create;
  std::function<void()> validate;
  std::function<void(const DatasetRequest&)> open;
  std::function<void(int64_t sample, const SampleView& out)> read;
  std::function<uint64_t(const std::string& bytes, const DatasetRequest& request)> fingerprint;
  std::function<std::vector<std::string>(const std::string& path)> files;
  std::function<std::string()> describe;
  bool any_sample = false, any_token = false, any_path = false;
};
Hooks hooks;

constexpr meshwright_option kOptions[] = {int_option("shift", "0", 0, "Added to every byte."),
                                          bool_option("loud", false, "Changes no sample.")};

// Bytes of a file: sample i begins at i * seq_len; documents end with a line.
class Bytes final : public SampleSource {
 public:
  explicit Bytes(const DatasetRequest& request) : request_(request) {
    std::ifstream in(request.path, std::ios::binary);
    if (!in && !hooks.any_path)
      throw Error(ErrorCode::bad_dataset, request.path + ": cannot be read");
    bytes_ = std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (samples() < 1 && !hooks.any_path)
      throw Error(ErrorCode::bad_dataset, request.path + ": too short");
  }
  int64_t samples() const override {
    return (static_cast<int64_t>(bytes_.size()) - 1) / request_.seq_len;
  }
  void read(int64_t sample, const SampleView& out) const override {
    if ((sample < 0 || sample >= samples()) && !hooks.any_sample)
      throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
    int32_t document = 0;
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      const size_t at = static_cast<size_t>(std::max<int64_t>(sample, 0) * request_.seq_len) + i;
      out.tokens[i] = byte(at);
      out.targets[i] = byte(at + 1);
      out.documents[i] = document;
      out.weights[i] = 1;
      if (at < bytes_.size() && bytes_[at] == '\n') {
        out.targets[i] = kNoTarget;
        ++document;
      }
    }
    if (hooks.read) hooks.read(sample, out);
  }
  std::string describe() const override { return hooks.describe ? hooks.describe() : "bytes"; }
  uint64_t fingerprint() const override {
    if (hooks.fingerprint) return hooks.fingerprint(bytes_, request_);
    return std::hash<std::string>()(bytes_) + static_cast<uint64_t>(shift());
  }
  bool has_documents() const override { return true; }
  bool has_weights() const override { return true; }
  std::vector<std::string> files() const override {
    return hooks.files ? hooks.files(request_.path) : std::vector<std::string>{request_.path};
  }

 private:
  int64_t shift() const { return request_.options.get_int("shift") % 7; }
  int64_t byte(size_t at) const {
    const int64_t value =
        (at < bytes_.size() ? static_cast<unsigned char>(bytes_[at]) : 0) + shift();
    if (request_.vocab_size > 0 && value >= request_.vocab_size && !hooks.any_token)
      throw Error(ErrorCode::bad_token, request_.path + ": the byte " + std::to_string(value));
    return value;
  }
  DatasetRequest request_;
  std::string bytes_;
};

class Kind final : public DatasetKind {
 public:
  Kind() {
    if (hooks.create) hooks.create();
  }
  void validate(const DatasetRequest&, Diagnostics&) const override {
    if (hooks.validate) hooks.validate();
  }
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override {
    if (hooks.open) hooks.open(request);
    return std::make_unique<Bytes>(request);
  }
};

const meshwright_component kAbout =
    describe_dataset<Kind>({.name = "bytes", .summary = "Bytes.", .options = kOptions});

struct Text {
  fs::path folder =
      fs::temp_directory_path() / ("meshwright_data_kit_" + std::to_string(::getpid()));
  fs::path file = folder / "text";
  Text() {
    fs::create_directories(folder);
    std::ofstream out(file);
    for (int i = 0; i < 60; ++i) out << "line " << i * 7919 << " of it" << (i % 3 ? "\n" : " ");
  }
  ~Text() { fs::remove_all(folder); }
};

// The names of the cases that fail, and everything they say.
struct Verdicts {
  std::set<std::string> failed;
  std::string said;
  size_t passed = 0, skipped = 0;
};

Verdicts verdicts(bool with_request = true) {
  const Text text;
  DatasetRequest request;
  request.options = Options(make_schema("dataset.bytes", "bytes", kOptions));
  request.path = text.file.string();
  request.seq_len = 12;
  request.vocab_size = 300;
  const conf::Subject subject{.dataset = &kAbout, .request = with_request ? &request : nullptr};
  Verdicts out;
  for (const conf::Case& c : conf::cases()) {
    if (c.scope != conf::Scope::dataset) continue;
    const conf::Report report = conf::run_case(c, subject);
    if (report.verdict() == conf::Verdict::failed) out.failed.emplace(c.name);
    out.passed += report.verdict() == conf::Verdict::ok ? 1 : 0;
    out.skipped += report.verdict() == conf::Verdict::skipped ? 1 : 0;
    for (const std::string& problem : report.problems()) out.said += problem + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("data kit: a data set that is right passes every case") {
  hooks = {};
  const Verdicts found = verdicts();
  CHECK(found.said == "");
  CHECK(found.passed == 6);
}

TEST_CASE("data kit: without a job only what needs no data is looked at, and that is said") {
  hooks = {};
  const Verdicts found = verdicts(/*with_request=*/false);
  CHECK(found.failed.empty());
  CHECK(found.skipped == 4);
}

TEST_CASE("data kit: each wrong data set is caught by the case that is about it, and named") {
  struct Mutant {
    const char* name;
    const char* caught_by;
    const char* said;
    Hooks hooks;
  };
  static std::atomic<int64_t> calls;
  static int64_t shared = 0;
  std::vector<Mutant> mutants;
  auto add = [&](const char* name, const char* caught_by, const char* said) -> Hooks& {
    mutants.push_back({name, caught_by, said, {}});
    return mutants.back().hooks;
  };
  using View = const SampleView&;
  // What a sample holds.
  add("a token is not written", "data_read", "the token was not written").read =
      [](int64_t, View out) { out.tokens.back() = INT64_MIN; };
  add("a target is beyond the vocabulary", "data_read", "the target is 300, outside").read =
      [](int64_t, View out) { out.targets[0] = 300; };
  add("a target of -1 says none", "data_read", "-100 says that there is none").read =
      [](int64_t, View out) { out.targets[0] = -1; };
  add("documents descend", "data_read", "documents ascend from 0").read = [](int64_t, View out) {
    out.documents.front() = 1000;
  };
  add("weights below 0", "data_read", "it must be 0 or more").read = [](int64_t, View out) {
    out.weights[0] = -1;
  };
  add("weights that are no numbers", "data_read", "it must be 0 or more").read =
      [](int64_t, View out) { out.weights[0] = NAN; };
  add("the vocabulary is not looked at", "data_read", "with a vocabulary of 2").any_token = true;
  add("read throws what is no Error", "data_read", "std::runtime_error: broken").read =
      [](int64_t sample, View) {
        if (sample == 3) throw std::runtime_error("broken");
      };
  // What a sample depends on.
  add("samples follow from the number of reads", "data_pure", "when it is read again").read =
      [](int64_t, View out) { out.tokens[0] = ++calls % 100; };
  add("a buffer that threads share", "data_pure", "while other threads read").read =
      [](int64_t sample, View out) {
        shared = sample;
        std::this_thread::yield();
        out.tokens[0] = shared % 100;
      };
  // Opening.
  add("a sample beyond the last one", "data_open", "gives something").any_sample = true;
  add("a path where nothing is", "data_open", "a path where nothing is opens").any_path = true;
  add("a refusal that names no file", "data_open", "does not name it").open =
      [](const DatasetRequest& request) {
        if (!fs::exists(request.path)) throw Error(ErrorCode::bad_dataset, "no data");
      };
  add("files that are none", "data_open", "which is no file").files = [](const std::string& path) {
    return std::vector<std::string>{path + ".idx"};
  };
  add("no description", "data_open", "describe() is empty").describe = [] { return ""; };
  add("a description of two lines", "data_open", "more than one line").describe = [] {
    return "a\nb";
  };
  add("open throws what is no Error", "data_open", "open threw std::out_of_range").open =
      [](const DatasetRequest&) { throw std::out_of_range("at"); };
  // The fingerprint.
  add("the same for other data", "data_fingerprint", "a file that lacks its end").fingerprint =
      [](const std::string&, const DatasetRequest& request) {
        return static_cast<uint64_t>(request.options.get_int("shift") % 7);
      };
  add("blind to options", "data_fingerprint", "shift = ").fingerprint = [](const std::string& bytes,
                                                                           const DatasetRequest&) {
    return std::hash<std::string>()(bytes);
  };
  add("that of the path", "data_fingerprint", "no other host could go on").fingerprint =
      [](const std::string& bytes, const DatasetRequest& request) {
        return std::hash<std::string>()(bytes + request.path) +
               static_cast<uint64_t>(request.options.get_int("shift") % 7);
      };
  add("a new one every time", "data_fingerprint", "another one when the data are opened again")
      .fingerprint = [](const std::string&, const DatasetRequest&) {
    return static_cast<uint64_t>(++calls);
  };
  // The kind.
  add("memory grows", "data_lifecycle", "memory grew by").create = [] {
    static std::vector<std::unique_ptr<char[]>> kept;
    kept.push_back(std::make_unique<char[]>(1000));
  };
  add("validate throws", "data_lifecycle", "validate threw").validate = [] {
    throw Error(ErrorCode::out_of_range, "no");
  };
  for (const Mutant& mutant : mutants) {
    INFO(mutant.name);
    hooks = mutant.hooks;
    const Verdicts found = verdicts();
    INFO(found.said);
    CHECK(found.failed.contains(mutant.caught_by));
    CHECK(found.said.find(mutant.said) != std::string::npos);
  }
  hooks = {};
}
