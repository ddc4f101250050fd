#include "kernels/cuda/cuda_ipc.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/device/stalling_calls.h"

namespace convoy::cuda {
namespace {

template <typename Native>
IpcHandle packed(const Native& native) {
  static_assert(sizeof(Native) == sizeof(IpcHandle));
  IpcHandle handle;
  std::memcpy(handle.bytes.data(), &native, sizeof(native));
  return handle;
}
template <typename Native>
Native unpacked(const IpcHandle& handle) {
  static_assert(sizeof(Native) == sizeof(IpcHandle));
  Native native{};
  std::memcpy(&native, handle.bytes.data(), sizeof(native));
  return native;
}

class CudaImportedMemory final : public ImportedMemory {
 public:
  CudaImportedMemory(int ordinal, void* address) : ordinal_(ordinal), address_(address) {}
  ~CudaImportedMemory() override {
    check_may_stall("unmapping another process's memory");
    release_on(ordinal_, cudaIpcCloseMemHandle, address_);
  }
  void* data() const override { return address_; }

 private:
  int ordinal_;
  void* address_;
};

class CudaIpcEvent final : public IpcEvent {
 public:
  CudaIpcEvent(cudaEvent_t event, bool own) : event_(event), own_(own) {}
  ~CudaIpcEvent() override { CONVOY_CUDA_RELEASE(cudaEventDestroy(event_)); }
  CudaIpcEvent(const CudaIpcEvent&) = delete;
  CudaIpcEvent& operator=(const CudaIpcEvent&) = delete;

  void record(Stream& stream) override {
    CONVOY_CHECK(own_, "an imported event is recorded by its owner only");
    CONVOY_CUDA(cudaEventRecord(event_, handle_of(stream)));
  }
  void wait(Stream& stream) override {
    CONVOY_CUDA(cudaStreamWaitEvent(handle_of(stream), event_, cudaEventWaitDefault));
  }
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_;
  bool own_;
};

// The caller handles the error; later calls must not report it again.
Error refused(const char* what, cudaError_t error) {
  cudaGetLastError();
  return Error{what + error_text(error)};
}

}  // namespace

Result<IpcHandle> export_memory(void* address) {
  cudaIpcMemHandle_t native{};
  const cudaError_t error = cudaIpcGetMemHandle(&native, address);
  if (error != cudaSuccess) return refused("its memory cannot be exported: ", error);
  return packed(native);
}

Result<std::unique_ptr<ImportedMemory>> import_memory(int ordinal, const IpcHandle& handle) {
  void* address = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&address, unpacked<cudaIpcMemHandle_t>(handle),
                                                 cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return refused("its memory cannot be mapped: ", error);
  return std::unique_ptr<ImportedMemory>(std::make_unique<CudaImportedMemory>(ordinal, address));
}

Result<std::unique_ptr<IpcEvent>> make_ipc_event() {
  cudaEvent_t event = nullptr;
  const cudaError_t error =
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);
  if (error != cudaSuccess) return refused("an event for processes cannot be made: ", error);
  return std::unique_ptr<IpcEvent>(std::make_unique<CudaIpcEvent>(event, true));
}

Result<IpcHandle> export_event(const IpcEvent& event) {
  cudaIpcEventHandle_t native{};
  const cudaError_t error =
      cudaIpcGetEventHandle(&native, dynamic_cast<const CudaIpcEvent&>(event).native());
  if (error != cudaSuccess) return refused("its event cannot be exported: ", error);
  return packed(native);
}

Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaIpcOpenEventHandle(&event, unpacked<cudaIpcEventHandle_t>(handle));
  if (error != cudaSuccess) return refused("its event cannot be opened: ", error);
  return std::unique_ptr<IpcEvent>(std::make_unique<CudaIpcEvent>(event, false));
}

}  // namespace convoy::cuda
