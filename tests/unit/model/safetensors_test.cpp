#include "shared/model/safetensors.h"

#include <unistd.h>

#include "tests/unit/model/checkpoint_writer.h"
#include "tests/unit/model/refusal.h"

namespace convoy::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kDataBegin = 1000;

/// Parses `json` as the header of a file with `data_bytes` of data that begin at kDataBegin.
std::vector<TensorInfo> parse(const std::string& json, uint64_t data_bytes) {
  return parse_safetensors_header(json, "dir/m.safetensors", "m.safetensors", kDataBegin,
                                  kDataBegin + data_bytes);
}

std::string refused(const std::string& json, uint64_t data_bytes) {
  const std::string message = refusal([&] { parse(json, data_bytes); });
  EXPECT_THAT(message, HasSubstr("dir/m.safetensors"));
  return message;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

// ---- headers ----

TEST(SafetensorsHeader, GivesTensorsInTheOrderOfTheirBytesWithAbsoluteOffsets) {
  const std::vector<TensorInfo> tensors =
      parse("{" + entry("b", "F32", "[2,3]", "[4,28]") + "," + entry("a", "BF16", "[2]", "[0,4]") +
                "," + entry("none", "U8", "[0,7]", "[4,4]") + "," +
                entry("s", "F64", "[]", "[28,36]") + R"(,"__metadata__":{"format":"pt"}}   )",
            36);
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].offset, kDataBegin);
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_EQ(tensors[1].bytes, 0U);
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_EQ(tensors[2].dtype, DType::f32);
  EXPECT_EQ(tensors[2].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[2].offset, kDataBegin + 4);
  EXPECT_EQ(tensors[2].bytes, 24U);
  EXPECT_EQ(tensors[2].file, "m.safetensors");
  EXPECT_EQ(tensors[3].bytes, 8U);
}

TEST(SafetensorsHeader, KnowsTheSizeOfEveryDtype) {
  const std::vector<std::pair<std::string, int>> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8}};
  for (const auto& [dtype, bytes] : sizes) {
    const std::string end = std::to_string(3 * bytes);
    EXPECT_EQ(parse("{" + entry("t", dtype, "[3]", "[0," + end + "]") + "}",
                    static_cast<uint64_t>(3 * bytes))
                  .size(),
              1U)
        << dtype;
  }
  EXPECT_THAT(refused("{" + entry("t", "F4", "[3]", "[0,3]") + "}", 3),
              AllOf(HasSubstr("tensor \"t\""), HasSubstr("\"F4\"")));
}

