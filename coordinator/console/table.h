// Plain text tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// Columns as wide as their widest cell, two spaces apart; the first column and those of `left` are
/// left-aligned, the others right-aligned. Every line ends with a newline.
std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         const std::vector<size_t>& left = {});

/// "512 B", "1.5 MiB", "27.3 GiB".
std::string format_bytes(uint64_t bytes);
/// "1.5 MiB int8": keys and values that are kept, and how; without bytes, or where the dtype is not
/// known (""), as format_bytes().
std::string format_kv(uint64_t bytes, std::string_view dtype);

}  // namespace convoy
