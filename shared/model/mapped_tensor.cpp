#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/model/checkpoint.h"

namespace convoy {

MappedTensor::MappedTensor(TensorInfo info, int fd, const std::filesystem::path& path)
    : info_(std::move(info)) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = info_.offset / page * page;
  mapping_bytes_ = static_cast<size_t>(info_.offset - begin + info_.bytes);
  void* mapping =
      ::mmap(nullptr, mapping_bytes_, PROT_READ, MAP_PRIVATE, fd, static_cast<off_t>(begin));
  if (mapping == MAP_FAILED) {
    throw StartError(fmt::format("{}: cannot map {} bytes of tensor {}: {}", path.string(),
                                 info_.bytes, info_.name, std::generic_category().message(errno)));
  }
  mapping_ = mapping;
  data_ = static_cast<const std::byte*>(mapping) + (info_.offset - begin);
}

MappedTensor::MappedTensor(MappedTensor&& other) noexcept
    : info_(std::move(other.info_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

MappedTensor& MappedTensor::operator=(MappedTensor&& other) noexcept {
  if (this != &other) {
    unmap();
    info_ = std::move(other.info_);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

MappedTensor::~MappedTensor() {
  unmap();
}

void MappedTensor::unmap() noexcept {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
  mapping_ = nullptr;
}

std::vector<float> to_f32(const MappedTensor& tensor) {
  static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");
  const DType dtype = tensor.info().dtype;
  CONVOY_CHECK(dtype == DType::f32 || dtype == DType::bf16,
               tensor.info().name + " is " + std::string(dtype_name(dtype)));
  const std::size_t count = tensor.bytes() / dtype_bytes(dtype);
  std::vector<float> values(count);
  // memcpy: the file decides the alignment.
  if (dtype == DType::f32) {
    if (count > 0) std::memcpy(values.data(), tensor.data(), count * sizeof(float));
    return values;
  }
  for (std::size_t i = 0; i < count; ++i) {
    uint16_t upper = 0;
    std::memcpy(&upper, tensor.data() + 2 * i, sizeof(upper));
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(upper) << 16U);
  }
  return values;
}

}  // namespace convoy
