#include "tests/integration/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX asks for it

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(3);
constexpr int kExecFailed = 127;

UniqueFd capture_file(const char* name) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) throw std::runtime_error("memfd_create");
  return fd;
}

std::string read_all(int fd) {
  std::string text;
  char bytes[65536];
  for (ssize_t count = 0;
       (count = ::pread(fd, bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  return text;
}

std::vector<std::string> environment_of(const ProgramCall& call) {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("CONVOY_") && name != "XDG_RUNTIME_DIR" &&
        !call.environment.contains(name))
      kept.emplace_back(text);
  }
  for (const auto& [name, value] : call.environment)
    kept.emplace_back(name).append("=").append(value);
  return kept;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

struct ProcStat {
  char state = 'X';
  pid_t parent = 0;
};

// The name in parentheses may hold anything, so reading starts behind the last one.
std::optional<ProcStat> read_stat(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(in, text)) return std::nullopt;
  const size_t close = text.rfind(')');
  if (close == std::string::npos || close + 4 >= text.size()) return std::nullopt;
  return ProcStat{text[close + 2], static_cast<pid_t>(std::atoi(text.c_str() + close + 4))};
}

bool lives(const ProcStat& stat) {
  return stat.state != 'Z' && stat.state != 'X';
}

}  // namespace

Seconds stretched(double seconds) {
  return Seconds(seconds * CONVOY_TEST_TIME_FACTOR);
}

Process::Process(const ProgramCall& call)
    : out_(capture_file("stdout")), err_(capture_file("stderr")), begin_(Clock::now()) {
  std::vector<std::string> words{call.program.native()};
  words.insert(words.end(), call.arguments.begin(), call.arguments.end());
  std::vector<std::string> variables = environment_of(call);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> environment = pointers(variables);
  UniqueFd input;
  if (call.input) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    input.reset(ends[0]);
    const UniqueFd writer(ends[1]);
    if (::write(writer.get(), call.input->data(), call.input->size()) !=
        static_cast<ssize_t>(call.input->size()))
      throw std::runtime_error("input");
  } else {
    input.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kExecFailed);
    ::dup2(call.stdin_fd >= 0 ? call.stdin_fd : input.get(), STDIN_FILENO);
    ::dup2(call.stdout_fd >= 0 ? call.stdout_fd : out_.get(), STDOUT_FILENO);
    ::dup2(err_.get(), STDERR_FILENO);
    ::execve(argv[0], argv.data(), environment.data());
    ::_exit(kExecFailed);
  }
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)),
      begin_(other.begin_) {}

Process::~Process() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

std::string Process::out() const {
  return read_all(out_.get());
}
std::string Process::err() const {
  return read_all(err_.get());
}

Ended Process::wait(Seconds limit) {
  Ended ended;
  int status = 0;
  ended.in_time = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
  if (!ended.in_time) {
    signal(SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.out = out();
  ended.err = err();
  ended.took = Clock::now() - begin_;
  return ended;
}

Ended run(const ProgramCall& call, Seconds limit) {
  return Process(call).wait(limit);
}

bool alive(pid_t pid) {
  const auto stat = read_stat(pid);
  return stat && lives(*stat);
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const pid_t child = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    const auto stat = child > 0 ? read_stat(child) : std::nullopt;
    if (stat && stat->parent == pid && lives(*stat)) children.push_back(child);
  }
  return children;
}

std::vector<pid_t> descendants_of(pid_t pid) {
  std::vector<pid_t> found = children_of(pid);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<pid_t> more = children_of(found[i]);
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

bool eventually(const std::function<bool()>& condition, Seconds limit) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  while (!condition()) {
    if (Clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

bool gone_within(const std::vector<pid_t>& pids, Seconds limit) {
  return eventually([&] { return std::none_of(pids.begin(), pids.end(), alive); }, limit);
}

void adopt_orphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void kill_descendants() {
  for (const pid_t pid : descendants_of(::getpid())) ::kill(pid, SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}

void send_signal(pid_t pid, int number) {
  ASSERT_GT(pid, 1) << "there is no process to send signal " << number << " to";
  ::kill(pid, number);
}

}  // namespace convoy::testing
