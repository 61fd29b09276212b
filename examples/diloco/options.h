// The options of both strategies, which the planning half and the running half read.
#pragma once

#include <meshwright/typed_options.h>

namespace diloco {

struct OuterPolicy {
  int64_t sync_every = 1;       // steps of a round
  double lr = 1, momentum = 0;  // of the outer optimizer: SGD with Nesterov's momentum
};

inline constexpr auto kSyncEvery = meshwright::field(
    &OuterPolicy::sync_every,
    meshwright::with_aliases(
        meshwright::int_option("sync_every", "100", 1,
                               "Steps of a round: replicas meet after every so many."),
        "inner_steps|h"));
inline constexpr auto kDilocoOptions = meshwright::typed_options<OuterPolicy>(
    kSyncEvery,
    meshwright::field(
        &OuterPolicy::lr,
        meshwright::number_option("outer_lr", "0.7", 0, "Learning rate of the outer optimizer.")),
    meshwright::field(&OuterPolicy::momentum,
                      meshwright::number_option("outer_momentum", "0.9", 0, 1,
                                                "Nesterov momentum of the outer optimizer; 0: "
                                                "none.")));
// The mean of all replicas is where they go on.
inline constexpr auto kLocalSgdOptions = meshwright::typed_options<OuterPolicy>(kSyncEvery);

// Of the own table of either strategy.
inline OuterPolicy policy_of(const meshwright::Options& own) {
  return own.schema().find("outer_lr") == nullptr ? kLocalSgdOptions.read(own)
                                                  : kDilocoOptions.read(own);
}

}  // namespace diloco
