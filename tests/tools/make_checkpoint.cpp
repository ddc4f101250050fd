// Writes a random checkpoint of about 300 MB for benchmarks. Usage: convoy-make-checkpoint
// DIRECTORY TOKENIZER_JSON

#include <cstdio>
#include <filesystem>

#include "tests/unit/model/checkpoint_writer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: convoy-make-checkpoint DIRECTORY TOKENIZER_JSON\n");
    return 2;
  }
  const convoy::testing::TinyCheckpointOptions options{.layers = "lllflllflllf",
                                                       .vocab_size = 4096,
                                                       .hidden_size = 1024,
                                                       .intermediate_size = 3072,
                                                       .num_attention_heads = 8,
                                                       .num_kv_heads = 2,
                                                       .head_dim = 128,
                                                       .linear_key_heads = 8,
                                                       .linear_value_heads = 8,
                                                       .linear_key_dim = 128,
                                                       .linear_value_dim = 128,
                                                       .mrope_section = "[6, 5, 5]"};
  convoy::testing::write_tiny_checkpoint(options, argv[1]);
  std::filesystem::copy_file(argv[2], std::filesystem::path(argv[1]) / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  return 0;
}
