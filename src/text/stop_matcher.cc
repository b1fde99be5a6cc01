#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace headrace::text {

Result<StopMatcher> StopMatcher::make(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty())
      return invalid_argument(
          "stop[{}]: empty, which would stop every text immediately; leave it out", i);
    Stop stop{std::move(stops[i]), {}, 0};
    stop.failure.assign(stop.text.size() + 1, 0);
    for (std::size_t n = 1; n < stop.text.size(); ++n) {
      advance(stop, stop.text[n]);
      stop.failure[n + 1] = stop.num_matched;
    }
    stop.num_matched = 0;
    matcher.stops_.push_back(std::move(stop));
  }
  return matcher;
}

void StopMatcher::advance(Stop& stop, char byte) {
  while (stop.num_matched > 0 && stop.text[stop.num_matched] != byte)
    stop.num_matched = stop.failure[stop.num_matched];
  if (stop.text[stop.num_matched] == byte) ++stop.num_matched;
}

StopMatcher::Output StopMatcher::push(std::string_view piece) {
  if (is_stopped_) return {};
  if (stops_.empty()) return {std::string(piece), {}};
  std::size_t num_held = 0;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    std::optional<std::size_t> complete;
    num_held = 0;
    for (std::size_t s = 0; s < stops_.size(); ++s) {
      advance(stops_[s], piece[i]);
      num_held = std::max(num_held, stops_[s].num_matched);
      const bool is_complete = stops_[s].num_matched == stops_[s].text.size();
      if (is_complete && (!complete || stops_[s].text.size() > stops_[*complete].text.size()))
        complete = s;
    }
    if (complete) {
      is_stopped_ = true;
      held_.append(piece.substr(0, i + 1));
      held_.resize(held_.size() - stops_[*complete].text.size());
      return {std::move(held_), complete};
    }
  }
  if (piece.empty()) return {};
  held_.append(piece);
  Output output{held_.substr(0, held_.size() - num_held), {}};
  held_.erase(0, output.text.size());
  return output;
}

std::string StopMatcher::finish() {
  is_stopped_ = true;
  return std::exchange(held_, {});
}

}  // namespace headrace::text
