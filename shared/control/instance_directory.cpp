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
constexpr const char* kLockName = "lock";
constexpr const char* kInfoName = "instance.json";

std::string last_error() { return std::strerror(errno); }

// Refuses a root that somebody else could write to: sockets in it are as good as commands.
void check_root(const fs::path& root) {
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0) throw StartError(fmt::format("runtime directory {}: {}", root.native(), last_error()));
  if (S_ISLNK(info.st_mode)) throw StartError(fmt::format("runtime directory {} is a symbolic link", root.native()));
  if (!S_ISDIR(info.st_mode)) throw StartError(fmt::format("runtime directory {} is not a directory", root.native()));
  if (info.st_uid != ::geteuid()) {
    throw StartError(fmt::format("runtime directory {} belongs to user {}, not to user {}; choose another with --runtime-dir",
                                 root.native(), info.st_uid, ::geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    throw StartError(fmt::format("runtime directory {} is open to other users (mode {:03o}); it must be 700", root.native(),
                                 info.st_mode & 0777));
  }
}

UniqueFd open_lock(const fs::path& path) { return UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)); }

// Held while folders are made or removed, so that a folder without its lock yet is never taken for a dead one.
UniqueFd lock_root(const fs::path& root) {
  UniqueFd lock = open_lock(root / ".lock");
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw StartError(fmt::format("cannot lock runtime directory {}: {}", root.native(), last_error()));
  }
  return lock;
}

bool lock_is_free(const fs::path& folder) {
  const UniqueFd lock(::open((folder / kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return errno == ENOENT;
  return ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

// Only with the root locked.
void sweep(const fs::path& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (entry.is_symlink() || !entry.is_directory()) continue;
    if (lock_is_free(entry.path())) fs::remove_all(entry.path(), ignored);
  }
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameLength && name.front() != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
}

void prepare_root(const fs::path& root) {
  std::error_code error;
  fs::create_directories(root.parent_path(), error);
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) {
    throw StartError(fmt::format("cannot create runtime directory {}: {}", root.native(), last_error()));
  }
  check_root(root);
}

}  // namespace

fs::path runtime_root(const std::string& flag) {
  if (!flag.empty()) return fs::absolute(flag).lexically_normal();
  if (const char* base = std::getenv("XDG_RUNTIME_DIR"); base != nullptr && base[0] == '/') return fs::path(base) / "convoy";
  return fmt::format("/tmp/convoy-{}", ::geteuid());
}

InstanceDirectory InstanceDirectory::create(const fs::path& root, const std::string& wanted) {
  if (!wanted.empty() && !is_plain_name(wanted)) {
    throw StartError(fmt::format("instance name '{}' is not a word of 1 to {} letters, digits, '-', '_' and '.'", wanted, kMaxNameLength));
  }
  prepare_root(root);
  const UniqueFd root_lock = lock_root(root);
  sweep(root);

  std::string name = wanted.empty() ? fmt::format("run-{}", ::getpid()) : wanted;
  // A pid can be taken twice where several pid namespaces share the directory.
  for (int suffix = 2; wanted.empty() && fs::exists(root / name); ++suffix) name = fmt::format("run-{}-{}", ::getpid(), suffix);
  const fs::path path = root / name;
  if (::mkdir(path.c_str(), 0700) != 0) {
    if (errno == EEXIST) throw StartError(fmt::format("instance '{}' is already running (in {})", name, root.native()));
    throw StartError(fmt::format("cannot create {}: {}", path.native(), last_error()));
  }
  UniqueFd lock = open_lock(path / kLockName);
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    throw StartError(fmt::format("cannot lock {}: {}", (path / kLockName).native(), last_error()));
  }
  return InstanceDirectory(path, name, std::move(lock));
}

InstanceDirectory::~InstanceDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void InstanceDirectory::publish(const InstanceInfo& info) const {
  boost::json::array members;
  for (const InstanceMember& m : info.members) {
    members.push_back({{"rank", m.rank},
                       {"pid", m.pid},
                       {"role", m.role},
                       {"device", m.device},
                       {"layers", {m.layer_begin, m.layer_end}}});
  }
  const boost::json::object object{{"schema", 1}, {"name", info.name}, {"kind", info.kind}, {"members", members}};
  const fs::path temporary = path_ / ".instance.json.new";
  {
    std::ofstream out(temporary);
    out << boost::json::serialize(object) << "\n";
    out.flush();
    if (!out) throw StartError(fmt::format("cannot write {}", temporary.native()));
  }
  if (::rename(temporary.c_str(), (path_ / kInfoName).c_str()) != 0) {
    throw StartError(fmt::format("cannot write {}: {}", (path_ / kInfoName).native(), last_error()));
  }
}

fs::path health_socket_path(const fs::path& instance, int rank) { return instance / fmt::format("health-{}.sock", rank); }
fs::path control_socket_path(const fs::path& instance, int rank) { return instance / fmt::format("stage-{}.sock", rank); }
fs::path worker_log_path(const fs::path& instance, int rank) { return instance / fmt::format("stage-{}.log", rank); }

std::vector<fs::path> sweep_and_list_instances(const fs::path& root) {
  std::vector<fs::path> instances;
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0 && errno == ENOENT) return instances;
  check_root(root);
  const UniqueFd root_lock = lock_root(root);
  sweep(root);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (!entry.is_symlink() && entry.is_directory()) instances.push_back(entry.path());
  }
  std::sort(instances.begin(), instances.end());
  return instances;
}

bool instance_alive(const fs::path& instance) { return fs::exists(instance) && !lock_is_free(instance); }

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
