// convoy bench on CPU devices: what it measures, prints and writes.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

std::string content(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

class BenchTest : public ConvoyTest {
 protected:
  ProgramCall bench(Words words) const {
    Words all{"bench", "--repetitions", "2"};
    if (std::find(words.begin(), words.end(), "-m") == words.end())
      all.insert(all.end(), {"-m", bundled_model_path().native()});
    all.insert(all.end(), words.begin(), words.end());
    return convoy(all);
  }
};

TEST_F(BenchTest, ComparesDeviceSetsInOneRun) {
  const auto csv = scratch.path() / "bench.csv";
  const auto svg = scratch.path() / "bench.svg";
  const auto file = scratch.path() / "bench.json";
  const Ended ended = run(bench({"--devices", "cpu;cpu,cpu", "--devices", "cpu", "--prompt-lengths",
                                 "64,100", "--decode-lengths", "12", "--csv", csv.native(), "--svg",
                                 svg.native(), "--json", file.native()}),
                          stretched(60));
  ASSERT_TRUE(has_exit_code(ended, 0));
  EXPECT_THAT(ended.out, HasSubstr("cpu,cpu"));
  EXPECT_THAT(ended.out, HasSubstr("ms/step"));
  const json::object result = json::parse(content(file)).as_object();
  const json::array& sets = result.at("sets").as_array();
  ASSERT_EQ(sets.size(), 3U);
  for (const json::value& set : sets) {
    const json::array& cases = set.at("cases").as_array();
    ASSERT_EQ(cases.size(), 2U);
    for (const json::value& c : cases) {
      EXPECT_GT(c.at("prefill_tok_s").to_number<double>(), 0);
      EXPECT_GT(c.at("decode_tok_s").to_number<double>(), 0);
      EXPECT_GE(c.at("step_ms").at("max").to_number<double>(),
                c.at("step_ms").at("min").to_number<double>());
      EXPECT_EQ(c.at("hop_us").is_null(), set.at("devices") == "cpu");
    }
    // The whole trunk but the embedding, whatever the split.
    EXPECT_EQ(set.at("step_weight_bytes"), sets[0].at("step_weight_bytes"));
  }
  EXPECT_EQ(result.at("devices").as_array().size(), 1U);
  EXPECT_THAT(content(csv), HasSubstr("\"cpu,cpu\",1,64,12,"));
  EXPECT_THAT(content(svg), HasSubstr("</svg>"));
}

TEST_F(BenchTest, CountsTheKeysAndValuesThatAStepReads) {
  const auto step_kv_bytes = [&](const std::string& dtype) {
    const json::object result =
        json_of(run(bench({"--devices", "cpu,cpu", "--prompt-lengths", "64", "--decode-lengths",
                           "3", "--kv-dtype", dtype, "--json", "-", "--quiet"}),
                    stretched(60)));
    const json::object& set = result.at("sets").at(0).as_object();
    EXPECT_EQ(set.at("kv_dtype").as_string(), dtype);
    return set.at("cases").at(0).at("step_kv_bytes").to_number<double>();
  };
  const double f32 = step_kv_bytes("f32");
  EXPECT_GT(f32, 0);
  EXPECT_DOUBLE_EQ(step_kv_bytes("int8"), f32 / 4 * (1 + 2.0 / 64));
}

TEST_F(BenchTest, RandomWeightsNeedNoFilesButTheConfig) {
  const auto model = scratch.path() / "shape";
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(bundled_model_path() / "config.json", model / "config.json");
  const Ended ended = run(bench({"-m", model.native(), "--load-format", "dummy", "--devices",
                                 "cpu,cpu", "--prompt-lengths", "64", "--decode-lengths", "2",
                                 "--lanes", "1,3", "--json", "-", "--quiet"}),
                          stretched(60));
  const json::object result = json_of(ended);
  EXPECT_EQ(result.at("load_format"), "dummy");
  const json::array& cases = result.at("sets").at(0).at("cases").as_array();
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases.at(0).at("lanes").to_number<int>(), 1);
  EXPECT_EQ(cases.at(1).at("lanes").to_number<int>(), 3);
  // A step of three lanes reads the weights once and the keys of each.
  EXPECT_DOUBLE_EQ(cases.at(1).at("step_kv_bytes").to_number<double>(),
                   3 * cases.at(0).at("step_kv_bytes").to_number<double>());
  const Ended plan = run(convoy({"plan", "-m", model.native(), "--load-format", "dummy"}));
  EXPECT_EXIT_CODE(plan, 0);
  const Ended refused = run(generate({"-m", model.native(), "--load-format", "dummy", "-p", "x"}));
  EXPECT_EXIT_CODE(refused, 1);
  EXPECT_THAT(error_line(refused.err), HasSubstr("tokenizer.json: no such file; convoy generate"));
}

