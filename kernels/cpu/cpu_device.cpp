#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/device/stalling_calls.h"

namespace convoy {
namespace {

constexpr int kMaxThreads = 1024;
// Below this a huge page would mostly be padding.
constexpr size_t kHugePagesFrom = size_t{4} << 20;

// A CPU device stalls nowhere; it checks what the other kind must not do.
class CpuHostRegistration final : public HostRegistration {
 public:
  CpuHostRegistration() { check_may_stall("registering host memory"); }
  ~CpuHostRegistration() override { check_may_stall("unregistering host memory"); }
  CpuHostRegistration(const CpuHostRegistration&) = delete;
  CpuHostRegistration& operator=(const CpuHostRegistration&) = delete;
};

// A stream that runs inline has passed an event as soon as it is recorded.
class CpuEvent final : public Event {
 public:
  void record(Stream& /*stream*/) override { at_ = Clock::now(); }
  bool passed() const override { return at_.has_value(); }
  double ms_since(const Event& earlier) const override {
    const auto& from = dynamic_cast<const CpuEvent&>(earlier);
    CONVOY_CHECK(at_ && from.at_, "an event that was not recorded");
    return std::chrono::duration<double, std::milli>(*at_ - *from.at_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> at_;
};

int chosen_threads(int threads) {
  if (threads == 0) return physical_cores();
  if (threads < 0 || threads > kMaxThreads) {
    throw UsageError("threads " + std::to_string(threads) + ": allowed are 1.." +
                     std::to_string(kMaxThreads) + ", or 0 for one per physical core");
  }
  return threads;
}

// A value of /proc/meminfo in bytes; 0 when it is not there.
uint64_t memory_bytes(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) == 0 && line[name.size()] == ':') {
      return std::stoull(line.substr(name.size() + 1)) * 1024;
    }
  }
  return 0;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.compare(0, 10, "model name") == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

void release_mapping(void* address, size_t bytes, void* /*owner*/) noexcept {
  check_may_stall("releasing memory");
  ::munmap(address, bytes);
}

[[noreturn]] void refuse(size_t bytes, const std::string& label, const std::string& reason) {
  throw StartError("cpu: cannot allocate " + std::to_string(bytes) + " bytes for " + label + ": " +
                   reason);
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : instruction_set_(cpu::choose_instruction_set(options.instruction_set)),
      pool_(chosen_threads(options.threads)),
      ops_(pool_, cpu::kernels_of(instruction_set_)) {}

DeviceInfo CpuDevice::info() const {
  DeviceInfo info;
  info.kind = DeviceKind::cpu;
  info.id = "cpu";
  info.name = processor_name();
  info.architecture = cpu::instruction_set_name(instruction_set_);
  info.total_bytes = memory_bytes("MemTotal");
  info.free_bytes = memory_bytes("MemAvailable");
  info.threads = pool_.threads();
  return info;
}

Buffer CpuDevice::allocate(size_t bytes, const std::string& label) {
  if (bytes == 0) return {};
  check_may_stall("allocating memory");
  // Linux hands out more than there is and kills the process when it is touched: refuse while there
  // is a name to it.
  if (const uint64_t available = memory_bytes("MemAvailable");
      available != 0 && bytes > available) {
    refuse(bytes, label, std::to_string(available) + " bytes are available");
  }
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) refuse(bytes, label, std::strerror(errno));
  // Only advice: without huge pages everything works, a little slower.
  if (bytes >= kHugePagesFrom) ::madvise(address, bytes, MADV_HUGEPAGE);
  return Buffer(address, bytes, release_mapping, this);
}

std::unique_ptr<Stream> CpuDevice::make_stream() {
  return std::make_unique<CpuStream>(wait_spins_);
}

std::unique_ptr<Event> CpuDevice::make_event() {
  return std::make_unique<CpuEvent>();
}

std::unique_ptr<Graph> CpuDevice::capture(Stream& /*stream*/,
                                          const std::function<void()>& /*work*/) {
  CONVOY_CHECK(false, "a CPU device captures no graphs");
  return nullptr;
}

std::unique_ptr<HostRegistration> CpuDevice::register_host(void* address, size_t bytes) {
  CONVOY_CHECK(address != nullptr && bytes > 0, "an empty range to register");
  return std::make_unique<CpuHostRegistration>();
}

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace convoy
