// SPDX-License-Identifier: Apache-2.0
// A picture of what the first planes give: error against bits read.
#pragma once

#include <string>
#include <vector>

namespace bowhead::cli {

/// One tensor's line. Points that are exact have no place on the scale, and are left out.
struct Curve {
  struct Point {
    std::string name;           ///< shown when the mouse points at it
    double bits_per_value = 0;  ///< read
    double error = 0;           ///< relative
  };
  std::string name;
  std::vector<Point> points;
};

/// An SVG file, its scale of errors logarithmic; without points only axes.
std::string plot_svg(const std::string& title, const std::vector<Curve>& curves);

}  // namespace bowhead::cli
