#include "shared/stage/random_weights.h"

namespace convoy {

RandomRange random_range(std::string_view name, bool matrix) {
  // A standard deviation of 0.02, as such models are initialised.
  constexpr float kMatrixSpread = 0.02F * 1.7320508F;
  if (matrix) return {0.0F, kMatrixSpread};
  // exp(A_log) between 0.4 and 7; softplus(a + dt_bias) around 0.05: a state remembers a few tokens
  // to a few hundred.
  if (name.ends_with(".A_log")) return {0.5F, 1.5F};
  if (name.ends_with(".dt_bias")) return {-3.0F, 2.0F};
  if (name.ends_with(".conv1d.weight")) return {0.0F, 0.5F};
  // The GDN output norm multiplies by w, all others by 1 + w.
  if (name.ends_with("linear_attn.norm.weight")) return {1.0F, 0.1F};
  return {0.0F, 0.1F};
}

uint64_t random_seed(std::string_view name) {
  // FNV-1a.
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3U;
  }
  return hash;
}

}  // namespace convoy
