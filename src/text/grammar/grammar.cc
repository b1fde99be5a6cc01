#include "text/grammar/grammar.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"

namespace headrace::text {
namespace {

constexpr std::size_t kMaxNodeMaskBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxSetMaskBytes = std::size_t{16} << 20;

void set_bit(std::span<std::uint64_t> words, TokenId token) {
  const auto i = static_cast<std::size_t>(token);
  words[i / 64] |= std::uint64_t{1} << i % 64;
}

std::size_t num_words(const VocabularyTrie& vocabulary) {
  return (static_cast<std::size_t>(vocabulary.vocab_size()) + 63) / 64;
}

Failure too_large() {
  return invalid_argument(
      "grammar: the text has more than {} ways to match, or is nested more than {} levels deep; "
      "make alternatives differ in their first characters, or limit the nesting",
      Configurations::kMaxPerSet, Configurations::kMaxDepth);
}

Status check_size(std::string_view text) {
  if (text.size() <= kMaxGrammarBytes) return std::nullopt;
  return invalid_argument("grammar: {} bytes; must be at most {}; pass a smaller grammar",
                          text.size(), kMaxGrammarBytes);
}

}  // namespace

Result<std::shared_ptr<Grammar>> Grammar::from_regex(std::string_view regex,
                                                     Vocabulary vocabulary) {
  if (Status bad = check_size(regex)) return std::move(*bad);
  Result<Expression> parsed = parse_regex(regex);
  if (!parsed.ok()) return std::move(parsed.failure());
  Nfa nfa;
  const RuleId root = nfa.add_rule("regex");
  build(nfa, nfa.start(root), nfa.end(root), parsed.value());
  return make(nfa, std::move(vocabulary));
}

Result<std::shared_ptr<Grammar>> Grammar::from_gbnf(std::string_view gbnf, Vocabulary vocabulary) {
  if (Status bad = check_size(gbnf)) return std::move(*bad);
  Result<Nfa> nfa = parse_gbnf(gbnf);
  if (!nfa.ok()) return std::move(nfa.failure());
  return make(nfa.value(), std::move(vocabulary));
}

Result<std::shared_ptr<Grammar>> Grammar::from_json_schema(std::string_view schema,
                                                           Vocabulary vocabulary) {
  if (Status bad = check_size(schema)) return std::move(*bad);
  Result<Nfa> nfa = parse_json_schema(schema);
  if (!nfa.ok()) return std::move(nfa.failure());
  return make(nfa.value(), std::move(vocabulary));
}

Result<std::shared_ptr<Grammar>> Grammar::make(const Nfa& nfa, Vocabulary vocabulary) {
  Result<Automaton> automaton = Automaton::make(nfa, vocabulary->alphabet());
  if (!automaton.ok()) return std::move(automaton.failure());
  return std::shared_ptr<Grammar>(new Grammar(std::move(automaton.value()), std::move(vocabulary)));
}

Grammar::Grammar(Automaton automaton, Vocabulary vocabulary)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      configurations_(std::make_unique<Configurations>(automaton_)) {}

Status check_grammar(const Grammar* grammar, const Tokenizer& tokenizer, bool ignore_end) {
  if (grammar == nullptr) return std::nullopt;
  if (grammar->vocabulary().vocab_size() != tokenizer.vocab_size())
    return invalid_argument(
        "grammar: compiled for a vocabulary of {} tokens, the model has {}; compile it with this "
        "model",
        grammar->vocabulary().vocab_size(), tokenizer.vocab_size());
  if (ignore_end)
    return invalid_argument(
        "ignore_end=1: a text that matches a grammar ends with it; pass ignore_end=0 or no "
        "grammar");
  return std::nullopt;
}

// ---- masks ----

void Grammar::start_anew_if_large() {
  if (!configurations_->is_large()) return;
  configurations_ = std::make_unique<Configurations>(automaton_);
  set_masks_.clear();
  ++generation_;
}

template <class Visit>
Status Grammar::walk(VocabularyTrie::NodeId root, SetId set, Visit visit, std::size_t max_depth) {
  const std::span<const VocabularyTrie::Node> nodes = vocabulary_->nodes();
  std::array<SetId, VocabularyTrie::kMaxDepth + 1> path;  // by depth
  path[nodes[root].depth] = set;
  for (VocabularyTrie::NodeId i = root + 1; i < nodes[root].end;) {
    const VocabularyTrie::Node& node = nodes[i];
    const SetId next = configurations_->next(path[node.depth - std::size_t{1}], node.byte);
    if (next == Configurations::kTooLarge) return too_large();
    if (next == Configurations::kNone) {
      i = node.end;
      continue;
    }
    path[node.depth] = next;
    visit(i, next);
    i = node.depth == max_depth ? node.end : i + 1;
  }
  return std::nullopt;
}

Result<const Grammar::NodeMask*> Grammar::node_mask(NodeId node) {
  const std::uint64_t key = automaton_.class_of(node);
  if (const auto known = node_masks_.find(key); known != node_masks_.end()) return &known->second;
  const SetId start = configurations_->intern({{node, Configurations::kBottom}});
  if (start < 0) return too_large();
  const std::span<const VocabularyTrie::Node> trie = vocabulary_->nodes();
  NodeMask mask;
  const auto visit = [&](VocabularyTrie::NodeId i, SetId set) {
    const std::span<const TokenId> tokens = vocabulary_->tokens(i);
    mask.tokens.insert(mask.tokens.end(), tokens.begin(), tokens.end());
    if (trie[i].end == i + 1) return;
    if (configurations_->can_end(set)) mask.exits.push_back(i);
    if (trie[i].depth == Automaton::kClassBytes) mask.deep.push_back(i);
  };
  if (configurations_->can_end(start)) mask.exits.push_back(0);
  if (Status bad = walk(0, start, visit, Automaton::kClassBytes)) return std::move(*bad);
  if (mask.tokens.size() * sizeof(TokenId) > num_words(*vocabulary_) * sizeof(std::uint64_t)) {
    mask.words.resize(num_words(*vocabulary_));
    for (const TokenId token : mask.tokens) set_bit(mask.words, token);
    mask.tokens.clear();
  }
  mask.tokens.shrink_to_fit();
  node_mask_bytes_ +=
      mask.words.size() * sizeof(std::uint64_t) + mask.tokens.size() * sizeof(TokenId) +
      (mask.exits.size() + mask.deep.size()) * sizeof(VocabularyTrie::NodeId) + sizeof mask;
  if (node_mask_bytes_ > kMaxNodeMaskBytes) {
    node_masks_.clear();
    node_mask_bytes_ = 0;
  }
  return &node_masks_.emplace(key, std::move(mask)).first->second;
}

Status Grammar::add_deep(NodeId node, const NodeMask& mask, std::span<std::uint64_t> words,
                         std::vector<VocabularyTrie::NodeId>& exits) {
  const std::span<const VocabularyTrie::Node> trie = vocabulary_->nodes();
  const SetId start = configurations_->intern({{node, Configurations::kBottom}});
  if (start < 0) return too_large();
  for (const VocabularyTrie::NodeId deep : mask.deep) {
    // A token below the place has its bytes.
    const TokenId below = vocabulary_->first_token(deep);
    SetId set = start;
    for (const char byte : vocabulary_->bytes_of(below).substr(0, Automaton::kClassBytes)) {
      set = configurations_->next(set, static_cast<std::uint8_t>(byte));
      if (set < 0) return too_large();
    }
    HEADRACE_TRY(walk(deep, set, [&](VocabularyTrie::NodeId i, SetId reached) {
      for (const TokenId token : vocabulary_->tokens(i)) set_bit(words, token);
      if (configurations_->can_end(reached) && trie[i].end > i + 1) exits.push_back(i);
    }));
  }
  return std::nullopt;
}

Status Grammar::add_member(Configurations::Configuration member, std::span<std::uint64_t> words) {
  for (;;) {
    Result<const NodeMask*> found = node_mask(member.node);
    if (!found.ok()) return std::move(found.failure());
    const NodeMask& mask = *found.value();
    for (std::size_t i = 0; i < mask.words.size(); ++i) words[i] |= mask.words[i];
    for (const TokenId token : mask.tokens) set_bit(words, token);
    std::vector<VocabularyTrie::NodeId> exits = mask.exits;
    HEADRACE_TRY(add_deep(member.node, mask, words, exits));
    if (exits.empty() || member.stack == Configurations::kBottom) return std::nullopt;
    member = {configurations_->top(member.stack), configurations_->below(member.stack)};
    const SetId after = configurations_->intern({member});
    if (after < 0) return too_large();
    bool is_at_root = false;
    for (const VocabularyTrie::NodeId exit : exits) {
      if (exit == 0)
        is_at_root = true;
      else
        HEADRACE_TRY(walk(exit, after, [&](VocabularyTrie::NodeId i, SetId) {
          for (const TokenId token : vocabulary_->tokens(i)) set_bit(words, token);
        }));
    }
    // Tokens after a return before any byte are those of the node that is returned to.
    if (!is_at_root) return std::nullopt;
  }
}

Status Grammar::fill_mask(SetId set, std::span<std::uint64_t> words) {
  if (const auto known = set_masks_.find(set); known != set_masks_.end()) {
    std::ranges::copy(known->second, words.begin());
    return std::nullopt;
  }
  std::ranges::fill(words, 0);
  const std::vector<Configurations::Configuration> members = configurations_->members(set);
  for (const Configurations::Configuration& member : members)
    HEADRACE_TRY(add_member(member, words));
  if (configurations_->can_end(set))
    for (const TokenId token : vocabulary_->end_tokens()) set_bit(words, token);
  if ((set_masks_.size() + 1) * words.size_bytes() > kMaxSetMaskBytes) set_masks_.clear();
  set_masks_.emplace(set, std::vector<std::uint64_t>(words.begin(), words.end()));
  return std::nullopt;
}

// ---- matchers ----

Matcher::Matcher(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->mutex_);
  members_ = {grammar_->automaton_.root(), 0};
  generation_ = grammar_->generation_ - 1;  // so that current() makes the set
  if (const Result<Configurations::SetId> set = current(); set.ok()) store(set.value());
}

