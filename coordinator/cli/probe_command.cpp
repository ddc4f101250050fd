#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/exit_code.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/table.h"
#include "coordinator/probe/probe.h"
#include "shared/stage/list_devices.h"
#include "shared/stage/open_device.h"

namespace convoy {
namespace {

namespace json = boost::json;
constexpr int kMostRounds = 100'000;

bool reaches(const ProbeResult& result, size_t from, size_t to) {
  return driver_allows_peer_access(result.devices[from], result.devices[to]);
}

bool has_peers(const ProbeResult& result) {
  return result.devices.size() > 1 && result.devices.front().kind == DeviceKind::cuda;
}

std::string device_table(const ProbeResult& result) {
  std::vector<std::vector<std::string>> rows{
      {"device", "name", "architecture", "uuid", "pci id", "memory", "free"}};
  for (const DeviceInfo& d : result.devices) {
    rows.push_back({d.id, d.name, d.architecture, d.uuid.empty() ? "-" : d.uuid,
                    d.pci_id.empty() ? "-" : d.pci_id, format_bytes(d.total_bytes),
                    format_bytes(d.free_bytes)});
  }
  return format_table(rows, {1, 2, 3, 4});
}

std::string peer_table(const ProbeResult& result) {
  std::vector<std::vector<std::string>> rows{{"peer access"}};
  for (const DeviceInfo& d : result.devices) rows.front().push_back(d.id);
  for (size_t from = 0; from < result.devices.size(); ++from) {
    rows.push_back({result.devices[from].id});
    for (size_t to = 0; to < result.devices.size(); ++to)
      rows.back().push_back(from == to ? "-" : (reaches(result, from, to) ? "yes" : "no"));
  }
  return format_table(rows);
}

std::string link_table(const ProbeResult& result) {
  std::vector<std::vector<std::string>> rows{
      {"from", "to", "transport", "payload", "p50 us", "p99 us", "GiB/s"}};
  std::string notes;
  for (const ProbedLink& link : result.links) {
    const std::string& from = result.devices[link.from].id;
    const std::string& to = result.devices[link.to].id;
    if (!link.fallback.empty()) notes += fmt::format("{} to {}: {}\n", from, to, link.fallback);
    for (const LinkMeasurement& m : link.sizes) {
      rows.push_back({from, to, link.transport, format_bytes(m.bytes),
                      fmt::format("{:.1f}", m.p50_us), fmt::format("{:.1f}", m.p99_us),
                      fmt::format("{:.2f}", m.gib_per_s)});
    }
  }
  return format_table(rows, {1, 2}) + notes;
}

json::object device_json(const DeviceInfo& d) {
  return {{"id", d.id},
          {"kind", device_kind_name(d.kind)},
          {"name", d.name},
          {"architecture", d.architecture},
          {"uuid", d.uuid},
          {"pci_id", d.pci_id},
          {"total_bytes", d.total_bytes},
          {"free_bytes", d.free_bytes}};
}

json::object link_json(const ProbeResult& result, const ProbedLink& link) {
  json::array sizes;
  for (const LinkMeasurement& m : link.sizes) {
    sizes.push_back({{"bytes", m.bytes},
                     {"p50_us", m.p50_us},
                     {"p99_us", m.p99_us},
                     {"gib_per_s", m.gib_per_s}});
  }
  json::object object{{"from", result.devices[link.from].id},
                      {"to", result.devices[link.to].id},
                      {"transport", link.transport},
                      {"sizes", sizes}};
  if (!link.fallback.empty()) object["fallback"] = link.fallback;
  return object;
}

std::string probe_json(const ProbeResult& result) {
  json::array devices, peers, links;
  for (const DeviceInfo& d : result.devices) devices.push_back(device_json(d));
  if (has_peers(result)) {
    for (size_t from = 0; from < result.devices.size(); ++from) {
      json::array row;
      for (size_t to = 0; to < result.devices.size(); ++to)
        row.push_back(from != to && reaches(result, from, to));
      peers.push_back(row);
    }
  }
  for (const ProbedLink& link : result.links) links.push_back(link_json(result, link));
  return json::serialize(json::object{
             {"schema", 1}, {"devices", devices}, {"peer_access", peers}, {"links", links}}) +
         "\n";
}

class ProbeCommand : public Command {
 public:
  explicit ProbeCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "probe", "Measure the links between devices, with the processes that a run would use");
    twins.add(app->add_option("--devices", devices_,
                              "Devices to pair up, as for a run; auto: every CUDA device, or cpu; "
                              "one that repeats or stands alone is paired with itself")
                  ->capture_default_str(),
              "DEVICES");
    add_doorbell_option(*app, twins, doorbell_);
    app->add_option("--rounds", options_.rounds, "Round trips of each payload size")
        ->check(CLI::Range(1, kMostRounds))
        ->capture_default_str();
    add_runtime_dir_option(*app, twins, runtime_dir_);
    app->add_flag("--json", json_, "Print one JSON object");
  }
  bool json() const override { return json_; }

  int run() override {
    options_.runtime_root = runtime_root(runtime_dir_);
    options_.program = std::filesystem::read_symlink("/proc/self/exe");
    options_.devices = chosen_devices();
    options_.doorbell = resolve_doorbell(doorbell_, options_.devices.front().kind, twins);
    const ProbeResult result =
        probe(options_, [](const std::string& what) { write_stderr("measuring " + what + "\n"); });
    std::string text = json_ ? probe_json(result) : device_table(result);
    if (!json_ && has_peers(result)) text += "\n" + peer_table(result);
    if (!json_) text += "\n" + link_table(result);
    write_result(text);
    return static_cast<int>(ExitCode::done);
  }

 private:
  std::vector<DeviceSpec> chosen_devices() const {
    if (devices_ != "auto")
      return identify_devices(parse_devices(devices_, twins.source_of("--devices")));
    std::vector<DeviceSpec> gpus = all_gpus();
    if (gpus.empty()) gpus.push_back({DeviceKind::cpu, "cpu"});
    return gpus;
  }

  ProbeOptions options_;
  std::string devices_ = "auto";
  std::string doorbell_ = "auto";
  std::string runtime_dir_;
  bool json_ = false;
};

class ProbeEndCommand : public Command {
 public:
  explicit ProbeEndCommand(CLI::App& parent) {
    app = parent.add_subcommand("probe-end", "One end of a probed pair")->group("");
    app->add_option("--first", options_.first)->required();
    app->add_option("--device", options_.device)->required();
    app->add_option("--uuid", options_.uuid);
    app->add_option("--threads", options_.threads)->required();
    app->add_option("--wish", wish_)->required();
    app->add_option("--doorbell", doorbell_)->required();
    app->add_option("--rounds", options_.rounds)->required();
    app->add_option("--spins", options_.spin_iterations)->required();
    app->add_option("--parent", options_.parent_pid)->required();
  }
  int run() override {
    options_.wish = static_cast<LinkWish>(wish_);
    options_.doorbell = static_cast<LinkDoorbell>(doorbell_);
    return run_probe_end(options_);
  }

 private:
  ProbeEndOptions options_;
  uint32_t wish_ = 0;
  uint32_t doorbell_ = 0;
};

}  // namespace

std::unique_ptr<Command> add_probe_command(CLI::App& app) {
  return std::make_unique<ProbeCommand>(app);
}

std::unique_ptr<Command> add_probe_end_command(CLI::App& app) {
  return std::make_unique<ProbeEndCommand>(app);
}

}  // namespace convoy
