// A roofline plot as SVG (Williams, Waterman and Patterson, 2009): FLOP/s over FLOP/byte, both axes
// logarithmic.
#pragma once

#include <string>
#include <vector>

#include "call_bound.h"

namespace headrace::cli {

// A call: a dot where it was measured, and a ring at its bound.
struct PlotPoint {
  std::string text;    // of the legend
  double intensity;    // FLOP per byte
  double flops;        // per second, measured
  double bound_flops;  // per second at the bound; 0: not known
};

struct RooflinePlot {
  std::string title, subtitle;
  std::vector<Roof> memories;  // bytes per second, nearest to the units first
  std::vector<Roof> peaks;     // FLOP per second, fastest first
  std::vector<PlotPoint> points;
};

// 800 pixels wide. Every text is escaped. Needs at least one memory and one peak.
std::string roofline_svg(const RooflinePlot& plot);

// "1.2 T" for 1.2e12, with three significant digits.
std::string with_prefix(double value);

}  // namespace headrace::cli