Result<Configurations::SetId> Matcher::current() {
  grammar_->start_anew_if_large();
  if (generation_ == grammar_->generation_) return set_;
  Configurations& configurations = *grammar_->configurations_;
  std::vector<Configurations::Configuration> set;
  for (std::size_t i = 0; i < members_.size(); i += members_[i + 1] + 2) {
    Configurations::StackId stack = Configurations::kBottom;
    for (std::size_t k = members_[i + 1]; k-- > 0;)
      stack = configurations.push(members_[i + 2 + k], stack);
    set.push_back({members_[i], stack});
  }
  const Configurations::SetId made = configurations.intern(std::move(set));
  if (made < 0) return too_large();
  set_ = made;
  generation_ = grammar_->generation_;
  return made;
}

void Matcher::store(Configurations::SetId set) {
  const Configurations& configurations = *grammar_->configurations_;
  set_ = set;
  can_end_ = configurations.can_end(set);
  can_continue_ = configurations.can_continue(set);
  members_.clear();
  for (const Configurations::Configuration& c : configurations.members(set)) {
    members_.push_back(c.node);
    const std::size_t depth = members_.size();
    members_.push_back(0);
    for (auto stack = c.stack; stack != Configurations::kBottom;
         stack = configurations.below(stack))
      members_.push_back(configurations.top(stack));
    members_[depth] = static_cast<std::uint32_t>(members_.size() - depth - 1);
  }
}

