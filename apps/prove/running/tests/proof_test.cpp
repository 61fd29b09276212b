// Ready configurations are proven, in this process; tests/prove has what is found of faults.
#include <c10/util/Logging.h>

#include <cstdlib>
#include <string>

#include "apps/prove/running/prove_ranks.h"
#include "engine/job/job.h"

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

prove::Findings proof_of(const prove::Shrunk& small, bool wide) {
  prove::Findings unused;
  return prove::prove({small, 2, wide, &unused});
}

std::string told(const prove::Findings& found) {
  return found.text({.colour = false, .unicode = false, .width = 200});
}

}  // namespace

TEST_CASE("a job of two axes is proven, in float64 and in its own dtypes") {
  const plan::Job job = job_of("configs/tp_cpu.toml", {});
  const prove::Shrunk small = prove::shrink(job, 0);
  CHECK(small.ranks == 4);
  for (const bool wide : {true, false}) {
    const prove::Findings found = proof_of(small, wide);
    INFO(told(found));
    CHECK(found.ok());
    CHECK(found.rows.size() >= (wide ? 11 : 9));
    if (wide) CHECK(found.modules > 10);
  }
}

TEST_CASE("each axis of the ready configurations is proven") {
  for (const char* file : {"first_fsdp2_cpu", "ddp_cpu", "hsdp_cpu", "megatron_fsdp_cpu",
                           "experts_cpu", "context_cpu", "pipeline_cpu", "pipeline_v_cpu"}) {
    const plan::Job job = job_of("configs/" + std::string(file) + ".toml", {});
    const prove::Shrunk small = prove::shrink(job, 0);
    for (const bool wide : {true, false}) {
      const prove::Findings found = proof_of(small, wide);
      INFO(file, told(found));
      CHECK(found.ok());
    }
  }
}

}  // namespace proof_test
