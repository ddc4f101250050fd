// How the cache stores keys and values. KvPlanes (kernels/ops/op_set.h) says what the numbers mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/ops/step.h"

namespace convoy {

/// The numbers travel: proto/plan.proto and saved states have the same ones.
enum class KvDtype : uint32_t { f32 = 0, bf16 = 1, int8 = 2, fp8 = 3 };
inline constexpr uint32_t kKvDtypes = 4;

/// Values of one token's head that share a scale (int8); the last group of a head may have fewer.
inline constexpr int kKvScaleGroup = 64;
constexpr int kv_scale_groups(int head_dim) {
  return (head_dim + kKvScaleGroup - 1) / kKvScaleGroup;
}

/// As --kv-dtype names it.
constexpr const char* kv_dtype_name(KvDtype dtype) {
  constexpr const char* kNames[kKvDtypes] = {"f32", "bf16", "int8", "fp8"};
  return kNames[static_cast<uint32_t>(dtype)];
}

/// What a device of this kind keeps unless something else is asked for: its activations.
constexpr KvDtype default_kv_dtype(DeviceKind kind) {
  return kind == DeviceKind::cpu ? KvDtype::f32 : KvDtype::bf16;
}
constexpr bool has_kv_dtype(DeviceKind kind, KvDtype dtype) {
  return dtype == default_kv_dtype(kind) || dtype == KvDtype::int8 ||
         (dtype == KvDtype::fp8 && kind == DeviceKind::cuda);
}

constexpr size_t kv_value_bytes(KvDtype dtype) {
  return dtype == KvDtype::f32 ? 4 : dtype == KvDtype::bf16 ? 2 : 1;
}
/// Bytes of what one token adds to one plane for one KV head, its scales included.
constexpr size_t kv_token_bytes(KvDtype dtype, int head_dim) {
  const size_t scales =
      dtype == KvDtype::int8 ? static_cast<size_t>(kv_scale_groups(head_dim)) * 2 : 0;
  return static_cast<size_t>(head_dim) * kv_value_bytes(dtype) + scales;
}
/// Bytes of one page of one KV head in one plane: a multiple of 16.
constexpr size_t kv_block_bytes(KvDtype dtype, int head_dim) {
  return static_cast<size_t>(kPageTokens) * kv_token_bytes(dtype, head_dim);
}

}  // namespace convoy
