// Builds a Tokenizer from a model file's metadata, which is not trusted.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

namespace headrace::text {
namespace {

constexpr std::size_t kMaxTokens = std::size_t{1} << 21, kMaxMerges = std::size_t{1} << 22;
// Of a special token and of a SentencePiece piece, whose merges take time with the square of it.
constexpr std::size_t kMaxTokenBytes = 1024;

// Control tokens that end a turn of known models, even if the file does not say so.
constexpr const char* kEndTexts[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",   "<|end|>",
                                     "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"};

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(const ModelFile& file) : file_(file) {}

  Result<Tokenizer> read() {
    if (Status failed = read_kind()) return *std::move(failed);
    if (Status failed = find_lists()) return *std::move(failed);
    std::optional<PreTokenizer> pre_tokenizer;
    if (kind_) {
      Result<PreTokenizer> compiled = PreTokenizer::make(*kind_);
      if (!compiled.ok()) return std::move(compiled.failure());
      pre_tokenizer = std::move(compiled.value());
    }
    Tokenizer made(std::move(pre_tokenizer), texts_->size());
    made.ignore_merges_ = kind_ == PreTokenizerKind::llama3 || kind_ == PreTokenizerKind::tekken;
    made.adds_space_prefix_ = adds_space_prefix_;
    if (Status failed = read_tokens(made)) return *std::move(failed);
    if (Status failed = kind_ ? read_merges(made) : read_scores(made)) return *std::move(failed);
    if (Status failed = read_named(made)) return *std::move(failed);
    if (Status failed = kind_ ? std::nullopt : check_fallback(made)) return *std::move(failed);
    return made;
  }

 private:
  template <class... Args>
  Failure wrong(std::string_view pattern, const Args&... args) const {
    return file_.wrong(format_text(pattern, args...));
  }

  Failure refuse(std::string_view text) const {
    return file_.failure(ErrorCode::unsupported, text);
  }

  Status read_kind() {
    Result<std::string> model = file_.text("tokenizer.ggml.model");
    if (!model.ok()) return std::move(model.failure());
    const bool is_gpt2 = model.value() == "gpt2";
    if (!is_gpt2 && model.value() != "llama")
      return refuse(
          format_text("tokenizer.ggml.model is '{}', supported: gpt2 (byte-level BPE), llama "
                      "(SentencePiece's BPE); use another model",
                      model.value()));
    Result<bool> prefix = file_.flag_or("tokenizer.ggml.add_space_prefix", !is_gpt2);
    if (!prefix.ok()) return std::move(prefix.failure());
    adds_space_prefix_ = prefix.value();
    if (is_gpt2) return read_pre_tokenizer();
    Result<bool> removes = file_.flag_or("tokenizer.ggml.remove_extra_whitespaces", false);
    if (!removes.ok()) return std::move(removes.failure());
    if (removes.value())
      return refuse(
          "tokenizer.ggml.remove_extra_whitespaces is true, supported: false; use another model");
    return std::nullopt;
  }

  Status read_pre_tokenizer() {
    if (adds_space_prefix_)
      return refuse(
          "tokenizer.ggml.add_space_prefix is true, supported with gpt2: false; use another model");
    Result<std::string> name = file_.text_or("tokenizer.ggml.pre", "");
    if (!name.ok()) return std::move(name.failure());
    kind_ = pre_tokenizer_kind(name.value());
    if (!kind_)
      return refuse(format_text(
          "tokenizer.ggml.pre (the pre-tokenizer) is '{}', supported: {}; convert the model "
          "again if the name is missing or 'default', else use another model",
          name.value(), pre_tokenizer_names()));
    return std::nullopt;
  }

  Status find_lists() {
    Result<const std::vector<std::string>*> texts = file_.texts("tokenizer.ggml.tokens");
    if (!texts.ok()) return std::move(texts.failure());
    texts_ = texts.value();
    if (texts_->empty() || texts_->size() > kMaxTokens)
      return wrong("tokenizer.ggml.tokens has {} tokens, expected 1 to {}", texts_->size(),
                   kMaxTokens);
    if (kind_ && !file_.metadata.contains("tokenizer.ggml.token_type")) return std::nullopt;
    Result<const std::vector<std::int64_t>*> types = file_.integers("tokenizer.ggml.token_type");
    if (!types.ok()) return std::move(types.failure());
    types_ = types.value();
    if (types_->size() != texts_->size())
      return wrong("tokenizer.ggml.token_type has {} elements, expected {}, one per token",
                   types_->size(), texts_->size());
    return std::nullopt;
  }

