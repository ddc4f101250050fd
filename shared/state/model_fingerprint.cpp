#include "shared/state/model_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shared/model/text_tensors.h"
#include "shared/state/state_layout.h"

namespace convoy {
namespace {

constexpr size_t kSampleBytes = 64;

void add_tensor(StateHash& hash, const Checkpoint& checkpoint, const std::string& name) {
  hash.add(name.data(), name.size() + 1);
  const TensorInfo& info = checkpoint.tensor(name);
  for (const int64_t size : info.shape) hash.add(&size, sizeof(size));
  if (checkpoint.format() == LoadFormat::dummy) return;
  const MappedTensor tensor = checkpoint.map(name);
  const size_t bytes = std::min(kSampleBytes, tensor.bytes());
  for (const size_t at : {size_t{0}, (tensor.bytes() - bytes) / 2, tensor.bytes() - bytes})
    hash.add(tensor.data() + at, bytes);
}

}  // namespace

uint64_t model_fingerprint(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  StateHash hash;
  const std::string numbers =
      fmt::format("{} {} {} {} {}", config.rope_theta, config.rotary_dim, config.rms_norm_eps,
                  config.num_attention_heads, config.tie_word_embeddings);
  hash.add(numbers.data(), numbers.size());
  for (const RequiredTensor& tensor : root_tensors(config))
    add_tensor(hash, checkpoint, tensor.name);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const RequiredTensor& tensor : layer_tensors(config, layer))
      add_tensor(hash, checkpoint, tensor.name);
  }
  return hash.value();
}

}  // namespace convoy
