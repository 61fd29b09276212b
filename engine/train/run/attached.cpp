#include "engine/train/run/attached.h"

namespace meshwright::train {

Attached& attached() {
  static Attached all;
  return all;
}

}  // namespace meshwright::train
