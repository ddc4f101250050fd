// The CUDA device: one card, opened by one process.
//
// Everything of it that the layers above call is Device (kernels/device/device.h). What is special
// here:
// - The first CUDA call of the process happens in make_cuda_device() (or list_cuda_devices()).
//   Kernels are loaded then, not at their first launch, which would stall behind a stream that
//   waits for a peer.
// - Words written by a stream wake no host thread: the card cannot call futex(2). Host threads that
//   wait for such a word use futex_wait_reached_polling (base/futex.h).
// - While a stream of the process waits on a word, nothing may be released: cudaFree, cudaFreeHost
//   and cudaHostUnregister return only when that wait does.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/device.h"

namespace convoy {

class CudaOpSet;

struct CudaDeviceOptions {
  std::string id;         ///< as DeviceSpec::id: "cuda:1", "GPU-<uuid>", "0000:3b:00.0"
  std::string uuid = {};  ///< which card that is, if known: then `id` is only its name in messages
};

/// Binds the calling thread to the device. Throws StartError: no driver or no card, no such device
/// (and which there are), a device that is too old or that this program has no kernels for.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

class CudaDevice final : public Device {
 public:
  /// `ordinal` as CUDA numbers devices; `id` as the person named it.
  CudaDevice(int ordinal, const std::string& id);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  DeviceInfo info() const override;
  /// 0 bytes give an empty Buffer. The Buffer may outlive this object.
  Buffer allocate(size_t bytes, const std::string& label) override;
  Buffer allocate_host(size_t bytes, const std::string& label) override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override;
  void bind_thread() override;
  /// Throws StartError when the memory cannot be registered (RLIMIT_MEMLOCK, or registered
  /// already).
  std::unique_ptr<HostRegistration> register_host(void* address, size_t bytes) override;
  OpSet& ops() override;
  bool supports_graphs() const override { return true; }
  bool supports_memory_export() const override { return true; }
  Buffer allocate_exportable(size_t bytes, const std::string& label) override;
  Result<IpcHandle> export_memory(const Buffer& memory) override;
  Result<std::unique_ptr<ImportedMemory>> import_memory(const IpcHandle& handle) override;
  Result<std::unique_ptr<IpcEvent>> make_ipc_event() override;
  Result<IpcHandle> export_event(const IpcEvent& event) override;
  Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle) override;

  int ordinal() const { return ordinal_; }

 private:
  int ordinal_;
  DeviceInfo fixed_;  // all but the free bytes
  std::unique_ptr<CudaOpSet> ops_;
};

}  // namespace convoy
