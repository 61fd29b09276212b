// The places where the program makes a stream or the host wait, so that each can be left out on
// purpose, one at a time: FAKE_DEVICE_WAITS=1 lists them at the end, FAKE_DEVICE_DROP_WAIT=PLACE
// leaves one out. A place is what it is called by, in every process of a build the same.
#pragma once

namespace fake_device {

// A wait begins, by this call of CUDA's interface: whether it is left out.
bool drops_wait(const char* what);
void tell_waits();

}  // namespace fake_device
