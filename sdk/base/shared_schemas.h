// The [distributed] table and its sub-tables as the engine and the conformance kit read them:
// schemas in, SharedOptions out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "meshwright/shared_options.h"

namespace meshwright {

// Words of a model's own plan, and of distributed.tp_plan, that are no style, but say what a module
// sees that stands whole among the projections of a block: its heads, or the stream.
inline constexpr std::string_view kOfHeads = "replicated_with_grad_allreduce",
                                  kOfStream = "replicated";

// Schemas of [distributed] and of its sub-tables, owner "engine".
MESHWRIGHT_API const OptionSchema& distributed_schema();
MESHWRIGHT_API const OptionSchema& mp_policy_schema();
MESHWRIGHT_API const OptionSchema& moe_schema();
MESHWRIGHT_API const OptionSchema& moe_mp_policy_schema();
MESHWRIGHT_API const OptionSchema& pipeline_schema();
MESHWRIGHT_API const OptionSchema& context_schema();

// Types the tables. Adds to `diagnostics`: a bad scope, a pipeline or context block without pp or
// cp > 1 (warning),
// a pipeline dtype that differs from the output dtype (warning).
MESHWRIGHT_API SharedOptions read_shared_options(const Options& distributed,
                                                 const Options& mp_policy, const Options& moe,
                                                 const Options& moe_mp_policy,
                                                 const Options& pipeline, const Options& context,
                                                 Diagnostics& diagnostics);

// The same with every other table at its defaults.
MESHWRIGHT_API SharedOptions read_shared_options(const Options& distributed,
                                                 Diagnostics& diagnostics);

// The grammar of activation_checkpointing_scope: '+' and ',' separate, '-' equals '_', "default"
// and "auto" mean "all"; order kept, duplicates dropped. Throws Error(bad_choice) for an unknown
// name or "all" beside another.
MESHWRIGHT_API std::vector<std::string> parse_checkpointing_scope(const OptionValue& value);
// The words of activation_checkpointing: booleans and {off, none, disabled, no, on, full, enabled,
// yes, selective} in any case.
MESHWRIGHT_API ActivationCheckpointing parse_activation_checkpointing(const OptionValue& value);

}  // namespace meshwright
