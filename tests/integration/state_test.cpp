// A sequence saved by one run and continued by another, over other splits.
#include <fstream>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class StateTest : public ConvoyTest {
 protected:
  fs::path state() const { return scratch.path() / "story.state"; }

  std::vector<int> ids_of(Words words) const {
    words.insert(words.end(), {"--json", "--quiet", "--ignore-eos"});
    return to_ids(json_of(run(generate(std::move(words)))).at("token_ids"));
  }
  /// Saves after `tokens` tokens on `devices`.
  std::vector<int> save(const std::string& devices, int tokens, const Words& how = {}) const {
    Words words{"--devices",    devices,          "-n", std::to_string(tokens),
                "--save-state", state().native(), "-p", kPrompt};
    words.insert(words.end(), how.begin(), how.end());
    return ids_of(words);
  }
  std::vector<int> go_on(const Words& where, int tokens, const Words& how = {}) const {
    Words words{"-n", std::to_string(tokens), "--load-state", state().native()};
    words.insert(words.end(), where.begin(), where.end());
    words.insert(words.end(), how.begin(), how.end());
    return ids_of(words);
  }
  Ended refused(Words words) const {
    words.insert(words.end(), {"--quiet", "-n", "3"});
    return run(generate(std::move(words)));
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      if (entry.is_regular_file()) names.push_back(entry.path().filename().native());
    }
    return names;
  }
};

