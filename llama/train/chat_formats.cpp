#include "llama/train/chat_formats.h"

#include <algorithm>
#include <span>

#include "llama/base/sum_hash.h"
#include "llama/tokenizer/unicode.h"

namespace rz {
namespace {

using Text = std::optional<std::string>;
using Messages = std::span<const ChatMessage>;

// ---- Python's words ----

bool is_newline(uint32_t c) { return c == '\n'; }

std::string strip(std::string_view text, bool (*what)(uint32_t) = unicode::is_python_space, bool left = true,
                  bool right = true) {
    size_t begin = text.size(), end = 0;
    for (size_t at = 0; at < text.size();) {
        const unicode::Utf8Char c = unicode::next_char(text, at);
        if (!what(c.code_point)) begin = std::min(begin, at), end = at + size_t(c.bytes);
        at += size_t(c.bytes);
    }
    if (!left) begin = 0;
    if (!right) end = text.size();
    return std::string(text.substr(begin, std::max(begin, end) - begin));
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string without(std::string text, std::string_view part) {
    for (size_t at = 0; (at = text.find(part, at)) != text.npos;) text.erase(at, part.size());
    return text;
}

std::string date(const char* form, const std::tm& day) {
    char text[64];
    return std::string(text, std::strftime(text, sizeof text, form, &day));
}

// The content of a system message that stands first, which goes.
Text take_system(Messages& messages) {
    if (messages.empty() || messages[0].role != "system") return {};
    const std::string content = messages[0].content;
    messages = messages.subspan(1);
    return content;
}

bool user_and_others_alternate(Messages messages) {
    for (size_t i = 0; i < messages.size(); ++i)
        if ((messages[i].role == "user") != (i % 2 == 0)) return false;
    return true;
}

// ---- formats ----

enum class Goes { nowhere, with_first, with_last };  // a system message, with the user's words
struct Marks {
    const char *user = "", *end_of_user = "", *answer = "", *end_of_answer = "";  // around what is said
    Goes system = Goes::nowhere;
};

struct Known {
    uint64_t hash;
    Text (*render)(const Known&, const Chat&, Messages);
    const char* system = "";  // where no system message is; Llama 3.1: the form of its date
    Marks marks = {};         // of Mistral
};

Text chatml(const Known& k, const Chat&, Messages messages) {
    std::string out;
    const auto turn = [&](const std::string& role, const std::string& content) {
        out += "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
    };
    if (messages[0].role != "system" && *k.system) turn("system", k.system);
    for (const ChatMessage& m : messages) turn(m.role, m.content);
    return out + "<|im_start|>assistant\n";
}

// Thoughts are written only after the last question.
Text qwen3(const Known& k, const Chat& c, Messages messages) {
    std::vector<ChatMessage> shown(messages.begin(), messages.end());
    size_t question = shown.size() - 1;
    for (size_t i = 0; i < shown.size(); ++i)
        if (const std::string& s = shown[i].content;
            shown[i].role == "user" && !(s.starts_with("<tool_response>") && s.ends_with("</tool_response>")))
            question = i;
    for (size_t i = 0; i < shown.size(); ++i) {
        std::string &s = shown[i].content, thought;
        if (shown[i].role != "assistant") continue;
        if (has(s, "</think>")) {
            thought = strip(std::string_view(s).substr(0, s.find("</think>")), is_newline, false);
            if (has(thought, "<think>")) thought = thought.substr(thought.rfind("<think>") + 7);
            thought = strip(thought, is_newline, true, false);
            s = strip(s.substr(s.rfind("</think>") + 8), is_newline, true, false);
        }
        if (i > question && (i + 1 == shown.size() || !thought.empty()))
            s = "<think>\n" + strip(thought, is_newline) + "\n</think>\n\n" + strip(s, is_newline, true, false);
    }
    return chatml(k, c, shown);
}

Text llama3(const Known& k, const Chat& c, Messages messages) {
    std::string out = *c.bos;
    const auto turn = [&](const std::string& role, const std::string& content) {
        out += "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + content + "<|eot_id|>";
    };
    if (*k.system)
        turn("system", "Cutting Knowledge Date: December 2023\nToday Date: " + date(k.system, c.today) + "\n\n" +
                           strip(take_system(messages).value_or("")));
    for (const ChatMessage& m : messages) turn(m.role, strip(m.content));
    return out + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

Text llama2(const Known&, const Chat& c, Messages messages) {
    Text system = take_system(messages);
    if (!user_and_others_alternate(messages)) return {};
    std::string out;
    for (const ChatMessage& m : messages) {
        if (m.role == "user")
            out += *c.bos + "[INST] " + strip((system ? "<<SYS>>\n" + *system + "\n<</SYS>>\n\n" : "") + m.content) +
                   " [/INST]";
        if (m.role == "assistant") out += " " + strip(m.content) + " " + *c.eos;
        system.reset();
    }
    return out;
}

Text mistral(const Known& k, const Chat& c, Messages messages) {
    const Text system = k.marks.system == Goes::nowhere ? Text() : take_system(messages);
    if (!user_and_others_alternate(messages)) return {};
    std::string out = *c.bos;
    for (const ChatMessage& m : messages) {
        const bool here = &m == (k.marks.system == Goes::with_first ? &messages.front() : &messages.back());
        if (m.role == "user")
            out += k.marks.user + (system && here ? *system + "\n\n" : "") + m.content + k.marks.end_of_user;
        else if (m.role == "assistant")
            out += k.marks.answer + m.content + *c.eos + k.marks.end_of_answer;
        else
            return {};
    }
    return out;
}

Text zephyr(const Known&, const Chat& c, Messages messages) {
    std::string out;
    for (const ChatMessage& m : messages) out += "<|" + m.role + "|>\n" + m.content + *c.eos + "\n";
    return out + "<|assistant|>\n";
}

Text olmo2(const Known&, const Chat& c, Messages messages) {
    std::string out = *c.bos;
    for (const ChatMessage& m : messages) {
        out += "<|" + m.role + "|>\n" + m.content + (m.role == "assistant" ? *c.eos : "");
        if (m.role != "assistant" || &m != &messages.back()) out += "\n";
    }
    return out + "<|assistant|>\n";
}

// The instructions of a model that thinks, in the words of the template.
Text smollm3_instructions(const std::string& source) {
    constexpr std::string_view kBefore = "{%- elif reasoning_mode == \"/think\" -%}\n    {{- \"", kAfter = "\\n\\n\"";
    const size_t begin = source.find(kBefore), end = source.find(kAfter, begin);
    if (begin == source.npos || end == source.npos) return {};
    return source.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

Text smollm3(const Known& k, const Chat& c, Messages messages) {
    const std::string given = messages[0].role == "system" ? messages[0].content : "";
    const bool thinks = !has(given, "/no_think");
    std::string system = strip(without(without(given, "/no_think"), "/think"), unicode::is_python_space, false);
    std::string out = "<|im_start|>system\n";
    if (has(given, "/system_override")) {
        out += strip(without(system, "/system_override"), unicode::is_python_space, false) + "<|im_end|>\n";
    } else {
        if (system.empty()) {
            const Text own = thinks ? smollm3_instructions(c.source) : Text(k.system);
            if (!own) return {};
            system = *own;
        }
        out += "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: " + date("%d %B %Y", c.today) +
               "\nReasoning Mode: " + (thinks ? "/think" : "/no_think") + "\n\n## Custom Instructions\n\n" + system +
               "\n\n";
    }
    const std::string answer = std::string("<|im_start|>assistant\n") + (thinks ? "" : "<think>\n\n</think>\n");
    for (const ChatMessage& m : messages) {
        if (m.role == "user") out += "<|im_start|>user\n" + m.content + "<|im_end|>\n";
        if (m.role == "assistant") out += answer + strip(m.content, is_newline, true, false) + "<|im_end|>\n";
    }
    return out + answer;
}

// ---- templates ----

constexpr Known kKnown[] = {
    {0x2d44dbfaffdf2f78, chatml},                                  // ChatML
    {0xc5059d693d3b9542, chatml},                                  // ChatML, with line ends
    {0x7b3e0b79bac1e314, chatml, "You are a helpful assistant."},  // Qwen2
    {0x2c128355080ffd0e, chatml, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},  // Qwen2.5
    {0x1810eef2ec3b69e6, chatml,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},  // Qwen2.5 0.5B
    {0xdc1fbe74e67c034c, chatml},                                              // Qwen3, Instruct-2507
    {0xc2d533518bcbdfdd, qwen3},                                               // Qwen3
    {0x96de01a6291ad887, qwen3},                                               // Qwen3, whose content may be no text
    {0x4eafe9a0a699fb88, chatml, "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},    // SmolLM2
    {0x7415e364b63a52dc, smollm3, "You are a helpful AI assistant named SmolLM, trained by Hugging Face."},  // SmolLM3
    {0xe38dc375e4038200, llama3},                                                                            // Llama 3
    {0x6a5789f990d4bf3b, llama3, "26 Jul 2024"},                                             // Llama 3.1, 3.3
    {0x10a253cd3efc05b1, llama3, "%d %b %Y"},                                                // Llama 3.2
    {0xde609e4164de3bfe, llama2},                                                            // Llama 2
    {0xb0edfd4d986c02eb, zephyr},                                                            // TinyLlama, Zephyr
    {0xffb32126e7e15d34, olmo2},                                                             // OLMo 2
    {0x94f9c07deab1b505, mistral, "", {"[INST] ", " [/INST]", "", " "}},                     // Mistral 7B v0.1
    {0x97646812631cbeff, mistral, "", {"[INST] ", " [/INST]", "", ""}},                      // Mistral 7B v0.2, first
    {0xc018f9722eccb868, mistral, "", {" [INST] ", " [/INST]", " ", "", Goes::with_first}},  // Mistral 7B v0.2
    {0x53d95b7a2d394b49, mistral, "", {"[INST]", "[/INST]", "", "", Goes::with_last}},       // Mistral Nemo
    {0x17f0daf0b0a04c01, mistral, "", {"[INST]", "[/INST]", "", "", Goes::with_last}},       // Mistral Nemo, later
};

}  // namespace

uint64_t chat_template_hash(std::string_view source) {
    if (source.ends_with('\n')) source.remove_suffix(1);
    return text_hash(source);
}

std::optional<std::string> render_known_chat(uint64_t template_hash, const Chat& chat) {
    if (chat.messages.empty()) return {};
    for (const Known& k : kKnown) {
        if (k.hash != template_hash) continue;
        const bool writes_tokens = k.render != chatml && k.render != qwen3 && k.render != smollm3;
        if (writes_tokens && !(chat.bos && chat.eos)) return {};
        return k.render(k, chat, chat.messages);
    }
    return {};
}

}  // namespace rz
