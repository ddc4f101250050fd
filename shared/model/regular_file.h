// Opening and reading the files of a checkpoint. Everything throws StartError with the path and the
// reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace convoy {

/// What tells that a file is still the one that was checked.
struct FileStamp {
  uint64_t bytes = 0;
  uint64_t inode = 0;
  int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

struct RegularFile {
  std::filesystem::path path;
  UniqueFd fd;
  FileStamp stamp;  ///< from fstat of the open descriptor
};

/// Opens for reading. Links are followed (Hugging Face caches are made of them); directories, pipes
/// and devices are refused without blocking.
RegularFile open_regular_file(const std::filesystem::path& path);

/// Exactly `bytes` bytes from `offset` on. The caller compared both with the stamp; a file that
/// shrank since then throws.
std::string read_file_part(const RegularFile& file, uint64_t offset, uint64_t bytes);

/// A whole text file of at most `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes);

}  // namespace convoy
