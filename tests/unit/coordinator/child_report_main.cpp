// A child that writes to stderr how it was started, one "key value" a line, and ends as its first
// argument says: report, exit:<code>, signal:<number>, sleep.
#include <dirent.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX asks for it

namespace {

void report_descriptors() {
  DIR* directory = ::opendir("/proc/self/fd");
  for (const dirent* entry = ::readdir(directory); entry != nullptr; entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.front() == '.' || std::stoi(name) == ::dirfd(directory)) continue;
    char target[256] = {};
    (void)!::readlink(("/proc/self/fd/" + name).c_str(), target, sizeof(target) - 1);
    std::cerr << "fd " << name << " " << target << "\n";
  }
  ::closedir(directory);
}

void report_signals() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    for (const char* key : {"SigBlk", "SigIgn"}) {
      if (line.starts_with(key))
        std::cerr << key << " " << std::stoull(line.substr(7), nullptr, 16) << "\n";
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(60);
  const std::string_view how = argc > 1 ? argv[1] : "report";
  for (int i = 0; i < argc; ++i) std::cerr << "argument " << argv[i] << "\n";
  for (char** variable = environ; *variable != nullptr; ++variable)
    std::cerr << "variable " << *variable << "\n";
  report_descriptors();
  report_signals();
  std::cerr << "session " << (::getsid(0) == ::getpid() ? "own" : "inherited") << "\n";
  if (how.starts_with("exit:")) return std::atoi(how.substr(5).data());
  if (how.starts_with("signal:")) {
    const int number = std::atoi(how.substr(7).data());
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  while (how == "sleep") ::pause();
  return 0;
}
