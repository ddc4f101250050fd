#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/exit_code.h"
#include "shared/control/instance_directory.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(InstanceInfo, PublishedIsReadBack) {
  const TemporaryDirectory temporary;
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  EXPECT_THAT(read_instance_info(instance.path()).error(), HasSubstr("cannot read"));
  InstanceInfo info{.name = "one", .kind = "pool", .members = {}};
  instance.publish(info);
  EXPECT_TRUE(read_instance_info(instance.path()).value().members.empty());
  info.members.push_back({.rank = 0,
                          .pid = 17,
                          .role = "coordinator",
                          .device = "cpu",
                          .layer_begin = 0,
                          .layer_end = 5});
  info.members.push_back({.rank = 1,
                          .pid = 4'000'000,
                          .role = "stage_worker",
                          .device = "cuda:1",
                          .uuid = "GPU-b",
                          .layer_begin = 5,
                          .layer_end = 12});
  instance.publish(info);
  const auto back = read_instance_info(instance.path());
  ASSERT_TRUE(back.ok()) << back.error();
  EXPECT_EQ(back.value().name, "one");
  EXPECT_EQ(back.value().kind, "pool");
  ASSERT_EQ(back.value().members.size(), 2U);
  EXPECT_EQ(back.value().members[0].role, "coordinator");
  EXPECT_EQ(back.value().members[0].layer_end, 5);
  EXPECT_EQ(back.value().members[1].rank, 1);
  EXPECT_EQ(back.value().members[1].pid, 4'000'000);
  EXPECT_EQ(back.value().members[1].device, "cuda:1");
  EXPECT_EQ(back.value().members[1].uuid, "GPU-b");
  EXPECT_EQ(back.value().members[1].layer_begin, 5);
  EXPECT_EQ(std::distance(fs::directory_iterator(instance.path()), {}), 2)
      << "lock and instance.json, no temporary file";
}

TEST(InstanceInfo, PublishIntoAFolderThatIsGoneIsAStartError) {
  const TemporaryDirectory temporary;
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  fs::remove_all(instance.path());
  try {
    instance.publish({.name = "one", .kind = "run", .members = {}});
    ADD_FAILURE() << "published into nothing";
  } catch (const StartError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot write"));
  }
}

TEST(InstanceInfo, DamagedFilesAreErrorsThatNameTheFile) {
  const TemporaryDirectory temporary;
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  const fs::path file = instance.path() / "instance.json";
  instance.publish({.name = "one",
                    .kind = "run",
                    .members = {{.rank = 1, .pid = 5, .role = "stage_worker", .device = "cpu"}}});
  std::string whole;
  std::getline(std::ifstream(file), whole);
  ASSERT_TRUE(read_instance_info(instance.path()).ok());
  const auto expect_refused = [&](const std::string& text) {
    std::ofstream(file, std::ios::trunc) << text;
    const auto info = read_instance_info(instance.path());
    ASSERT_FALSE(info.ok()) << text;
    EXPECT_THAT(info.error(), HasSubstr(file.native()));
  };
  for (size_t length = 0; length < whole.size(); ++length) expect_refused(whole.substr(0, length));
  for (
      const char* text :
      {"[]", "null", "7", "{}", R"({"name":1,"kind":"run","members":[]})",
       R"({"name":"x","kind":"run","members":{}})", R"({"name":"x","kind":"run","members":[7]})",
       R"({"name":"x","kind":"run","members":[{"rank":1,"pid":99999999999,"role":"r","device":"d","layers":[0,1]}]})",
       R"({"name":"x","kind":"run","members":[{"rank":1,"pid":9,"role":"r","device":"d","layers":[0]}]})"}) {
    expect_refused(text);
  }
  expect_refused(std::string(100'000, '['));
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_FALSE(read_instance_info(instance.path()).ok());
}

TEST(RuntimeRoot, FlagThenXdgThenTmp) {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::optional<std::string> saved =
      before != nullptr ? std::optional<std::string>(before) : std::nullopt;
  const fs::path fallback = "/tmp/convoy-" + std::to_string(::geteuid());
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(runtime_root(""), "/run/user/7/convoy");
  EXPECT_EQ(runtime_root("/x/../y"), "/y");
  EXPECT_EQ(runtime_root("here"), fs::current_path() / "here");
  ::setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_EQ(runtime_root(""), fallback);
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(runtime_root(""), fallback);
  if (saved) ::setenv("XDG_RUNTIME_DIR", saved->c_str(), 1);
}

TEST(InstancePaths, FitASocketAddressUnderTheUsualRoots) {
  const fs::path instance = fs::path("/run/user/4294967295/convoy") / std::string(32, 'x');
  EXPECT_LE(health_socket_path(instance, 63).native().size(), 107U);
  EXPECT_LE(control_socket_path(instance, 63).native().size(), 107U);
  EXPECT_NE(health_socket_path(instance, 1), control_socket_path(instance, 1));
}

}  // namespace
}  // namespace convoy
