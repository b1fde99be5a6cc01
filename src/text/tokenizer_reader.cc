// Builds a Tokenizer from a model file's metadata, which is not trusted.
#include <algorithm>
#include <utility>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace headrace::text {
namespace {

constexpr std::size_t kMaxTokens = std::size_t{1} << 21, kMaxMerges = std::size_t{1} << 22;
constexpr std::size_t kMaxSpecialBytes = 1024;

// Control tokens that end a turn of known models, even if the file does not say so.
constexpr const char* kEndTexts[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",   "<|end|>",
                                     "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"};

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(const ModelFile& file) : file_(file) {}

  Result<Tokenizer> read() {
    Result<PreTokenizerKind> kind = read_kind();
    if (!kind.ok()) return std::move(kind.failure());
    if (Status failed = find_lists()) return *std::move(failed);
    Result<PreTokenizer> pre_tokenizer = PreTokenizer::make(kind.value());
    if (!pre_tokenizer.ok()) return std::move(pre_tokenizer.failure());
    Tokenizer made(std::move(pre_tokenizer.value()), texts_->size(), merges_->size());
    made.ignore_merges_ = kind.value() == PreTokenizerKind::llama3;
    if (Status failed = read_tokens(made)) return *std::move(failed);
    if (Status failed = read_merges(made)) return *std::move(failed);
    if (Status failed = read_named(made, kind.value())) return *std::move(failed);
    return made;
  }

 private:
  template <class... Args>
  Failure wrong(std::string_view pattern, const Args&... args) const {
    return file_.wrong(format_text(pattern, args...));
  }

  Result<PreTokenizerKind> read_kind() const {
    const auto refuse = [&](std::string_view text) {
      return Failure{ErrorCode::unsupported, format_text("{}: {}", file_.path, text)};
    };
    Result<std::string> model = file_.text("tokenizer.ggml.model");
    if (!model.ok()) return std::move(model.failure());
    if (model.value() != "gpt2")
      return refuse(format_text(
          "tokenizer.ggml.model is '{}', supported: gpt2 (byte-level BPE); use another model",
          model.value()));
    Result<std::string> name = file_.text_or("tokenizer.ggml.pre", "");
    if (!name.ok()) return std::move(name.failure());
    const std::optional<PreTokenizerKind> kind = pre_tokenizer_kind(name.value());
    if (!kind)
      return refuse(format_text(
          "tokenizer.ggml.pre (the pre-tokenizer) is '{}', supported: {}; convert the model "
          "again if the name is missing or 'default', else use another model",
          name.value(), pre_tokenizer_names()));
    Result<bool> prefix = file_.flag_or("tokenizer.ggml.add_space_prefix", false);
    if (!prefix.ok()) return std::move(prefix.failure());
    if (prefix.value())
      return refuse(
          "tokenizer.ggml.add_space_prefix is true, supported with gpt2: false; use another model");
    return *kind;
  }

  Status find_lists() {
    Result<const std::vector<std::string>*> texts = file_.texts("tokenizer.ggml.tokens");
    if (!texts.ok()) return std::move(texts.failure());
    Result<const std::vector<std::string>*> merges = file_.texts("tokenizer.ggml.merges");
    if (!merges.ok()) return std::move(merges.failure());
    texts_ = texts.value();
    merges_ = merges.value();
    if (texts_->empty() || texts_->size() > kMaxTokens)
      return wrong("tokenizer.ggml.tokens has {} tokens, expected 1 to {}", texts_->size(),
                   kMaxTokens);
    if (merges_->size() > kMaxMerges)
      return wrong("tokenizer.ggml.merges has {} merges, expected at most {}", merges_->size(),
                   kMaxMerges);
    if (!file_.metadata.contains("tokenizer.ggml.token_type")) return std::nullopt;
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
      if (type < 1 || type > 5)
        return wrong(
            "tokenizer.ggml.token_type[{}] is {}, expected 1 to 5 (6, a byte token, exists in "
            "other kinds of tokenizers only)",
            i, type);
      if (Status failed = read_token(made, static_cast<TokenId>(i), static_cast<TokenKind>(type)))
        return failed;
    }
    made.user_defined_.sort();
    if (const TokenId id = made.all_special_.sort(); id >= 0) return twice(id);
    for (std::size_t i = 0; i < texts_->size(); ++i) {
      if (made.kinds_[i] == TokenKind::normal || made.kinds_[i] == TokenKind::unused) continue;
      const std::optional<std::string> bytes = bytes_from_byte_level((*texts_)[i]);
      if (bytes && made.normal_.find(*bytes, made.text_of()) >= 0)
        return twice(static_cast<TokenId>(i));
    }
    for (int byte = 0; byte < 256; ++byte) {
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
    return kind == TokenKind::normal ? read_normal(made, text, id)
                                     : read_special(made, text, id, kind);
  }

  Status read_normal(Tokenizer& made, const std::string& text, TokenId id) const {
    const std::optional<std::string> bytes = bytes_from_byte_level(text);
    if (!bytes)
      return wrong(
          "tokenizer.ggml.tokens[{}] is a normal token with a character outside the byte-level "
          "alphabet",
          id);
    append(made, *bytes, TokenKind::normal);
    switch (made.normal_.insert(*bytes, id, made.text_of())) {
      case Inserted::yes:
        return std::nullopt;
      case Inserted::exists:
        return twice(id);
      case Inserted::collides:
        break;
    }
    return wrong(
        "tokenizer.ggml.tokens[{}] collides with hundreds of hashes: the file was crafted to slow "
        "down lookups",
        id);
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
    if (text.size() > kMaxSpecialBytes)
      return wrong(
          "tokenizer.ggml.tokens[{}] is a control or user-defined token of {} bytes, expected at "
          "most {}",
          id, text.size(), kMaxSpecialBytes);
    if (kind == TokenKind::user_defined) made.user_defined_.add(text, id);
    made.all_special_.add(text, id);
    return std::nullopt;
  }

  Status read_merges(Tokenizer& made) const {
    std::string both;
    for (std::size_t i = 0; i < merges_->size(); ++i) {
      const std::string& merge = (*merges_)[i];
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
      if (inserted == Inserted::collides)
        return wrong(
            "tokenizer.ggml.merges[{}] collides with hundreds of hashes: the file was crafted to "
            "slow down lookups",
            i);
    }
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

  Status read_named(Tokenizer& made, PreTokenizerKind kind) const {
    constexpr const char *kBos = "tokenizer.ggml.bos_token_id",
                         *kEos = "tokenizer.ggml.eos_token_id";
    std::optional<TokenId> end_of_turn, end_of_message, other;
    if (Status failed = read_id(kBos, made, made.bos_)) return failed;
    if (Status failed = read_id(kEos, made, made.eos_)) return failed;
    if (Status failed = read_id("tokenizer.ggml.eot_token_id", made, end_of_turn)) return failed;
    if (Status failed = read_id("tokenizer.ggml.eom_token_id", made, end_of_message)) return failed;
    for (const char* key : {"tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"})
      if (Status failed = read_id(key, made, other)) return failed;
    // Early files of Llama 3 lack the flag, but the model needs its bos.
    const bool is_llama3 = kind == PreTokenizerKind::llama3;
    if (Status failed =
            read_flag("tokenizer.ggml.add_bos_token", is_llama3 && made.bos_.has_value(), made.bos_,
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
  const std::vector<std::string>* merges_ = nullptr;
  const std::vector<std::int64_t>* types_ = nullptr;
};

Result<Tokenizer> Tokenizer::make(const ModelFile& file) { return TokenizerReader(file).read(); }

}  // namespace headrace::text
