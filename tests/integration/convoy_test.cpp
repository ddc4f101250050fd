#include "tests/integration/convoy_test.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace convoy::testing {

namespace fs = std::filesystem;

fs::path bundled_model_path() {
  return fs::path(CONVOY_SOURCE_DIR) / "models/convoy-stories";
}

std::string cpus(int count) {
  std::string text = "cpu";
  for (int i = 1; i < count; ++i) text += ",cpu";
  return text;
}

std::string join_ids(const std::vector<int>& ids) {
  std::string text;
  for (const int id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

std::vector<int> to_ids(const json::value& array) {
  std::vector<int> ids;
  for (const json::value& id : array.as_array()) ids.push_back(id.to_number<int>());
  return ids;
}

std::string error_line(const std::string& text) {
  std::istringstream in(text);
  std::string found;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("convoy: ")) continue;
    if (!found.empty()) return "";
    found = line;
  }
  return found;
}

ConvoyTest::ConvoyTest() : runtime(scratch.path() / "r") {
  adopt_orphans();
}

ConvoyTest::~ConvoyTest() {
  kill_descendants();
}

void ConvoyTest::TearDown() {
  expect_nothing_left();
}

ProgramCall ConvoyTest::convoy(Words words) const {
  words.insert(words.end(), {"--runtime-dir", runtime.native()});
  return {
      .program = CONVOY_COORDINATOR, .arguments = std::move(words), .environment = {}, .input = {}};
}

ProgramCall ConvoyTest::generate(Words words) const {
  Words all{"generate"};
  if (std::find(words.begin(), words.end(), "-m") == words.end())
    all.insert(all.end(), {"-m", bundled_model_path().native()});
  all.insert(all.end(), words.begin(), words.end());
  // The bundled model asks for sampling; most tests want the one text that its reference has.
  if (std::find(words.begin(), words.end(), "--temperature") == words.end())
    all.emplace_back("--greedy");
  // Where there are GPUs the default would take one.
  ProgramCall call = convoy(std::move(all));
  call.environment["CONVOY_DEVICES"] = "cpu";
  return call;
}

ProgramCall ConvoyTest::redirected(ProgramCall call, const std::string& redirections) {
  Words words{"-c", "exec \"$0\" \"$@\" " + redirections, call.program.native()};
  words.insert(words.end(), call.arguments.begin(), call.arguments.end());
  call.program = "/bin/sh";
  call.arguments = std::move(words);
  return call;
}

ProgramCall ConvoyTest::held_generate(const std::string& devices, const std::string& hold,
                                      Words words) const {
  words.insert(words.end(),
               {"--devices", devices, "-p", kPrompt, "-n", "40", "--log-level", "info"});
  ProgramCall call = generate(std::move(words));
  call.environment["CONVOY_TEST_HOLD"] = hold;
  return call;
}

json::object ConvoyTest::health(const Words& words) const {
  Words all{"health", "--json"};
  all.insert(all.end(), words.begin(), words.end());
  boost::system::error_code error;
  const json::value value = json::parse(run(convoy(all)).out, error);
  return value.is_object() ? value.as_object() : json::object();
}

StageState ConvoyTest::stage(int rank, const std::string& name) const {
  const json::object answer = health();
  if (!answer.contains("instances")) return {};
  for (const json::value& instance : answer.at("instances").as_array()) {
    if (!name.empty() && instance.at("name").as_string() != name) continue;
    for (const json::value& s : instance.at("stages").as_array()) {
      if (s.at("rank").as_int64() != rank) continue;
      return {.rank = rank,
              .pid = s.at("pid").to_number<pid_t>(),
              .state = s.at("state").as_string().c_str(),
              .well = s.at("well").as_bool(),
              .all = s.as_object()};
    }
  }
  return {};
}

StageState ConvoyTest::await_state(int rank, const std::string& state,
                                   const std::string& name) const {
  StageState last;
  EXPECT_TRUE(eventually([&] { return (last = stage(rank, name)).state == state; }))
      << "stage " << rank << " is '" << last.state << "', not " << state;
  return last;
}

std::vector<std::string> ConvoyTest::leftover_folders() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(runtime, ignored)) {
    if (entry.path().filename() != ".lock") names.push_back(entry.path().filename());
  }
  return names;
}

void ConvoyTest::expect_nothing_left() const {
  EXPECT_THAT(descendants_of(::getpid()), ::testing::IsEmpty()) << "processes are left";
  EXPECT_THAT(leftover_folders(), ::testing::IsEmpty()) << "in " << runtime;
}

::testing::AssertionResult has_exit_code(const Ended& ended, int code) {
  if (ended.in_time && ended.exit_code == code) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure();
  if (!ended.in_time) return failure << "did not end in time\n" << ended.err;
  if (ended.signal != 0)
    return failure << "ended by signal " << ended.signal << " instead of exit code " << code << "\n"
                   << ended.err;
  return failure << "exit code " << ended.exit_code << " instead of " << code << "\n" << ended.err;
}

json::object json_of(const Ended& ended) {
  EXPECT_EXIT_CODE(ended, 0);
  boost::system::error_code error;
  const json::value value = json::parse(ended.out, error);
  EXPECT_TRUE(value.is_object()) << ended.out;
  return value.is_object() ? value.as_object() : json::object();
}

}  // namespace convoy::testing
