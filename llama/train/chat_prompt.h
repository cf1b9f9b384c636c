#pragma once
// A conversation as the text that a model was trained to see. Chat templates are Jinja programs, so
// data_prep/chat_prompt.py renders them, as transformers does, in jinja2's sandbox: this starts it.

#include <string>
#include <vector>

namespace rz {

struct ChatMessage {
    std::string role, content;  // "system", "user" or "assistant"
};

// Whether the model's folder has a template.
bool has_chat_template(const std::string& folder);

// The text up to where the model's next answer begins. Throws if python3, jinja2 or the script is not there, or if the
// template refuses the messages (the script's own message is on standard error by then).
std::string render_chat(const std::string& folder, const std::vector<ChatMessage>& messages);

}  // namespace rz
