#include "text/grammar/repetition.h"

#include <utility>

namespace headrace::text {

Status parse_repetition(Reader& in, std::string_view what, Expression& item) {
  std::int64_t min = 0, max = kUnbounded;
  if (in.take("+")) {
    min = 1;
  } else if (in.take("?")) {
    max = 1;
  } else if (in.take("{")) {
    const std::optional<std::int64_t> least = in.peek() == ',' ? 0 : in.count();
    std::optional<std::int64_t> most = least;
    if (in.take(",")) most = in.peek() == '}' ? kUnbounded : in.count();
    if (!least || !most || !in.take("}") || (*most != kUnbounded && *most < *least))
      return in.fail(
          what, "not a repetition",
          format_text("write {m}, {m,} or {m,n} with counts of at most {}", kMaxRepetitions));
    min = *least;
    max = *most;
  } else if (!in.take("*")) {
    return std::nullopt;
  }
  Expression inner = std::exchange(item, {});
  item.kind = Expression::Kind::repeat;
  item.children.push_back(std::move(inner));
  item.min = min;
  item.max = max;
  return std::nullopt;
}

}  // namespace headrace::text
