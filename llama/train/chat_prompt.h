#pragma once
// A conversation as the text that a model was trained to see. Chat templates are Jinja programs of others, so a child
// renders them, as transformers does, in jinja2's sandbox, without files and network and with little time and memory:
// data_prep/chat_template.py, which is compiled into the program.

#include <string>
#include <vector>

namespace rz {

struct ChatMessage {
    std::string role, content;  // "system", "user" or "assistant"
};

// Whether the model's folder has a template.
bool has_chat_template(const std::string& folder);

// The text up to where the model's next answer begins. Throws if python3 or jinja2 is not there or can be changed by
// other users, or if the template refuses the messages or exceeds its limits (base/limits.h).
std::string render_chat(const std::string& folder, const std::vector<ChatMessage>& messages);

}  // namespace rz