  // Normal tokens are stored as bytes, the others as the text in the file.
  Status read_tokens(Tokenizer& made) const {
    made.ends_.reserve(texts_->size());
    made.kinds_.reserve(texts_->size());
    for (std::size_t i = 0; i < texts_->size(); ++i) {
      const std::int64_t type = types_ == nullptr ? 1 : (*types_)[i];
      if (type < 1 || type > (kind_ ? 5 : 6))
        return wrong("tokenizer.ggml.token_type[{}] is {}, expected {}", i, type,
                     kind_ ? "1 to 5 (6, a byte token, exists in other kinds of tokenizers only)"
                           : "1 to 6");
      if (Status failed = read_token(made, static_cast<TokenId>(i), static_cast<TokenKind>(type)))
        return failed;
    }
    made.user_defined_.sort();
    if (const TokenId id = made.all_special_.sort(); id >= 0) return twice(id);
    for (std::size_t i = 0; i < texts_->size(); ++i) {
      if (made.kinds_[i] == TokenKind::normal || made.kinds_[i] == TokenKind::unused) continue;
      const std::optional<std::string> bytes = bytes_of_text((*texts_)[i]);
      const TokenId same = bytes ? made.normal_.find(*bytes, made.text_of()) : -1;
      if (same >= 0 && (*texts_)[static_cast<std::size_t>(same)] == (*texts_)[i])
        return twice(static_cast<TokenId>(i));
    }
    for (int byte = 0; kind_ && byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      made.byte_tokens_[static_cast<std::size_t>(byte)] =
          made.normal_.find({&text, 1}, made.text_of());
    }
    return std::nullopt;
  }

  Status read_token(Tokenizer& made, TokenId id, TokenKind kind) const {
    const std::string& text = (*texts_)[static_cast<std::size_t>(id)];
    if (text.empty() && kind != TokenKind::unused)
      return wrong("tokenizer.ggml.tokens[{}] is empty, which only an unused token may be", id);
    if (kind == TokenKind::byte) return read_byte(made, text, id);
    return kind == TokenKind::normal ? read_normal(made, text, id)
                                     : read_special(made, text, id, kind);
  }

  // The bytes of a normal token; empty if the file's text for them is invalid.
  std::optional<std::string> bytes_of_text(const std::string& text) const {
    return kind_ ? bytes_from_byte_level(text) : text_from_piece(text);
  }

  Status read_byte(Tokenizer& made, const std::string& text, TokenId id) const {
    const std::optional<unsigned char> byte = byte_from_piece(text);
    if (!byte)
      return wrong("tokenizer.ggml.tokens[{}] is a byte token, expected <0x00> to <0xFF>", id);
    if (made.byte_tokens_[*byte] >= 0) return twice(id);
    made.byte_tokens_[*byte] = id;
    const char value = static_cast<char>(*byte);
    append(made, {&value, 1}, TokenKind::byte);
    return std::nullopt;
  }

  Status read_normal(Tokenizer& made, const std::string& text, TokenId id) const {
    const std::optional<std::string> bytes = bytes_of_text(text);
    if (!bytes)
      return wrong("tokenizer.ggml.tokens[{}] is a normal token {}", id,
                   kind_ ? "with a character outside the byte-level alphabet"
                         : "with invalid UTF-8, expected characters");
    if (!kind_ && text.size() > kMaxTokenBytes)
      return wrong("tokenizer.ggml.tokens[{}] is a piece of {} bytes, expected at most {}", id,
                   text.size(), kMaxTokenBytes);
    append(made, *bytes, TokenKind::normal);
    switch (made.normal_.insert(*bytes, id, made.text_of())) {
      case Inserted::yes:
        return std::nullopt;
      case Inserted::exists:
        return twice(id);
      case Inserted::collides:
        break;
    }
    return collides("tokens", static_cast<std::size_t>(id));
  }

  Failure collides(const char* list, std::size_t i) const {
    return wrong(
        "tokenizer.ggml.{}[{}] collides with hundreds of hashes: the file was crafted to slow down "
        "lookups",
        list, i);
  }

  static void append(Tokenizer& made, std::string_view bytes, TokenKind kind) {
    made.bytes_ += bytes;
    made.ends_.push_back(made.bytes_.size());
    made.kinds_.push_back(kind);
  }

