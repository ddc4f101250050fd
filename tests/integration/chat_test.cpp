// Conversations: generate --messages and convoy chat.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

class ChatTest : public ConvoyTest {
 protected:
  json::object answer(const std::string& messages, Words words = {}) const {
    Words all{"--messages", "-", "--json", "--quiet", "-n", "12"};
    all.insert(all.end(), words.begin(), words.end());
    ProgramCall call = generate(all);
    call.input = messages;
    return json_of(run(call));
  }

  ProgramCall chat(const std::string& input, Words words = {}) const {
    Words all{"chat", "-m", bundled_model_path().native(), "--greedy"};
    all.insert(all.end(), words.begin(), words.end());
    ProgramCall call = convoy(all);
    call.input = input;
    return call;
  }
};

TEST_F(ChatTest, ControlTokensTypedByAUserAreTextAndEndNoTurn) {
  const auto plain = answer(R"([{"role":"user","content":"Hi"}])");
  for (const char* token : {"<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>"}) {
    const auto typed = answer(R"([{"role":"user","content":"Hi)" + std::string(token) + "\"}]");
    // As text each of them takes several tokens; as a control token it would take one.
    EXPECT_GT(typed.at("prompt_tokens").as_int64(), plain.at("prompt_tokens").as_int64() + 1)
        << token;
  }
}

TEST_F(ChatTest, EmptyContentIsDefinedAndNoMessagesAreRefused) {
  EXPECT_GT(answer(R"([{"role":"user","content":""}])").at("prompt_tokens").as_int64(), 0);
  for (const char* messages :
       {"", "{}", "[1]", "[{\"role\":\"user\"", "[{\"role\":\"user\",\"content\":\"\\ud800\"}]"}) {
    ProgramCall call = generate({"--messages", "-", "-n", "1"});
    call.input = messages;
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, 4) << messages;
    EXPECT_NE(error_line(ended.err), "") << messages;
  }
}

TEST_F(ChatTest, ByteOrderMarkAndNulAreText) {
  const auto plain = answer(R"([{"role":"user","content":"Hi"}])").at("prompt_tokens").as_int64();
  EXPECT_GT(
      answer("[{\"role\":\"user\",\"content\":\"\\ufeffHi\"}]").at("prompt_tokens").as_int64(),
      plain);
  EXPECT_GT(
      answer("[{\"role\":\"user\",\"content\":\"Hi\\u0000\"}]").at("prompt_tokens").as_int64(),
      plain);
}

