// JSON whose numbers are what was written: Boost.JSON rounds some doubles by one unit in the last
// place.
#pragma once

#include <boost/json.hpp>
#include <string_view>

#include "base/result.h"

namespace convoy {

/// Parses one JSON text. Doubles are the nearest ones. The error names the byte and the reason.
Result<boost::json::value> parse_exact_json(std::string_view text);

}  // namespace convoy
