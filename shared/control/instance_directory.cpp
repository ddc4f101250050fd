#include "shared/control/instance_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/exit_code.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxNameLength = 32;
// No plain word: a folder with such a file in it is an instance's, and only those are ever removed.
constexpr const char* kLockName = "convoy-instance.lock";
constexpr const char* kNewFolderName = ".new-instance";
constexpr const char* kInfoName = "instance.json";

std::string last_error() {
  return std::strerror(errno);
}

// "/run/x/" and "/run/x" name the same directory, but only the second can be asked whether it is a
// link.
fs::path without_trailing_slash(fs::path path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Refuses a root that somebody else could write to: sockets in it are as good as commands.
void check_root(const fs::path& root) {
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0)
    throw StartError(fmt::format("runtime directory {}: {}", root.native(), last_error()));
  if (S_ISLNK(info.st_mode))
    throw StartError(fmt::format("runtime directory {} is a symbolic link", root.native()));
  if (!S_ISDIR(info.st_mode))
    throw StartError(fmt::format("runtime directory {} is not a directory", root.native()));
  if (info.st_uid != ::geteuid()) {
    throw StartError(
        fmt::format("runtime directory {} belongs to user {}, not to user {}; choose another with "
                    "--runtime-dir",
                    root.native(), info.st_uid, ::geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    throw StartError(
        fmt::format("runtime directory {} is open to other users (mode {:03o}); it must be 700",
                    root.native(), info.st_mode & 0777));
  }
}

UniqueFd open_lock(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}

// Held while folders are made or removed, so that nobody sees half a folder.
UniqueFd lock_root(const fs::path& root) {
  UniqueFd lock = open_lock(root / ".lock");
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw StartError(
        fmt::format("cannot lock runtime directory {}: {}", root.native(), last_error()));
  }
  return lock;
}

enum class LockState { held, free, none };

// Probes take the shared lock, so that two of them never see each other.
LockState lock_state(const fs::path& folder) {
  const UniqueFd lock(::open((folder / kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return errno == ENOENT || errno == ENOTDIR ? LockState::none : LockState::held;
  return ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0 ? LockState::free : LockState::held;
}

bool is_instance(const fs::directory_entry& entry, LockState state) {
  std::error_code ignored;
  return !entry.is_symlink(ignored) && entry.is_directory(ignored) &&
         entry.path().filename() != kNewFolderName && lock_state(entry.path()) == state;
}

// The lock goes last: a folder whose removal was cut short is still known as a dead instance.
void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename() != kLockName) fs::remove_all(entry.path(), ignored);
  }
  fs::remove_all(folder, ignored);
}

// Only with the root locked. What has no lock of ours is somebody else's and stays.
void sweep(const fs::path& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (is_instance(entry, LockState::free)) remove_folder(entry.path());
  }
}

void prepare_root(const fs::path& root) {
  std::error_code error;
  fs::create_directories(root.parent_path(), error);
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) {
    throw StartError(
        fmt::format("cannot create runtime directory {}: {}", root.native(), last_error()));
  }
  check_root(root);
}

}  // namespace

fs::path runtime_root(const std::string& flag) {
  if (!flag.empty()) return without_trailing_slash(fs::absolute(flag).lexically_normal());
  if (const char* base = std::getenv("XDG_RUNTIME_DIR"); base != nullptr && base[0] == '/')
    return fs::path(base) / "convoy";
  return fmt::format("/tmp/convoy-{}", ::geteuid());
}

Status check_instance_name(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameLength && name.front() != '.' &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
      }))
    return {};
  return Error{
      fmt::format("instance name '{}' is not a word of 1 to {} letters, digits, '-', '_' and '.'",
                  name, kMaxNameLength)};
}

