#include "shared/ipc/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/ipc/host_memory.h"

namespace convoy {
namespace {

namespace bi = boost::interprocess;

// What mapped_region's constructor asks of a mappable object.
struct FdMapping {
  int fd;
  bi::mapping_handle_t get_mapping_handle() const {
    return bi::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

std::string error_text(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void fail_create(const std::string& label, size_t bytes, const std::string& what) {
  throw StartError("shared memory \"" + label + "\" of " + std::to_string(bytes) +
                   " bytes: " + what);
}

// Hardened machines (vm.memfd_noexec=2) want to be told that it is nothing to execute; kernels
// before 6.3 do not know the flag.
UniqueFd create_memfd(const std::string& name) {
  constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL, which older headers lack
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name.c_str(), kFlags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create(name.c_str(), kFlags));
  return fd;
}

// Memory pages of a memfd have no quota of their own: posix_fallocate beyond what there is would
// end in the out-of-memory killer, not in ENOSPC. So the obvious case is refused first.
void allocate_pages(int fd, const std::string& label, size_t bytes) {
  const uint64_t limit = available_host_bytes();
  if (bytes > limit) {
    fail_create(label, bytes, "only " + std::to_string(limit) + " bytes of memory are available");
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    fail_create(label, bytes, "cannot set its size: " + error_text(errno));
  }
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) fail_create(label, bytes, "cannot allocate its pages: " + error_text(error));
}

}  // namespace

SharedRegion::SharedRegion(UniqueFd fd, std::string label, size_t bytes)
    : fd_(std::move(fd)),
      label_(std::move(label)),
      mapping_(
          std::make_unique<bi::mapped_region>(FdMapping{fd_.get()}, bi::read_write, 0, bytes)) {}

SharedRegion::SharedRegion(SharedRegion&&) noexcept = default;
SharedRegion& SharedRegion::operator=(SharedRegion&&) noexcept = default;
SharedRegion::~SharedRegion() = default;

SharedRegion SharedRegion::create(const std::string& label, size_t bytes) {
  CONVOY_CHECK_OP(bytes, >=, size_t{1});
  UniqueFd fd = create_memfd(label.substr(0, 200));  // names over 249 bytes are refused
  if (!fd) fail_create(label, bytes, "memfd_create failed: " + error_text(errno));
  allocate_pages(fd.get(), label, bytes);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail_create(label, bytes, "cannot seal its size: " + error_text(errno));
  }
  try {
    return SharedRegion(std::move(fd), label, bytes);
  } catch (const bi::interprocess_exception& error) {
    fail_create(label, bytes, std::string("cannot map it: ") + error.what());
  }
}

Result<SharedRegion> SharedRegion::open(UniqueFd fd, size_t expected_bytes,
                                        const std::string& label) {
  CONVOY_CHECK_OP(expected_bytes, >=, size_t{1});
  const std::string name = "shared memory \"" + label + "\": ";
  if (!fd) return Error{name + "no descriptor was received"};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return Error{name + "the descriptor is not a sealed memfd (" + error_text(errno) + ")"};
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return Error{name + "the descriptor is not sealed against shrinking (seals " +
                 std::to_string(seals) + ")"};
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return Error{name + "fstat failed: " + error_text(errno)};
  if (static_cast<uint64_t>(status.st_size) != expected_bytes) {
    return Error{name + "it is " + std::to_string(status.st_size) + " bytes long, " +
                 std::to_string(expected_bytes) + " were expected"};
  }
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return Error{name + "cannot make it close-on-exec: " + error_text(errno)};
  }
  try {
    return SharedRegion(std::move(fd), label, expected_bytes);
  } catch (const bi::interprocess_exception& error) {
    return Error{name + "cannot map it: " + error.what()};
  }
}

void* SharedRegion::data() const {
  return mapping_ ? mapping_->get_address() : nullptr;
}
size_t SharedRegion::bytes() const {
  return mapping_ ? mapping_->get_size() : 0;
}

}  // namespace convoy
