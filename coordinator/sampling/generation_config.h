// Sampling defaults that a checkpoint brings.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "coordinator/sampling/sampling_options.h"

namespace convoy {

/// Reads do_sample, temperature, top_k, top_p, min_p and repetition_penalty from
/// generation_config.json as Hugging Face transformers writes it; everything else in the file is
/// left alone. Missing or null: do_sample false (greedy, as in transformers), temperature 1, and no
/// top_k, top_p, min_p or repetition_penalty (as in vLLM; transformers itself would use top_k 50).
/// The numbers are read even where do_sample is false: they are the defaults of a request that asks
/// for sampling. Throws StartError "<file>: temperature is "hot"; ..." for a wrong type or a value
/// out of range.
SamplingOptions parse_generation_config(std::string_view text, const std::string& file);

/// The same for `directory`/generation_config.json. Without that file: every default.
SamplingOptions read_generation_config(const std::filesystem::path& directory);

}  // namespace convoy
