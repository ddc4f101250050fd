// A Hugging Face checkpoint directory: everything is checked when it is opened, weights are mapped
// one tensor at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/model/model_config.h"
#include "shared/model/regular_file.h"
#include "shared/model/tensor_info.h"

namespace convoy {

/// Where weights come from.
enum class LoadFormat {
  automatic,  ///< the checkpoint's files
  dummy,      ///< random values in the shapes of config.json, made on the device: no weight files
};

/// Read-only mapping of one tensor's bytes (page-rounded mmap), unmapped when destroyed. Move-only;
/// moved-from: no bytes. A file that shrinks while it is mapped raises SIGBUS on access, as with
/// any mapping.
class MappedTensor {
 public:
  /// Maps the bytes of `info` from an open file. Throws StartError with `path` and the reason.
  MappedTensor(TensorInfo info, int fd, const std::filesystem::path& path);
  MappedTensor(MappedTensor&& other) noexcept;
  MappedTensor& operator=(MappedTensor&& other) noexcept;
  MappedTensor(const MappedTensor&) = delete;
  MappedTensor& operator=(const MappedTensor&) = delete;
  ~MappedTensor();

  /// First byte; little-endian elements, packed, of any alignment (the file decides).
  const std::byte* data() const { return data_; }
  size_t bytes() const { return data_ == nullptr ? 0 : static_cast<size_t>(info_.bytes); }
  const TensorInfo& info() const { return info_; }

 private:
  void unmap() noexcept;

  TensorInfo info_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

/// Widens a mapped f32 or bf16 tensor exactly to f32 (norms, A_log, dt_bias, convolution).
std::vector<float> to_f32(const MappedTensor& tensor);

/// Move-only. Const members may be called from several threads.
class Checkpoint {
 public:
  /// Reads config and headers only, validates everything against the config, maps no weights.
  /// Accepts one model.safetensors or the shards named by model.safetensors.index.json (the single
  /// file wins, as in transformers), tensors of the text model under "model.language_model." or
  /// "model.". Tensors the text model does not need (MTP, vision, others) are ignored. Throws
  /// StartError naming file and tensor. LoadFormat::dummy: config only; tensors are bf16 of the
  /// shapes it asks for and cannot be mapped.
  static Checkpoint open(const std::filesystem::path& directory,
                         LoadFormat format = LoadFormat::automatic);

  const ModelConfig& config() const { return config_; }
  LoadFormat format() const { return format_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// `name` relative to the text model: "embed_tokens.weight", "layers.3.mlp.up_proj.weight",
  /// "norm.weight", and "lm_head.weight" unless the head is tied. text_tensors.h lists them. Ends
  /// the process for any other name.
  const TensorInfo& tensor(std::string_view name) const;

  /// Maps that tensor. Throws StartError if its file is not the one that was checked (size, inode
  /// or time of change) or on I/O errors.
  MappedTensor map(std::string_view name) const;

  // Bytes as stored. Together they are every byte of the text model.
  uint64_t layer_bytes(int layer) const;
  uint64_t embedding_bytes() const { return tensor("embed_tokens.weight").bytes; }
  uint64_t final_norm_bytes() const { return tensor("norm.weight").bytes; }
  /// lm_head alone; 0 for a tied head.
  uint64_t head_bytes() const;

  /// Running total of tensor bytes mapped through this object, unmapped ones included.
  uint64_t mapped_bytes() const { return mapped_bytes_->load(std::memory_order_relaxed); }

 private:
  Checkpoint() = default;
  void invent_tensors();
  void require_tensors(std::map<std::string, TensorInfo, std::less<>>&& found,
                       const std::string& where);

  std::filesystem::path directory_;
  ModelConfig config_;
  LoadFormat format_ = LoadFormat::automatic;
  std::map<std::string, FileStamp, std::less<>> files_;  // by file name, as they were when checked
  std::map<std::string, TensorInfo, std::less<>> tensors_;  // by relative name
  std::vector<uint64_t> layer_bytes_;
  std::unique_ptr<std::atomic<uint64_t>> mapped_bytes_ = std::make_unique<std::atomic<uint64_t>>(0);
};

}  // namespace convoy
