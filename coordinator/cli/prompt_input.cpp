#include "coordinator/cli/prompt_input.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/exit_code.h"
#include "coordinator/console/input.h"

namespace convoy {

std::string read_prompt_input(const std::string& flag, const std::string& path) {
  if (path == "-") return read_stdin();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw UsageError(fmt::format("{} {}: is a directory", flag, path));
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || in.bad()) throw UsageError(fmt::format("{} {}: cannot be read", flag, path));
  return std::move(text).str();
}

std::vector<std::string> prompt_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<int32_t> parse_prompt_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size())
      throw UsageError(fmt::format("--prompt-ids: '{}' is no token id", word));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace convoy
