// A hand-made SVG: two lists of horizontal bars, so that labels of any length stay readable.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/bench/bench_report.h"
#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

constexpr int kWidth = 960;
constexpr int kMargin = 24;
constexpr int kBarHeight = 18;
constexpr int kRowHeight = 26;
constexpr int kTitleHeight = 40;
constexpr int kValueWidth = 150;
// Average advance of the font, for as much room as the longest label needs.
constexpr double kCharacterWidth = 7.2;
constexpr const char* kColours[] = {"#2a6f97", "#e07a2f", "#4c956c", "#8d5a97",
                                    "#b23a48", "#6b705c", "#1d9a9a", "#a98467"};

struct Bar {
  std::string label;
  double value = 0;
  double low = 0, high = 0;  // of the measurements
  size_t colour = 0;
};

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : to_valid_utf8(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        // XML has no other control characters.
        safe += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return safe;
}

std::string number(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
}

std::vector<Bar> prefill_bars(const BenchResult& result) {
  std::vector<Bar> bars;
  for (size_t s = 0; s < result.sets.size(); ++s) {
    for (const BenchCase& c : result.sets[s].cases) {
      if (!c.prefill_s) continue;
      bars.push_back({fmt::format("{} · prompt {}", result.sets[s].devices, c.prompt_tokens),
                      prefill_rate(c, c.prefill_s->median), prefill_rate(c, c.prefill_s->most),
                      prefill_rate(c, c.prefill_s->least), s});
    }
  }
  return bars;
}

std::vector<Bar> decode_bars(const BenchResult& result) {
  std::vector<Bar> bars;
  for (size_t s = 0; s < result.sets.size(); ++s) {
    for (const BenchCase& c : result.sets[s].cases) {
      if (!c.step_ms) continue;
      bars.push_back(
          {fmt::format("{} · after {} · {} tokens · {} lane{}", result.sets[s].devices,
                       c.prompt_tokens, c.decode_tokens, c.lanes, c.lanes == 1 ? "" : "s"),
           decode_rate(c, c.step_ms->median), decode_rate(c, c.step_ms->most),
           decode_rate(c, c.step_ms->least), s});
    }
  }
  return bars;
}

int panel_height(const std::vector<Bar>& bars) {
  return bars.empty() ? 0 : kTitleHeight + static_cast<int>(bars.size()) * kRowHeight + kMargin;
}

std::string panel(const std::string& title, const std::vector<Bar>& bars, int top) {
  if (bars.empty()) return "";
  size_t longest = 0;
  double most = 0;
  for (const Bar& bar : bars) {
    longest = std::max(longest, bar.label.size());
    most = std::max(most, bar.high);
  }
  const int left =
      kMargin +
      std::min(static_cast<int>(static_cast<double>(longest) * kCharacterWidth) + 12, kWidth / 2);
  const double room = kWidth - kMargin - kValueWidth - left;
  const auto x_of = [&](double value) { return left + (most > 0 ? room * value / most : 0); };
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" class=\"title\">{}</text>\n", kMargin,
                                top + kTitleHeight - 16, escaped(title));
  for (size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const int y = top + kTitleHeight + static_cast<int>(i) * kRowHeight;
    const int baseline = y + kBarHeight - 5;
    const int middle = y + kBarHeight / 2;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 8,
                       baseline, escaped(bar.label));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
                       left, y, x_of(bar.value) - left, kBarHeight,
                       kColours[bar.colour % std::size(kColours)]);
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\" stroke=\"#222\"/>\n",
                       x_of(bar.low), middle, x_of(bar.high), middle);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{} tok/s</text>\n", x_of(bar.high) + 8,
                       baseline, number(bar.value));
  }
  return svg;
}

}  // namespace

std::string bench_svg(const BenchResult& result) {
  const std::vector<Bar> prefill = prefill_bars(result);
  const std::vector<Bar> decode = decode_bars(result);
  const int heading = kMargin + 24;
  const int height = heading + panel_height(prefill) + panel_height(decode) + kMargin;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\">\n"
      "<style>text{{font:12px ui-monospace,monospace;fill:#222}}.title{{font-weight:bold;"
      "font-size:14px}}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, height);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" class=\"title\">{}</text>\n", kMargin, kMargin + 8,
      escaped(fmt::format("{}{}; bars: medians of {}, lines: slowest to fastest", result.model,
                          result.dummy ? " (random weights)" : "", result.repetitions)));
  svg += panel("prefill", prefill, heading);
  svg += panel("decode", decode, heading + panel_height(prefill));
  return svg + "</svg>\n";
}

}  // namespace convoy
