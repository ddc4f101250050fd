// How numbers on the command line are read.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace convoy {

/// Makes every option of `app` and of its commands that takes a number read it as people write it:
/// whole numbers are decimal, with or without leading zeros, and one that 64 bits do not hold, or a
/// sign where there is none, is a usage error; so is a NaN, which no range excludes. To be called
/// when all options have been added.
void read_numbers_as_written(CLI::App& app);

}  // namespace convoy