  Failure twice(TokenId id) const {
    return wrong("tokenizer.ggml.tokens[{}] appears twice in the list", id);
  }

  Status read_special(Tokenizer& made, const std::string& text, TokenId id, TokenKind kind) const {
    append(made, text, kind);
    if (kind == TokenKind::unused) return std::nullopt;
    if (text.size() > kMaxTokenBytes)
      return wrong(
          "tokenizer.ggml.tokens[{}] is a control or user-defined token of {} bytes, expected at "
          "most {}",
          id, text.size(), kMaxTokenBytes);
    if (kind == TokenKind::user_defined) made.user_defined_.add(text, id);
    made.all_special_.add(text, id);
    return std::nullopt;
  }

  Status read_merges(Tokenizer& made) const {
    Result<const std::vector<std::string>*> found = file_.texts("tokenizer.ggml.merges");
    if (!found.ok()) return std::move(found.failure());
    const std::vector<std::string>& merges = *found.value();
    if (merges.size() > kMaxMerges)
      return wrong("tokenizer.ggml.merges has {} merges, expected at most {}", merges.size(),
                   kMaxMerges);
    made.merges_ = MergeIndex(merges.size());
    std::string both;
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const std::string& merge = merges[i];
      const std::size_t space = merge.find(' ');
      if (space == std::string::npos)
        return wrong("tokenizer.ggml.merges[{}] has no space between two tokens", i);
      const auto left = bytes_from_byte_level(std::string_view(merge).substr(0, space));
      const auto right = bytes_from_byte_level(std::string_view(merge).substr(space + 1));
      if (!left || !right)
        return wrong("tokenizer.ggml.merges[{}] has a character outside the byte-level alphabet",
                     i);
      both.assign(*left).append(*right);
      const auto id = [&](std::string_view bytes) {
        return made.normal_.find(bytes, made.text_of());
      };
      const Merge entry{id(*left), id(*right), static_cast<std::int32_t>(i), id(both)};
      if (entry.left < 0 || entry.right < 0 || entry.result < 0)
        return wrong("tokenizer.ggml.merges[{}]: its {} is not a normal token", i,
                     entry.left < 0    ? "left side"
                     : entry.right < 0 ? "right side"
                                       : "result");
      const Inserted inserted = made.merges_.insert(entry);
      if (inserted == Inserted::exists)
        return wrong("tokenizer.ggml.merges[{}] appears twice in the list", i);
      if (inserted == Inserted::collides) return collides("merges", i);
    }
    return std::nullopt;
  }

