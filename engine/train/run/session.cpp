#include "engine/train/run/session.h"

#include <algorithm>
#include <utility>

#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/train/run/rank_run.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/sample.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

class Running : public Session {
 public:
  explicit Running(RunOptions options) : options_(std::move(options)) {
    try {
      run_ = std::make_unique<Run>(options_, log_);
      run_->open(ending_);
      run_->prepare();
    } catch (...) {
      give_up();
    }
    rank_ = run_->trainer().world().rank();
    world_size_ = run_->trainer().world().size();
    max_steps_ = run_->trainer().max_steps();
    next_step_ = run_->trainer().next_step();
    folder_ = run_->path();
  }

  void train(int64_t most, const std::function<StepRequests(const SessionStep&)>& after) override {
    together([&](Run& run) {
      // Always asked of all: some ranks may have nothing to say.
      run.train(most, [&](const StepResult& result, const StepCost& cost) {
        next_step_ = result.step + 1;
        if (!after) return StepRequests{};
        return after({result.step, result.loss, result.grad_norm, result.lr, result.count,
                      cost.step_ms, cost.memory_bytes});
      });
    });
  }

  void save() override {
    together([](Run& run) { run.save_now(); });
  }

  double evaluate() override {
    if (!there().has_validation())
      throw Error(ErrorCode::missing_key, "the job has no validation data")
          .key("validation_dataset.path")
          .help("set validation_dataset.path");
    double loss = 0;
    together([&](Run& run) { loss = run.evaluate().loss; });
    return loss;
  }

  void generate(const generate::Request& request, const OnToken& token) override {
    Run& here = there();
    if (!request.sets.empty())
      throw Error(ErrorCode::usage, "a run goes on with a text under its own configuration")
          .help("leave out the overrides");
    const generate::Source source =
        generate::Source::of_model(here.config_file(), here.model().outline.vocab_size,
                                   data::reads_bytes(here.job().table("dataset")));
    const std::vector<int64_t> prompt = source.prompt(request), stops = source.stops(request);
    check_generates(here.model());
    generate::check_sampling(request.temperature, request.top_k, request.top_p);
    together([&](Run& run) {
      RunningModel& net = *run.model().running;
      const int64_t context = std::min(run.seq_len(), net.max_positions());
      generate::TextPieces pieces(source, options_.tell, token);
      generate::continue_prompt(run.trainer(), net, prompt, request, stops, context,
                                pieces.listener());
      pieces.finish();
    });
  }

  void finish() override {
    together([&](Run& run) {
      run.finish();
      run.on_success();
      ending_.finish();
    });
    run_.reset();
    why_over_ = "has finished";
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  int64_t next_step() const override { return next_step_; }
  int64_t max_steps() const override { return max_steps_; }
  const fs::path& folder() const override { return folder_; }

 private:
  Run& there() {
    if (run_ == nullptr)
      throw Error(ErrorCode::usage,
                  "the run " + why_over_ + ": nothing can be asked of it any more")
          .help("open the job again: it goes on from its newest checkpoint");
    return *run_;
  }

  template <class Work>
  void together(const Work& work) {
    Run& run = there();
    try {
      work(run);
    } catch (...) {
      give_up();
    }
  }

  // The connections are closed before the others hear why.
  [[noreturn]] void give_up() {
    Error error = error_being_handled();
    if (run_) run_->on_failure(error);
    run_.reset();
    why_over_ = "has failed";
    if (!log_.empty()) base::append_line(log_, report::format_error({}, error));
    ending_.tell(error);
    throw error;
  }

  const RunOptions options_;
  rendezvous::Ending ending_;
  fs::path log_;
  std::unique_ptr<Run> run_;  // nullptr: it is over
  std::string why_over_;
  int64_t rank_ = 0, world_size_ = 1, next_step_ = 0, max_steps_ = 0;
  fs::path folder_;
};

}  // namespace

std::unique_ptr<Session> open_session(const RunOptions& options) {
  return std::make_unique<Running>(options);
}

}  // namespace meshwright::train
