#include "coordinator/bench/measured_speeds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/exit_code.h"
#include "coordinator/bench/device_speed.h"
#include "coordinator/console/output.h"
#include "coordinator/workers/child_process.h"
#include "shared/control/parent_process.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr int kOutputFd = 3;
constexpr int kEndMs = 10'000;

// The child's stderr, gone with this object.
struct Log {
  fs::path path = fs::temp_directory_path() / fmt::format("convoy-speed-{}.log", ::getpid());
  Log() = default;
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 256> bytes{};
  for (ssize_t got = 0; (got = ::read(fd, bytes.data(), bytes.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(bytes.data(), static_cast<size_t>(got));
  }
  return text;
}

std::string to_text(const DeviceSpeed& speed) {
  return boost::json::serialize(
      boost::json::object{{"name", speed.name},
                          {"architecture", speed.architecture},
                          {"copy_bytes_per_s", speed.copy_bytes_per_s},
                          {"product_flop_per_s", speed.product_flop_per_s}});
}

// Nothing for what a child that failed has written.
std::optional<DeviceSpeed> from_text(const std::string& text, const std::string& id) {
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(text, error);
  if (error || !parsed.is_object()) return std::nullopt;
  const boost::json::object& o = parsed.get_object();
  DeviceSpeed speed{.id = id,
                    .name = boost::json::value_to<std::string>(o.at("name")),
                    .architecture = boost::json::value_to<std::string>(o.at("architecture")),
                    .copy_bytes_per_s = o.at("copy_bytes_per_s").to_number<double>(),
                    .product_flop_per_s = o.at("product_flop_per_s").to_number<double>()};
  if (!(speed.copy_bytes_per_s > 0)) return std::nullopt;
  return speed;
}

}  // namespace

DeviceSpeed measure_in_child(const MeasuredDevice& device, const fs::path& program) {
  Pipe output = make_pipe();
  const Log log;
  ChildProcess process =
      ChildProcess::spawn({.program = program,
                           .arguments = {"measure-device", "--device=" + device.id,
                                         fmt::format("--threads={}", device.threads),
                                         fmt::format("--parent={}", ::getpid())},
                           .descriptors = {output.write.get()},
                           .stderr_log = log.path});
  output.write.reset();
  const std::string said = read_to_end(output.read.get());
  const auto exit = process.reap_for(kEndMs);
  const auto speed = from_text(said, device.id);
  if (!speed) {
    throw StartError(fmt::format("measuring {}: the process {}: {}", device.id,
                                 exit ? describe(*exit) : "does not end", last_line(log.path)));
  }
  return *speed;
}

std::vector<DeviceValue<double>> measure_speeds(const std::vector<DeviceSpec>& devices,
                                                const fs::path& program) {
  std::vector<DeviceValue<double>> speeds;
  for (const DeviceSpec& device : devices) {
    const bool known = std::any_of(speeds.begin(), speeds.end(),
                                   [&](const auto& speed) { return speed.device.id == device.id; });
    if (known) continue;
    const DeviceSpeed speed = measure_in_child({.id = device.id}, program);
    speeds.push_back({device, speed.copy_bytes_per_s * 1e-9});
    write_stderr(fmt::format("{} copies {:.0f} GB/s\n", device.id, speeds.back().value));
  }
  return speeds;
}

int run_speed_measurement(const MeasuredDevice& device, int parent_pid) {
  if (!tie_to_parent(parent_pid)) return static_cast<int>(ExitCode::engine_died);
  const std::string text = to_text(measure_device(device.id, device.threads));
  const ssize_t written = ::write(kOutputFd, text.data(), text.size());
  return static_cast<int>(written == static_cast<ssize_t>(text.size()) ? ExitCode::done
                                                                       : ExitCode::start_failed);
}

}  // namespace convoy
