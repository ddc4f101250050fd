// Both ends of a link in one process, over one mapping.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "base/check.h"
#include "shared/ipc/stage_link.h"

namespace convoy {

inline SharedRegion make_link_region(const StageLinkOptions& options) {
  return SharedRegion::create("0 -> 1", stage_link_region_bytes(options));
}

inline StageLinkReceiver open_receiver(SharedRegion& region, const StageLinkOptions& options) {
  auto receiver = StageLinkReceiver::open(region, options);
  EXPECT_TRUE(receiver.ok()) << receiver.error();
  return std::move(receiver).value();
}

inline bool is_done(const Result<Transfer>& result) {
  return result.ok() && result.value() == Transfer::done;
}
inline bool is_aborted(const Result<Transfer>& result) {
  return result.ok() && result.value() == Transfer::aborted;
}

// Calls release() every millisecond until the result is there; returns how long that took.
template <typename T>
std::chrono::milliseconds release_until_ready(std::future<T>& future,
                                              const std::function<void()>& release) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    release();
    // The future's destructor would wait for ever.
    CONVOY_CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20),
                 "a blocked end was not released");
  } while (future.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready);
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begin);
}

}  // namespace convoy
