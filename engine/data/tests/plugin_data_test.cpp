// Data that a plugin brings: what it may not give, and how it is read ahead.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "engine/data/dataset.h"
#include "engine/data/read_ahead.h"
#include "engine/data/tests/fixtures.h"
#include "engine/data/tests/numbers.h"

using namespace meshwright;
using namespace meshwright::data;

namespace {

// What reading sample 3 ends with.
std::string refusal(const Numbers& numbers) {
  const auto source = open_samples(config_of(numbers));
  SampleBuffer buffer(*source, numbers.seq_len);
  const Error error = thrown([&] { source->read(3, buffer.view()); });
  if (error.message() == "nothing") return "";
  CHECK(exit_status(error.code()) == 7);
  return code_string(error.code()) + " " + error.message();
}

struct Batch {
  std::vector<int64_t> tokens, targets;
  std::vector<int32_t> documents;
  std::vector<float> weights;
  Batch(int64_t rows, int64_t length)
      : tokens(static_cast<size_t>(rows * length)),
        targets(tokens.size()),
        documents(tokens.size()),
        weights(tokens.size()) {}
  bool operator==(const Batch&) const = default;
};

struct Reading {
  std::shared_ptr<Batch> batch;
  std::shared_ptr<ReadAhead::Task> task;
};

Reading begin(ReadAhead& reader, int64_t first, int64_t rows, int64_t length) {
  auto batch = std::make_shared<Batch>(rows, length);
  auto task = reader.begin(first, {batch->tokens.data(), batch->targets.data(),
                                   batch->documents.data(), batch->weights.data(), batch});
  return {batch, task};
}

std::string error_of(const std::function<void()>& body) {
  const std::string message = thrown(body).message();
  return message == "nothing" ? "" : message;
}

}  // namespace

TEST_CASE("where what pads a sample begins") {
  using Targets = std::vector<int64_t>;
  using Documents = std::vector<int32_t>;
  const int64_t none = kNoTarget;
  // Without documents: behind the last target.
  CHECK(padding_begin(Targets{none, 5, none, 6}, {}) == 4);
  CHECK(padding_begin(Targets{none, 5, none, none}, {}) == 2);
  CHECK(padding_begin(Targets{none, none}, {}) == 0);
  // With documents: the last one, if it has none.
  CHECK(padding_begin(Targets{none, 5, none, none}, Documents{0, 0, 1, 1}) == 2);
  CHECK(padding_begin(Targets{none, 5, none, none}, Documents{0, 0, 0, 1}) == 3);
  CHECK(padding_begin(Targets{none, 5, 6, none}, Documents{0, 0, 1, 1}) == 4);
  CHECK(padding_begin(Targets{none, none, none, none}, Documents{0, 0, 1, 1}) == 2);
  CHECK(padding_begin(Targets{none, none}, Documents{0, 0}) == 0);
}

TEST_CASE("what a plugin's sample holds is told with plugin, sample and position") {
  struct Case {
    const char* expected;
    std::function<void(const SampleView&)> spoil;
  };
  const std::vector<Case> cases = {
      {"", [](const SampleView&) {}},
      {"E0702 plugin numbers, sample 3, position 2: the token is 50, but the model's vocabulary "
       "has 50 entries",
       [](const SampleView& out) { out.tokens[2] = 50; }},
      {"E0702 plugin numbers, sample 3, position 0: the token is -1, but",
       [](const SampleView& out) { out.tokens[0] = -1; }},
      {"E0702 plugin numbers, sample 3, position 5: the target is 77, but",
       [](const SampleView& out) { out.targets[5] = 77; }},
      {"E0702 plugin numbers, sample 3, position 5: the target is -99, but",
       [](const SampleView& out) { out.targets[5] = -99; }},
      {"E0701 plugin numbers, sample 3, position 4: the document is 1, behind 9: documents ascend",
       [](const SampleView& out) {
         std::fill(out.documents.begin(), out.documents.end(), 9);
         out.documents[4] = 1;
       }},
      {"E0701 plugin numbers, sample 3, position 0: the document is -1, but they count from 0",
       [](const SampleView& out) { out.documents[0] = -1; }},
      {"E0701 plugin numbers, sample 3, position 7: the weight is -0.5",
       [](const SampleView& out) { out.weights[7] = -0.5F; }},
      {"E0701 plugin numbers, sample 3, position 1: the weight is inf",
       [](const SampleView& out) { out.weights[1] = HUGE_VALF; }},
  };
  for (const Case& one : cases) {
    INFO(one.expected);
    Numbers numbers;
    numbers.spoil = [&](int64_t sample, const SampleView& out) {
      if (sample == 3) one.spoil(out);
    };
    const std::string found = refusal(numbers);
    CHECK(found.substr(0, std::string(one.expected).size()) == one.expected);
    CHECK(found.empty() == (*one.expected == 0));
  }
}

