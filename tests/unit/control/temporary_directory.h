// A directory that lives as long as its test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace convoy {

/// An empty directory under /tmp (short, since socket paths hold 107 bytes), mode 0700, removed
/// when destroyed.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = "/tmp/convoy-test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed";
    path_ = path;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace convoy
