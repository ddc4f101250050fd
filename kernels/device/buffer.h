// Owner of device memory.
#pragma once

#include <cstddef>
#include <utility>

namespace convoy {

/// Move-only. Moved-from: empty (data() null, bytes() 0).
class Buffer {
 public:
  using Release = void (*)(void* address, size_t bytes, void* owner) noexcept;

  Buffer() = default;
  Buffer(void* address, size_t bytes, Release release, void* owner)
      : address_(address), bytes_(bytes), release_(release), owner_(owner) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (address_ != nullptr) release_(address_, bytes_, owner_);
  }

  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return address_ != nullptr; }
  void* data() const { return address_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    std::swap(owner_, other.owner_);
  }

  void* address_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;
  void* owner_ = nullptr;  // the device; not owned
};

}  // namespace convoy
