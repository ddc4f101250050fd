#include "coordinator/bench/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 10 GB of weights on a card that copies at 4 TB/s, then on two cards of unequal speed.
BenchResult example() {
  BenchResult result{.model = "a <model> & \"more\"",
                     .dummy = true,
                     .prefill_chunk_tokens = 512,
                     .warm_up = 1,
                     .repetitions = 3,
                     .sets = {},
                     .devices = {}};
  BenchCase c;
  c.lanes = 2;
  c.prompt_tokens = 1000;
  c.decode_tokens = 64;
  c.prefill_s = spread_of({0.5, 0.4, 0.6});
  c.step_ms = spread_of({5.0, 4.0});
  BenchSet one{.devices = "cuda:0",
               .kv_dtype = "int8",
               .load_s = 1.5,
               .stages = {},
               .cases = {c},
               .waiting_clocks = {}};
  one.stages.push_back({0, "cuda:0", {0, 4}, 10'000'000'000, 2e10, 500'000});
  c.hop_us = 12.5;
  c.clocks = {{"GPU-1", 1900, 1980}};
  BenchSet two{.devices = "cuda:0,cuda:1",
               .kv_dtype = "bf16",
               .load_s = 2,
               .stages = {},
               .cases = {c},
               .waiting_clocks = {{"GPU-1", 345, 345}}};
  two.stages.push_back({0, "cuda:0", {0, 2}, 4'000'000'000, 1e10, 500'000});
  two.stages.push_back({1, "cuda:1", {2, 4}, 6'000'000'000, 1e10, 0});
  result.sets = {one, two};
  result.devices = {{"cuda:0", "Card", "sm_90", 4e12, 8e14},
                    {"cuda:1", "Card", "sm_90", 2e12, 8e14}};
  return result;
}

TEST(Spread, IsTheMedianBetweenTheEnds) {
  EXPECT_FALSE(spread_of({}));
  const Spread odd = spread_of({3, 1, 2}).value();
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.least, 1);
  EXPECT_EQ(odd.most, 3);
  EXPECT_EQ(odd.relative(), 1);
  EXPECT_EQ(spread_of({4, 1}).value().median, 2.5);
  EXPECT_EQ(spread_of({0}).value().relative(), 0);
}

TEST(BenchShares, CompareWithWhatTheDevicesOfAStepCanDo) {
  const BenchResult result = example();
  // Two lanes read 1,000 positions of the prompt and 32.5 of what follows, on average.
  constexpr double kKvBytes = 2 * 1032.5 * 500'000;
  EXPECT_EQ(step_kv_bytes(result.sets[0].stages[0], result.sets[0].cases[0]), kKvBytes);
  EXPECT_EQ(step_kv_bytes(result.sets[1].stages[1], result.sets[1].cases[0]), 0);
  // 2.5 ms of reading weights in a step of 4.5 ms, and the first stage's keys and values.
  EXPECT_NEAR(copy_share(result, result.sets[0], result.sets[0].cases[0]).value(),
              (2.5 + kKvBytes / 4e9) / 4.5, 1e-9);
  // One stage after the other: 1 ms and 3 ms.
  EXPECT_NEAR(copy_share(result, result.sets[1], result.sets[1].cases[0]).value(),
              (4 + kKvBytes / 4e9) / 4.5, 1e-9);
  // 2e10 * 1000 in half a second; two cards could do twice as much.
  EXPECT_NEAR(product_share(result, result.sets[0], result.sets[0].cases[0]).value(), 0.05, 1e-9);
  EXPECT_NEAR(product_share(result, result.sets[1], result.sets[1].cases[0]).value(), 0.025, 1e-9);
  BenchResult unknown = result;
  unknown.devices.pop_back();
  EXPECT_TRUE(copy_share(unknown, unknown.sets[0], unknown.sets[0].cases[0]));
  EXPECT_FALSE(copy_share(unknown, unknown.sets[1], unknown.sets[1].cases[0]));
  EXPECT_FALSE(copy_share(result, result.sets[0], BenchCase{}));
}

TEST(BenchReport, TheTableHasARowPerCase) {
  const std::string table = bench_table(example());
  EXPECT_THAT(table, HasSubstr("2000.0"));  // prefill tok/s
  EXPECT_THAT(table, HasSubstr("444.4"));   // two lanes in 4.5 ms
  EXPECT_THAT(table, HasSubstr("1900-1980"));
  EXPECT_THAT(table, HasSubstr("waiting at 345 MHz"));
  EXPECT_THAT(table, HasSubstr("488.3 KiB of int8 KV per position before it"));
  EXPECT_THAT(table, HasSubstr("copies 4000 GB/s, multiplies 800.0 TFLOP/s"));
}

TEST(BenchReport, TheJsonSaysEverything) {
  const auto object = boost::json::parse(bench_json(example())).as_object();
  EXPECT_EQ(object.at("load_format"), "dummy");
  const auto& set = object.at("sets").at(1).as_object();
  EXPECT_EQ(set.at("step_weight_bytes").to_number<uint64_t>(), 10'000'000'000U);
  EXPECT_EQ(set.at("stages").as_array().size(), 2U);
  EXPECT_EQ(set.at("kv_dtype"), "bf16");
  EXPECT_EQ(set.at("stages").at(0).at("position_kv_bytes").to_number<int>(), 500'000);
  EXPECT_EQ(set.at("cases").at(0).at("step_kv_bytes").to_number<double>(), 1'032'500'000);
  const auto& c = set.at("cases").at(0).as_object();
  EXPECT_EQ(c.at("lanes").to_number<int>(), 2);
  EXPECT_EQ(c.at("weight_bytes_per_token").to_number<uint64_t>(), 5'000'000'000U);
  EXPECT_EQ(c.at("step_ms").at("min").to_number<double>(), 4);
  EXPECT_NEAR(c.at("decode_tok_s").to_number<double>(), 444.44, 0.01);
  EXPECT_EQ(c.at("hop_us").to_number<double>(), 12.5);
  EXPECT_TRUE(object.at("sets").at(0).at("cases").at(0).at("hop_us").is_null());
}

TEST(BenchReport, TheCsvQuotesWhatNeedsIt) {
  const std::string csv = bench_csv(example());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_THAT(csv, HasSubstr("\"a <model> & \"\"more\"\"\",dummy,cuda:0,2,1000,64,"));
  EXPECT_THAT(csv, HasSubstr(",\"cuda:0,cuda:1\",2,"));
}

TEST(BenchReport, TheDrawingEscapesTextAndHasABarPerCase) {
  BenchResult result = example();
  result.model += "\xFF\x01";
  const std::string svg = bench_svg(result);
  EXPECT_THAT(svg, HasSubstr("a &lt;model&gt; &amp; &quot;more&quot;\xEF\xBF\xBD?"));
  EXPECT_THAT(svg, Not(HasSubstr("<model>")));
  size_t bars = 0;
  for (size_t at = 0; (at = svg.find("<rect x=", at)) != std::string::npos; ++at) ++bars;
  EXPECT_EQ(bars, 4U);
  EXPECT_THAT(bench_svg(BenchResult{}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace convoy