TEST_F(BenchTest, EverySplitOfRandomWeightsGivesTheSameTokens) {
  const Words words{"-p",
                    kPrompt,
                    "-n",
                    "12",
                    "--load-format",
                    "dummy",
                    "--quiet",
                    "--print-token-ids",
                    "--ignore-eos",
                    "--devices"};
  const auto on = [&](const std::string& devices) {
    Words all = words;
    all.push_back(devices);
    return run(generate(all)).out;
  };
  const std::string one = on("cpu");
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 12);
  EXPECT_EQ(on(cpus(3)), one);
}

TEST_F(BenchTest, RefusesWhatItCannotRun) {
  const auto refuse = [&](Words words, int code, const std::string& said) {
    const Ended ended = run(bench(std::move(words)));
    EXPECT_EXIT_CODE(ended, code);
    EXPECT_THAT(ended.err, HasSubstr(said));
  };
  refuse({"-c", "100"}, 2, "--max-context 100 is less than");
  refuse({"--prompt-lengths", "0"}, 2, "--prompt-lengths");
  refuse({"--lanes", "1,17"}, 2, "--lanes");
  refuse({"--svg", "/nowhere/chart.svg"}, 1, "--svg /nowhere/chart.svg: cannot be written");
  refuse({"--devices", "cpu;gpu"}, 2, "gpu");
  const auto report = scratch.path() / "report";
  refuse({"--json", report, "--csv", scratch.path() / "." / "report"}, 2,
         "--json and --csv name the same file");
  EXPECT_FALSE(std::filesystem::exists(report));
  refuse({"--load-format", "auto", "-m", scratch.path().native()}, 1, scratch.path().native());
  const Ended mixed = run(bench({"--json", "-", "--csv", "-"}));
  EXPECT_EXIT_CODE(mixed, 2);
  EXPECT_EQ(error_line(mixed.err), "convoy: --json and --csv name the same file: -");
  EXPECT_TRUE(json::parse(mixed.out).as_object().contains("error"));
  refuse({"--json", "-", "--svg", "/dev/stdout"}, 2, "--json and --svg name the same file");
}

TEST_F(BenchTest, SaysWhichLengthsTheModelOrTheMemoryIsTooSmallFor) {
  const auto refuse = [&](Words words, const std::string& said) {
    words.insert(words.end(), {"--devices", "cpu", "--prompt-lengths", "64,32"});
    const Ended ended = run(bench(std::move(words)));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_EQ(error_line(ended.err), "convoy: " + said);
  };
  const std::string too_long =
      "--prompt-lengths 64 and --decode-lengths 5000: together more than the model's 4096 "
      "positions";
  refuse({"--decode-lengths", "1,5000"}, too_long);
  refuse({"--decode-lengths", "5000", "-c", "4096"}, too_long);
  refuse({"--decode-lengths", "64", "--kv-capacity", "64"},
         "--kv-capacity 64 is less than --prompt-lengths plus --decode-lengths 128");
}

TEST_F(BenchTest, LeavesNoFileUntilThereIsAReport) {
  const auto report = scratch.path() / "report";
  std::filesystem::create_directory(report);
  const Words outputs{"--json", report / "json", "--csv", report / "csv", "--svg", report / "svg"};
  Words failing = outputs;
  failing.insert(failing.end(), {"--devices", "cpu", "-c", "64"});
  EXPECT_EXIT_CODE(run(bench(failing)), 2);
  EXPECT_TRUE(std::filesystem::is_empty(report)) << "after a refusal";
  Words endless = outputs;
  endless.insert(endless.end(), {"--devices", "cpu,cpu", "--warm-up", "1000"});
  Process cancelled(bench(endless));
  await_state(1, "running");
  cancelled.signal(SIGINT);
  EXPECT_EQ(cancelled.wait().signal, SIGINT);
  EXPECT_TRUE(std::filesystem::is_empty(report)) << "after Ctrl-C";
}

TEST_F(BenchTest, SaysWhichDevicesWereTaken) {
  ProgramCall call = bench({"--prompt-lengths", "64", "--decode-lengths", "2", "--json", "-"});
  call.environment["CUDA_VISIBLE_DEVICES"] = "";
  const Ended ended = run(call, stretched(60));
  EXPECT_EQ(json_of(ended).at("sets").at(0).at("devices").as_string(), "cpu");
  EXPECT_EQ(ended.err.find("auto"), std::string::npos) << ended.err;
}

}  // namespace
}  // namespace convoy::testing
