#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/cuda_ipc.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/device/stalling_calls.h"

namespace convoy {
namespace {

constexpr int kOldestMajor = 8;  // sm_80: bf16 tensor cores

class CudaEvent final : public Event {
 public:
  CudaEvent() { CONVOY_CUDA(cudaEventCreate(&event_)); }
  ~CudaEvent() override { CONVOY_CUDA_RELEASE(cudaEventDestroy(event_)); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(Stream& stream) override {
    CONVOY_CUDA(cudaEventRecord(event_, handle_of(stream)));
    recorded_ = true;
  }
  bool passed() const override {
    if (!recorded_) return false;  // CUDA calls an event passed that was never recorded
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) CONVOY_CUDA(error);
    return error == cudaSuccess;
  }
  double ms_since(const Event& earlier) const override {
    const auto& from = dynamic_cast<const CudaEvent&>(earlier);
    CONVOY_CHECK(recorded_ && from.recorded_, "an event that was not recorded");
    float milliseconds = 0;
    CONVOY_CUDA(cudaEventElapsedTime(&milliseconds, from.event_, event_));
    return static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
  bool recorded_ = false;
};

class CudaGraph final : public Graph {
 public:
  // Takes over the capture and uploads it, on the calling thread's own stream: the stream that was
  // captured may be waiting for a peer.
  explicit CudaGraph(cudaGraph_t graph) {
    CONVOY_CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    CONVOY_CUDA(cudaGraphDestroy(graph));
    CONVOY_CUDA(cudaGraphUpload(executable_, cudaStreamPerThread));
    CONVOY_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  }
  ~CudaGraph() override { CONVOY_CUDA_RELEASE(cudaGraphExecDestroy(executable_)); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch(Stream& stream) override {
    CONVOY_CUDA(cudaGraphLaunch(executable_, handle_of(stream)));
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class CudaHostRegistration final : public HostRegistration {
 public:
  CudaHostRegistration(int ordinal, void* address) : ordinal_(ordinal), address_(address) {}
  ~CudaHostRegistration() override {
    check_may_stall("unregistering host memory");
    cuda::release_on(ordinal_, cudaHostUnregister, address_);
  }

 private:
  int ordinal_;
  void* address_;
};

// The owner of a Buffer is the device's number, not its object: memory may be released after the
// object is gone.
void* as_owner(int ordinal) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number in an opaque word, never dereferenced
  return reinterpret_cast<void*>(static_cast<intptr_t>(ordinal));
}
int ordinal_of(void* owner) {
  return static_cast<int>(reinterpret_cast<intptr_t>(owner));
}
void release_device(void* address, size_t /*bytes*/, void* owner) noexcept {
  check_may_stall("releasing memory");
  cuda::release_on(ordinal_of(owner), cudaFree, address);
}
void release_host(void* address, size_t /*bytes*/, void* owner) noexcept {
  check_may_stall("releasing host memory");
  cuda::release_on(ordinal_of(owner), cudaFreeHost, address);
}

std::string listing(const CudaDeviceList& list) {
  std::string text;
  for (const auto& device : list.devices) {
    if (!text.empty()) text += "; ";
    text += "cuda:" + std::to_string(device.ordinal) + " " + device.name + " " + device.uuid + " " +
            device.pci_id;
  }
  return text;
}

const CudaDeviceList::Entry& find_device(const CudaDeviceList& list, const std::string& id) {
  if (!list.error.empty())
    throw StartError("device '" + id + "': no CUDA device can be used: " + list.error);
  for (const auto& device : list.devices) {
    if (id == "cuda:" + std::to_string(device.ordinal) || id == device.uuid || id == device.pci_id)
      return device;
  }
  const size_t count = list.devices.size();
  throw StartError("device '" + id + "' is not " +
                   (count == 1 ? std::string("the CUDA device")
                               : "one of the " + std::to_string(count) + " CUDA devices") +
                   " here: " + listing(list));
}

int attribute(int ordinal, cudaDeviceAttr which) {
  int value = 0;
  CONVOY_CUDA(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

void check_usable(const CudaDeviceList::Entry& device, const std::string& id) {
  const std::string name =
      "device '" + id + "' (" + device.name + ", " + device.architecture + "): ";
  if (attribute(device.ordinal, cudaDevAttrComputeCapabilityMajor) < kOldestMajor)
    throw StartError(name + "too old; sm_80 (Ampere) or newer is needed");
  if (attribute(device.ordinal, cudaDevAttrCanUseHostPointerForRegisteredMem) == 0)
    throw StartError(name + "cannot use registered host memory at the host's own address");
  // The first call that opens a context. Another process in exclusive mode, or no memory left.
  if (const cudaError_t error = cudaSetDevice(device.ordinal);
      error != cudaSuccess && error != cudaErrorNoKernelImageForDevice)
    throw StartError(name + "cannot be opened: " + cuda::error_text(error));
  if (const cudaError_t error = find_kernel_image(); error != cudaSuccess) {
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction)
      throw StartError(name + "cannot be opened: " + cuda::error_text(error));
    throw StartError(name + "this program was built without kernels for " + device.architecture +
                     " (CMAKE_CUDA_ARCHITECTURES names the architectures of a build)");
  }
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  const CudaDeviceList list = list_cuda_devices();
  const CudaDeviceList::Entry& found =
      find_device(list, options.uuid.empty() ? options.id : options.uuid);
  check_usable(found, options.id);
  return std::make_unique<CudaDevice>(found.ordinal, options.id);
}

CudaDevice::CudaDevice(int ordinal, const std::string& id) : ordinal_(ordinal) {
  CONVOY_CUDA(cudaSetDevice(ordinal));
  const CudaDeviceList list = list_cuda_devices();
  CONVOY_CHECK_OP(static_cast<size_t>(ordinal), <, list.devices.size());
  const CudaDeviceList::Entry& entry = list.devices[static_cast<size_t>(ordinal)];
  fixed_.kind = DeviceKind::cuda;
  fixed_.id = id;
  fixed_.name = entry.name;
  fixed_.uuid = entry.uuid;
  fixed_.pci_id = entry.pci_id;
  fixed_.architecture = entry.architecture;
  ops_ = std::make_unique<CudaOpSet>();
}

CudaDevice::~CudaDevice() = default;

DeviceInfo CudaDevice::info() const {
  const cuda::DeviceScope scope(ordinal_);
  size_t free = 0;
  size_t total = 0;
  CONVOY_CUDA(cudaMemGetInfo(&free, &total));
  DeviceInfo info = fixed_;
  info.free_bytes = free;
  info.total_bytes = total;
  return info;
}

Buffer CudaDevice::allocate(size_t bytes, const std::string& label) {
  if (bytes == 0) return {};
  check_may_stall("allocating memory");
  const cuda::DeviceScope scope(ordinal_);
  void* address = nullptr;
  if (const cudaError_t error = cudaMalloc(&address, bytes); error != cudaSuccess) {
    cudaGetLastError();  // the refusal is handled; later calls must not report it again
    if (error != cudaErrorMemoryAllocation)
      cuda::call_failed(__FILE__, __LINE__, "cudaMalloc", error);
    throw StartError(fixed_.id + " (" + fixed_.name + "): cannot allocate " +
                     std::to_string(bytes) + " bytes for " + label + ": " +
                     std::to_string(info().free_bytes) + " bytes are free");
  }
  Buffer buffer(address, bytes, release_device, as_owner(ordinal_));
  CONVOY_CUDA(cudaMemsetAsync(address, 0, bytes, cudaStreamPerThread));
  CONVOY_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  return buffer;
}

Buffer CudaDevice::allocate_host(size_t bytes, const std::string& label) {
  if (bytes == 0) return {};
  check_may_stall("allocating host memory");
  const cuda::DeviceScope scope(ordinal_);
  void* address = nullptr;
  if (const cudaError_t error =
          cudaHostAlloc(&address, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
      error != cudaSuccess) {
    cudaGetLastError();
    throw StartError(fixed_.id + ": cannot allocate " + std::to_string(bytes) +
                     " bytes of pinned host memory for " + label + ": " + cuda::error_text(error));
  }
  std::memset(address, 0, bytes);
  return Buffer(address, bytes, release_host, as_owner(ordinal_));
}

std::unique_ptr<Stream> CudaDevice::make_stream() {
  const cuda::DeviceScope scope(ordinal_);
  return std::make_unique<CudaStream>();
}

std::unique_ptr<Event> CudaDevice::make_event() {
  const cuda::DeviceScope scope(ordinal_);
  return std::make_unique<CudaEvent>();
}

std::unique_ptr<Graph> CudaDevice::capture(Stream& stream, const std::function<void()>& work) {
  check_may_stall("capturing a graph");
  const cuda::DeviceScope scope(ordinal_);
  const cudaStream_t handle = handle_of(stream);
  cudaGraph_t graph = nullptr;
  // Only this thread's calls are watched: others may allocate meanwhile.
  CONVOY_CUDA(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(handle, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  CONVOY_CUDA(cudaStreamEndCapture(handle, &graph));
  return std::make_unique<CudaGraph>(graph);
}

void CudaDevice::bind_thread() {
  CONVOY_CUDA(cudaSetDevice(ordinal_));
}

std::unique_ptr<HostRegistration> CudaDevice::register_host(void* address, size_t bytes) {
  CONVOY_CHECK(address != nullptr && bytes > 0, "an empty range to register");
  check_may_stall("registering host memory");
  const cuda::DeviceScope scope(ordinal_);
  if (const cudaError_t error =
          cudaHostRegister(address, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
      error != cudaSuccess) {
    cudaGetLastError();
    throw StartError(fixed_.id + ": cannot register " + std::to_string(bytes) +
                     " bytes of host memory: " + cuda::error_text(error));
  }
  return std::make_unique<CudaHostRegistration>(ordinal_, address);
}

OpSet& CudaDevice::ops() {
  return *ops_;
}

Buffer CudaDevice::allocate_exportable(size_t bytes, const std::string& label) {
  return allocate(exported_bytes(bytes), label);
}

Result<IpcHandle> CudaDevice::export_memory(const Buffer& memory) {
  const cuda::DeviceScope scope(ordinal_);
  return cuda::export_memory(memory.data());
}

Result<std::unique_ptr<ImportedMemory>> CudaDevice::import_memory(const IpcHandle& handle) {
  check_may_stall("mapping another process's memory");
  const cuda::DeviceScope scope(ordinal_);
  return cuda::import_memory(ordinal_, handle);
}

Result<std::unique_ptr<IpcEvent>> CudaDevice::make_ipc_event() {
  const cuda::DeviceScope scope(ordinal_);
  return cuda::make_ipc_event();
}

Result<IpcHandle> CudaDevice::export_event(const IpcEvent& event) {
  const cuda::DeviceScope scope(ordinal_);
  return cuda::export_event(event);
}

Result<std::unique_ptr<IpcEvent>> CudaDevice::import_ipc_event(const IpcHandle& handle) {
  const cuda::DeviceScope scope(ordinal_);
  return cuda::import_ipc_event(handle);
}

}  // namespace convoy