InstanceDirectory InstanceDirectory::create(const fs::path& wanted_root,
                                            const std::string& wanted) {
  if (!wanted.empty()) {
    if (const Status status = check_instance_name(wanted); !status)
      throw StartError(status.error());
  }
  const fs::path root = without_trailing_slash(wanted_root);
  prepare_root(root);
  const UniqueFd root_lock = lock_root(root);
  sweep(root);

  std::string name = wanted.empty() ? fmt::format("run-{}", ::getpid()) : wanted;
  // A pid can be taken twice where several pid namespaces share the directory.
  for (int suffix = 2; wanted.empty() && fs::exists(root / name); ++suffix)
    name = fmt::format("run-{}-{}", ::getpid(), suffix);
  const fs::path path = root / name;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (instance_alive(path))
      throw StartError(
          fmt::format("instance '{}' is already running (in {})", name, root.native()));
    throw StartError(
        fmt::format("{} exists and is no instance of Convoy; choose another name or --runtime-dir",
                    path.native()));
  }
  // The folder gets its name when it is locked: one that a crash left without a lock would keep the
  // name for ever.
  const fs::path unnamed = root / kNewFolderName;
  remove_folder(unnamed);
  if (::mkdir(unnamed.c_str(), 0700) != 0)
    throw StartError(fmt::format("cannot create {}: {}", unnamed.native(), last_error()));
  UniqueFd lock = open_lock(unnamed / kLockName);
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    throw StartError(
        fmt::format("cannot lock {}: {}", (unnamed / kLockName).native(), last_error()));
  }
  if (::rename(unnamed.c_str(), path.c_str()) != 0)
    throw StartError(fmt::format("cannot create {}: {}", path.native(), last_error()));
  return InstanceDirectory(path, name, std::move(lock));
}

InstanceDirectory::~InstanceDirectory() {
  if (path_.empty()) return;
  UniqueFd root_lock;
  try {
    root_lock = lock_root(path_.parent_path());
  } catch (const StartError&) {
    // The root is gone or not ours any more; what is left of the folder goes all the same.
  }
  remove_folder(path_);
}

void InstanceDirectory::publish(const InstanceInfo& info) const {
  boost::json::array members;
  for (const InstanceMember& m : info.members) {
    members.push_back({{"rank", m.rank},
                       {"pid", m.pid},
                       {"role", m.role},
                       {"device", m.device},
                       {"uuid", m.uuid},
                       {"layers", {m.layer_begin, m.layer_end}}});
  }
  const boost::json::object object{
      {"schema", 1}, {"name", info.name}, {"kind", info.kind}, {"members", members}};
  const fs::path temporary = path_ / ".instance.json.new";
  {
    std::ofstream out(temporary);
    out << boost::json::serialize(object) << "\n";
    out.flush();
    if (!out)
      throw StartError(fmt::format("cannot write {}: {}", temporary.native(), last_error()));
  }
  if (::rename(temporary.c_str(), (path_ / kInfoName).c_str()) != 0) {
    throw StartError(
        fmt::format("cannot write {}: {}", (path_ / kInfoName).native(), last_error()));
  }
}

fs::path health_socket_path(const fs::path& instance, int rank) {
  return instance / fmt::format("health-{}.sock", rank);
}
fs::path control_socket_path(const fs::path& instance, int rank) {
  return instance / fmt::format("stage-{}.sock", rank);
}
fs::path worker_log_path(const fs::path& instance, int rank) {
  return instance / fmt::format("stage-{}.log", rank);
}

std::vector<fs::path> sweep_and_list_instances(const fs::path& wanted_root) {
  const fs::path root = without_trailing_slash(wanted_root);
  std::vector<fs::path> instances;
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0 && errno == ENOENT) return instances;
  check_root(root);
  const UniqueFd root_lock = lock_root(root);
  sweep(root);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (is_instance(entry, LockState::held)) instances.push_back(entry.path());
  }
  std::sort(instances.begin(), instances.end());
  return instances;
}

bool instance_alive(const fs::path& instance) {
  return lock_state(instance) == LockState::held;
}

Result<InstanceInfo> read_instance_info(const fs::path& instance) {
  std::ifstream in(instance / kInfoName);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return Error{fmt::format("cannot read {}", (instance / kInfoName).native())};
  try {
    const boost::json::value json = boost::json::parse(text.str());
    InstanceInfo info;
    info.name = json.at("name").as_string().c_str();
    info.kind = json.at("kind").as_string().c_str();
    for (const auto& m : json.at("members").as_array()) {
      InstanceMember member;
      member.rank = m.at("rank").to_number<int>();
      member.pid = m.at("pid").to_number<int>();
      member.role = m.at("role").as_string().c_str();
      member.device = m.at("device").as_string().c_str();
      member.uuid = m.at("uuid").as_string().c_str();
      member.layer_begin = m.at("layers").at(0).to_number<int>();
      member.layer_end = m.at("layers").at(1).to_number<int>();
      info.members.push_back(std::move(member));
    }
    return info;
  } catch (const std::exception& error) {
    return Error{fmt::format("{}: {}", (instance / kInfoName).native(), error.what())};
  }
}

}  // namespace convoy
