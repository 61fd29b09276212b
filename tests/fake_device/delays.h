// FAKE_DEVICE_DELAYS=SEED: what an operation writes is put aside, and the old bytes stay, until
// somebody touches them who comes after it; one whom nothing orders behind it finds the new bytes,
// the old ones or some of each, by the seed. So a missing wait gives wrong numbers, too. Addresses
// are the program's; whoever calls holds the lock of runtime.h.
#pragma once

#include "order.h"

namespace fake_device {

// An operation with this clock touches these bytes.
void settle(const Clock& clock, uintptr_t from, size_t bytes);
// The operation of this thread is about to write them, until end_operation().
void put_aside(const Stream& stream, uintptr_t from, size_t bytes);
void end_operation();
// What the host knows to be over has happened.
void settle_all(const Clock& host);
// By chance: who asks whether something is over that the host does not know to be hears no.
bool is_late();
// The memory is given back.
void drop_writes(uintptr_t from, size_t bytes);

}  // namespace fake_device
