// What a probe measures, and how an end says it to the program that started it: one JSON object a
// line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/device/device.h"

namespace convoy {

/// One direction of a link at one payload size, measured by its sender.
struct LinkMeasurement {
  uint64_t bytes = 0;
  double p50_us = 0;  ///< from the sender's enqueued copy to the receiver's copy being done
  double p99_us = 0;
  double gib_per_s = 0;  ///< many transfers in a row
};

/// What one end says. Exactly one of the parts is set, `kind` says which.
struct ProbeMessage {
  enum class Kind { device, connected, measurement, error };
  Kind kind = Kind::error;
  DeviceInfo device;
  std::string transport;  ///< connected: "host", "pinned", "peer" or "local"
  std::string fallback;   ///< connected: why it is not what was wished
  LinkMeasurement measurement;
  std::string error;
};

std::string to_line(const ProbeMessage& message);
Result<ProbeMessage> parse_probe_line(const std::string& line);

}  // namespace convoy
