#include "roofline_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace headrace::cli {
namespace {

constexpr double kWidth = 800, kLeft = 74, kRight = 586, kTop = 66, kBottom = 466;
constexpr double kLine = 16;  // between lines of text
constexpr const char* kMemoryColors[] = {"#1b5e8c", "#2f86b8", "#46a6b5", "#6fb98f", "#8aa34f"};
constexpr const char* kPeakColors[] = {"#a63603", "#d9601a", "#e58a2e", "#c79a2b", "#9a7b4f"};
constexpr const char* kPointColor = "#5b2a86";

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += c >= 0 && c < ' ' ? ' ' : c;
  }
  return safe;
}

template <std::size_t kSize>
const char* color_of(const char* const (&colors)[kSize], std::size_t index) {
  return colors[std::min(index, kSize - 1)];
}

// A decade range and the pixels that it covers.
struct Axis {
  int first, last;  // powers of ten
  double begin, end;
  double pixel(double value) const {
    return begin + (std::log10(value) - first) / (last - first) * (end - begin);
  }
  double low() const { return std::pow(10., first); }
  double high() const { return std::pow(10., last); }
};

int decade_below(double value) { return static_cast<int>(std::floor(std::log10(value) + 1e-9)); }
int decade_above(double value) { return static_cast<int>(std::ceil(std::log10(value) - 1e-9)); }

class Drawing {
 public:
  explicit Drawing(const RooflinePlot& plot) : plot_(plot) {
    // From below the lowest point of interest to above the ridge of the last memory.
    const double ridge = plot.peaks.front().rate / plot.memories.back().rate;
    double x_low = 0.1, x_high = std::max(100., 3 * ridge);
    double y_low = plot.memories.back().rate * x_low, y_high = 1.5 * plot.peaks.front().rate;
    for (const PlotPoint& point : plot.points) {
      x_low = std::min(x_low, point.intensity);
      x_high = std::max(x_high, 1.5 * point.intensity);
      y_low = std::min(y_low, point.flops);
      y_high = std::max(y_high, point.flops);
    }
    x_ = {decade_below(x_low), decade_above(x_high), kLeft, kRight};
    y_ = {decade_below(y_low), decade_above(y_high), kBottom, kTop};
  }

  std::string svg() {
    const double legend = kBottom + 62;
    const double height = legend + kLine * static_cast<double>(plot_.points.size()) + 8;
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\""
         << height << "\" viewBox=\"0 0 " << kWidth << ' ' << height
         << "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    text(kLeft, 26, plot_.title, "#222222", "font-size=\"16\" font-weight=\"bold\"");
    text(kLeft, 46, plot_.subtitle, "#555555");
    grid();
    peaks();
    memories();
    points(legend);
    out_ << "</svg>\n";
    return std::move(out_).str();
  }

 private:
  void text(double x, double y, const std::string& text, const char* color,
            const std::string& attributes = "") {
    out_ << "<text x=\"" << x << "\" y=\"" << y << "\" fill=\"" << color << "\" " << attributes
         << '>' << escaped(text) << "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const char* color, double width,
            const char* attributes = "") {
    out_ << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2
         << "\" stroke=\"" << color << "\" stroke-width=\"" << width << "\" " << attributes
         << "/>\n";
  }

  void grid() {
    for (int decade = x_.first; decade <= x_.last; ++decade) {
      const double x = x_.pixel(std::pow(10., decade));
      line(x, kTop, x, kBottom, "#dddddd", 1);
      char label[32];
      std::snprintf(label, sizeof label, "%g", std::pow(10., decade));
      text(x, kBottom + 18, label, "#333333", "text-anchor=\"middle\"");
    }
    for (int decade = y_.first; decade <= y_.last; ++decade) {
      const double y = y_.pixel(std::pow(10., decade));
      line(kLeft, y, kRight, y, "#dddddd", 1);
      text(kLeft - 8, y + 4, with_prefix(std::pow(10., decade)), "#333333", "text-anchor=\"end\"");
    }
    text((kLeft + kRight) / 2, kBottom + 38, "arithmetic intensity, FLOP per byte of memory",
         "#222222", "text-anchor=\"middle\"");
    const double y = (kTop + kBottom) / 2;
    std::ostringstream turned;
    turned << "text-anchor=\"middle\" transform=\"rotate(-90 16 " << y << ")\"";
    text(16, y, "FLOP/s", "#222222", turned.str());
  }

  // Horizontal from the line of the fastest memory; labels beside the plot, moved apart.
  void peaks() {
    double free_y = kTop - kLine;
    for (std::size_t i = 0; i < plot_.peaks.size(); ++i) {
      const Roof& peak = plot_.peaks[i];
      const char* color = color_of(kPeakColors, i);
      const double y = y_.pixel(peak.rate);
      const double from = std::max(peak.rate / plot_.memories.front().rate, x_.low());
      line(x_.pixel(from), y, kRight, y, color, 2);
      const double label_y = std::max(y, free_y + 2 * kLine);
      line(kRight, y, kRight + 10, label_y, color, 1);
      text(kRight + 14, label_y - 2, peak.name, color, fitting(peak.name));
      text(kRight + 14, label_y + 12, with_prefix(peak.rate) + "FLOP/s", color);
      free_y = label_y;
    }
  }

