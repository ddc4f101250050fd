#include "shared/state/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <numeric>

#include "tests/unit/control/temporary_directory.h"
#include "tests/unit/model/refusal.h"
#include "tests/unit/plan/plan_models.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::refusal;
constexpr uint64_t kModel = 0x1234;

std::vector<int32_t> ids(int count) {
  std::vector<int32_t> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), 7);
  return list;
}

std::vector<std::byte> layer_bytes(int layer, uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(layer));
  return bytes;
}

class StateFile : public ::testing::Test {
 protected:
  // A state of `tokens` tokens whose layers hold a pattern.
  void write(int tokens, int prompt_tokens) const {
    StateFileWriter writer(path, config, description(tokens, prompt_tokens));
    fill(writer);
    writer.commit();
  }
  static void fill(StateFileWriter& writer) {
    for (int layer = 0; layer < static_cast<int>(writer.layout().layers.size()); ++layer) {
      const StateSection section = writer.layout().layers[static_cast<size_t>(layer)];
      const auto bytes = layer_bytes(layer, section.bytes);
      ASSERT_EQ(
          ::pwrite(writer.fd(), bytes.data(), bytes.size(), static_cast<off_t>(section.offset)),
          static_cast<ssize_t>(bytes.size()));
      writer.set_hash(layer, state_hash(bytes.data(), bytes.size()));
    }
  }
  static StateDescription description(int tokens, int prompt_tokens) {
    return {.kind = DeviceKind::cpu,
            .model = kModel,
            .ids = ids(tokens + 1),
            .prompt_tokens = static_cast<uint32_t>(prompt_tokens),
            .text = StateText::inside_reasoning};
  }
  std::string open_error(DeviceKind kind = DeviceKind::cpu, uint64_t model = kModel,
                         KvDtype kv_dtype = KvDtype::f32) const {
    return refusal([&] { StateFileReader(path, config, kind, kv_dtype, model); });
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(scratch.path()))
      all.push_back(entry.path().filename());
    return all;
  }
  void change_byte(uint64_t at) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int was = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(was ^ 1));
  }

  const ModelConfig config = standin_config();
  TemporaryDirectory scratch;
  fs::path path = scratch.path() / "story.state";
};

