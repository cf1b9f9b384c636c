#pragma once
// A conversation as the text that a model was trained to see. What the templates of the models that we open write is
// known here (chat_formats.h). Any other is a Jinja program of others: a child renders it, as transformers does, in
// jinja2's sandbox, without files and network and with little time and memory: data_prep/chat_template.py, which is
// compiled into the program.

#include <string>
#include <vector>

#include "llama/train/chat_formats.h"

namespace rz {

// True: the model's folder has a template.
bool has_chat_template(const std::string& folder);

// The text up to where the model's next answer begins. Of a template that is not known: throws if python3 or jinja2 is
// not there or can be changed by other users, or if it refuses the messages or exceeds its limits (base/limits.h).
std::string render_chat(const std::string& folder, const std::vector<ChatMessage>& messages);

}  // namespace rz
