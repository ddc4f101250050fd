// Memory, copies, events, graphs and errors of a CUDA device.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/exit_code.h"
#include "kernels/device/stalling_calls.h"
#include "kernels/ops/op_set.h"
#include "tests/gpu/first_device.h"
#include "tests/unit/kernels/stalling_calls_cases.h"

namespace convoy::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string start_error(const std::string& id) {
  try {
    make_cuda_device({.id = id});
  } catch (const StartError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaDeviceWithoutDriver, TheReasonIsGiven) {
  const CudaDeviceList list = list_cuda_devices();
  if (!list.devices.empty()) GTEST_SKIP() << "this machine has CUDA devices";
  EXPECT_FALSE(list.error.empty());
  EXPECT_EQ(start_error("cuda:0"), "device 'cuda:0': no CUDA device can be used: " + list.error);
}

class CudaDeviceTest : public GpuTest {
 protected:
  std::vector<uint8_t> read(const void* address, size_t bytes) {
    std::vector<uint8_t> values(bytes, 0xEE);
    const auto stream = device().make_stream();
    stream->copy(values.data(), address, bytes);
    stream->synchronize();
    return values;
  }
};

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  const DeviceInfo info = device().info();
  EXPECT_EQ(info.kind, DeviceKind::cuda);
  EXPECT_EQ(info.id, "cuda:0");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.uuid.size(), std::string("GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx").size());
  EXPECT_EQ(info.architecture.substr(0, 3), "sm_");
  EXPECT_GT(info.total_bytes, 1024 * kMiB);
  EXPECT_GT(info.free_bytes, 0U);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST_F(CudaDeviceTest, IsFoundByEachOfItsNames) {
  const DeviceInfo first = device().info();
  for (const std::string& id : {first.uuid, first.pci_id}) {
    const auto same = make_cuda_device({.id = id});
    EXPECT_EQ(same->info().id, id);
    EXPECT_EQ(same->info().uuid, first.uuid);
    EXPECT_EQ(same->info().pci_id, first.pci_id);
  }
}

TEST_F(CudaDeviceTest, RefusesOtherNamesAndListsWhatThereIs) {
  const DeviceInfo first = device().info();
  for (const std::string id :
       {"cuda:99", "GPU-00000000-0000-0000-0000-000000000000", "ffff:ff:1f.7"}) {
    const std::string error = start_error(id);
    EXPECT_EQ(error.find("device '" + id + "' is not "), 0U) << error;
    EXPECT_NE(error.find(first.uuid), std::string::npos) << error;
    EXPECT_NE(error.find("cuda:0 " + first.name), std::string::npos) << error;
  }
}

TEST_F(CudaDeviceTest, MemoryIsZeroedAndAligned) {
  for (const size_t bytes : {size_t{1}, size_t{257}, 3 * kMiB + 5}) {
    // Dirty memory first, so that fresh memory would not be zero by luck.
    {
      const Buffer dirty = device().allocate(bytes, "dirty");
      const std::vector<uint8_t> ones(bytes, 0xFF);
      const auto stream = device().make_stream();
      stream->copy(dirty.data(), ones.data(), bytes);
      stream->synchronize();
    }
    const Buffer buffer = device().allocate(bytes, "clean");
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0U);
    EXPECT_EQ(read(buffer.data(), bytes), std::vector<uint8_t>(bytes, 0));
    const Buffer host = device().allocate_host(bytes, "host");
    const auto* values = host.as<uint8_t>();
    EXPECT_EQ(std::accumulate(values, values + bytes, 0), 0);
  }
  EXPECT_FALSE(device().allocate(0, "nothing"));
  EXPECT_FALSE(device().allocate_host(0, "nothing"));
}

TEST_F(CudaDeviceTest, WhatDoesNotFitIsRefusedByName) {
  const size_t bytes = size_t{1} << 50;
  try {
    device().allocate(bytes, "the weights of stage 3");
    FAIL() << "a pebibyte was allocated";
  } catch (const StartError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("cuda:0"), std::string::npos) << text;
    EXPECT_NE(text.find("the weights of stage 3"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(bytes) + " bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("bytes are free"), std::string::npos) << text;
  }
  EXPECT_TRUE(device().allocate(kMiB, "after the refusal"));
}

TEST_F(CudaDeviceTest, MemoryComesBackAlsoFromAnotherThreadAndAfterTheDeviceObject) {
  { device().allocate(kMiB, "warm"); }
  const uint64_t before = device().info().free_bytes;
  {
    Buffer kept;
    {
      const auto second = make_cuda_device({.id = "cuda:0"});
      kept = second->allocate(256 * kMiB, "kept");
    }
    EXPECT_LE(device().info().free_bytes, before - 256 * kMiB);
    std::thread([buffer = std::move(kept)] {}).join();
  }
  EXPECT_GE(device().info().free_bytes + 16 * kMiB, before);
}

TEST_F(CudaDeviceTest, CopiesBetweenEveryKindOfMemory) {
  constexpr size_t kBytes = 3 * kMiB + 4;
  const Buffer a = device().allocate(kBytes, "a");
  const Buffer b = device().allocate(kBytes, "b");
  const Buffer first = device().allocate_host(kBytes, "first");
  const Buffer second = device().allocate_host(kBytes, "second");
  for (size_t i = 0; i < kBytes; ++i)
    first.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 + i / 251);
  const auto stream = device().make_stream();
  stream->copy(a.data(), first.data(), kBytes);
  stream->copy(b.data(), a.data(), kBytes);
  stream->fill_zero(a.as<uint8_t>() + 100, 1);
  stream->copy(second.data(), b.data(), kBytes);
  stream->synchronize();
  EXPECT_TRUE(stream->idle());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), kBytes), 0);
  std::vector<uint8_t> want(first.as<uint8_t>(), first.as<uint8_t>() + kBytes);
  want[100] = 0;
  EXPECT_EQ(read(a.data(), kBytes), want);
}