  // SentencePiece: two tokens merge if their joined text is a token. The highest score comes first,
  // among equal scores the leftmost pair: these share a rank.
  Status read_scores(Tokenizer& made) const {
    Result<const std::vector<double>*> found = file_.numbers("tokenizer.ggml.scores");
    if (!found.ok()) return std::move(found.failure());
    const std::vector<double>& scores = *found.value();
    if (scores.size() != texts_->size())
      return wrong("tokenizer.ggml.scores has {} elements, expected {}, one per token",
                   scores.size(), texts_->size());
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (std::isnan(scores[i]))
        return wrong("tokenizer.ggml.scores[{}] is nan, expected a number", i);
    std::vector<double> ranks = scores;
    std::sort(ranks.begin(), ranks.end(), std::greater());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::vector<Merge> merges;
    made.splits_at_spaces_ = made.token_of(" ") >= 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (made.kinds_[i] != TokenKind::normal) continue;
      const auto rank = std::lower_bound(ranks.begin(), ranks.end(), scores[i], std::greater());
      add_splits(made,
                 {-1, -1, static_cast<std::int32_t>(rank - ranks.begin()), static_cast<TokenId>(i)},
                 merges);
      if (merges.size() > kMaxMerges)
        return wrong("tokenizer.ggml.tokens has more than {} pairs that join to a token",
                     kMaxMerges);
    }
    made.merges_ = MergeIndex(merges.size());
    for (const Merge& merge : merges)
      if (made.merges_.insert(merge) == Inserted::collides)
        return collides("tokens", static_cast<std::size_t>(merge.result));
    return std::nullopt;
  }

  // Appends `merge` with each pair of tokens that joins to its result.
  static void add_splits(Tokenizer& made, Merge merge, std::vector<Merge>& merges) {
    const std::string_view text = made.bytes_of(merge.result);
    for (std::size_t at = utf8_first_char(text); at < text.size();
         at += utf8_first_char(text.substr(at))) {
      if (text[at] == ' ' && text[at - 1] != ' ') made.splits_at_spaces_ = false;
      merge.left = made.normal_.find(text.substr(0, at), made.text_of());
      if (merge.left < 0) continue;
      merge.right = made.normal_.find(text.substr(at), made.text_of());
      if (merge.right >= 0) merges.push_back(merge);
    }
  }

  // Every character needs a token.
  Status check_fallback(Tokenizer& made) const {
    const auto num_bytes = std::count(made.kinds_.begin(), made.kinds_.end(), TokenKind::byte);
    if (num_bytes != 0 && num_bytes != 256)
      return wrong("tokenizer.ggml.tokens has {} byte tokens, expected 256 or none", num_bytes);
    const char* missing = made.unknown_ < 0        ? "an unknown token"
                          : made.token_of(" ") < 0 ? "a space (U+2581)"
                                                   : nullptr;
    if (num_bytes == 0 && missing != nullptr)
      return wrong("tokenizer.ggml.tokens has neither byte tokens nor {}, expected one of them",
                   missing);
    return std::nullopt;
  }

  Status read_id(const char* key, const Tokenizer& made, std::optional<TokenId>& id) const {
    if (!file_.metadata.contains(key)) return std::nullopt;
    Result<std::int64_t> value = file_.integer(key, 0, made.vocab_size() - 1);
    if (!value.ok()) return std::move(value.failure());
    id = static_cast<TokenId>(value.value());
    return std::nullopt;
  }

  Status read_flag(const char* key, bool fallback, std::optional<TokenId> token, const char* id_key,
                   bool& flag) const {
    Result<bool> value = file_.flag_or(key, fallback);
    if (!value.ok()) return std::move(value.failure());
    flag = value.value();
    if (flag && !token) return wrong("'{}' is true, but '{}' is missing", key, id_key);
    return std::nullopt;
  }

  Status read_named(Tokenizer& made) const {
    constexpr const char *kBos = "tokenizer.ggml.bos_token_id",
                         *kEos = "tokenizer.ggml.eos_token_id";
    std::optional<TokenId> end_of_turn, end_of_message, unknown, padding;
    if (Status failed = read_id(kBos, made, made.bos_)) return failed;
    if (Status failed = read_id(kEos, made, made.eos_)) return failed;
    if (Status failed = read_id("tokenizer.ggml.eot_token_id", made, end_of_turn)) return failed;
    if (Status failed = read_id("tokenizer.ggml.eom_token_id", made, end_of_message)) return failed;
    if (Status failed = read_id("tokenizer.ggml.unknown_token_id", made, unknown)) return failed;
    if (Status failed = read_id("tokenizer.ggml.padding_token_id", made, padding)) return failed;
    const auto by_kind = std::ranges::find(made.kinds_, TokenKind::unknown);
    if (!unknown && by_kind != made.kinds_.end())
      unknown = static_cast<TokenId>(by_kind - made.kinds_.begin());
    made.unknown_ = unknown.value_or(-1);
    // Files may lack the flag although the model needs its bos.
    const bool needs_bos = !kind_ || made.ignore_merges_;
    if (Status failed =
            read_flag("tokenizer.ggml.add_bos_token", needs_bos && made.bos_.has_value(), made.bos_,
                      kBos, made.adds_bos_))
      return failed;
    if (Status failed =
            read_flag("tokenizer.ggml.add_eos_token", false, made.eos_, kEos, made.adds_eos_))
      return failed;
    for (const std::optional<TokenId>& id : {made.eos_, end_of_turn, end_of_message})
      if (id) made.end_tokens_.push_back(*id);
    for (const char* text : kEndTexts) {
      const TokenId id = made.all_special_.find(text);
      if (id >= 0 && made.kind_of(id) == TokenKind::control) made.end_tokens_.push_back(id);
    }
    std::sort(made.end_tokens_.begin(), made.end_tokens_.end());
    made.end_tokens_.erase(std::unique(made.end_tokens_.begin(), made.end_tokens_.end()),
                           made.end_tokens_.end());
    return std::nullopt;
  }

  const ModelFile& file_;
  const std::vector<std::string>* texts_ = nullptr;
  const std::vector<std::int64_t>* types_ = nullptr;
  std::optional<PreTokenizerKind> kind_;  // empty: SentencePiece
  bool adds_space_prefix_ = false;
};

Result<Tokenizer> Tokenizer::make(const ModelFile& file) { return TokenizerReader(file).read(); }

}  // namespace headrace::text
