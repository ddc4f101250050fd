// Shared memory between the processes of one pipeline: a sealed memfd and its mapping.
//
// There is no name in any file system: the descriptor is the segment, it goes to the other process
// by SCM_RIGHTS and the memory is gone when the last descriptor and mapping are. Size seals make a
// peer unable to turn a later access into SIGBUS by truncating, and every page is allocated at
// creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace boost::interprocess {
class mapped_region;
}

namespace convoy {

/// Move-only owner of the descriptor and the mapping. Moved-from: data() null, bytes() 0, fd() -1.
/// data() stays the same when the owner moves.
class SharedRegion {
 public:
  /// Zeroed memory of `bytes` (at least 1), all of it allocated, sealed against shrinking, growing
  /// and further seals. `label` names it in errors and in /proc/<pid>/maps. Throws StartError with
  /// the label and the bytes needed.
  static SharedRegion create(const std::string& label, size_t bytes);

  /// Maps a received descriptor and makes it close-on-exec. The descriptor is input: an error when
  /// it cannot be sealed, is not sealed against shrinking, or is not exactly `expected_bytes` long.
  static Result<SharedRegion> open(UniqueFd fd, size_t expected_bytes,
                                   const std::string& label = "received region");

  SharedRegion(SharedRegion&&) noexcept;
  SharedRegion& operator=(SharedRegion&&) noexcept;
  ~SharedRegion();

  void* data() const;
  size_t bytes() const;
  /// Stays owned here; pass it on with SCM_RIGHTS.
  int fd() const { return fd_.get(); }
  const std::string& label() const { return label_; }

 private:
  SharedRegion(UniqueFd fd, std::string label, size_t bytes);

  UniqueFd fd_;
  std::string label_;
  std::unique_ptr<boost::interprocess::mapped_region> mapping_;
};

}  // namespace convoy
