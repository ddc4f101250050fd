// Reads and writes at an offset of a file that go on until every byte has moved.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace convoy {

/// How many of `bytes` came: fewer only where the file ends. Error: the system's reason.
Result<size_t> read_at(int fd, void* data, size_t bytes, uint64_t offset);

/// Error: the system's reason.
Status write_at(int fd, const void* data, size_t bytes, uint64_t offset);

}  // namespace convoy