TEST(SafetensorsHeader, RangesThatDoNotMatchTheShapeAreRefusedWithBothSizes) {
  EXPECT_THAT(refused("{" + entry("t", "BF16", "[3]", "[0,8]") + "}", 8),
              AllOf(HasSubstr("span 8 bytes"), HasSubstr("[3] takes 6")));
  EXPECT_THAT(refused("{" + entry("t", "BF16", "[4611686018427387904,4]", "[0,0]") + "}", 0),
              HasSubstr("2^64"));
  EXPECT_THAT(refused("{" + entry("t", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0),
              HasSubstr("2^64"));
}

TEST(SafetensorsHeader, RangesPastTheEndOverlappingOrWithHolesAreRefusedByTensor) {
  const std::string pair = "{" + entry("a", "U8", "[4]", "[0,4]") + ",";
  EXPECT_THAT(
      refused(pair + entry("b", "U8", "[4]", "[4,8]") + "}", 7),
      AllOf(HasSubstr("truncated"), HasSubstr("\"b\""), HasSubstr("byte 8"), HasSubstr("7 bytes")));
  EXPECT_THAT(refused(pair + entry("b", "U8", "[4]", "[3,7]") + "}", 7),
              AllOf(HasSubstr("\"b\""), HasSubstr("overlaps \"a\"")));
  EXPECT_THAT(refused(pair + entry("b", "U8", "[4]", "[0,4]") + "}", 4), HasSubstr("overlaps"));
  EXPECT_THAT(refused(pair + entry("b", "U8", "[4]", "[5,9]") + "}", 9),
              AllOf(HasSubstr("hole of 1 bytes"), HasSubstr("\"b\"")));
  EXPECT_THAT(refused("{" + entry("b", "U8", "[4]", "[1,5]") + "}", 5), HasSubstr("hole"));
  EXPECT_THAT(refused(pair + entry("b", "U8", "[4]", "[4,8]") + "}", 9),
              HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(refused("{" + entry("b", "U8", "[4]", "[4,0]") + "}", 4), HasSubstr("begin <= end"));
  EXPECT_THAT(
      refused("{" + entry("b", "U8", "[9223372036854775807]", "[0,9223372036854775807]") + "}", 4),
      HasSubstr("truncated"));
}

TEST(SafetensorsHeader, EntriesOfTheWrongFormAreRefusedByTensorAndKey) {
  const auto one = [](const std::string& text) { return refused("{\"t\":" + text + "}", 4); };
  EXPECT_THAT(one("5"), AllOf(HasSubstr("tensor \"t\""), HasSubstr("an object is expected")));
  EXPECT_THAT(one("null"), HasSubstr("an object is expected"));
  EXPECT_THAT(one("{}"), HasSubstr("dtype"));
  EXPECT_THAT(one(R"({"dtype":5})"), HasSubstr("dtype is 5"));
  EXPECT_THAT(one(R"({"dtype":"U8"})"), HasSubstr("shape is missing"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":4})"), HasSubstr("shape is 4"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[4]})"), HasSubstr("data_offsets is missing"));
  for (const char* shape : {"[-1]", "[4.0]", "[\"4\"]", "[[4]]", "[18446744073709551615]",
                            "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]"}) {
    EXPECT_THAT(refused("{" + entry("t", "U8", shape, "[0,4]") + "}", 4), HasSubstr("shape is"))
        << shape;
  }
  for (const char* offsets : {"[0]", "[0,4,4]", "[0,-4]", "[-4,0]", "[0,4.0]", "4", "{}",
                              "[0,18446744073709551615]", "[\"0\",\"4\"]"}) {
    EXPECT_THAT(refused("{" + entry("t", "U8", "[4]", offsets) + "}", 4),
                HasSubstr("data_offsets is"))
        << offsets;
  }
  EXPECT_THAT(
      refused("{" + entry("t", "U8", "[2]", "[0,2]") + "," + entry("t", "U8", "[2]", "[2,4]") + "}",
              4),
      HasSubstr("\"t\" appears twice"));
  EXPECT_THAT(refused("[]", 4), HasSubstr("an object is expected"));
  EXPECT_THAT(refused(R"({"__metadata__":5})", 0), HasSubstr("__metadata__"));
}

TEST(SafetensorsHeader, EveryTruncationOfTheJsonIsRefused) {
  const CheckpointImage image = make_tiny_checkpoint({.layers = "lf"});
  std::string json = header_json(image.tensors);
  json.erase(json.find_last_not_of(' ') + 1);
  for (std::size_t length = 0; length < json.size(); ++length) {
    ASSERT_THAT(refusal([&] { parse(json.substr(0, length), 1 << 20); }),
                HasSubstr("dir/m.safetensors"))
        << length;
  }
}

// ---- files ----

class SafetensorsFile : public ::testing::Test {
 protected:
  std::string read(const std::string& bytes) {
    write_file(path_, bytes);
    return refusal([&] { read_safetensors_header(open_regular_file(path_)); });
  }
  const TemporaryDirectory scratch_;
  const std::filesystem::path path_ = scratch_.path() / "m.safetensors";
};

TEST_F(SafetensorsFile, EveryTruncationIsRefusedByName) {
  const CheckpointImage image = make_tiny_checkpoint({.layers = "f"});
  const std::string header = header_json(image.tensors);
  std::string data;
  for (const TensorImage& tensor : image.tensors) data += tensor.bytes;
  const std::string whole = safetensors_bytes(header, data);
  write_file(path_, whole);
  EXPECT_EQ(read_safetensors_header(open_regular_file(path_)).size(), image.tensors.size());
  // At every length of prefix and header, then in steps through the data, then by one byte.
  const std::size_t header_end = 8 + header.size();
  for (std::size_t length = whole.size() - 1;;
       length = length > header_end + 97 ? length - 97 : length - 1) {
    ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(length)), 0);
    const std::string message = refusal([&] { read_safetensors_header(open_regular_file(path_)); });
    ASSERT_THAT(message, HasSubstr("m.safetensors")) << length;
    if (length >= 8) {
      ASSERT_THAT(message, HasSubstr("truncated")) << length;
    }
    if (length == 0) break;
  }
}

