#include "coordinator/cli/engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/exit_code.h"

namespace convoy {
namespace {

struct FlagTwin {
  const char* variable;
  const char* flag;
  bool EngineFlags::*value;
};
constexpr FlagTwin kFlagTwins[] = {
    {"CONVOY_NO_CUDA_GRAPH", "--no-cuda-graph", &EngineFlags::no_cuda_graph},
    {"CONVOY_ALLOW_MIXED_ARCH", "--allow-mixed-arch", &EngineFlags::allow_mixed_architectures}};

// A variable of this process for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

EngineFlags parsed(const std::string& command_line) {
  CLI::App app;
  EnvironmentTwins twins;
  EngineFlags flags;
  add_plan_options(app, twins, flags);
  add_run_options(app, twins, flags);
  app.parse(command_line);
  twins.apply();
  return flags;
}

TEST(FlagTwins, GoByValue) {
  for (const FlagTwin& twin : kFlagTwins) {
    for (const auto& [text, on] :
         {std::pair{"1", true}, {"true", true}, {"0", false}, {"", false}}) {
      const Variable variable(twin.variable, text);
      EXPECT_EQ(parsed("").*twin.value, on) << twin.variable << "=" << text;
    }
    EXPECT_FALSE(parsed("").*twin.value) << twin.variable << " is not set";
  }
}

TEST(FlagTwins, AreOverruledByTheFlag) {
  for (const FlagTwin& twin : kFlagTwins) {
    const Variable variable(twin.variable, "0");
    EXPECT_TRUE(parsed(twin.flag).*twin.value) << twin.flag;
  }
}

TEST(FlagTwins, RefuseOtherWordsByTheNameOfTheVariable) {
  for (const FlagTwin& twin : kFlagTwins) {
    const Variable variable(twin.variable, "perhaps");
    try {
      parsed("");
      ADD_FAILURE() << twin.variable << " is not refused";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(twin.variable) + "='perhaps'"));
    }
  }
}

}  // namespace
}  // namespace convoy