TEST_CASE("elements of a sample that a plugin did not write are told, whatever was read before") {
  // A source that leaves out a half: what the buffer held before must not pass for data.
  class Half final : public SampleSource {
   public:
    int64_t samples() const override { return 2; }
    void read(int64_t, const SampleView& out) const override {
      const size_t most = out.tokens.size() / 2;
      std::fill_n(out.tokens.begin(), most, 1);
      std::fill_n(out.targets.begin(), most, 1);
    }
    std::string describe() const override { return ""; }
    uint64_t fingerprint() const override { return 0; }
  };
  const DatasetConfig config = config_of({});
  const auto source = checked_source(config, std::make_unique<Half>());
  SampleBuffer buffer(*source, 8);
  std::fill(buffer.view().tokens.begin(), buffer.view().tokens.end(), 3);
  CHECK(error_of([&] { source->read(1, buffer.view()); }) ==
        "plugin numbers, sample 1, position 4: the token was not written");
}

TEST_CASE("a data set of a plugin without samples, and one that is not opened, are told") {
  CHECK(error_of([] {
          open_samples(config_of({.samples = 0}));
        }).find("plugin numbers: the data set has 0 samples of 12 tokens") == 0);
  class Nothing final : public DatasetKind {
    std::unique_ptr<SampleSource> open(const DatasetRequest&) const override { return nullptr; }
  };
  DatasetConfig config = config_of({});
  config.plugin->kind = std::make_shared<Nothing>();
  CHECK(error_of([&] { open_samples(config); }) == "plugin numbers: open() returned nothing");
}

TEST_CASE("before a run samples of a plugin's data are looked at, the first and the last too") {
  for (int64_t bad : {0, 41, 99}) {
    Numbers numbers;
    numbers.spoil = [bad](int64_t sample, const SampleView& out) {
      if (sample == bad) out.tokens[0] = 1000;
    };
    // Of a hundred samples every other one or so; small sets are read whole.
    if (bad == 41) numbers.samples = 60;
    CHECK(error_of([&] {
            look_at_data(config_of(numbers));
          }).find("sample " + std::to_string(bad) + ", position 0") != std::string::npos);
  }
}

TEST_CASE("fingerprints tell plugins, numbers of samples and data sets apart") {
  auto of = [](const Numbers& numbers, const char* name) {
    DatasetConfig config = config_of(numbers);
    config.plugin->name = name;
    return fingerprint_of(config, *open_samples(config));
  };
  const uint64_t one = of({}, "numbers");
  CHECK(of({}, "numbers") == one);
  CHECK(of({}, "others") != one);
  CHECK(of({.samples = 99}, "numbers") != one);
  CHECK(of({.fingerprint = 8}, "numbers") != one);
}

TEST_CASE("reading ahead gives the samples that the step would read, whatever the threads") {
  constexpr int64_t kRows = 3, kBatches = 9;
  const Numbers numbers;
  std::vector<Batch> truth;
  for (int64_t workers : {0, 1, 2, 5}) {
    INFO(workers << " workers");
    ReadAhead reader({open_samples(config_of(numbers)), Sampler(numbers.samples, true, 3)},
                     {.seq_len = numbers.seq_len, .rows = kRows, .workers = workers});
    std::vector<Reading> readings;
    for (int64_t i = 0; i < kBatches; ++i)
      readings.push_back(begin(reader, i * kRows, kRows, numbers.seq_len));
    for (size_t i = 0; i < kBatches; ++i) {
      reader.wait(readings[i].task);
      if (workers == 0) truth.push_back(*readings[i].batch);
      CHECK(*readings[i].batch == truth[i]);
    }
  }
  CHECK(!(truth[0] == truth[1]));
}

