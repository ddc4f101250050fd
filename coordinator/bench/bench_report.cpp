#include "coordinator/bench/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "coordinator/console/table.h"
#include "coordinator/version.h"

namespace convoy {
namespace {

namespace json = boost::json;
using Cells = std::vector<std::string>;

std::string percent_or_dash(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : "-";
}

std::string spread_text(const std::optional<Spread>& spread) {
  return spread ? fmt::format("{:.1f}%", 100 * spread->relative()) : "-";
}

// "1980" or "345-1980", over all cards.
std::string clock_text(const std::vector<ClockRange>& clocks) {
  if (clocks.empty()) return "-";
  int least = clocks.front().least_mhz;
  int most = clocks.front().most_mhz;
  for (const ClockRange& range : clocks) {
    least = std::min(least, range.least_mhz);
    most = std::max(most, range.most_mhz);
  }
  return least == most ? std::to_string(most) : fmt::format("{}-{}", least, most);
}

uint64_t step_weight_bytes(const BenchSet& set) {
  uint64_t bytes = 0;
  for (const BenchStage& stage : set.stages) bytes += stage.step_weight_bytes;
  return bytes;
}

uint64_t weight_bytes_per_token(const BenchSet& set, const BenchCase& c) {
  return step_weight_bytes(set) / static_cast<uint64_t>(c.lanes);
}

double step_kv_bytes(const BenchSet& set, const BenchCase& c) {
  double bytes = 0;
  for (const BenchStage& stage : set.stages) bytes += step_kv_bytes(stage, c);
  return bytes;
}

uint64_t position_kv_bytes(const BenchSet& set) {
  uint64_t bytes = 0;
  for (const BenchStage& stage : set.stages) bytes += stage.position_kv_bytes;
  return bytes;
}

Cells case_cells(const BenchResult& result, const BenchSet& set, const BenchCase& c) {
  return {set.devices,
          std::to_string(c.prompt_tokens),
          std::to_string(c.decode_tokens),
          std::to_string(c.lanes),
          c.prefill_s ? fmt::format("{:.1f}", prefill_rate(c, c.prefill_s->median)) : "-",
          spread_text(c.prefill_s),
          percent_or_dash(product_share(result, set, c)),
          c.step_ms ? fmt::format("{:.1f}", decode_rate(c, c.step_ms->median)) : "-",
          c.step_ms ? fmt::format("{:.3f}", c.step_ms->median) : "-",
          spread_text(c.step_ms),
          percent_or_dash(copy_share(result, set, c)),
          c.hop_us ? fmt::format("{:.1f}", *c.hop_us) : "-",
          clock_text(c.clocks)};
}

json::value number_or_null(const std::optional<double>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::value spread_json(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return json::object{{"median", spread->median}, {"min", spread->least}, {"max", spread->most}};
}

json::array clocks_json(const std::vector<ClockRange>& clocks) {
  json::array list;
  for (const ClockRange& range : clocks)
    list.push_back({{"uuid", range.uuid}, {"min", range.least_mhz}, {"max", range.most_mhz}});
  return list;
}

json::object set_json(const BenchResult& result, const BenchSet& set) {
  json::array stages;
  for (const BenchStage& stage : set.stages) {
    stages.push_back({{"rank", stage.rank},
                      {"device", stage.device},
                      {"layers", {stage.layers.begin, stage.layers.end}},
                      {"step_weight_bytes", stage.step_weight_bytes},
                      {"position_kv_bytes", stage.position_kv_bytes}});
  }
  json::array cases;
  for (const BenchCase& c : set.cases) {
    json::object object{{"lanes", c.lanes},
                        {"prompt_tokens", c.prompt_tokens},
                        {"decode_tokens", c.decode_tokens},
                        {"weight_bytes_per_token", weight_bytes_per_token(set, c)},
                        {"step_kv_bytes", step_kv_bytes(set, c)},
                        {"prefill_s", spread_json(c.prefill_s)},
                        {"step_ms", spread_json(c.step_ms)},
                        {"product_share", number_or_null(product_share(result, set, c))},
                        {"copy_share", number_or_null(copy_share(result, set, c))},
                        {"hop_us", number_or_null(c.hop_us)},
                        {"sm_clock_mhz", clocks_json(c.clocks)}};
    object["prefill_tok_s"] =
        c.prefill_s ? json::value(prefill_rate(c, c.prefill_s->median)) : json::value(nullptr);
    object["decode_tok_s"] =
        c.step_ms ? json::value(decode_rate(c, c.step_ms->median)) : json::value(nullptr);
    cases.push_back(std::move(object));
  }
  return {{"devices", set.devices},
          {"load_s", set.load_s},
          {"kv_dtype", set.kv_dtype},
          {"step_weight_bytes", step_weight_bytes(set)},
          {"stages", stages},
          {"cases", cases},
          {"waiting_sm_clock_mhz", clocks_json(set.waiting_clocks)}};
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c;
    if (c == '"') quoted += '"';
  }
  return quoted + '"';
}

std::string csv_line(const Cells& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    line += csv_cell(cell);
  }
  return line + "\r\n";
}

std::string number_or_empty(const std::optional<double>& value) {
  return value ? fmt::format("{:.6g}", *value) : "";
}

void add_spread(Cells& cells, const std::optional<Spread>& spread) {
  cells.push_back(spread ? fmt::format("{:.6g}", spread->median) : "");
  cells.push_back(spread ? fmt::format("{:.6g}", spread->least) : "");
  cells.push_back(spread ? fmt::format("{:.6g}", spread->most) : "");
}

}  // namespace

