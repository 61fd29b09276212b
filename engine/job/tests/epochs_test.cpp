// How many steps a run of epochs has, and what a step reads of all data.
#include "engine/job/job.h"

#include "engine/job/tests/configured.h"

namespace plan = meshwright::plan;
namespace data = meshwright::data;

namespace {

plan::JobPlan counted(const std::vector<std::string>& sets, std::optional<int64_t> samples,
                      const meshwright::Workload& workload, int64_t dp, bool assumed_world,
                      std::optional<plan::Trained> trained = std::nullopt) {
  plan::Job job = plan::job_with(sets);
  job.samples = samples;
  job.trained = trained;
  plan::JobPlan out;
  out.workload = workload;
  out.mesh.dp = dp;
  plan::count_steps(job, assumed_world, out);
  return out;
}

}  // namespace

TEST_CASE("epochs are the steps in which every sample is read so often, the last one filled up") {
  struct Row {
    int64_t epochs, samples, batch, steps;
  };
  for (const Row& row : std::vector<Row>{{1, 8, 8, 1},
                                         {1, 9, 8, 2},
                                         {3, 25, 8, 10},  // 75: no epoch is rounded up alone
                                         {2, 1, 8, 1},
                                         {int64_t{1} << 31, int64_t{1} << 31, 1, int64_t{1} << 62}})
    CHECK(plan::steps_of_epochs(row.epochs, row.samples, row.batch) == row.steps);
  CHECK_THROWS_AS(plan::steps_of_epochs(int64_t{1} << 32, int64_t{1} << 32, 8), meshwright::Error);
  // 2 epochs of 48 samples, 8 steps of 6 of which are done: so many more of another batch.
  CHECK(plan::steps_of_epochs(2, 48, 6, {8, 48}) == 16);
  CHECK(plan::steps_of_epochs(2, 48, 12, {8, 48}) == 12);
  CHECK(plan::steps_of_epochs(2, 48, 5, {8, 48}) == 18);
  CHECK(plan::steps_of_epochs(1, 48, 12, {8, 48}) == 8);
  CHECK(plan::steps_of_epochs(1, 48, 12, {9, 54}) == 9);
}

TEST_CASE("a plan counts epochs by the batch that it has, and says what they come to") {
  const std::vector<std::string> epochs = {"step_scheduler.epochs=3",
                                           "step_scheduler.global_batch_size=8"};
  meshwright::Workload workload;
  workload.local_batch = 2;
  workload.accumulation = 1;
  // A batch that is the default gives way to what the ranks can share: 2 x 3.
  plan::JobPlan of_ranks = counted(epochs, 25, workload, 3, /*assumed_world=*/false);
  CHECK(of_ranks.max_steps == 13);
  REQUIRE(of_ranks.notices.size() == 1);
  CHECK(of_ranks.notices[0] ==
        "step_scheduler.epochs = 3 is 13 steps: an epoch is 25 samples, 4.1 steps of 6");
  CHECK(counted(epochs, 25, workload, 3, /*assumed_world=*/true).max_steps == 10);
  // A run that goes on counts what is left.
  plan::JobPlan goes_on = counted(epochs, 25, workload, 3, false, plan::Trained{2, 16});
  CHECK(goes_on.max_steps == 12);
  CHECK(goes_on.notices[0] ==
        "step_scheduler.epochs = 3 is 12 steps, of which 2 have read 16 samples: an epoch is 25 "
        "samples, 4.1 steps of 6");
  // Nobody has opened the data.
  plan::JobPlan unknown = counted(epochs, std::nullopt, workload, 3, /*assumed_world=*/false);
  CHECK(!unknown.max_steps);
  CHECK(unknown.notices.empty());
  plan::JobPlan steps = counted({"step_scheduler.max_steps=7"}, std::nullopt, workload, 3, false);
  CHECK(steps.max_steps == 7);
  CHECK(steps.notices.empty());
}

TEST_CASE("steps of an epoch, and documents of a step where they are counted") {
  CHECK(data::tell_steps(32, 8, 83) == "an epoch is 4 steps of 8 samples, 20.8 documents a step");
  CHECK(data::tell_steps(25, 8, 25) == "an epoch is 3.1 steps of 8 samples, 8.0 documents a step");
  CHECK(data::tell_steps(2, 1, 5) == "an epoch is 2 steps of 1 sample, 2.5 documents a step");
  CHECK(data::tell_steps(4, 8, std::nullopt) == "an epoch is 0.5 steps of 8 samples");
  CHECK(data::documents_a_step(83, 32, 8) == 20.75);
  CHECK(data::documents_in({{"rows", 9}, {"used", 7}}) == 7);
  CHECK_FALSE(data::documents_in({{"rows", 9}}).has_value());
  CHECK(data::inspector_of({}) == nullptr);  // the engine's own kinds have no rows
}
