#include "meshwright/sharded_strategy.h"

#include "meshwright/data/dataset_kind.h"
#include "meshwright/model/model_family.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  if (config.shared().enable_async_tensor_parallel && !config.shared().sequence_parallel)
    diagnostics.add(
        option_error(config.distributed(), "enable_async_tensor_parallel", ErrorCode::conflict,
                     "enable_async_tensor_parallel overlaps the collectives of sequence "
                     "parallelism, but sequence_parallel is false",
                     "false")
            .about("distributed.sequence_parallel")
            .help("set distributed.sequence_parallel = true"));
}

MeshPlan ShardedStrategy::plan_mesh(const MeshRequest& request) const {
  return plan_sharded_mesh(request);
}

ShardingPlan ShardedStrategy::plan_sharding(const ShardingRequest& request) const {
  return fully_sharded_plan(request, sharding_policy(request.config));
}

ShardingPolicy ShardedStrategy::sharding_policy(const StrategyConfig&) const { return {}; }

// What model families and kinds of data sets are unless they say otherwise.

ModelFamily::~ModelFamily() = default;
void ModelFamily::validate(const ModelRequest&, Diagnostics&) const {}
void ModelFamily::check_runs(const ModelRequest&, Diagnostics&) const {}
void* ModelFamily::extension(uint32_t) { return nullptr; }

SampleSource::~SampleSource() = default;
bool SampleSource::has_documents() const { return false; }
bool SampleSource::has_weights() const { return false; }
std::vector<std::string> SampleSource::files() const { return {}; }
std::vector<std::string> SampleSource::report() const { return {}; }
void* SampleSource::extension(uint32_t) { return nullptr; }

DatasetKind::~DatasetKind() = default;
void DatasetKind::validate(const DatasetRequest&, Diagnostics&) const {}
void DatasetKind::prepare(const DatasetRequest&) const {}
void* DatasetKind::extension(uint32_t) { return nullptr; }

}  // namespace meshwright