TEST_F(SafetensorsFile, HeaderLengthsThatCannotBeAreRefusedBeforeMemoryIsTaken) {
  const auto with_length = [](uint64_t length) {
    std::string bytes;
    for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xFFU);
    return bytes + "{}      ";
  };
  EXPECT_THAT(read(with_length(9)),
              AllOf(HasSubstr("truncated"), HasSubstr("9 bytes"), HasSubstr("of 16")));
  EXPECT_THAT(read(with_length(100'000'000)), HasSubstr("truncated"));
  EXPECT_THAT(read(with_length(100'000'001)), HasSubstr("at most 100000000"));
  EXPECT_THAT(read(with_length(~0ULL)), HasSubstr("at most 100000000"));
  EXPECT_THAT(read(with_length(~0ULL - 7)), HasSubstr("at most 100000000"));
  EXPECT_THAT(read(with_length(0)), HasSubstr("empty"));
  EXPECT_THAT(read(""), HasSubstr("0 bytes"));
  EXPECT_THAT(read("GGUF\3\0\0\0junkjunkjunk"), HasSubstr("m.safetensors"));
}

TEST_F(SafetensorsFile, AHeaderAboveTheLimitIsRefusedEvenIfTheFileIsLargeEnough) {
  write_file(path_, safetensors_bytes(std::string(), ""));
  {
    const std::string length("\x01\xe1\xf5\x05\0\0\0\0", 8);  // 100,000,001
    write_file(path_, length);
  }
  ASSERT_EQ(::truncate(path_.c_str(), 200'000'000), 0);  // sparse
  EXPECT_THAT(refusal([&] { read_safetensors_header(open_regular_file(path_)); }),
              HasSubstr("at most 100000000"));
}

// ---- index ----

TEST(ShardIndex, GivesTheShardOfEveryTensor) {
  const auto shards = parse_shard_index(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})",
      "i");
  EXPECT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards.find("b")->second, "y.safetensors");
}

TEST(ShardIndex, ShardsOutsideTheDirectoryAreRefused) {
  for (const char* name :
       {"../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "a\\\\x.safetensors", "..",
        ".", "", "x.bin", ".safetensors", "x\\u0000.safetensors"}) {
    const std::string text = std::string(R"({"weight_map":{"tensor.t":")") + name + "\"}}";
    EXPECT_THAT(
        refusal([&] { parse_shard_index(text, "dir/index.json"); }),
        AllOf(HasSubstr("dir/index.json"), HasSubstr("tensor.t"), HasSubstr("same directory")))
        << name;
  }
  const std::string long_name(300, 'x');
  EXPECT_THAT(refusal([&] {
                parse_shard_index(R"({"weight_map":{"t":")" + long_name + ".safetensors\"}}", "i");
              }),
              HasSubstr("same directory"));
}

TEST(ShardIndex, IndexesOfTheWrongFormAreRefused) {
  const auto parse_index = [](const char* text) {
    return refusal([&] { parse_shard_index(text, "dir/index.json"); });
  };
  EXPECT_THAT(parse_index("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(parse_index(R"({"weight_map":[]})"), HasSubstr("weight_map is []"));
  EXPECT_THAT(parse_index(R"({"weight_map":{}})"), HasSubstr("weight_map is empty"));
  EXPECT_THAT(parse_index(R"({"weight_map":{"t":5}})"), HasSubstr("\"t\" is 5"));
  EXPECT_THAT(parse_index(R"({"weight_map":{"t":"a.safetensors","t":"b.safetensors"}})"),
              HasSubstr("\"t\" appears twice"));
  EXPECT_THAT(parse_index("{"), HasSubstr("invalid JSON"));
}

}  // namespace
}  // namespace convoy::testing
