// Prompts as the command line gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

/// What the file holds, or stdin where `path` is "-". `flag` names the option in errors. Throws
/// UsageError; StartError where stdin cannot be read.
std::string read_prompt_input(const std::string& flag, const std::string& path);

/// One prompt per line; the last line may lack its end. A line ends with \n or \r\n.
std::vector<std::string> prompt_lines(const std::string& text);

/// "1,2,3" of --prompt-ids. Throws UsageError.
std::vector<int32_t> parse_prompt_ids(const std::string& text);

}  // namespace convoy
