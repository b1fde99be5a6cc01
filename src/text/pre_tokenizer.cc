#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace headrace::text {
namespace {

struct Name {
  const char* text;
  PreTokenizerKind kind;
};

// The names in use for the supported expressions.
constexpr Name kNames[] = {
    {"gpt-2", PreTokenizerKind::gpt2},       {"smollm", PreTokenizerKind::smollm},
    {"starcoder", PreTokenizerKind::smollm}, {"llama-bpe", PreTokenizerKind::llama3},
    {"llama3", PreTokenizerKind::llama3},    {"llama-v3", PreTokenizerKind::llama3},
    {"qwen2", PreTokenizerKind::qwen2},      {"tekken", PreTokenizerKind::tekken},
};

constexpr std::string_view kSpaces =
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

// "~" stands for kSpaces.
const char* pattern_of(PreTokenizerKind kind) {
  switch (kind) {
    case PreTokenizerKind::gpt2:
      return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^~\\p{L}\\p{N}]+|[~]+(?![^~])|[~]+";
    case PreTokenizerKind::smollm:
      // Digits are split off first, and GPT-2's expression matches the text between them: its
      // look-ahead treats a digit as the end of the text.
      return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+|\\p{N}| ?[^~\\p{L}\\p{N}]+|[~]+(?![^~\\p{N}])|[~]+";
    case PreTokenizerKind::llama3:
      return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
             " ?[^~\\p{L}\\p{N}]+[\\r\\n]*|[~]*[\\r\\n]+|[~]+(?![^~])|[~]+";
    case PreTokenizerKind::qwen2:
      return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
             " ?[^~\\p{L}\\p{N}]+[\\r\\n]*|[~]*[\\r\\n]+|[~]+(?![^~])|[~]+";
    case PreTokenizerKind::tekken:
      // A word ends before an upper-case letter; letters without case are on both sides.
      return "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
             "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
             "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
             "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
             " ?[^~\\p{L}\\p{N}]+[\\r\\n/]*|[~]*[\\r\\n]+|[~]+(?![^~])|[~]+";
  }
  return "";
}

std::string pcre2_text(int code) {
  unsigned char text[128];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;

}  // namespace

struct PreTokenizer::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

std::optional<PreTokenizerKind> pre_tokenizer_kind(std::string_view name) {
  for (const Name& known : kNames)
    if (name == known.text) return known.kind;
  return std::nullopt;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const Name& known : kNames) names += (names.empty() ? "" : ", ") + std::string(known.text);
  return names;
}

Result<PreTokenizer> PreTokenizer::make(PreTokenizerKind kind, bool with_jit) {
  std::string pattern;
  for (const char c : std::string_view(pattern_of(kind))) {
    if (c == '~')
      pattern += kSpaces;
    else
      pattern += c;
  }
  int error = 0;
  PCRE2_SIZE at = 0;
  const auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
  if (code->code == nullptr)
    return Failure{ErrorCode::internal,
                   format_text("pre-tokenizer: PCRE2 at {}: {}", at, pcre2_text(error))};
  // Fails where the system allows no JIT; the interpreter finds the same matches.
  if (with_jit) static_cast<void>(pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE));
  return PreTokenizer(code);
}

Status PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchData match(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  if (match == nullptr || context == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   "pre-tokenizer: no memory for PCRE2's match data; free memory"};
  const std::size_t steps = 1000 + 8 * text.size();
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min<std::size_t>(
                                           steps, std::numeric_limits<std::uint32_t>::max())));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    // The caller has validated the UTF-8; PCRE2 would validate the rest of the text at each piece.
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | options,
                         match.get(), context.get());
    };
    int found = run(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
    if (found < 0)
      return Failure{ErrorCode::internal,
                     format_text("pre-tokenizer: PCRE2 at byte {}: {}", at, pcre2_text(found))};
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return std::nullopt;
}

}  // namespace headrace::text
