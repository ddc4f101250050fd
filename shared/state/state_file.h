// A saved state as a file: written whole or not at all, checked before anything is handed out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shared/state/state_layout.h"

namespace convoy {

/// What a saved state is of.
struct StateDescription {
  DeviceKind kind = DeviceKind::cpu;
  KvDtype kv_dtype = KvDtype::f32;
  uint64_t model = 0;          ///< model_fingerprint()
  std::vector<int32_t> ids;    ///< what is in the cache, then the one token that follows
  uint32_t prompt_tokens = 0;  ///< 1..tokens()
  StateText text = StateText::plain;
  uint32_t tokens() const { return static_cast<uint32_t>(ids.size() - 1); }
};

/// Whether a state can be saved as `path`, links followed: nothing is there or a regular file, and
/// its folder can be written to and has room for `bytes`. Throws StartError naming the file and the
/// reason. Leaves nothing.
void check_state_target(const std::filesystem::path& path, uint64_t bytes = 0);

/// Writes beside the file that `path` leads to, links followed, and takes its name in commit().
/// Destroyed before: nothing is left. Move-only.
class StateFileWriter {
 public:
  /// Takes the room on the disk at once. Throws StartError as check_state_target() does.
  StateFileWriter(const std::filesystem::path& path, const ModelConfig& config,
                  StateDescription description);
  StateFileWriter(const StateFileWriter&) = delete;
  StateFileWriter& operator=(const StateFileWriter&) = delete;
  ~StateFileWriter();

  /// Stages write their layers here, at layout().layers[layer].offset.
  int fd() const { return file_.get(); }
  const StateLayout& layout() const { return layout_; }
  /// The hash of what was written for `layer`.
  void set_hash(int layer, uint64_t hash);
  /// Every layer has its hash (checked). Throws StartError.
  void commit();

 private:
  void write_at(const void* data, size_t bytes, uint64_t offset) const;

  std::filesystem::path path_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  StateDescription description_;
  StateLayout layout_;
  std::vector<bool> hashed_;
  UniqueFd file_;
};

/// Reads and checks header, ids and table. Layers are checked by whoever reads them, against
/// layout().layers[layer].hash.
class StateFileReader {
 public:
  /// Throws StartError naming the file and what is wrong with it: no such file, no state, another
  /// version, truncated, altered, another model, another kind of device, another KV dtype.
  StateFileReader(const std::filesystem::path& path, const ModelConfig& config, DeviceKind kind,
                  KvDtype kv_dtype, uint64_t model);

  const StateDescription& description() const { return description_; }
  const StateLayout& layout() const { return layout_; }
  int fd() const { return file_.get(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  StateDescription description_;
  StateLayout layout_;
  UniqueFd file_;
};

/// What can be said of a state file without its model: `convoy state show`. Checks header, ids and
/// every layer's bytes. Throws StartError as StateFileReader does.
struct StateSummary {
  StateHeader header;
  std::vector<int32_t> ids;
  std::vector<StateSection> layers;
};
StateSummary read_state_summary(const std::filesystem::path& path);

}  // namespace convoy
