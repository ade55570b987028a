// SPDX-License-Identifier: Apache-2.0
// Plots the error of the first planes against the bits read.
#pragma once

#include <string>
#include <vector>

namespace bowhead::cli {

/// The line of one tensor. Exact points have no place on the logarithmic scale and are left out.
struct Curve {
  struct Point {
    std::string name;           ///< shown when the mouse points at it
    double bits_per_value = 0;  ///< read
    double error = 0;           ///< relative
  };
  std::string name;
  std::vector<Point> points;
};

/// An SVG file with a logarithmic scale of errors; only axes if there are no points.
std::string plot_svg(const std::string& title, const std::vector<Curve>& curves);

}  // namespace bowhead::cli
