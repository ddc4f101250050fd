#include "shared/plan/device_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_code.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> ids(std::string_view text) {
  std::vector<std::string> out;
  for (const DeviceSpec& device : parse_devices(text, "--devices")) out.push_back(device.id);
  return out;
}

template <typename Call>
std::string usage_error(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

std::string devices_error(const std::string& text) {
  return usage_error([&] { parse_devices(text, "--devices"); });
}

std::string layers_error(const std::string& text) {
  return usage_error([&] { parse_stage_layers(text, "--stage-layers"); });
}

TEST(ParseDevices, EverySpellingIsNormalised) {
  EXPECT_THAT(ids("cpu"), ElementsAre("cpu"));
  EXPECT_THAT(ids("0,cuda:1,127"), ElementsAre("cuda:0", "cuda:1", "cuda:127"));
  EXPECT_THAT(ids("GPU-0123abcd-4567-89ab-cdef-0123456789ab"),
              ElementsAre("GPU-0123abcd-4567-89ab-cdef-0123456789ab"));
  EXPECT_THAT(ids("GPU-0123ABCD-4567-89AB-CDEF-0123456789AB"),
              ElementsAre("GPU-0123abcd-4567-89ab-cdef-0123456789ab"));
  EXPECT_THAT(ids("0000:3b:00.0"), ElementsAre("0000:3b:00.0"));
  EXPECT_THAT(ids("3B:00.0,00000000:3B:00.0,0000:3B:00.0"),
              ElementsAre("0000:3b:00.0", "0000:3b:00.0", "0000:3b:00.0"));
  EXPECT_THAT(ids("00010000:3b:00.0"), ElementsAre("00010000:3b:00.0"));
}

TEST(ParseDevices, KindFollowsTheSpelling) {
  EXPECT_EQ(parse_devices("cpu", "x").front().kind, DeviceKind::cpu);
  for (const char* text : {"0", "cuda:0", "3b:00.0", "GPU-0123abcd-4567-89ab-cdef-0123456789ab"}) {
    EXPECT_EQ(parse_devices(text, "x").front().kind, DeviceKind::cuda) << text;
  }
}

TEST(ParseDevices, IdsMayRepeat) {
  EXPECT_THAT(ids("cpu,cpu,cpu"), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_THAT(ids("0,0"), ElementsAre("cuda:0", "cuda:0"));
}

TEST(ParseDevices, MixtureIsRefusedByName) {
  EXPECT_THAT(devices_error("cpu,1"),
              AllOf(HasSubstr("--devices"), HasSubstr("'cpu'"), HasSubstr("'cuda:1'")));
  EXPECT_THAT(devices_error("cuda:0,0,cpu"), AllOf(HasSubstr("'cuda:0'"), HasSubstr("'cpu'")));
}

TEST(ParseDevices, JunkIsRefusedByName) {
  for (const char* text : {"gpu",
                           "CPU",
                           "cpu ",
                           " cpu",
                           "cuda",
                           "cuda:",
                           "cuda:-1",
                           "cuda:x",
                           "-1",
                           "-0",
                           "+1",
                           "128",
                           "1.5",
                           "0x1",
                           "99999999999",
                           "cpu:0",
                           "GPU-",
                           "GPU-0123abcd",
                           "GPU-0123abcd-4567-89ab-cdef-0123456789ag",
                           "GPU-0123abcd-4567-89ab-cdef-0123456789ab0",
                           "gpu-0123abcd-4567-89ab-cdef-0123456789ab",
                           "3b:00",
                           "0000:3g:00.0",
                           "000:3b:00.0",
                           "cuda:0000:3b:00.0"}) {
    EXPECT_THAT(devices_error(text),
                AllOf(HasSubstr("--devices"), HasSubstr("'" + std::string(text) + "'")))
        << text;
  }
}

TEST(ParseDevices, EmptyEntriesAreRefused) {
  for (const char* text : {"", ",", "cpu,", ",cpu", "cpu,,cpu"})
    EXPECT_THAT(devices_error(text), HasSubstr("'' is no device")) << text;
}

TEST(ParseDevices, SeveralSetsAreRefusedWithTheCommandThatTakesThem) {
  EXPECT_THAT(devices_error("cpu;cpu,cpu"),
              AllOf(HasSubstr("--devices: 'cpu;cpu,cpu'"), HasSubstr("convoy bench")));
}

TEST(ParseDevices, SixtyFourDevicesAndNoMore) {
  std::string text = "cpu";
  for (int i = 1; i < 64; ++i) text += ",cpu";
  EXPECT_EQ(ids(text).size(), 64U);
  EXPECT_THAT(devices_error(text + ",cpu"), AllOf(HasSubstr("65"), HasSubstr("64")));
}

TEST(ParseStageLayers, CountsInOrder) {
  EXPECT_THAT(parse_stage_layers("5,4,3", "x"), ElementsAre(5, 4, 3));
  EXPECT_THAT(parse_stage_layers("12", "x"), ElementsAre(12));
}

TEST(ParseStageLayers, JunkIsRefusedByName) {
  for (const char* text :
       {"", "0", "-1", "5,,3", "5,", "a", "1.5", " 5", "4097", "99999999999999"}) {
    EXPECT_THAT(layers_error(text), HasSubstr("--stage-layers: '")) << text;
  }
  EXPECT_THAT(layers_error("5,x3"), HasSubstr("'x3'"));
}

}  // namespace
}  // namespace convoy
