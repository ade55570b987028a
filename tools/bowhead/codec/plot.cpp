// SPDX-License-Identifier: Apache-2.0
#include "tools/bowhead/codec/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace bowhead::cli {
namespace {

constexpr double kLeft = 70, kTop = 40, kWidth = 520, kHeight = 340, kLegend = 16;
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9"};  // distinct for the colour-blind, too

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else
      safe += c;
  }
  return safe;
}

/// The range of the axes: whole bits, whole powers of ten.
struct Scale {
  double bits = 1;
  int least = 0, most = 1;

  explicit Scale(const std::vector<Curve>& curves) {
    double low = 1, high = 0;
    for (const Curve& curve : curves) {
      for (const Curve::Point& point : curve.points) {
        bits = std::max(bits, std::ceil(point.bits_per_value));
        if (point.error <= 0) continue;
        low = std::min(low, point.error);
        high = std::max(high, point.error);
      }
    }
    least = static_cast<int>(std::floor(std::log10(low)));
    most = high > 0 ? static_cast<int>(std::ceil(std::log10(high))) : 0;
    if (most <= least) most = least + 1;
  }
  double x(double bits_per_value) const { return kLeft + kWidth * bits_per_value / bits; }
  double y(double error) const {
    return kTop + kHeight * (most - std::log10(error)) / (most - least);
  }
};

std::string axes(const Scale& scale) {
  std::string svg;
  const auto add = std::back_inserter(svg);
  for (int bits = 0; bits <= scale.bits; ++bits) {
    fmt::format_to(add, "<path d='M{0:.1f} {1}v{2}' stroke='#ddd'/>", scale.x(bits), kTop, kHeight);
    fmt::format_to(add, "<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n", scale.x(bits),
                   kTop + kHeight + 18, bits);
  }
  for (int power = scale.least; power <= scale.most; ++power) {
    const double error = std::pow(10, power);
    fmt::format_to(add, "<path d='M{} {:.1f}h{}' stroke='#ddd'/>", kLeft, scale.y(error), kWidth);
    fmt::format_to(add, "<text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n", kLeft - 8,
                   scale.y(error) + 4, error);
  }
  fmt::format_to(add, "<text x='{}' y='{}' text-anchor='middle'>bits read per value</text>\n",
                 kLeft + kWidth / 2, kTop + kHeight + 38);
  fmt::format_to(add,
                 "<text transform='translate(16 {}) rotate(-90)' text-anchor='middle'>error, "
                 "relative to the values (root mean square)</text>\n",
                 kTop + kHeight / 2);
  return svg;
}

}  // namespace

std::string plot_svg(const std::string& title, const std::vector<Curve>& curves) {
  const Scale scale(curves);
  const double below = kTop + kHeight + 50;
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
      "<text x='{}' y='24' font-size='15'>{}</text>\n",
      kLeft + kWidth + 30, below + 20 + kLegend * static_cast<double>(curves.size()), kLeft,
      escaped(title));
  svg += axes(scale);
  const auto add = std::back_inserter(svg);
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    std::string line, points;
    for (const Curve::Point& point : curves[i].points) {
      if (point.error <= 0) continue;
      const double x = scale.x(point.bits_per_value), y = scale.y(point.error);
      line += fmt::format("{:.1f},{:.1f} ", x, y);
      points += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='3' fill='{}'><title>{}: {:.2f} bits, error "
          "{:.3g}</title></circle>\n",
          x, y, colour, escaped(point.name), point.bits_per_value, point.error);
    }
    fmt::format_to(add, "<polyline points='{}' fill='none' stroke='{}' stroke-width='2'/>\n", line,
                   colour);
    const double y = below + kLegend * static_cast<double>(i);
    svg += points;
    fmt::format_to(add, "<path d='M{} {}h20' stroke='{}' stroke-width='2'/>", kLeft, y + 4, colour);
    fmt::format_to(add, "<text x='{}' y='{}'>{}</text>\n", kLeft + 28, y + 8,
                   escaped(curves[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace bowhead::cli
