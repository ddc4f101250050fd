#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/link_end.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == convoy::test::kLinkEndFlag)
    return convoy::test::run_link_end({arguments.begin() + 1, arguments.end()});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
