// Fuzz target: the readers of files that people download. The input is taken as config.json,
// generation_config.json, a safetensors header and a shard index. Whatever it is, a reader accepts
// it within its limits or throws StartError.
//
// tests/unit/model replays corpus/model_files in every build; with clang and -DCONVOY_FUZZ=ON:
//   model_files_fuzz tests/fuzz/corpus/model_files
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/model/model_config.h"
#include "shared/model/safetensors.h"

namespace {

template <typename Read>
void accept_or_refuse(Read&& read) {
  try {
    read();
  } catch (const convoy::StartError& error) {
    const std::string_view message = error.what();
    CONVOY_CHECK(message.find('\n') == std::string_view::npos, "a message is one line");
  }
}

void read_config(std::string_view text) {
  const convoy::ModelConfig config = convoy::parse_model_config(text, "config", text, "generation");
  CONVOY_CHECK_OP(config.layer_types.size(), ==, static_cast<std::size_t>(config.num_layers));
  CONVOY_CHECK_OP(config.rope_axis.size() * 2, ==, static_cast<std::size_t>(config.rotary_dim));
  CONVOY_CHECK_OP(config.rotary_dim, <=, config.head_dim);
  CONVOY_CHECK_OP(config.num_attention_heads % config.num_kv_heads, ==, 0);
  CONVOY_CHECK_OP(config.linear_value_heads % config.linear_key_heads, ==, 0);
  CONVOY_CHECK_OP(config.conv_channels(), >, 0);
  for (const int32_t id : config.stop_token_ids) CONVOY_CHECK_OP(id, <, config.vocab_size);
}

void read_header(std::string_view text) {
  constexpr uint64_t kDataBegin = 8;
  constexpr uint64_t kFileBytes = kDataBegin + 4096;
  uint64_t covered = kDataBegin;
  for (const convoy::TensorInfo& tensor :
       convoy::parse_safetensors_header(text, "header", "file", kDataBegin, kFileBytes)) {
    CONVOY_CHECK_OP(tensor.offset, ==, covered);
    covered += tensor.bytes;
  }
  CONVOY_CHECK_OP(covered, ==, kFileBytes);
}

void read_index(std::string_view text) {
  for (const auto& [name, shard] : convoy::parse_shard_index(text, "index")) {
    CONVOY_CHECK(shard.find('/') == std::string::npos, shard);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accept_or_refuse([&] { read_config(text); });
  accept_or_refuse([&] { read_header(text); });
  accept_or_refuse([&] { read_index(text); });
  return 0;
}
