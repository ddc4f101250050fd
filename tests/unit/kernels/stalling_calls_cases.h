// What every kind of device does of kernels/device/stalling_calls.h.
#pragma once

#include "kernels/device/device.h"

namespace convoy::test {

/// Each stalling call ends the process in a scope that forbids them, and only there.
void expect_stalling_calls_are_forbidden(Device& device);

}  // namespace convoy::test
