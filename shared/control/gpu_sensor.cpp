#include "shared/control/gpu_sensor.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/start_thread.h"

namespace convoy {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr int kSuccess = 0;
constexpr int kSmClock = 1;  // NVML_CLOCK_SM
constexpr auto kInterval = std::chrono::milliseconds(10);

struct NvmlDevice;  // opaque
// nvmlMemory_t, bytes.
struct NvmlMemory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

struct CloseLibrary {
  void operator()(void* handle) const { ::dlclose(handle); }
};

}  // namespace

// The functions as nvml.h declares them (NVML API reference).
struct GpuSensor::Library {
  std::unique_ptr<void, CloseLibrary> handle;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_uuid)(const char* uuid, NvmlDevice** device) = nullptr;
  int (*clock)(NvmlDevice* device, int which, unsigned* mhz) = nullptr;
  int (*memory)(NvmlDevice* device, NvmlMemory* memory) = nullptr;

  template <typename Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle.get(), name));
    return function != nullptr;
  }
};

std::unique_ptr<GpuSensor> GpuSensor::open() {
  auto library = std::make_unique<Library>();
  library->handle.reset(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL));
  if (!library->handle || !library->find("nvmlInit_v2", library->init) ||
      !library->find("nvmlShutdown", library->shutdown) ||
      !library->find("nvmlDeviceGetHandleByUUID", library->device_by_uuid) ||
      !library->find("nvmlDeviceGetClockInfo", library->clock) ||
      !library->find("nvmlDeviceGetMemoryInfo", library->memory) || library->init() != kSuccess)
    return nullptr;
  return std::unique_ptr<GpuSensor>(new GpuSensor(std::move(library)));
}

GpuSensor::GpuSensor(std::unique_ptr<Library> library) : library_(std::move(library)) {}

GpuSensor::~GpuSensor() {
  library_->shutdown();
}

std::optional<int> GpuSensor::sm_clock_mhz(const std::string& uuid) const {
  NvmlDevice* device = nullptr;
  unsigned mhz = 0;
  if (library_->device_by_uuid(uuid.c_str(), &device) != kSuccess ||
      library_->clock(device, kSmClock, &mhz) != kSuccess)
    return std::nullopt;
  return static_cast<int>(mhz);
}

std::optional<uint64_t> GpuSensor::free_bytes(const std::string& uuid) const {
  NvmlDevice* device = nullptr;
  NvmlMemory memory;
  if (library_->device_by_uuid(uuid.c_str(), &device) != kSuccess ||
      library_->memory(device, &memory) != kSuccess)
    return std::nullopt;
  return memory.free;
}

ClockWatch::ClockWatch(const GpuSensor* sensor, std::vector<std::string> uuids) : sensor_(sensor) {
  for (std::string& uuid : uuids) ranges_.push_back({std::move(uuid), 0, 0});
  if (sensor_ == nullptr || ranges_.empty()) return;
  thread_ = start_thread("clock-watch", [this] { watch(); });
}

ClockWatch::~ClockWatch() {
  stop();
}

std::vector<ClockRange> ClockWatch::stop() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  std::vector<ClockRange> seen;
  std::copy_if(ranges_.begin(), ranges_.end(), std::back_inserter(seen),
               [](const ClockRange& range) { return range.most_mhz > 0; });
  return seen;
}

void ClockWatch::watch() {
  while (!stop_.load(std::memory_order_relaxed)) {
    for (ClockRange& range : ranges_) {
      const auto mhz = sensor_->sm_clock_mhz(range.uuid);
      if (!mhz) continue;
      range.least_mhz = range.most_mhz == 0 ? *mhz : std::min(range.least_mhz, *mhz);
      range.most_mhz = std::max(range.most_mhz, *mhz);
    }
    std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace convoy
