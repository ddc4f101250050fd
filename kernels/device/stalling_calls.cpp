#include "kernels/device/stalling_calls.h"

#include <string>

#include "base/check.h"

namespace convoy {
namespace {

thread_local int forbidding = 0;  // NoStallingCalls that live on this thread

}  // namespace

NoStallingCalls::NoStallingCalls() {
  ++forbidding;
}
NoStallingCalls::~NoStallingCalls() {
  --forbidding;
}

void check_may_stall(const char* call) {
  CONVOY_CHECK(forbidding == 0, std::string(call) + " while links are open");
}

}  // namespace convoy
