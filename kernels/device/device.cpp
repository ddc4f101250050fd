#include "kernels/device/device.h"

#include "base/check.h"

namespace convoy {
namespace {

[[noreturn]] void no_export() {
  check_failed(__FILE__, __LINE__, "this device shares no memory with other processes");
}

}  // namespace

const char* device_kind_name(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

Buffer Device::allocate_exportable(size_t /*bytes*/, const std::string& /*label*/) {
  no_export();
}
Result<IpcHandle> Device::export_memory(const Buffer& /*memory*/) {
  no_export();
}
Result<std::unique_ptr<ImportedMemory>> Device::import_memory(const IpcHandle& /*handle*/) {
  no_export();
}
Result<std::unique_ptr<IpcEvent>> Device::make_ipc_event() {
  no_export();
}
Result<IpcHandle> Device::export_event(const IpcEvent& /*event*/) {
  no_export();
}
Result<std::unique_ptr<IpcEvent>> Device::import_ipc_event(const IpcHandle& /*handle*/) {
  no_export();
}

}  // namespace convoy