  // Names that are wider than the margin are squeezed into it.
  static std::string fitting(const std::string& name) {
    constexpr double kRoom = kWidth - kRight - 20, kCharacter = 6.5;
    if (static_cast<double>(name.size()) * kCharacter <= kRoom) return {};
    return "textLength=\"" + std::to_string(static_cast<int>(kRoom)) +
           "\" lengthAdjust=\"spacingAndGlyphs\"";
  }

  // A line from the left or bottom edge to the highest peak, its name along it; the ridge points of
  // the last memory, from which on a peak bounds, not memory.
  void memories() {
    const double top = plot_.peaks.front().rate;
    const double angle = -std::atan2((y_.begin - y_.end) / (y_.last - y_.first),
                                     (x_.end - x_.begin) / (x_.last - x_.first)) *
                         180 / 3.14159265358979;
    struct Span {
      double from, to;  // intensities
    };
    std::vector<Span> spans;
    for (const Roof& memory : plot_.memories) {
      spans.push_back(
          {std::max(x_.low(), y_.low() / memory.rate), std::min(top / memory.rate, x_.high())});
      const auto [from, to] = spans.back();
      line(x_.pixel(from), y_.pixel(memory.rate * from), x_.pixel(to), y_.pixel(memory.rate * to),
           color_of(kMemoryColors, spans.size() - 1), 2);
    }
    // Names above all lines; those of neighbours do not start at one place.
    for (std::size_t i = 0; i < plot_.memories.size(); ++i) {
      const Roof& memory = plot_.memories[i];
      const auto [from, to] = spans[i];
      const double at = from * std::pow(to / from, 0.06 + 0.16 * static_cast<double>(i % 4));
      const double x = x_.pixel(at), y = y_.pixel(memory.rate * at);
      std::ostringstream turned;
      turned << "transform=\"rotate(" << angle << ' ' << x << ' ' << y
             << ") translate(0 -5)\" stroke=\"#ffffff\" stroke-width=\"3\" "
             << "paint-order=\"stroke\"";
      text(x, y, memory.name + ' ' + with_prefix(memory.rate) + "B/s", color_of(kMemoryColors, i),
           turned.str());
    }
    for (std::size_t i = 0; i < plot_.peaks.size(); ++i) ridge(plot_.peaks[i], i);
  }

  void ridge(const Roof& peak, std::size_t index) {
    const double at = peak.rate / plot_.memories.back().rate;
    const double x = x_.pixel(at), y = y_.pixel(peak.rate);
    const char* color = color_of(kPeakColors, index);
    line(x, y, x, kBottom, color, 1, "stroke-dasharray=\"2 4\"");
    out_ << "<circle cx=\"" << x << "\" cy=\"" << y << "\" r=\"3.5\" fill=\"#ffffff\" stroke=\""
         << color << "\" stroke-width=\"1.5\"/>\n";
    char label[32];
    std::snprintf(label, sizeof label, "%.3g", at);
    text(x + 4, kBottom - 6 - 13 * static_cast<double>(index % 4), label, color,
         "stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"");
  }

  void points(double legend) {
    if (!plot_.points.empty())
      text(kLeft, legend - 2, "Calls: dot measured, ring its bound", "#222222",
           "font-weight=\"bold\"");
    for (std::size_t i = 0; i < plot_.points.size(); ++i) {
      const PlotPoint& point = plot_.points[i];
      const double x = x_.pixel(point.intensity), y = y_.pixel(point.flops);
      if (point.bound_flops > 0) {
        const double bound_y = y_.pixel(point.bound_flops);
        line(x, y, x, bound_y, kPointColor, 1);
        out_ << "<circle cx=\"" << x << "\" cy=\"" << bound_y
             << "\" r=\"5\" fill=\"none\" stroke=\"" << kPointColor << "\"/>\n";
      }
      out_ << "<circle cx=\"" << x << "\" cy=\"" << y << "\" r=\"4.5\" fill=\"" << kPointColor
           << "\"/>\n";
      // Neighbours write their numbers on different sides.
      constexpr double kSides[][2] = {{8, 12}, {-16, 12}, {8, -6}, {-16, -6}};
      const auto& side = kSides[i % 4];
      text(x + side[0], y + side[1], std::to_string(i + 1), kPointColor,
           "font-weight=\"bold\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"");
      text(kLeft, legend + kLine * static_cast<double>(i + 1),
           std::to_string(i + 1) + "  " + point.text, "#222222", "font-size=\"11\"");
    }
  }

  const RooflinePlot& plot_;
  Axis x_{}, y_{};
  std::ostringstream out_;
};

}  // namespace

std::string with_prefix(double value) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  int prefix = 0;
  while (value >= 999.5 && prefix < 6) {
    value /= 1000;
    ++prefix;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", value, kPrefixes[prefix]);
  return text;
}

std::string roofline_svg(const RooflinePlot& plot) { return Drawing(plot).svg(); }

}  // namespace headrace::cli