TEST_F(StateFile, ComesBackAsItWasWritten) {
  write(130, 100);
  const StateFileReader reader(path, config, DeviceKind::cpu, KvDtype::f32, kModel);
  EXPECT_EQ(reader.description().ids, ids(131));
  EXPECT_EQ(reader.description().tokens(), 130U);
  EXPECT_EQ(reader.description().prompt_tokens, 100U);
  EXPECT_EQ(reader.description().text, StateText::inside_reasoning);
  for (size_t layer = 0; layer < reader.layout().layers.size(); ++layer) {
    const StateSection section = reader.layout().layers[layer];
    std::vector<std::byte> bytes(section.bytes);
    ASSERT_EQ(::pread(reader.fd(), bytes.data(), bytes.size(), static_cast<off_t>(section.offset)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(bytes, layer_bytes(static_cast<int>(layer), section.bytes)) << "layer " << layer;
    EXPECT_EQ(section.hash, state_hash(bytes.data(), bytes.size()));
  }
  const StateSummary summary = read_state_summary(path);
  EXPECT_EQ(summary.ids, ids(131));
  EXPECT_EQ(summary.header.model, kModel);
}

TEST_F(StateFile, LayersLieWhereTheModelSays) {
  // Layer 3 is attention (64 tokens of 256 f32 K and V each block), layer 0 GDN.
  const StateLayout layout = state_layout(config, KvDtype::f32, 65);
  EXPECT_EQ(layout.layers[3].bytes, 2U * 2 * 64 * 256 * 4);
  EXPECT_EQ(layout.layers[0].bytes, 262144U + 12288);
  EXPECT_EQ(state_layout(config, KvDtype::bf16, 65).layers[3].bytes, 2U * 2 * 64 * 256 * 2);
  EXPECT_EQ(state_layout(config, KvDtype::f32, 64).layers[3].bytes, 2U * 64 * 256 * 4);
  uint64_t end = layout.table_offset + layout.layers.size() * sizeof(StateSection);
  for (const StateSection& section : layout.layers) {
    EXPECT_GE(section.offset, end);
    EXPECT_EQ(section.offset % 4096, 0U);
    end = section.offset + section.bytes;
  }
  EXPECT_EQ(layout.file_bytes, end);
}

TEST_F(StateFile, NothingIsLeftOfOneThatWasNotFinished) {
  {
    StateFileWriter writer(path, config, description(10, 10));
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(StateFile, AnOldOneStandsUntilTheNewOneIsWhole) {
  write(70, 70);
  {
    StateFileWriter writer(path, config, description(10, 10));
    fill(writer);
    EXPECT_EQ(
        StateFileReader(path, config, DeviceKind::cpu, KvDtype::f32, kModel).description().tokens(),
        70U);
    writer.commit();
  }
  EXPECT_EQ(
      StateFileReader(path, config, DeviceKind::cpu, KvDtype::f32, kModel).description().tokens(),
      10U);
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(StateFile, ALinkIsFollowedAndStays) {
  const fs::path folder = scratch.path() / "elsewhere";
  fs::create_directory(folder);
  for (const fs::path& leads_to : {fs::path("elsewhere/real.state"), folder / "new.state"}) {
    fs::remove(path);
    fs::create_symlink(leads_to, path);
    check_state_target(path);
    write(70, 70);
    EXPECT_EQ(fs::read_symlink(path), leads_to);
    EXPECT_TRUE(fs::is_regular_file(folder / leads_to.filename()));
  }
  fs::remove(path);
  fs::create_symlink(path.filename(), path);
  EXPECT_THAT(refusal([&] { check_state_target(path); }), HasSubstr("symbolic links"));
}

TEST_F(StateFile, WhatIsNoRegularFileIsRefusedAndStays) {
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const fs::path link = scratch.path() / "link";
  fs::create_symlink(path, link);
  for (const fs::path& name : {path, link, scratch.path(), scratch.path() / "", fs::path()}) {
    const std::string refused = "state " + name.native() + ": is no regular file";
    EXPECT_EQ(refusal([&] { check_state_target(name); }), refused);
    EXPECT_EQ(refusal([&] { StateFileWriter(name, config, description(10, 10)); }), refused);
  }
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(StateFile, ATargetIsCheckedWithoutATrace) {
  check_state_target(path);
  EXPECT_TRUE(files().empty());
  EXPECT_THAT(refusal([&] { check_state_target(scratch.path() / "nowhere/story.state"); }),
              HasSubstr("cannot be written: No such file or directory"));
  write(70, 70);
  check_state_target(path);
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(StateFile, ATargetWithoutRoomIsRefusedWithBothNumbers) {
  check_state_target(path, 1);
  const std::string why = refusal([&] { check_state_target(path, uint64_t{1} << 60); });
  EXPECT_NE(why.find("needs 1152921504606846976 bytes, its file system has "), std::string::npos)
      << why;
  EXPECT_TRUE(files().empty());
}

TEST_F(StateFile, AnotherModelOrKindOfDeviceIsRefusedByName) {
  write(70, 70);
  EXPECT_EQ(open_error(DeviceKind::cpu, kModel + 1),
            "state " + path.native() + ": was saved with another model");
  EXPECT_THAT(open_error(DeviceKind::cuda), HasSubstr("was saved on cpu devices"));
}

TEST_F(StateFile, AnotherKvDtypeIsRefusedAndBothAreNamed) {
  StateDescription int8 = description(70, 70);
  int8.kv_dtype = KvDtype::int8;
  StateFileWriter writer(path, config, int8);
  fill(writer);
  writer.commit();
  EXPECT_EQ(open_error(), "state " + path.native() +
                              ": has keys and values as int8, this run keeps them as f32 "
                              "(--kv-dtype)");
  EXPECT_EQ(read_state_summary(path).header.kv_dtype, static_cast<uint32_t>(KvDtype::int8));
  const StateFileReader reader(path, config, DeviceKind::cpu, KvDtype::int8, kModel);
  EXPECT_EQ(reader.description().kv_dtype, KvDtype::int8);
  EXPECT_EQ(reader.layout().layers[3].bytes, 2U * 2 * 64 * (256 + 4 * 2));
}

TEST_F(StateFile, ATruncatedOneIsRefusedAtEveryKindOfLength) {
  write(70, 70);
  const uint64_t whole = fs::file_size(path);
  const StateLayout layout = state_layout(config, KvDtype::f32, 70);
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, sizeof(StateHeader) - 1, sizeof(StateHeader), layout.table_offset,
        layout.layers[0].offset, layout.layers[5].offset + 100, whole - 1}) {
    fs::resize_file(path, length);
    EXPECT_THAT(open_error(), HasSubstr(path.native())) << length;
    EXPECT_THAT(refusal([&] { read_state_summary(path); }), HasSubstr(path.native())) << length;
    write(70, 70);
  }
  fs::resize_file(path, whole + 1);
  EXPECT_THAT(open_error(), HasSubstr("it was cut or added to"));
}

TEST_F(StateFile, AnAlteredByteIsFoundWhereverItIs) {
  write(70, 70);
  const StateLayout layout = state_layout(config, KvDtype::f32, 70);
  for (uint64_t at = 0; at < sizeof(StateHeader); ++at) {
    change_byte(at);
    EXPECT_THAT(open_error(), HasSubstr(path.native())) << "header byte " << at;
    change_byte(at);
  }
  for (const uint64_t at : {layout.ids_offset, layout.ids_offset + layout.ids_bytes - 1}) {
    change_byte(at);
    EXPECT_THAT(open_error(), HasSubstr("token ids were altered"));
    change_byte(at);
  }
  for (const uint64_t at : {layout.table_offset, layout.table_offset + 5 * sizeof(StateSection)}) {
    change_byte(at);
    EXPECT_THAT(open_error(), HasSubstr("table of layers was altered"));
    change_byte(at);
  }
  // Layers are their readers' to check; the summary reads them all.
  change_byte(layout.layers[7].offset + 1000);
  EXPECT_THAT(refusal([&] { read_state_summary(path); }), HasSubstr("layer 7 was altered"));
}

TEST_F(StateFile, WhatIsNoStateIsRefused) {
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_THAT(open_error(), HasSubstr("is no saved state"));
  fs::remove(path);
  EXPECT_THAT(open_error(), HasSubstr("No such file"));
  fs::create_directory(path);
  EXPECT_THAT(open_error(), HasSubstr("not a regular file"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(open_error(), HasSubstr("not a regular file")) << "and nobody waits for a writer";
}

TEST_F(StateFile, APlaceThatCannotBeWrittenIsRefusedByName) {
  path = scratch.path() / "missing" / "story.state";
  EXPECT_THAT(refusal([&] { StateFileWriter(path, config, description(10, 10)); }),
              HasSubstr(path.native() + ": cannot be written"));
}

}  // namespace
}  // namespace convoy