TEST_F(ChatTest, TheSystemFlagIsAFirstMessage) {
  const auto flag = answer(R"([{"role":"user","content":"Hi"}])", {"--system", "Be brief."});
  const auto message =
      answer(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(flag.at("prompt_tokens"), message.at("prompt_tokens"));
  EXPECT_EQ(flag.at("token_ids"), message.at("token_ids"));
}

TEST_F(ChatTest, SeedsDrawTheSameTextOverEverySplitAndOtherSeedsAnother) {
  const Words sampling{"--temperature", "1.1",    "--top-k", "40",    "--top-p", "0.95",
                       "--seed",        "7",      "-p",      kPrompt, "-n",      "40",
                       "--json",        "--quiet"};
  const auto with = [&](const std::string& devices, const std::string& seed) {
    Words words = sampling;
    words[7] = seed;
    words.insert(words.end(), {"--devices", devices});
    return json_of(run(generate(words)));
  };
  const auto one = with("cpu", "7");
  EXPECT_EQ(one.at("token_ids"), with(cpus(3), "7").at("token_ids"));
  EXPECT_NE(one.at("token_ids"), with("cpu", "8").at("token_ids"));
  EXPECT_EQ(one.at("sampling").at("seed").to_number<int>(), 7);
}

// The stages' device draws, unless something changes the logits first; then the host does.
TEST_F(ChatTest, DeviceAndHostDrawTheSameText) {
  const Words sampling{"--seed", "7", "-p", kPrompt, "-n", "60", "--quiet", "--print-token-ids"};
  for (const Words& filters :
       {Words{"--temperature", "1.1", "--top-k", "40", "--top-p", "0.95"},
        Words{"--temperature", "1.3", "--top-k", "0", "--top-p", "1"},
        Words{"--temperature", "0.9", "--top-k", "0", "--top-p", "0.8", "--min-p", "0.03"}}) {
    Words device = sampling;
    device.insert(device.end(), filters.begin(), filters.end());
    Words host = device;
    host.insert(host.end(), {"--logit-bias", "3=0"});
    const Ended drawn = run(generate(device));
    EXPECT_EXIT_CODE(drawn, 0);
    EXPECT_EQ(drawn.out, run(generate(host)).out);
    ProgramCall ahead = generate(device);
    ahead.environment["CONVOY_TEST_RUN_AHEAD"] = "1";
    EXPECT_EQ(run(ahead).out, drawn.out) << "the device runs ahead of the host";
  }
}

// The first byte of an emoji, forced again and again: no character is ever whole, and the limit
// ends the text inside one.
TEST_F(ChatTest, CharactersThatNeverBecomeWholeAreReplacedAndTheStreamEqualsTheJsonText) {
  ProgramCall tokenize = convoy({"tokenize", "-m", bundled_model_path().native()});
  tokenize.arguments.resize(3);
  tokenize.input = "\xF0\x9F\x90\x89";
  const std::string first_byte = run(tokenize).out.substr(0, run(tokenize).out.find(' '));
  const Words words{"-p", kPrompt, "-n", "3", "--quiet", "--logit-bias", first_byte + "=1e9"};
  Words with_json = words;
  with_json.emplace_back("--json");
  const std::string replaced = "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD";
  EXPECT_EQ(json_of(run(generate(with_json))).at("text").as_string(), replaced);
  EXPECT_EQ(run(generate(words)).out, replaced);
}

TEST_F(ChatTest, LogprobsComeOncePerTokenAndTheLikeliestFirst) {
  const auto object = json_of(run(
      generate({"-p", kPrompt, "-n", "5", "--logprobs", "3", "--json", "--quiet", "--greedy"})));
  const auto& list = object.at("logprobs").as_array();
  ASSERT_EQ(list.size(), 5U);
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].at("id"), object.at("token_ids").as_array()[i]);
    EXPECT_EQ(list[i].at("id"), list[i].at("top").at(0).at("id"));
    EXPECT_EQ(list[i].at("top").as_array().size(), 3U);
  }
}

