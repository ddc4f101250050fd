// Reads and writes at an offset of a file that go on until every byte has moved, and where a file
// that is to be replaced lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace convoy {

/// How many of `bytes` came: fewer only where the file ends. Error: the system's reason.
Result<size_t> read_at(int fd, void* data, size_t bytes, uint64_t offset);

/// Error: the system's reason.
Status write_at(int fd, const void* data, size_t bytes, uint64_t offset);

/// The file that `path` leads to, links followed, whether it exists or not: what a rename may
/// replace. Error: too many links, or the name is that of an open descriptor (/dev/fd/3).
Result<std::filesystem::path> follow_links(const std::filesystem::path& path);
/// Where this process writes what a rename will give the name of `target`.
std::filesystem::path temporary_beside(const std::filesystem::path& target);

}  // namespace convoy
