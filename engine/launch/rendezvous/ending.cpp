#include "engine/launch/rendezvous/ending.h"

#include "engine/launch/rendezvous/rendezvous.h"

namespace meshwright::rendezvous {

void Ending::tell(const Error& error) noexcept {
  try {
    if (stage_ == Stage::alone)
      if (auto ranks = launch::detect_ranks(launch::process_environment())) refuse(*ranks, error);
    if (exchange_) exchange_->post(error);
  } catch (...) {  // the launcher's variables make no sense: nobody can be found by them
  }
}

}  // namespace meshwright::rendezvous
