#include "tests/unit/kernels/stalling_calls_cases.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <optional>
#include <thread>

#include "kernels/device/stalling_calls.h"

namespace convoy::test {
namespace {

constexpr size_t kBytes = 4096;

void* map_page() {
  return ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

}  // namespace

void expect_stalling_calls_are_forbidden(Device& device) {
  std::optional<Buffer> memory = device.allocate(kBytes, "test");
  std::optional<Buffer> host = device.allocate_host(kBytes, "test");
  void* const mapped = map_page();
  auto registration = device.register_host(mapped, kBytes);
  {
    const NoStallingCalls outer;
    { const NoStallingCalls inner; }
    EXPECT_DEATH(device.allocate(kBytes, "test"), "allocating memory while links are open");
    EXPECT_DEATH(device.allocate_host(kBytes, "test"), "allocating (host )?memory while");
    EXPECT_DEATH(device.register_host(map_page(), kBytes), "registering host memory while");
    EXPECT_DEATH(memory.reset(), "releasing memory while");
    EXPECT_DEATH(host.reset(), "releasing (host )?memory while");
    EXPECT_DEATH(registration.reset(), "unregistering host memory while");
    // What stalls nothing.
    EXPECT_TRUE(device.make_stream()->idle());
    device.make_event();
    EXPECT_EQ(device.allocate(0, "nothing").bytes(), 0U);
    std::thread([&] {
      device.bind_thread();
      device.allocate(kBytes, "of another thread");
    }).join();
  }
  registration.reset();
  ::munmap(mapped, kBytes);
  EXPECT_EQ(device.allocate(kBytes, "test").bytes(), kBytes);
}

}  // namespace convoy::test