std::string bench_table(const BenchResult& result) {
  std::string text;
  std::vector<Cells> rows{{"devices", "prompt", "decode", "lanes", "prefill tok/s", "spread",
                           "products", "decode tok/s", "ms/step", "spread", "copy rate", "hop us",
                           "SM MHz"}};
  for (const BenchSet& set : result.sets) {
    for (const BenchCase& c : set.cases) rows.push_back(case_cells(result, set, c));
  }
  text += format_table(rows);
  text += "\n";
  for (const BenchSet& set : result.sets) {
    text += fmt::format(
        "{}: loaded in {:.2f} s, {} of weights read per step, {} of {} KV per position before it",
        set.devices, set.load_s, format_bytes(step_weight_bytes(set)),
        format_bytes(position_kv_bytes(set)), set.kv_dtype);
    if (!set.waiting_clocks.empty())
      text += fmt::format("; waiting at {} MHz", clock_text(set.waiting_clocks));
    text += "\n";
  }
  for (const DeviceSpeed& device : result.devices) {
    text += fmt::format("{} ({}, {}): copies {:.0f} GB/s, multiplies {:.1f} TFLOP/s\n", device.id,
                        device.name, device.architecture, device.copy_bytes_per_s * 1e-9,
                        device.product_flop_per_s * 1e-12);
  }
  return text;
}

std::string bench_json(const BenchResult& result) {
  json::array sets;
  for (const BenchSet& set : result.sets) sets.push_back(set_json(result, set));
  json::array devices;
  for (const DeviceSpeed& device : result.devices) {
    devices.push_back({{"id", device.id},
                       {"name", device.name},
                       {"architecture", device.architecture},
                       {"copy_bytes_per_s", device.copy_bytes_per_s},
                       {"product_flop_per_s", device.product_flop_per_s}});
  }
  return json::serialize(json::object{{"schema", 1},
                                      {"version", kVersion},
                                      {"model", result.model},
                                      {"load_format", result.dummy ? "dummy" : "auto"},
                                      {"prefill_chunk", result.prefill_chunk_tokens},
                                      {"warm_up", result.warm_up},
                                      {"repetitions", result.repetitions},
                                      {"sampled", result.sampled},
                                      {"sets", sets},
                                      {"devices", devices}}) +
         "\n";
}

std::string bench_csv(const BenchResult& result) {
  std::string text = csv_line({"model",         "load_format",   "devices",
                               "lanes",         "prompt_tokens", "decode_tokens",
                               "load_s",        "prefill_s",     "prefill_s_min",
                               "prefill_s_max", "prefill_tok_s", "product_share",
                               "step_ms",       "step_ms_min",   "step_ms_max",
                               "decode_tok_s",  "copy_share",    "weight_bytes_per_token",
                               "hop_us",        "sm_clock_mhz",  "waiting_sm_clock_mhz",
                               "kv_dtype",      "step_kv_bytes"});
  for (const BenchSet& set : result.sets) {
    for (const BenchCase& c : set.cases) {
      Cells cells{result.model,
                  result.dummy ? "dummy" : "auto",
                  set.devices,
                  std::to_string(c.lanes),
                  std::to_string(c.prompt_tokens),
                  std::to_string(c.decode_tokens),
                  fmt::format("{:.6g}", set.load_s)};
      add_spread(cells, c.prefill_s);
      cells.push_back(c.prefill_s ? fmt::format("{:.6g}", prefill_rate(c, c.prefill_s->median))
                                  : "");
      cells.push_back(number_or_empty(product_share(result, set, c)));
      add_spread(cells, c.step_ms);
      cells.push_back(c.step_ms ? fmt::format("{:.6g}", decode_rate(c, c.step_ms->median)) : "");
      cells.push_back(number_or_empty(copy_share(result, set, c)));
      cells.push_back(std::to_string(weight_bytes_per_token(set, c)));
      cells.push_back(number_or_empty(c.hop_us));
      cells.push_back(c.clocks.empty() ? "" : clock_text(c.clocks));
      cells.push_back(set.waiting_clocks.empty() ? "" : clock_text(set.waiting_clocks));
      cells.push_back(set.kv_dtype);
      cells.push_back(fmt::format("{:.6g}", step_kv_bytes(set, c)));
      text += csv_line(cells);
    }
  }
  return text;
}

}  // namespace convoy
