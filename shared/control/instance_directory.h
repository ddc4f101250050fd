// The folder of one running instance: sockets, logs, and the lock that says whether it lives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace convoy {

/// One process of an instance, as its folder lists it.
struct InstanceMember {
  int rank = 0;
  int pid = 0;
  std::string role;       ///< "coordinator" or "stage_worker"
  std::string device;     ///< as a person names it
  std::string uuid = {};  ///< of a card; else empty
  int layer_begin = 0;
  int layer_end = 0;
};

/// What `instance.json` says.
struct InstanceInfo {
  std::string name;
  std::string
      kind;  ///< "run" (a coordinator and its workers) or "pool" (workers that wait to be attached)
  std::vector<InstanceMember> members;
};

/// `flag` made absolute if not empty, else $XDG_RUNTIME_DIR/convoy, else /tmp/convoy-<uid>. Nothing
/// is created.
std::filesystem::path runtime_root(const std::string& flag);

/// An instance's name is a word of at most 32 letters, digits, '-', '_' and '.', not '.' first. The
/// error names it and says so.
Status check_instance_name(const std::string& name);

/// Owner of one instance's folder <root>/<name>. Moved-from: owns nothing.
///
/// The lock in the folder is held while any process that inherited lock_fd() lives. Destroying the
/// owner removes the folder.
class InstanceDirectory {
 public:
  /// Creates <root> (0700) and the folder, after sweeping the folders of dead instances. `name`
  /// empty: made from the pid. Throws StartError: root is a link, not a directory, another user's,
  /// or open to others; the name is in use by a living instance or by something else, or
  /// check_instance_name() refuses it.
  static InstanceDirectory create(const std::filesystem::path& root, const std::string& name);
  InstanceDirectory(InstanceDirectory&&) noexcept = default;
  InstanceDirectory& operator=(InstanceDirectory&&) = delete;
  ~InstanceDirectory();

  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }
  int lock_fd() const { return lock_.get(); }
  /// Leaves the folder to the processes that inherited the lock.
  void disown() { path_.clear(); }

  /// Writes instance.json atomically. Throws StartError.
  void publish(const InstanceInfo& info) const;

 private:
  InstanceDirectory(std::filesystem::path path, std::string name, UniqueFd lock)
      : path_(std::move(path)), name_(std::move(name)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  std::string name_;
  UniqueFd lock_;
};

std::filesystem::path health_socket_path(const std::filesystem::path& instance, int rank);
std::filesystem::path control_socket_path(const std::filesystem::path& instance, int rank);
std::filesystem::path worker_log_path(const std::filesystem::path& instance, int rank);

/// Living instances under `root`, by name. Folders of dead ones are removed on the way; whatever
/// holds no lock of an instance is left alone, since people may point --runtime-dir at a directory
/// with other things in it. A root that does not exist has none. Throws StartError as create()
/// does.
std::vector<std::filesystem::path> sweep_and_list_instances(const std::filesystem::path& root);

/// Whether some process holds the instance's lock.
bool instance_alive(const std::filesystem::path& instance);

Result<InstanceInfo> read_instance_info(const std::filesystem::path& instance);

}  // namespace convoy
