// Ready configurations are proven, in this process; tests/prove has what is found of faults.
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "apps/prove/running/prove_ranks.h"
#include "engine/job/job.h"
#include "tests/fixtures/folder.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace proof_test {

using namespace meshwright;

namespace {

plan::Job job_of(const std::string& file, const std::vector<std::string>& sets) {
  config::LoadOptions options;
  options.file = file;
  options.sets = sets;
  Diagnostics found;
  std::optional<plan::Job> job = plan::load_job(options, found);
  found.throw_if_any();
  return std::move(*job);
}

// In float64 and in the job's dtypes, of which each uses what one process computes.
std::vector<prove::Findings> proofs_of(const prove::Shrunk& small) {
  const TemporaryFolder folder;
  std::shared_ptr<const void> truth;
  std::vector<prove::Findings> out;
  for (const bool wide : {true, false})
    out.push_back(prove::prove({small, 2, wide, nullptr, folder.path.string(), &truth}));
  return out;
}

bool has_row(const prove::Findings& found, const std::string& what) {
  return std::ranges::any_of(found.rows, [&](const prove::Row& row) {
    return row.what == what && row.not_compared.empty();
  });
}

std::string told(const prove::Findings& found) {
  return found.text({.colour = false, .unicode = false, .width = 200});
}

}  // namespace

TEST_CASE("a job of two axes is proven, in float64 and in its own dtypes") {
  const plan::Job job = job_of("configs/tp_cpu.toml", {});
  const prove::Shrunk small = prove::shrink(job, 0);
  CHECK(small.ranks == 4);
  for (const prove::Findings& found : proofs_of(small)) {
    INFO(told(found));
    CHECK(found.ok());
    CHECK(found.rows.size() >= (found.dtypes == "float64" ? 14 : 12));
    if (found.dtypes == "float64") CHECK(found.modules > 10);
  }
}

TEST_CASE("each axis of the ready configurations is proven") {
  for (const char* file :
       {"first_fsdp2_cpu", "ddp_cpu", "hsdp_cpu", "megatron_fsdp_cpu", "megatron_fsdp_zero3",
        "experts_cpu", "context_cpu", "pipeline_cpu", "pipeline_v_cpu"}) {
    const plan::Job job = job_of("configs/" + std::string(file) + ".toml", {});
    const prove::Shrunk small = prove::shrink(job, 0);
    for (const prove::Findings& found : proofs_of(small)) {
      INFO(file, told(found));
      CHECK(found.ok());
      // A checkpoint of the ranks goes on in one process, and that one's on the ranks.
      for (const char* what :
           {"checkpoint, in one process", "checkpoint, back on ranks", "step after it"})
        CHECK(has_row(found, what));
    }
  }
}

}  // namespace proof_test