TEST_CASE("threads read side by side, and what was read ahead is not waited for") {
  using Clock = std::chrono::steady_clock;
  const Numbers numbers{.takes = std::chrono::milliseconds(30)};
  auto took = [&](int64_t workers, std::chrono::milliseconds pause) {
    ReadAhead reader({open_samples(config_of(numbers)), Sampler(numbers.samples, false, 0)},
                     {.seq_len = numbers.seq_len, .rows = 4, .workers = workers});
    Reading reading = begin(reader, 0, 4, numbers.seq_len);
    std::this_thread::sleep_for(pause);
    const Clock::time_point since = Clock::now();
    reader.wait(reading.task);
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count();
  };
  const auto alone = took(0, {}), four = took(4, {});
  CHECK(alone >= 120);
  CHECK(four < alone);
  CHECK(took(4, std::chrono::milliseconds(400)) < alone / 2);
}

TEST_CASE("the error of the first bad sample is that of the step, which may come at any time") {
  for (int64_t workers : {0, 1, 4}) {
    INFO(workers << " workers");
    Numbers numbers;
    numbers.spoil = [](int64_t sample, const SampleView& out) {
      if (sample == 5) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (sample == 5 || sample == 6) out.tokens[1] = 1000 + sample;
    };
    ReadAhead reader({open_samples(config_of(numbers)), Sampler(numbers.samples, false, 0)},
                     {.seq_len = numbers.seq_len, .rows = 4, .workers = workers});
    Reading good = begin(reader, 0, 4, numbers.seq_len), bad = begin(reader, 4, 4, numbers.seq_len);
    CHECK(error_of([&] { reader.wait(good.task); }) == "");
    CHECK(error_of([&] {
            reader.wait(bad.task);
          }).find("sample 5, position 1: the token is 1005") != std::string::npos);
  }
}

TEST_CASE("threads end while samples are read or wait, and one that hangs holds nobody up") {
  const Numbers slow{.takes = std::chrono::milliseconds(20)};
  {
    ReadAhead reader({open_samples(config_of(slow)), Sampler(slow.samples, false, 0)},
                     {.seq_len = slow.seq_len, .rows = 4, .workers = 2});
    for (int i = 0; i < 20; ++i) begin(reader, int64_t{4} * i, 4, slow.seq_len);
  }
  CHECK(*slow.reads < 80);  // what nobody waits for is dropped

  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false, passed = false;
  };
  auto gate = std::make_shared<Gate>();
  Numbers hangs;
  hangs.spoil = [gate](int64_t, const SampleView&) {
    std::unique_lock lock(gate->mutex);
    gate->opened.wait(lock, [&] { return gate->open; });
    gate->passed = true;
    gate->opened.notify_all();
  };
  const auto since = std::chrono::steady_clock::now();
  {
    ReadAhead reader({open_samples(config_of(hangs)), Sampler(hangs.samples, false, 0)},
                     {.seq_len = hangs.seq_len,
                      .rows = 1,
                      .workers = 1,
                      .patience = std::chrono::milliseconds(50)});
    const Reading reading = begin(reader, 0, 1, hangs.seq_len);
    // Another rank's failure ends the wait.
    CHECK(error_of([&] {
            reader.wait(reading.task,
                        [] { throw Error(ErrorCode::collective_failed, "rank 1 has ended"); });
          }) == "rank 1 has ended");
  }
  CHECK(std::chrono::steady_clock::now() - since < std::chrono::seconds(5));
  // The thread that was left behind still has what it writes to.
  std::unique_lock lock(gate->mutex);
  gate->open = true;
  gate->opened.notify_all();
  gate->opened.wait(lock, [&] { return gate->passed; });
}

TEST_CASE("token streams keep documents apart where they are told what ends one") {
  DatasetConfig config{.kind = "mock", .seq_len = 16, .vocab_size = 5, .seed = 2};
  config.document_end = 3;
  const auto source = open_samples(config);
  REQUIRE(source->has_documents());
  SampleBuffer buffer(*source, 16);
  int64_t ends = 0;
  for (int64_t sample = 0; sample < 4; ++sample) {
    source->read(sample, buffer.view());
    const SampleView out = buffer.view();
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      const bool end = out.tokens[i] == 3, begins = i > 0 && out.tokens[i - 1] == 3;
      ends += end ? 1 : 0;
      CHECK((out.targets[i] == kNoTarget) == end);
      CHECK(out.documents[i] == (i == 0 ? 0 : out.documents[i - 1] + (begins ? 1 : 0)));
      if (!end && i + 1 < out.tokens.size()) CHECK(out.targets[i] == out.tokens[i + 1]);
    }
  }
  CHECK(ends > 4);
  config.document_end.reset();
  CHECK(!open_samples(config)->has_documents());
}