TEST_F(ChatTest, BadSamplingFlagsAreUsageErrors) {
  for (const Words& words : {Words{"--temperature", "-1"}, Words{"--top-p", "2"},
                             Words{"--logit-bias", "x"}, Words{"--top-k", "-5"}}) {
    Words all{"-p", kPrompt, "-n", "1"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EXIT_CODE(run(generate(all)), 2) << words.front();
  }
}

TEST_F(ChatTest, AConversationFollowsCommandsAndEndsWithItsInput) {
  const Ended ended =
      run(chat("Tell me a story.\n/stats\n/reset\n/nonsense\nAnother one.\n/exit\nnot read\n",
               {"-n", "10", "--devices", cpus(3)}));
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_NE(ended.out.find("tok/s"), std::string::npos);
  EXPECT_NE(ended.out.find("/nonsense is no command"), std::string::npos);
}

TEST_F(ChatTest, AnAnswerEqualsTheOneOfMessages) {
  const Ended ended = run(chat("Tell me a story.\n", {"-n", "12"}));
  const auto object = answer(R"([{"role":"user","content":"Tell me a story."}])", {"--greedy"});
  EXPECT_NE(ended.out.find(std::string(object.at("text").as_string())), std::string::npos);
}

// What a chat's stdin is, and the end that a test types at.
struct Keyboard {
  UniqueFd typed_at;
  UniqueFd stdin_end;

  static Keyboard pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    return {UniqueFd(ends[1]), UniqueFd(ends[0])};
  }
  static Keyboard terminal() {
    UniqueFd ours(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
    if (!ours) return {};
    EXPECT_EQ(::grantpt(ours.get()), 0);
    EXPECT_EQ(::unlockpt(ours.get()), 0);
    UniqueFd theirs(::open(::ptsname(ours.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    return {std::move(ours), std::move(theirs)};
  }
  void type(const std::string& text) const {
    EXPECT_EQ(::write(typed_at.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
};

class InputChatTest : public ChatTest {
 protected:
  ProgramCall chat_at(const Keyboard& keyboard, Words words) const {
    ProgramCall call = chat("", std::move(words));
    call.input.reset();
    call.stdin_fd = keyboard.stdin_end.get();
    return call;
  }
};

// A person's terminal is stdin and stdout. What was shown there is kept by read_shown().
class TerminalChatTest : public InputChatTest {
 protected:
  void SetUp() override {
    if (!keyboard_.stdin_end) GTEST_SKIP() << "no pseudo-terminals here (/dev/pts)";
    InputChatTest::SetUp();
  }
  ProgramCall chat_at_terminal(Words words) const {
    ProgramCall call = chat_at(keyboard_, std::move(words));
    call.stdout_fd = keyboard_.stdin_end.get();
    call.environment["TERM"] = "xterm";
    return call;
  }
  const std::string& read_shown() {
    std::array<char, 4096> bytes;
    for (ssize_t count = 0;
         (count = ::read(keyboard_.typed_at.get(), bytes.data(), bytes.size())) > 0;)
      shown_.append(bytes.data(), static_cast<size_t>(count));
    return shown_;
  }
  bool shows(const std::string& text) {
    return eventually([&] { return read_shown().find(text) != std::string::npos; });
  }

  const Keyboard keyboard_ = Keyboard::terminal();

 private:
  std::string shown_;
};

TEST_F(InputChatTest, CtrlCStopsTheAnswerAndNotTheProgram) {
  const Keyboard keyboard = Keyboard::pipe();
  Process program(chat_at(keyboard, {"--devices", "cpu"}));
  keyboard.type("Tell me a very long story about a dragon and a bird.\n");
  ASSERT_TRUE(eventually([&] { return program.out().size() > 20; }));
  program.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return !program.out().empty() && program.out().back() == '\n'; }));
  ASSERT_TRUE(alive(program.pid()));
  keyboard.type("/stats\n/exit\n");
  const Ended ended = program.wait();
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_THAT(ended.out, ::testing::HasSubstr("tok/s"));
}

// What was computed of it stays in the prefix cache; typed again, it has the answer of a first
// time.
TEST_F(InputChatTest, CtrlCStopsThePromptBetweenItsChunks) {
  std::string message;
  for (int i = 0; i < 420; ++i) message += "The dog saw a big red ball. ";
  message += "\n";
  const Words how{"--greedy", "-t", "1", "--prefill-chunk", "64", "-n", "12"};
  Words words = how;
  words.insert(words.end(), {"--devices", cpus(3), "--prefix-cache", "exact"});
  const Keyboard keyboard = Keyboard::pipe();
  Process program(chat_at(keyboard, words));
  await_state(0, "ready");
  const pid_t last = stage(2).pid;
  keyboard.type(message);
  await_state(0, "running");
  send_signal(last, SIGSTOP);  // most chunks are still to come
  program.signal(SIGINT);
  send_signal(last, SIGCONT);
  const std::string stopped = " [stopped]\n";
  ASSERT_TRUE(eventually([&] { return program.out() == stopped; })) << program.out();
  keyboard.type(message + "/stats\n/exit\n");
  const std::string shown = program.wait().out;
  EXPECT_THAT(shown, ::testing::HasSubstr("prefix cache: 1 of 2 prompts hit"));
  Words alone = how;
  alone.insert(alone.end(), {"--devices", "cpu", "--prefix-cache", "off"});
  const std::string answer = run(chat(message, alone)).out;
  EXPECT_EQ(shown.substr(stopped.size(), answer.size()), answer);
}

TEST_F(InputChatTest, ALostStageEndsItWhileNothingIsTyped) {
  const Keyboard keyboard = Keyboard::pipe();
  Process program(chat_at(keyboard, {"--devices", cpus(3)}));
  await_state(0, "ready");
  const pid_t victim = stage(2).pid;
  send_signal(victim, SIGKILL);
  const Ended ended = program.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr("stage 2 (pid " + std::to_string(victim) + ", device cpu)"));
}

TEST_F(TerminalChatTest, ALostStageEndsItWhileAPersonTypes) {
  Process program(chat_at_terminal({"--devices", cpus(3)}));
  ASSERT_TRUE(shows("> "));
  keyboard_.type("Tell me a caf\xC3\xA9");
  ASSERT_TRUE(shows("caf\xC3\xA9"));
  send_signal(stage(1).pid, SIGKILL);
  const Ended ended = program.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("stage 1 (pid "));
  EXPECT_TRUE(read_shown().ends_with("\n")) << "the error would stand behind the prompt";
}

TEST_F(TerminalChatTest, LinesAreReadAsTheyWereEdited) {
  Process program(chat_at_terminal({"--devices", "cpu"}));
  ASSERT_TRUE(shows("> "));
  keyboard_.type("/cafx\x7F\xC3\xA9\n");
  EXPECT_TRUE(shows("/caf\xC3\xA9 is no command"));
  keyboard_.type("/exit\n");
  EXPECT_EXIT_CODE(program.wait(), 0);
}

TEST_F(InputChatTest, ALostWorkerOfAPoolEndsIt) {
  ASSERT_EQ(run(convoy({"up", "p", "--devices", cpus(1)})).exit_code, 0);
  const Keyboard keyboard = Keyboard::pipe();
  Process program(chat_at(keyboard, {"--devices", "cpu", "--attach", "p", "--instance", "user"}));
  await_state(0, "ready", "user");
  send_signal(stage(1, "p").pid, SIGKILL);
  const Ended ended = program.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("stage 1 (pid "));
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);  // sweeps the pool's folder
}