std::vector<int> joined(std::vector<int> first, const std::vector<int>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST_F(StateTest, GoesOnOverEverySplitWithTheTokensOfOneRun) {
  // 4 prompt tokens and 90 more: a page is crossed before and after the save.
  const std::vector<int> whole = ids_of({"--devices", "cpu", "-n", "90", "-p", kPrompt});
  const std::vector<int> begun = save("cpu,cpu,cpu", 70);
  for (const Words& where :
       {Words{"--devices", "cpu"}, Words{"--devices", "cpu,cpu", "--stage-layers", "9,3"},
        Words{"--devices", cpus(12)}}) {
    EXPECT_EQ(joined(begun, go_on(where, 20)), whole) << where[1];
  }
}

TEST_F(StateTest, Int8KvGoesOnOverAnotherSplit) {
  const Words int8{"--kv-dtype", "int8"};
  const std::vector<int> whole =
      ids_of({"--devices", "cpu", "-n", "90", "-p", kPrompt, "--kv-dtype", "int8"});
  const std::vector<int> begun = save("cpu,cpu,cpu", 70, int8);
  EXPECT_EQ(joined(begun, go_on({"--devices", "cpu"}, 20, int8)), whole);
  EXPECT_EQ(joined(begun, go_on({"--devices", cpus(12)}, 20, int8)), whole);
}

TEST_F(StateTest, AnotherKvDtypeIsRefusedAndBothAreNamed) {
  save("cpu,cpu", 5, {"--kv-dtype", "int8"});
  const Ended other = refused({"--devices", "cpu", "--load-state", state().native()});
  EXPECT_EXIT_CODE(other, 1);
  EXPECT_THAT(error_line(other.err),
              HasSubstr(state().native() + ": has keys and values as int8, this run keeps them as "
                                           "f32 (--kv-dtype)"));
  const Ended shown =
      run({convoy({}).program, {"state", "show", state().native()}, {}, std::nullopt, -1});
  EXPECT_THAT(shown.out, HasSubstr("saved on cpu devices, KV as int8"));
}

TEST_F(StateTest, DrawsAndPenaltiesGoOnToo) {
  const Words how{"--temperature",      "0.9", "--seed", "11", "--top-k", "40",
                  "--presence-penalty", "0.5"};
  Words words{"--devices", "cpu", "-n", "40", "-p", kPrompt};
  words.insert(words.end(), how.begin(), how.end());
  const std::vector<int> whole = ids_of(words);
  const std::vector<int> begun = save("cpu", 13, how);
  EXPECT_EQ(joined(begun, go_on({"--devices", "cpu,cpu"}, 27, how)), whole);
}

TEST_F(StateTest, AStopStringAcrossTheSeamEndsTheTextAsInOneRun) {
  const auto answer = [&](Words words) {
    words.insert(words.end(), {"--devices", "cpu", "--json", "--quiet"});
    return json_of(run(generate(std::move(words))));
  };
  const auto text_of = [](const json::object& object) {
    return std::string(object.at("text").as_string());
  };
  const std::string text = text_of(answer({"-n", "20", "-p", kPrompt}));
  const std::string begun =
      text_of(answer({"-n", "10", "-p", kPrompt, "--save-state", state().native()}));
  const std::string stop = text.substr(begun.size() - 3, 6);
  ASSERT_EQ(text.find(stop), begun.size() - 3);
  const auto whole = answer({"-n", "20", "-p", kPrompt, "--stop", stop});
  const auto rest = answer({"-n", "10", "--load-state", state().native(), "--stop", stop});
  EXPECT_EQ(rest.at("finish_reason"), whole.at("finish_reason"));
  EXPECT_EQ(text_of(rest), "");
  EXPECT_TRUE(rest.at("token_ids").as_array().empty());
}

TEST_F(StateTest, AnAnswerStandsWhoseStateCouldNotBeSaved) {
  const fs::path folder = scratch.path() / "folder";
  const Words words{"--devices", "cpu", "-p", kPrompt, "-n", "12", "--ignore-eos", "--quiet"};
  const std::string whole = run(generate(words)).out;
  Words saving = words;
  saving.insert(saving.end(), {"--pace", "20", "--save-state", (folder / "state").native()});
  fs::create_directory(folder);
  Process program(generate(saving));
  ASSERT_TRUE(eventually([&] { return !program.out().empty(); }));
  fs::remove(folder);
  const Ended ended = program.wait();
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_EQ(ended.out, whole);
  EXPECT_THAT(error_line(ended.err), HasSubstr("state " + (folder / "state").native()));
}

TEST_F(StateTest, ReasoningGoesOnAsReasoning) {
  ProgramCall saving = generate({"--devices", "cpu", "--json", "--quiet", "--messages", "-", "-n",
                                 "1", "--logit-bias", "4093=1e9",  // <think>
                                 "--save-state", state().native()});
  saving.input = R"([{"role":"user","content":"Tell me a story."}])";
  ASSERT_EQ(run(saving).exit_code, 0);
  const auto more = [&](const Words& how) {
    Words words{"--devices", "cpu", "--json", "--quiet", "--load-state", state().native()};
    words.insert(words.end(), how.begin(), how.end());
    return json_of(run(generate(std::move(words))));
  };
  const auto inside = more({"-n", "8", "--temperature", "0", "--ignore-eos"});
  EXPECT_NE(inside.at("reasoning"), "");
  EXPECT_EQ(inside.at("text"), "");
  // The marker that ends it ends it here, too.
  ASSERT_EQ(
      more({"-n", "1", "--logit-bias", "4094=1e9", "--save-state", state().native()}).at("text"),
      "");
  const auto behind = more({"-n", "8", "--temperature", "0", "--ignore-eos"});
  EXPECT_EQ(behind.at("reasoning"), "");
  EXPECT_NE(behind.at("text"), "");
}

TEST_F(StateTest, AnAnswerThatEndedAtAStopHasEndedWhileThatStopIsInForce) {
  const Words words{"--devices", "cpu", "-n", "20", "-p", kPrompt, "--stop", "there"};
  Words saving = words;
  saving.insert(saving.end(), {"--save-state", state().native(), "--quiet"});
  ASSERT_EQ(run(generate(saving)).exit_code, 0);
  const Words loading{"--devices", "cpu", "--load-state", state().native()};
  Words same = loading;
  same.insert(same.end(), {"--stop", "there"});
  const Ended ended = refused(same);
  EXPECT_EXIT_CODE(ended, 4);
  EXPECT_THAT(error_line(ended.err), HasSubstr("ends at a stop string"));
  EXPECT_EXIT_CODE(refused(loading), 0);

  save("cpu", 5, {"--logit-bias", "4077=1e9"});  // <|endoftext|>
  const Ended at_id = run(generate(loading));
  EXPECT_EXIT_CODE(at_id, 4);
  EXPECT_THAT(error_line(at_id.err), HasSubstr("--ignore-eos goes on after it"));
}

TEST_F(StateTest, AStateOfAStateIsAsGood) {
  const std::vector<int> whole = ids_of({"--devices", "cpu", "-n", "30", "-p", kPrompt});
  std::vector<int> ids = save("cpu", 10);
  for (const char* devices : {"cpu,cpu", "cpu,cpu,cpu"})
    ids = joined(ids, go_on({"--devices", devices, "--save-state", state().native()}, 10));
  EXPECT_EQ(ids, whole);
}

TEST_F(StateTest, ShowSaysWhatItHolds) {
  const std::vector<int> begun = save("cpu,cpu", 10);
  const Ended shown = run(
      {convoy({}).program, {"state", "show", state().native(), "--json"}, {}, std::nullopt, -1});
  EXPECT_EXIT_CODE(shown, 0);
  const json::object object = json::parse(shown.out).as_object();
  EXPECT_EQ(object.at("prompt_tokens").to_number<int>(), 4);
  EXPECT_EQ(object.at("tokens").to_number<int>(), 4 + 9);
  EXPECT_EQ(to_ids(object.at("token_ids")).back(), begun.back());
  EXPECT_EQ(object.at("devices").as_string(), "cpu");
  EXPECT_EQ(object.at("kv_dtype").as_string(), "f32");
}

TEST_F(StateTest, ADamagedFileIsRefusedByName) {
  save("cpu,cpu", 10);
  const auto whole = fs::file_size(state());
  // A byte near the end: of the last stage's layers.
  {
    std::fstream file(state(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(whole - 10));
    file.put('x');
  }
  const Ended altered = refused({"--devices", "cpu,cpu", "--load-state", state().native()});
  EXPECT_EXIT_CODE(altered, 1);
  EXPECT_THAT(error_line(altered.err), HasSubstr(state().native() + ": stage 1: layer 11"));
  fs::resize_file(state(), whole - 1);
  const Ended cut = refused({"--devices", "cpu", "--load-state", state().native()});
  EXPECT_EXIT_CODE(cut, 1);
  EXPECT_THAT(error_line(cut.err), HasSubstr("was cut or added to"));
}

TEST_F(StateTest, AnotherModelIsRefusedByName) {
  save("cpu", 5);
  const Ended other =
      refused({"--devices", "cpu", "--load-format", "dummy", "--load-state", state().native()});
  EXPECT_EXIT_CODE(other, 1);
  EXPECT_THAT(error_line(other.err),
              HasSubstr(state().native() + ": was saved with another model"));
}

TEST_F(StateTest, WhatCannotBeIsRefusedWithTheRightCode) {
  save("cpu", 70);
  EXPECT_EXIT_CODE(refused({"--devices", "cpu", "--load-state", state().native(), "-p", "more"}),
                   2);
  const Ended small = refused({"--devices", "cpu", "--load-state", state().native(), "-c", "64"});
  EXPECT_EXIT_CODE(small, 4);
  EXPECT_THAT(error_line(small.err), HasSubstr("has 74 tokens, the context holds 64"));
  EXPECT_EXIT_CODE(refused({"--devices", "cpu", "--load-state", "/nowhere"}), 1);
  const Ended empty = run(generate(
      {"--devices", "cpu", "-p", kPrompt, "-n", "0", "--save-state", state().native() + "2"}));
  EXPECT_EXIT_CODE(empty, 2);
  EXPECT_THAT(error_line(empty.err), HasSubstr("-n 0 generates none"));
  const Ended unwritable =
      refused({"--devices", "cpu,cpu", "-p", kPrompt, "--save-state", "/nowhere/story.state"});
  EXPECT_EXIT_CODE(unwritable, 1);
  EXPECT_THAT(error_line(unwritable.err), HasSubstr("/nowhere/story.state: cannot be written"));
  EXPECT_EQ(unwritable.out, "") << "it is known before the answer";
  EXPECT_EQ(files(), std::vector<std::string>{"story.state"}) << "nothing half-written";
}

}  // namespace
}  // namespace convoy::testing
