#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "base/exit_code.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/table.h"
#include "shared/control/health_client.h"

namespace convoy {
namespace {

using proto::StageHealth;
// Longer than an answer may take, so that a stage that did not answer is asked twice.
constexpr auto kAlarmTime = std::chrono::milliseconds(kHealthDeadlineMs + 250);
constexpr auto kPoll = std::chrono::milliseconds(20);

const char* state_name(StageHealth::State state) {
  switch (state) {
    case StageHealth::STARTING:
      return "starting";
    case StageHealth::LOADING:
      return "loading";
    case StageHealth::READY:
      return "ready";
    case StageHealth::RUNNING:
      return "running";
    case StageHealth::WAITING:
      return "waiting";
    case StageHealth::STOPPING:
      return "stopping";
    case StageHealth::FAILED:
      return "failed";
    case StageHealth::HELD:
      return "held";
    default:
      return "unknown";
  }
}

/// What one member of an instance answered, or why it did not.
struct MemberHealth {
  InstanceMember member;
  std::optional<StageHealth> answer;
  std::string state;
  bool well = false;
  std::string problem = {};
};

struct InstanceHealth {
  InstanceInfo info;
  std::vector<MemberHealth> members;
  bool well() const {
    return std::all_of(members.begin(), members.end(),
                       [](const MemberHealth& m) { return m.well; });
  }
};

// A process that ended and was not reaped (its parent may be stopped) does not exist any more, as
// far as health goes.
bool process_exists(int pid) {
  if (::kill(pid, 0) != 0) return errno == EPERM;
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(in, text)) return true;  // where /proc is hidden, the signal's word counts
  const size_t name_end = text.rfind(") ");
  return name_end == std::string::npos || (text[name_end + 2] != 'Z' && text[name_end + 2] != 'X');
}

MemberHealth answering(const InstanceMember& member, const StageHealth& answer) {
  return {.member = member,
          .answer = answer,
          .state = state_name(answer.state()),
          .well = answer.state() != StageHealth::FAILED,
          .problem = answer.last_error()};
}

// `root`: what rank 0 says of itself, if it does. A stage of a run that stops may have ended, and
// one of a run that starts may not listen yet; any other one without an answer is lost.
MemberHealth silent(const InstanceMember& member, const std::string& error,
                    const std::filesystem::path& socket, std::optional<StageHealth::State> root) {
  MemberHealth health{.member = member, .answer = std::nullopt, .state = "stopping", .well = true};
  if (root == StageHealth::STOPPING) return health;
  const bool exists = process_exists(member.pid);
  const bool starts = root && (*root == StageHealth::STARTING || *root == StageHealth::LOADING);
  health.state = exists ? "not answering" : "dead";
  health.problem = exists ? error : fmt::format("dead: no process {}", member.pid);
  health.well = exists && starts && !std::filesystem::exists(socket);
  if (health.well) {
    health.state = "starting";
    health.problem.clear();
  }
  return health;
}

// Every socket is asked at the same time, so one that hangs delays nobody's answer.
InstanceHealth ask_once(const std::filesystem::path& path) {
  const auto info = read_instance_info(path);
  // It has its folder but has not said yet who belongs to it.
  if (!info) return {{.name = path.filename().native(), .kind = "starting", .members = {}}, {}};
  InstanceHealth health{info.value(), {}};
  std::vector<std::future<Result<StageHealth>>> asked;
  for (const InstanceMember& member : health.info.members) {
    asked.push_back(std::async(
        std::launch::async,
        [socket = health_socket_path(path, member.rank)] { return ask_health(socket); }));
  }
  std::vector<Result<StageHealth>> answers;
  for (auto& answer : asked) answers.push_back(answer.get());
  // The workers of a pool have no rank 0; they listen as long as they live.
  std::optional<StageHealth::State> root;
  if (health.info.kind == "pool") root = StageHealth::STARTING;
  for (size_t i = 0; i < answers.size(); ++i) {
    const InstanceMember& member = health.info.members[i];
    if (member.rank == 0 && answers[i]) root = answers[i].value().state();
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const InstanceMember& member = health.info.members[i];
    health.members.push_back(answers[i] ? answering(member, answers[i].value())
                                        : silent(member, answers[i].error(),
                                                 health_socket_path(path, member.rank), root));
  }
  return health;
}

// Nothing: it ended meanwhile. Members are not asked at one and the same moment, and what begins
// or ends looks lost for an instant: an alarm is what is still there a little later.
std::optional<InstanceHealth> ask_instance(const std::filesystem::path& path) {
  const auto deadline = std::chrono::steady_clock::now() + kAlarmTime;
  for (;;) {
    InstanceHealth health = ask_once(path);
    if (!instance_alive(path)) return std::nullopt;
    if (health.well() || std::chrono::steady_clock::now() >= deadline) return health;
    std::this_thread::sleep_for(kPoll);
  }
}

std::string progress_of(const StageHealth& h) {
  if (h.state() != StageHealth::LOADING || h.total_load_bytes() == 0) return state_name(h.state());
  return fmt::format("loading {:.0f}%", 100.0 * static_cast<double>(h.loaded_bytes()) /
                                            static_cast<double>(h.total_load_bytes()));
}

std::string layers_of(int begin, int end) {
  return end > 0 ? fmt::format("{}-{}", begin, end - 1) : "-";
}

std::string health_table(const std::vector<InstanceHealth>& instances) {
  std::string text;
  for (const InstanceHealth& instance : instances) {
    std::vector<std::vector<std::string>> rows{{"stage", "pid", "state", "device", "layers",
                                                "weights", "kv", "pages", "steps", "p50 ms",
                                                "p95 ms", "busy", "waiting", "sent"}};
    std::string notes;
    for (const MemberHealth& m : instance.members) {
      if (m.answer && m.answer->has_prefix_cache()) {
        const proto::PrefixCacheHealth& c = m.answer->prefix_cache();
        notes += fmt::format(
            "prefix cache: {} of {} prompts hit, {} prefixes in {}, {} in host memory\n", c.hits(),
            c.lookups(), c.prefixes(), format_bytes(c.bytes()), format_bytes(c.host_bytes()));
      }
      if (!m.problem.empty()) notes += fmt::format("stage {}: {}\n", m.member.rank, m.problem);
      if (!m.answer) {
        rows.push_back({std::to_string(m.member.rank), std::to_string(m.member.pid), m.state,
                        m.member.device, layers_of(m.member.layer_begin, m.member.layer_end)});
        continue;
      }
      const StageHealth& h = *m.answer;
      const double active = h.busy_s() + h.wait_s();
      const auto share = [&](double part) {
        return active > 0 ? fmt::format("{:.0f}%", 100 * part / active) : "-";
      };
      rows.push_back(
          {std::to_string(m.member.rank), std::to_string(h.pid()), progress_of(h), m.member.device,
           layers_of(static_cast<int>(h.layer_begin()), static_cast<int>(h.layer_end())),
           format_bytes(h.weight_bytes()), format_kv(h.kv_bytes(), h.kv_dtype()),
           m.member.rank == 0 ? fmt::format("{}/{}", h.page_groups_used(), h.page_groups())
                              : fmt::format("{}", h.page_groups()),
           std::to_string(h.steps()), fmt::format("{:.2f}", h.p50_step_ms()),
           fmt::format("{:.2f}", h.p95_step_ms()), share(h.busy_s()), share(h.wait_s()),
           format_bytes(h.sent_bytes())});
    }
    text += fmt::format("{} ({})\n{}{}", instance.info.name, instance.info.kind,
                        format_table(rows, {2, 3, 4}), notes);
  }
  return text;
}

boost::json::object prefix_cache_json(const proto::PrefixCacheHealth& c) {
  return {{"lookups", c.lookups()},
          {"hits", c.hits()},
          {"hit_tokens", c.hit_tokens()},
          {"restored", c.restored()},
          {"evictions", c.evictions()},
          {"prefixes", c.prefixes()},
          {"page_groups", c.page_groups()},
          {"bytes", c.bytes()},
          {"host_prefixes", c.host_prefixes()},
          {"host_bytes", c.host_bytes()}};
}

boost::json::object member_json(const MemberHealth& m) {
  boost::json::object object{{"rank", m.member.rank},
                             {"role", m.member.role},
                             {"pid", m.member.pid},
                             {"device", m.member.device},
                             {"layers", {m.member.layer_begin, m.member.layer_end}},
                             {"well", m.well},
                             {"state", m.state}};
  if (!m.problem.empty()) object["problem"] = m.problem;
  if (!m.answer) return object;
  const StageHealth& h = *m.answer;
  object["layers"] = {h.layer_begin(), h.layer_end()};
  object["weight_bytes"] = h.weight_bytes();
  object["kv_bytes"] = h.kv_bytes();
  object["kv_dtype"] = h.kv_dtype();
  object["state_bytes"] = h.state_bytes();
  object["workspace_bytes"] = h.workspace_bytes();
  object["free_bytes"] = h.free_bytes();
  object["loaded_bytes"] = h.loaded_bytes();
  object["total_load_bytes"] = h.total_load_bytes();
  object["page_groups"] = h.page_groups();
  object["page_groups_used"] = h.page_groups_used();
  object["steps"] = h.steps();
  object["last_step_ms"] = h.last_step_ms();
  object["p50_step_ms"] = h.p50_step_ms();
  object["p95_step_ms"] = h.p95_step_ms();
  object["busy_s"] = h.busy_s();
  object["wait_s"] = h.wait_s();
  object["since_last_step_s"] = h.since_last_step_s();
  object["received_bytes"] = h.received_bytes();
  object["sent_bytes"] = h.sent_bytes();
  object["uptime_s"] = h.uptime_s();
  object["restarts"] = h.restarts();
  if (h.has_prefix_cache()) object["prefix_cache"] = prefix_cache_json(h.prefix_cache());
  return object;
}

std::string health_json(const std::vector<InstanceHealth>& instances, bool well) {
  boost::json::array list;
  for (const InstanceHealth& instance : instances) {
    boost::json::array members;
    for (const MemberHealth& m : instance.members) members.push_back(member_json(m));
    list.push_back(
        {{"name", instance.info.name}, {"kind", instance.info.kind}, {"stages", members}});
  }
  return boost::json::serialize(
             boost::json::object{{"schema", 1}, {"well", well}, {"instances", list}}) +
         "\n";
}

class HealthCommand : public Command {
 public:
  explicit HealthCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "health", "Ask every stage of the running instances how it is; exit 0 only if all is well");
    app->add_option("--instance", instance_, "Ask this instance only")
        ->check(instance_name_check());
    add_runtime_dir_option(*app, twins, runtime_dir_);
    app->add_flag("--json", json_, "Print one JSON object");
  }
  bool json() const override { return json_; }

  int run() override {
    const auto root = runtime_root(runtime_dir_);
    std::vector<InstanceHealth> instances;
    bool well = true;
    for (const auto& path : sweep_and_list_instances(root)) {
      if (!instance_.empty() && path.filename() != instance_) continue;
      auto health = ask_instance(path);
      if (!health) continue;
      well &= health->well();
      instances.push_back(std::move(*health));
    }
    if (instances.empty()) {
      throw StartError(instance_.empty()
                           ? fmt::format("no instance is running (looked in {})", root.native())
                           : fmt::format("no instance '{}' is running (looked in {})", instance_,
                                         root.native()));
    }
    write_result(json_ ? health_json(instances, well) : health_table(instances));
    return static_cast<int>(well ? ExitCode::done : ExitCode::start_failed);
  }

 private:
  std::string instance_;
  std::string runtime_dir_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> add_health_command(CLI::App& app) {
  return std::make_unique<HealthCommand>(app);
}

}  // namespace convoy
