// What the two ends of a link write into its region while they connect. Each step is a counter of
// one end, stored after what it announces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/device/ipc.h"

namespace convoy {

/// Text in shared memory. Whoever reads it copies it first and trusts no terminator.
using LinkText = std::array<char, 192>;

struct LinkExchange {
  // Written by the receiver.
  alignas(128) uint32_t receiver_step;
  uint32_t has_memory;      ///< 1: `memory` names its slots
  uint32_t received_right;  ///< 1: what the test sent arrived
  LinkText no_memory;       ///< why has_memory is 0
  LinkText what_was_wrong;  ///< why received_right is 0
  LinkText receiver_device;
  IpcHandle memory;
  // Written by the sender.
  alignas(128) uint32_t sender_step;
  uint32_t transport;   ///< LinkTransport
  uint32_t read_right;  ///< 1: what the receiver put into its slots could be read back
  LinkText fallback;    ///< why the transport is not what was wished
};
static_assert(sizeof(LinkExchange) % 256 == 0);

}  // namespace convoy
