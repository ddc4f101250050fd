// What every test of the programs starts from: a folder of its own, commands, health, and the check
// that nothing is left.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/process.h"
#include "tests/unit/model/checkpoint_writer.h"

namespace convoy::testing {

namespace json = boost::json;
using Words = std::vector<std::string>;

inline constexpr const char* kPrompt = "Once upon a time";

/// The bundled model's folder in the source tree.
std::filesystem::path bundled_model_path();

/// `count` times "cpu", comma-separated.
std::string cpus(int count);
std::string join_ids(const std::vector<int>& ids);
std::vector<int> to_ids(const json::value& array);
/// The one line of `text` that begins with "convoy: "; "" if there is not exactly one.
std::string error_line(const std::string& text);

/// A stage as convoy health --json shows it.
struct StageState {
  int rank = -1;
  pid_t pid = -1;
  std::string state;  ///< "" if health does not list it
  bool well = false;
  json::object all;
};

/// Each case runs in a process of its own and may run beside others: everything it writes lies in
/// `scratch`. At the end no process may be left and the runtime directory must be empty.
class ConvoyTest : public ::testing::Test {
 protected:
  ConvoyTest();
  ~ConvoyTest() override;
  void TearDown() override;

  /// `convoy WORDS --runtime-dir …`
  ProgramCall convoy(Words words) const;
  /// `convoy generate -m <bundled> WORDS --runtime-dir …`; greedy unless `words` has a
  /// --temperature; a -m in `words` replaces the bundled
  /// model.
  ProgramCall generate(Words words) const;
  /// As above on `devices`, with CONVOY_TEST_HOLD=`hold` and the workers' log at level info.
  ProgramCall held_generate(const std::string& devices, const std::string& hold,
                            Words words = {}) const;

  /// `call` with its standard descriptors as a shell sets them up: "2>/dev/full", "<&- >&-".
  static ProgramCall redirected(ProgramCall call, const std::string& redirections);

  json::object health(const Words& words = {}) const;
  /// The stage of the instance `name` ("": of any).
  StageState stage(int rank, const std::string& name = "") const;
  /// Waits until health says so; the last answer.
  StageState await_state(int rank, const std::string& state, const std::string& name = "") const;

  /// Entries of the runtime directory but for its own lock.
  std::vector<std::string> leftover_folders() const;
  /// Fails the test unless no descendant of it lives and no folder is left.
  void expect_nothing_left() const;

  TemporaryDirectory scratch;
  std::filesystem::path runtime;  ///< not created yet
};

/// generate's --json object; fails the test if the program did not exit 0 or printed no object.
json::object json_of(const Ended& ended);

/// For EXPECT_EXIT_CODE.
::testing::AssertionResult has_exit_code(const Ended& ended, int code);

#define EXPECT_EXIT_CODE(ended, code) EXPECT_TRUE(::convoy::testing::has_exit_code(ended, code))

}  // namespace convoy::testing
