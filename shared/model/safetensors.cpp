#include "shared/model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>
#include <optional>
#include <tuple>

#include "base/exit_code.h"
#include "shared/model/json_text.h"

namespace convoy {
namespace json = boost::json;
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr int64_t kMaxOffset = std::numeric_limits<int64_t>::max();
constexpr std::size_t kMaxAxes = 16;

/// The entry of one tensor; the range is still relative to the data and compared with its
/// neighbours later.
TensorInfo parse_entry(const std::string& name, const json::value& value,
                       const std::string& where) {
  const JsonFields entry(value, where);
  TensorInfo tensor;
  tensor.name = name;

  const std::string dtype = entry.find_string("dtype").value_or("");
  if (!parse_dtype(dtype, tensor.dtype)) {
    throw StartError(fmt::format("{}: dtype {} is not known", where, shown_name(dtype)));
  }

  const json::value* shape = entry.find("shape");
  if (shape == nullptr) throw StartError(fmt::format("{}: shape is missing", where));
  if (!shape->is_array() || shape->get_array().size() > kMaxAxes) {
    entry.refuse("shape", *shape, fmt::format("a list of at most {} extents", kMaxAxes));
  }
  uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const json::value& axis : shape->get_array()) {
    const std::optional<int64_t> extent = integer_in(axis, 0, kMaxOffset);
    if (!extent) entry.refuse("shape", *shape, "non-negative integers");
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(*extent), &bytes)) {
      entry.refuse("shape", *shape, "less than 2^64 bytes in all");
    }
    tensor.shape.push_back(*extent);
  }

  const json::value* range = entry.find("data_offsets");
  if (range == nullptr) throw StartError(fmt::format("{}: data_offsets is missing", where));
  const json::array* ends = range->if_array();
  if (ends == nullptr || ends->size() != 2) {
    entry.refuse("data_offsets", *range, "two offsets [begin, end]");
  }
  const std::optional<int64_t> begin = integer_in((*ends)[0], 0, kMaxOffset);
  const std::optional<int64_t> end = integer_in((*ends)[1], 0, kMaxOffset);
  if (!begin || !end || *end < *begin) {
    entry.refuse("data_offsets", *range, "two offsets 0 <= begin <= end");
  }
  tensor.offset = static_cast<uint64_t>(*begin);
  tensor.bytes = static_cast<uint64_t>(*end - *begin);
  if (tensor.bytes != bytes) {
    throw StartError(fmt::format("{}: data_offsets span {} bytes; {} of shape {} takes {}", where,
                                 tensor.bytes, dtype, shape_text(tensor.shape), bytes));
  }
  return tensor;
}

/// `tensors` are sorted by offset, still relative to the data of `data_bytes` bytes.
void check_coverage(const std::vector<TensorInfo>& tensors, const std::string& where,
                    uint64_t data_bytes) {
  uint64_t covered = 0;
  std::string_view before;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t end = tensor.offset + tensor.bytes;  // two int64 ends: no overflow
    if (end > data_bytes) {
      throw StartError(
          fmt::format("{}: truncated: tensor {} ends at byte {} of the data; the file "
                      "holds {} bytes of data",
                      where, shown_name(tensor.name), end, data_bytes));
    }
    if (tensor.offset < covered) {
      throw StartError(
          fmt::format("{}: tensor {} begins at byte {} of the data and overlaps {}, "
                      "which ends at {}",
                      where, shown_name(tensor.name), tensor.offset, shown_name(before), covered));
    }
    if (tensor.offset > covered) {
      throw StartError(fmt::format("{}: hole of {} bytes before tensor {}", where,
                                   tensor.offset - covered, shown_name(tensor.name)));
    }
    covered = end;
    before = tensor.name;
  }
  if (covered != data_bytes) {
    throw StartError(fmt::format("{}: {} bytes after the last tensor that belong to none", where,
                                 data_bytes - covered));
  }
}

bool is_plain_shard_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

std::vector<TensorInfo> parse_safetensors_header(std::string_view json_text,
                                                 const std::string& where, const std::string& file,
                                                 uint64_t data_begin, uint64_t file_bytes) {
  const json::value document = parse_json(json_text, where + ": header");
  const JsonFields header(document, where + ": header");
  std::vector<TensorInfo> tensors;
  for (const auto& [key, value] : header.object()) {
    if (key == "__metadata__") {
      if (!value.is_object()) header.refuse("__metadata__", value, "an object");
      continue;
    }
    const std::string name(key);
    tensors.push_back(
        parse_entry(name, value, fmt::format("{}: tensor {}", where, shown_name(name))));
    tensors.back().file = file;
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    // An empty tensor goes before the one that begins at the same byte.
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  check_coverage(tensors, where, file_bytes - data_begin);
  for (TensorInfo& tensor : tensors) tensor.offset += data_begin;
  return tensors;
}

std::vector<TensorInfo> read_safetensors_header(const RegularFile& file) {
  const std::string where = file.path.string();
  if (file.stamp.bytes < kLengthBytes) {
    throw StartError(fmt::format("{}: {} bytes; a safetensors file has at least {}", where,
                                 file.stamp.bytes, kLengthBytes));
  }
  const std::string prefix = read_file_part(file, 0, kLengthBytes);
  uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(prefix[i])) << (8 * i);
  }
  if (length > kSafetensorsHeaderLimitBytes) {
    throw StartError(
        fmt::format("{}: header of {} bytes (damaged, or not a safetensors file); "
                    "allowed: at most {}",
                    where, length, kSafetensorsHeaderLimitBytes));
  }
  if (length > file.stamp.bytes - kLengthBytes) {
    throw StartError(fmt::format("{}: truncated: a header of {} bytes does not fit a file of {}",
                                 where, length, file.stamp.bytes));
  }
  return parse_safetensors_header(read_file_part(file, kLengthBytes, length), where,
                                  file.path.filename().string(), kLengthBytes + length,
                                  file.stamp.bytes);
}

std::map<std::string, std::string, std::less<>> parse_shard_index(std::string_view json_text,
                                                                  const std::string& where) {
  const json::value document = parse_json(json_text, where);
  const std::optional<JsonFields> weight_map =
      JsonFields(document, where).find_object("weight_map");
  if (!weight_map) throw StartError(fmt::format("{}: weight_map is missing", where));
  std::map<std::string, std::string, std::less<>> shards;
  for (const auto& [key, value] : weight_map->object()) {
    const json::string* shard = value.if_string();
    if (shard == nullptr || !is_plain_shard_name(std::string_view(*shard))) {
      weight_map->refuse(shown_name(std::string_view(key)), value,
                         "the name of a .safetensors file in the same directory");
    }
    shards.emplace(std::string(key), std::string(*shard));
  }
  if (shards.empty()) throw StartError(fmt::format("{}: weight_map is empty", where));
  return shards;
}

}  // namespace convoy
