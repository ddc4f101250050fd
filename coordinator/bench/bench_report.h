// What convoy bench prints and writes.
#pragma once

#include <string>

#include "coordinator/bench/bench_result.h"

namespace convoy {

/// For people.
std::string bench_table(const BenchResult& result);
/// One JSON object; what is not known is null.
std::string bench_json(const BenchResult& result);
/// A header and a line per device set, prompt and decode length (RFC 4180); what is not known is
/// empty.
std::string bench_csv(const BenchResult& result);
/// A drawing of prompt and decode speeds, a bar per device set, prompt and decode length.
std::string bench_svg(const BenchResult& result);

}  // namespace convoy