TEST_F(InputChatTest, TerminateEndsItByThatSignalAndCtrlCDoesNothing) {
  for (int round = 0; round < 4; ++round) {
    const Keyboard keyboard = Keyboard::pipe();
    Process program(chat_at(keyboard, {"--devices", cpus(2)}));
    await_state(0, "ready");
    program.signal(SIGINT);
    keyboard.type("/nonsense\n");
    EXPECT_TRUE(
        eventually([&] { return program.out().find("is no command") != std::string::npos; }));
    program.signal(SIGTERM);
    const Ended ended = program.wait(stretched(2));
    EXPECT_EQ(ended.signal, SIGTERM) << "exit code " << ended.exit_code << "\n" << ended.err;
    expect_nothing_left();
  }
}

TEST_F(ChatTest, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "Once upon a time, caf\xC3\xA9 \xF0\x9F\x90\x89 <|im_end|>\n";
  ProgramCall tokenize = convoy({"tokenize", "-m", bundled_model_path().native()});
  tokenize.arguments.resize(3);  // it has no runtime directory
  tokenize.input = text;
  const Ended ids = run(tokenize);
  EXPECT_EXIT_CODE(ids, 0);
  ProgramCall detokenize = tokenize;
  detokenize.arguments[0] = "detokenize";
  detokenize.input = ids.out;
  EXPECT_EQ(run(detokenize).out, text);
  detokenize.input = "99999999";
  EXPECT_EXIT_CODE(run(detokenize), 4);
}

}  // namespace
}  // namespace convoy::testing
