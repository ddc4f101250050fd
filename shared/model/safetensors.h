// The two formats that hold a checkpoint's tensors: safetensors headers and the index that names
// the shards.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/model/regular_file.h"
#include "shared/model/tensor_info.h"

namespace convoy {

/// Larger headers are refused, as the reference implementation does.
inline constexpr uint64_t kSafetensorsHeaderLimitBytes = 100'000'000;

/// Parses the JSON part of a header. The data begins at byte `data_begin` of a file of `file_bytes`
/// bytes named `where` in messages; `file` goes into each TensorInfo. Checked: known dtypes, shape
/// times dtype equals the byte range, ranges that cover the data exactly once without holes,
/// nothing past the end of the file. In the order of the bytes. Throws StartError. Format:
/// huggingface/safetensors README.
std::vector<TensorInfo> parse_safetensors_header(std::string_view json_text,
                                                 const std::string& where, const std::string& file,
                                                 uint64_t data_begin, uint64_t file_bytes);

/// Reads and parses the header of an open file: 8 bytes little-endian length, then JSON. Reads
/// nothing else.
std::vector<TensorInfo> read_safetensors_header(const RegularFile& file);

/// weight_map of a model.safetensors.index.json: tensor name to shard. Shards are plain names of
/// .safetensors files, so an index cannot reach outside its directory. Throws StartError.
std::map<std::string, std::string, std::less<>> parse_shard_index(std::string_view json_text,
                                                                  const std::string& where);

}  // namespace convoy
