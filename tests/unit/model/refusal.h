// The message of a start-up failure, for tests that say what it must name.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/exit_code.h"

namespace convoy::testing {

/// The message of the StartError that `action` throws, one line; any other outcome fails the test.
template <typename Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const StartError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a StartError: " << error.what();
    return "";
  }
  ADD_FAILURE() << "accepted";
  return "";
}

}  // namespace convoy::testing
