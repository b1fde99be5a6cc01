// Renders Mistral's templates of version 7, in which system messages have control tokens.
#pragma once

#include <span>
#include <string_view>

#include "text/chat_styles.h"
#include "text/chat_turns.h"

namespace headrace::text {

// date: in the system message that the style inserts; empty: a default. invalid_argument: an order
// of roles, a message or an id that a template with tools rejects, or messages that it would merge.
Status render_mistral_v7(const TemplateStyle& style, std::span<const Turn> turns,
                         std::string_view date, Prompt& prompt);

}  // namespace headrace::text
