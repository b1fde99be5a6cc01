#include "answer_stream.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace headrace::cli {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

// The member of an object, null if there is none.
const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

const Json& object_in(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_null() && !value.is_object())
    throw BadAnswer('"' + std::string(key) + "\" of an event is not an object");
  return value;
}

std::int64_t count_in(const Json& usage, const char* key) {
  const Json& value = member(usage, key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{kMaxTokens})
    throw BadAnswer("\"usage\" of an event has no count \"" + std::string(key) + '"');
  return value.get<std::int64_t>();
}

bool has_text(const Json& object, const char* key) {
  const Json& text = member(object, key);
  if (!text.is_null() && !text.is_string())
    throw BadAnswer('"' + std::string(key) + "\" of an event is not a string");
  return text.is_string() && !text.get_ref<const std::string&>().empty();
}

// Completions have "text", chats "delta", whose first event may have a role alone.
bool has_tokens(const Json& choice) {
  if (!choice.is_object()) throw BadAnswer("a choice of an event is not an object");
  const Json& delta = object_in(choice, "delta");
  return has_text(choice, "text") || (delta.is_object() && (has_text(delta, "content") ||
                                                            has_text(delta, "reasoning_content")));
}

}  // namespace

std::int64_t AnswerStream::add(std::string_view bytes) {
  std::int64_t num_texts = 0;
  while (!bytes.empty() && !is_done_) {
    const std::size_t size = bytes.find('\n');
    line_ += bytes.substr(0, size);
    if (line_.size() + data_.size() > kMaxEventBytes)
      throw BadAnswer("an event has more than " + std::to_string(kMaxEventBytes) + " bytes");
    if (size == std::string_view::npos) break;
    num_texts += add_line(line_);
    line_.clear();
    bytes.remove_prefix(size + 1);
  }
  return num_texts;
}

// An empty line ends an event; comments and fields other than "data" have no meaning here.
std::int64_t AnswerStream::add_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) return data_.empty() ? 0 : end_event();
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return 0;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (!data_.empty()) data_ += '\n';
  data_ += line;
  return 0;
}

std::int64_t AnswerStream::end_event() {
  const std::string data = std::exchange(data_, {});
  if (data == "[DONE]") {
    is_done_ = true;
    return 0;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) throw BadAnswer("an event is not a JSON object");
  if (const Json& error = member(event, "error"); !error.is_null())
    throw BadAnswer("an event reports an error: " +
                    error.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200));
  if (const Json& usage = object_in(event, "usage"); usage.is_object()) {
    num_prompt_tokens_ = count_in(usage, "prompt_tokens");
    num_answer_tokens_ = count_in(usage, "completion_tokens");
  }
  const Json& choices = member(event, "choices");
  if (!choices.is_array()) throw BadAnswer("an event has no array \"choices\"");
  return !choices.empty() && has_tokens(choices[0]) ? 1 : 0;
}

}  // namespace headrace::cli
