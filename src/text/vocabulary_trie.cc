#include "text/vocabulary_trie.h"

#include <algorithm>

namespace headrace::text {

VocabularyTrie::VocabularyTrie(const Tokenizer& tokenizer) : end_tokens_(tokenizer.end_tokens()) {
  begins_.push_back(0);
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    const TokenKind kind = tokenizer.kind_of(token);
    const std::string_view text = tokenizer.bytes_of(token);
    const bool is_text = !tokenizer.is_hidden(token) && kind != TokenKind::unused &&
                         text.size() <= kMaxDepth &&
                         !std::ranges::binary_search(end_tokens_, token);
    if (is_text) bytes_ += text;
    if (is_text && !text.empty()) tokens_.push_back(token);
    begins_.push_back(bytes_.size());
  }
  for (const char byte : bytes_) alphabet_.set(static_cast<unsigned char>(byte));
  std::ranges::sort(tokens_, [this](TokenId a, TokenId b) {
    const int order = bytes_of(a).compare(bytes_of(b));
    return order < 0 || (order == 0 && a < b);
  });

  std::vector<NodeId> path = {0};  // of the last token
  nodes_.push_back({0, 0, 0, 0});
  const auto close_to = [&](std::size_t depth) {
    for (; path.size() > depth + 1; path.pop_back())
      nodes_[path.back()].end = static_cast<NodeId>(nodes_.size());
  };
  std::string_view last;
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = bytes_of(tokens_[i]);
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(text, last).in1 - text.begin());
    close_to(common);
    for (std::size_t depth = common; depth < text.size(); ++depth) {
      path.push_back(static_cast<NodeId>(nodes_.size()));
      nodes_.push_back(
          {0, i, static_cast<std::uint8_t>(text[depth]), static_cast<std::uint8_t>(depth + 1)});
    }
    last = text;
  }
  close_to(0);
  nodes_.front().end = static_cast<NodeId>(nodes_.size());
  nodes_.push_back({0, static_cast<std::uint32_t>(tokens_.size()), 0, 0});
}

}  // namespace headrace::text