Status Matcher::allowed(std::vector<std::uint64_t>& mask) {
  const std::lock_guard lock(grammar_->mutex_);
  const Result<Configurations::SetId> set = current();
  if (!set.ok()) return set.failure();
  mask.resize(num_words(grammar_->vocabulary()));
  HEADRACE_TRY(grammar_->fill_mask(set.value(), mask));
  if (std::ranges::any_of(mask, [](std::uint64_t word) { return word != 0; })) return std::nullopt;
  return invalid_argument(
      "grammar: no token of the vocabulary can continue the text; make the grammar avoid "
      "characters "
      "that the model cannot write");
}

Status Matcher::accept(TokenId token) {
  const VocabularyTrie& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= vocabulary.vocab_size() || vocabulary.bytes_of(token).empty())
    return invalid_argument("grammar: token {} has no text; pass a token that the mask allows",
                            token);
  return accept(vocabulary.bytes_of(token));
}

Status Matcher::accept(std::string_view bytes) {
  const std::lock_guard lock(grammar_->mutex_);
  Result<Configurations::SetId> set = current();
  if (!set.ok()) return std::move(set.failure());
  Configurations::SetId next = set.value();
  for (const char byte : bytes) {
    next = grammar_->configurations_->next(next, static_cast<std::uint8_t>(byte));
    if (next == Configurations::kTooLarge) return too_large();
    if (next == Configurations::kNone)
      return invalid_argument(
          "grammar: the text does not match it; append a token that the mask allows");
  }
  store(next);
  return std::nullopt;
}

}  // namespace headrace::text
