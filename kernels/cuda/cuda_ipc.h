// Memory and events that CUDA processes share (kernels/device/ipc.h). All calls are made with the
// device bound.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.h"
#include "kernels/device/ipc.h"

namespace convoy::cuda {

/// Memory is exported in whole allocations of this granularity: smaller ones would share their
/// pages, and so their handle's reach, with others.
inline constexpr size_t kExportGranularity = size_t{2} << 20;

IpcHandle export_memory(void* address);
/// Enables access between the two devices when they differ. The error says why it cannot be had.
Result<std::unique_ptr<ImportedMemory>> import_memory(int ordinal, const IpcHandle& handle);

std::unique_ptr<IpcEvent> make_ipc_event();
IpcHandle export_event(const IpcEvent& event);
Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle);

}  // namespace convoy::cuda
