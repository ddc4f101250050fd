// The layout of a saved state: one sequence's token ids, KV pages and recurrent states.
//
//   StateHeader                     at 0
//   int32 ids [tokens + 1]          what is in the cache, and the token that follows and is not
//   StateSection [layers]           where each layer lies, and the hash of its bytes
//   layers, each at a multiple of 4096 bytes:
//     full attention   per 64-token block: K page, V page, each [kv_heads] blocks as
//                      kernels/ops/op_set.h lays them out (KvPlanes); slots past `tokens` are
//                      zeros, scales included
//     GDN              recurrent state [value_heads, key_dim, value_dim], convolution
//                      [3, channels], f32
//
// Offsets depend on the model, the KV dtype and the number of tokens: never on a split.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/kv_dtype.h"
#include "shared/model/model_config.h"

namespace convoy {

inline constexpr uint64_t kStateMagic = 0x65746174536f7643;  // "CvoState"
inline constexpr uint32_t kStateVersion = 3;

/// What the tokens behind the prompt become.
enum class StateText : uint32_t {
  plain = 0,             ///< all of it is the answer
  chat = 1,              ///< reasoning may come first, between its markers
  inside_reasoning = 2,  ///< as chat; the prompt ends with the marker that begins reasoning
};

/// Little-endian, as all of the file.
struct StateHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t device_kind;  ///< DeviceKind
  uint32_t layers;
  uint32_t tokens;         ///< positions in the cache, at least 1
  uint32_t prompt_tokens;  ///< the first of them: of the prompt class; the rest are generated
  uint32_t kv_dtype;       ///< KvDtype
  uint32_t text;           ///< StateText
  uint32_t reserved;       ///< 0
  uint64_t model;          ///< model_fingerprint()
  uint64_t ids_offset;
  uint64_t table_offset;
  uint64_t file_bytes;
  uint64_t ids_hash;
  uint64_t table_hash;
  uint64_t header_hash;  ///< of everything before it
};
static_assert(sizeof(StateHeader) == 96);

struct StateSection {
  uint64_t offset;
  uint64_t bytes;
  uint64_t hash;
};
static_assert(sizeof(StateSection) == 24);

struct StateLayout {
  uint64_t ids_offset = 0;
  uint64_t ids_bytes = 0;
  uint64_t table_offset = 0;
  uint64_t file_bytes = 0;
  std::vector<StateSection> layers;  ///< hashes 0
};

/// `tokens` is at least 1.
StateLayout state_layout(const ModelConfig& config, KvDtype kv_dtype, uint32_t tokens);

/// The hash that all of the file uses (XXH64, seed 0), in pieces.
class StateHash {
 public:
  StateHash();
  ~StateHash();
  StateHash(const StateHash&) = delete;
  StateHash& operator=(const StateHash&) = delete;
  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  void* state_;
};
uint64_t state_hash(const void* data, size_t bytes);

}  // namespace convoy
