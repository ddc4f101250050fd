// What a safetensors header says about one tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// Element types of the safetensors format. Only bf16 and f32 are computed with; the others are
/// known so that headers that hold them can be checked and refused by name.
enum class DType {
  bf16,
  f16,
  f32,
  f64,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
};

/// The name in a safetensors header: "BF16", "F8_E4M3".
std::string_view dtype_name(DType dtype);
/// False leaves `dtype` alone.
bool parse_dtype(std::string_view name, DType& dtype);
/// Bytes of one element.
uint64_t dtype_bytes(DType dtype);

struct TensorInfo {
  std::string name;  ///< as in the file, prefix included
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;  ///< fastest axis last; empty: a scalar
  std::string file;            ///< file name inside the checkpoint's directory
  uint64_t offset = 0;         ///< of the first byte, from the beginning of the file
  uint64_t bytes = 0;          ///< product of shape times dtype_bytes
};

/// "[4096, 256]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace convoy
