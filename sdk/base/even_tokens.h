// A promise to dispatchers of experts, which otherwise ask the other ranks how many tokens they
// bring, and keep the host waiting for a device.
#pragma once

#include "meshwright/export.h"

namespace meshwright {

class MESHWRIGHT_API EvenTokens {
 public:
  virtual ~EvenTokens();
  // From now on all ranks of the group bring equally many tokens to every pass. All of them are
  // told so.
  virtual void promise_even_tokens() = 0;
};

}  // namespace meshwright
