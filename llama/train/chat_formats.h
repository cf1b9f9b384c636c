#pragma once
// Formats a conversation as the chat templates of the models that this program opens do, without running them. A
// template is known by its text, so an altered one is not; dev/golden/make_chat_golden.py compares with jinja2.

#include <ctime>
#include <optional>
#include <string>
#include <vector>

namespace rz {

struct ChatMessage {
    std::string role, content;  // "system", "user" or "assistant"
};

struct Chat {
    const std::vector<ChatMessage>& messages;
    const std::string& source;            // the template
    std::optional<std::string> bos, eos;  // bos_token, eos_token
    std::tm today;
};

// Hash of a template's text, a newline at its end aside, which Jinja drops.
uint64_t chat_template_hash(std::string_view source);

// The text up to where the model's next answer begins. Nothing: no known template has this hash, or it refuses the
// messages and has the words for it.
std::optional<std::string> render_known_chat(uint64_t template_hash, const Chat& chat);

}  // namespace rz
