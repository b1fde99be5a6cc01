// Structured output: which tokens of a vocabulary may follow a text, so that the whole matches a
// grammar.
//
// The mask of a text's configurations is the union over them. What a node of the automaton allows
// without returning from its rule does not depend on the stack: it is computed once per node, by a
// walk of the vocabulary's trie, with the places in the trie where the rule may end. Only the
// subtrees below these places are walked for each stack. Nodes that differ only after many bytes,
// such as positions in a string of bounded length, share that walk; longer tokens are walked for
// each. The masks of recent sets of configurations
// are kept too: a text in a JSON string has the same one from token to token.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/configurations.h"
#include "text/vocabulary_trie.h"

namespace headrace::text {

inline constexpr std::size_t kMaxGrammarBytes = 1 << 20;

// Compiled for a vocabulary. Any number of threads and matchers may share it.
class Grammar {
 public:
  using Vocabulary = std::shared_ptr<const VocabularyTrie>;

  // invalid_argument: line and column or the place in the schema, the rule, the remedy.
  // unsupported: a keyword or a construct, by its name.
  static Result<std::shared_ptr<Grammar>> from_regex(std::string_view regex, Vocabulary vocabulary);
  static Result<std::shared_ptr<Grammar>> from_json_schema(std::string_view schema,
                                                           Vocabulary vocabulary);
  static Result<std::shared_ptr<Grammar>> from_gbnf(std::string_view gbnf, Vocabulary vocabulary);

  static Result<std::shared_ptr<Grammar>> make(const Nfa& nfa, Vocabulary vocabulary);
  const VocabularyTrie& vocabulary() const { return *vocabulary_; }
  std::size_t num_nodes() const { return automaton_.num_nodes(); }

 private:
  friend class Matcher;
  using SetId = Configurations::SetId;

  // Of a class of nodes with an empty stack: tokens of up to Automaton::kClassBytes bytes.
  struct NodeMask {
    std::vector<std::uint64_t> words;           // bits of the tokens; or empty, with few tokens:
    std::vector<TokenId> tokens;                // their ids
    std::vector<VocabularyTrie::NodeId> exits;  // inner nodes of the trie where the rule may end
    std::vector<VocabularyTrie::NodeId> deep;   // inner nodes after kClassBytes bytes
  };

  Grammar(Automaton automaton, Vocabulary vocabulary);
  // What follows needs the lock.
  void start_anew_if_large();
  Result<const NodeMask*> node_mask(NodeId node);
  // Longer tokens of a node, and their exits.
  Status add_deep(NodeId node, const NodeMask& mask, std::span<std::uint64_t> words,
                  std::vector<VocabularyTrie::NodeId>& exits);
  Status add_member(Configurations::Configuration member, std::span<std::uint64_t> words);
  Status fill_mask(SetId set, std::span<std::uint64_t> words);
  // Calls visit(trie node, set) for the descendants of `root` that match, `set` being that of
  // `root`.
  // `max_depth`: of the trie's nodes that are visited.
  template <class Visit>
  Status walk(VocabularyTrie::NodeId root, SetId set, Visit visit,
              std::size_t max_depth = VocabularyTrie::kMaxDepth);

  Automaton automaton_;
  Vocabulary vocabulary_;

  std::mutex mutex_;
  std::unique_ptr<Configurations> configurations_;
  std::uint64_t generation_ = 0;                            // of configurations_
  std::unordered_map<std::uint64_t, NodeMask> node_masks_;  // by class
  std::size_t node_mask_bytes_ = 0;
  std::unordered_map<SetId, std::vector<std::uint64_t>> set_masks_;
};

// A grammar that a generation may have; null: none. invalid_argument: it was compiled for another
// vocabulary; ignore_end.
Status check_grammar(const Grammar* grammar, const Tokenizer& tokenizer, bool ignore_end);

// The place of one text in a grammar. A copy continues on its own. One thread at a time.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Grammar> grammar);

  // Sets `mask` to a bit per token: those that may follow, and end tokens where the text may end.
  // invalid_argument: the grammar is too ambiguous, or no token of the vocabulary may follow.
  Status allowed(std::vector<std::uint64_t>& mask);
  // Appends a token, which is no end token, or bytes. invalid_argument: it may not follow; the
  // matcher is unchanged.
  Status accept(TokenId token);
  Status accept(std::string_view bytes);
  bool can_end() const { return can_end_; }
  // The text can end and nothing can follow.
  bool is_finished() const { return can_end_ && !can_continue_; }

 private:
  // The set of configurations; needs the grammar's lock.
  Result<Configurations::SetId> current();
  void store(Configurations::SetId set);

  std::shared_ptr<Grammar> grammar_;
  Configurations::SetId set_ = Configurations::kNone;
  std::uint64_t generation_ = 0;
  bool can_end_ = false, can_continue_ = false;
  // The members of the set, independent of a generation: node, depth, return nodes from the top.
  std::vector<std::uint32_t> members_;
};

}  // namespace headrace::text
