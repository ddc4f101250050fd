// Memory and events that CUDA processes share (kernels/device/ipc.h). All calls are made with the
// device bound.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.h"
#include "kernels/device/ipc.h"

namespace convoy::cuda {

Result<IpcHandle> export_memory(void* address);
/// Enables access between the two devices when they differ. The error says why it cannot be had.
Result<std::unique_ptr<ImportedMemory>> import_memory(int ordinal, const IpcHandle& handle);

Result<std::unique_ptr<IpcEvent>> make_ipc_event();
Result<IpcHandle> export_event(const IpcEvent& event);
Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle);

}  // namespace convoy::cuda
