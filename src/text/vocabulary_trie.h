// The texts of a vocabulary's tokens as a trie, in the order of a depth-first walk: a node is
// followed by its descendants, so a walk that skips a subtree jumps to its end.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace headrace::text {

class VocabularyTrie {
 public:
  using NodeId = std::uint32_t;
  struct Node {
    NodeId end;                 // past its last descendant
    std::uint32_t first_token;  // in tokens(); its own tokens end where those of the next begin
    std::uint8_t byte;          // that leads to it
    std::uint8_t depth;         // of the root: 0
  };
  static constexpr std::size_t kMaxDepth = 255;  // a longer token is left out

  // Tokens that are text: without control tokens, tokens that end generation and empty ones.
  explicit VocabularyTrie(const Tokenizer& tokenizer);

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const TokenId> tokens(NodeId node) const {
    return std::span(tokens_).subspan(nodes_[node].first_token,
                                      nodes_[node + 1].first_token - nodes_[node].first_token);
  }
  // The first token of a node and its descendants.
  TokenId first_token(NodeId node) const { return tokens_[nodes_[node].first_token]; }
  // The text of a token; empty: it is not in the trie.
  std::string_view bytes_of(TokenId token) const {
    const auto i = static_cast<std::size_t>(token);
    return std::string_view(bytes_).substr(begins_[i], begins_[i + 1] - begins_[i]);
  }
  TokenId vocab_size() const { return static_cast<TokenId>(begins_.size()) - 1; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  const std::bitset<256>& alphabet() const { return alphabet_; }  // bytes of the tokens

 private:
  std::vector<Node> nodes_;  // and one that marks the end
  std::vector<TokenId> tokens_;
  std::string bytes_;
  std::vector<std::size_t> begins_;
  std::vector<TokenId> end_tokens_;
  std::bitset<256> alphabet_;
};

}  // namespace headrace::text
