#include "shared/model/tensor_info.h"

#include <array>

#include "base/check.h"

namespace convoy {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::bf16, "BF16", 2},       DTypeRow{DType::f16, "F16", 2},
    DTypeRow{DType::f32, "F32", 4},         DTypeRow{DType::f64, "F64", 8},
    DTypeRow{DType::i8, "I8", 1},           DTypeRow{DType::i16, "I16", 2},
    DTypeRow{DType::i32, "I32", 4},         DTypeRow{DType::i64, "I64", 8},
    DTypeRow{DType::u8, "U8", 1},           DTypeRow{DType::u16, "U16", 2},
    DTypeRow{DType::u32, "U32", 4},         DTypeRow{DType::u64, "U64", 8},
    DTypeRow{DType::boolean, "BOOL", 1},    DTypeRow{DType::f8_e4m3, "F8_E4M3", 1},
    DTypeRow{DType::f8_e5m2, "F8_E5M2", 1}, DTypeRow{DType::f8_e8m0, "F8_E8M0", 1},
};

const DTypeRow& row_of(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  check_failed(__FILE__, __LINE__, "a DType without a row in kDTypes");
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}

bool parse_dtype(std::string_view name, DType& dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name != name) continue;
    dtype = row.dtype;
    return true;
  }
  return false;
}

uint64_t dtype_bytes(DType dtype) {
  return row_of(dtype).bytes;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

}  // namespace convoy