// Host to host, by words and by bytes, in stream order.
TEST_F(CudaDeviceTest, CopiesFromHostToHostAtEveryAlignment) {
  const Buffer from = device().allocate_host(8192, "from");
  const Buffer to = device().allocate_host(8192, "to");
  for (size_t i = 0; i < 8192; ++i) from.as<uint8_t>()[i] = static_cast<uint8_t>(i * 13 + 1);
  const auto stream = device().make_stream();
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{32}, size_t{128}, size_t{4099}}) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{4}, size_t{16}}) {
      std::memset(to.data(), 0, 8192);
      stream->copy(to.as<uint8_t>() + 32 + offset, from.as<uint8_t>() + offset, bytes);
      stream->synchronize();
      std::vector<uint8_t> want(8192, 0);
      std::memcpy(want.data() + 32 + offset, from.as<uint8_t>() + offset, bytes);
      EXPECT_EQ(std::memcmp(to.data(), want.data(), 8192), 0) << bytes << " at " << offset;
    }
  }
}

TEST_F(CudaDeviceTest, RegisteredMemoryIsUsedInPlace) {
  constexpr size_t kBytes = 1 * kMiB;
  void* mapping =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  {
    const auto registration = device().register_host(mapping, kBytes);
    std::memset(mapping, 0x5A, kBytes);
    const Buffer buffer = device().allocate(kBytes, "copy");
    const auto stream = device().make_stream();
    stream->copy(buffer.data(), mapping, kBytes);
    stream->synchronize();
    EXPECT_EQ(read(buffer.data(), kBytes), std::vector<uint8_t>(kBytes, 0x5A));
    EXPECT_THROW(device().register_host(mapping, kBytes), StartError);
  }
  // Once more, now that the first registration is gone.
  { const auto registration = device().register_host(mapping, kBytes); }
  ::munmap(mapping, kBytes);
}

TEST_F(CudaDeviceTest, EventsPassInOrderAndMeasureTime) {
  const auto stream = device().make_stream();
  const auto begin = device().make_event();
  const auto end = device().make_event();
  EXPECT_FALSE(begin->passed());
  const Buffer buffer = device().allocate(256 * kMiB, "work");
  begin->record(*stream);
  for (int i = 0; i < 20; ++i) stream->fill_zero(buffer.data(), buffer.bytes());
  end->record(*stream);
  stream->synchronize();
  EXPECT_TRUE(begin->passed());
  EXPECT_TRUE(end->passed());
  EXPECT_GT(end->ms_since(*begin), 0.0);
  EXPECT_LT(end->ms_since(*begin), 10'000.0);
}

TEST_F(CudaDeviceTest, AGraphReplaysItsCopies) {
  const Buffer source = device().allocate_host(4096, "source");
  const Buffer middle = device().allocate(4096, "middle");
  const Buffer target = device().allocate_host(4096, "target");
  const auto stream = device().make_stream();
  const auto graph = device().capture(*stream, [&] {
    stream->copy(middle.data(), source.data(), 4096);
    stream->fill_zero(middle.as<uint8_t>() + 8, 8);
    stream->copy(target.data(), middle.data(), 4096);
  });
  EXPECT_EQ(target.as<uint8_t>()[0], 0) << "the work ran while it was captured";
  for (const int value : {1, 2, 3}) {
    std::memset(source.data(), value, 4096);
    graph->launch(*stream);
    stream->synchronize();
    std::vector<uint8_t> want(4096, static_cast<uint8_t>(value));
    std::fill_n(want.begin() + 8, 8, uint8_t{0});
    EXPECT_EQ(std::memcmp(target.data(), want.data(), 4096), 0);
  }
}

TEST_F(CudaDeviceTest, ACaptureThatFailsLeavesTheStreamUsable) {
  const auto stream = device().make_stream();
  const Buffer buffer = device().allocate(64, "buffer");
  EXPECT_THROW(device().capture(*stream,
                                [&] {
                                  stream->fill_zero(buffer.data(), 64);
                                  throw StartError("no");
                                }),
               StartError);
  stream->fill_zero(buffer.data(), 64);
  stream->synchronize();
  EXPECT_TRUE(stream->idle());
}

TEST_F(CudaDeviceTest, StallingCallsAreForbiddenWhileLinksAreOpen) {
  expect_stalling_calls_are_forbidden(device());
  const NoStallingCalls serving;
  const auto stream = device().make_stream();
  EXPECT_DEATH(device().capture(*stream, [] {}), "capturing a graph while");
  const WarmUpShape unknown{.out_features = 72, .in_features = 88};
  EXPECT_DEATH(device().ops().warm_up(*stream, &unknown, 1),
               "(opening cuBLASLt|choosing a matrix product) while");
}

}  // namespace
}  // namespace convoy::test
