// What both halves of megatron_fsdp read of its options.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "meshwright/footprint.h"

namespace meshwright {

inline FlatPolicy flat_policy(const StrategyConfig& config) {
  const Options& own = config.own;
  FlatPolicy policy;
  policy.level = static_cast<int>(own.get_int("zero_dp_strategy"));
  policy.preserve_fp32_weights = own.get_bool("preserve_fp32_weights");
  policy.grad_reduce_in_fp32 = own.get_bool("grad_reduce_in_fp32");
  if (const auto* classes =
          std::get_if<std::vector<std::string>>(&own.value("megatron_fsdp_unit_modules")))
    policy.unit_classes = *classes;
  if (own.get_bool("disable_bucketing")) policy.bucket_elements = 1;
  policy.level_key = own.schema().table + ".zero_dp_strategy";
  policy.unit_classes_key = own.schema().table + ".megatron_fsdp_unit_modules";
  return policy;
}

}  // namespace meshwright
