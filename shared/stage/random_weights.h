// Weights that stand in for a checkpoint's (--load-format dummy).
#pragma once

#include <cstdint>
#include <string_view>

namespace convoy {

/// Uniform values in centre ± spread.
struct RandomRange {
  float centre = 0;
  float spread = 0;
};

/// What a tensor's values look like so that a forward pass keeps magnitudes as a trained model has
/// them. `name` as Checkpoint::tensor() takes it; `matrix`: it is multiplied with activations.
RandomRange random_range(std::string_view name, bool matrix);

/// The seed of a tensor's values: they depend on its name and on nothing else, so that every split
/// runs the same model.
uint64_t random_seed(std::string_view name);

}  // namespace convoy
