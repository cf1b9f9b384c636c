// Chats as the models' own templates write them: hashes of what jinja2 made of 200 random ones by each template
// (test/golden/chats.json, written by dev/golden/make_chat_golden.py).
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "llama/base/json.h"
#include "llama/base/sum_hash.h"
#include "llama/train/chat_formats.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

std::vector<ChatMessage> messages_of(const std::string& chat, const Json& pieces) {
    static const std::map<char, std::string> kRoles = {{'S', "system"}, {'U', "user"}, {'A', "assistant"}};
    std::vector<ChatMessage> messages;
    std::istringstream turns(chat);
    for (std::string turn; turns >> turn;) {
        messages.push_back({kRoles.at(turn[0]), ""});
        for (const char c : turn.substr(1)) messages.back().content += pieces.at(size_t(c - 'a')).get<std::string>();
    }
    return messages;
}

TEST(KnownChats, AreWhatJinjaMakesOfTheModelsTemplates) {
    const Json golden = read_json("test/golden/chats.json");
    std::tm today = {};
    ASSERT_NE(::strptime(golden["date"].get<std::string>().c_str(), "%Y-%m-%d", &today), nullptr);
    const std::string source = "{%- elif reasoning_mode == \"/think\" -%}\n    {{- \"" +
                               golden["instructions"].get<std::string>() + "\\n\\n\" -}}";
    ASSERT_EQ(golden["chats"].size(), 200u);
    for (const auto& [name, t] : golden["templates"].items()) {
        const uint64_t hash = std::stoull(t["hash"].get<std::string>(), nullptr, 16);
        std::istringstream answers(t["answers"].get<std::string>());
        for (const Json& chat : golden["chats"]) {
            const auto messages = messages_of(chat, golden["pieces"]);
            const auto text =
                render_known_chat(hash, {messages, source, golden["bos_token"], golden["eos_token"], today});
            std::string want;
            answers >> want;
            const std::string got =
                text ? format("%016llx", (unsigned long long)text_hash(*text)).substr(0, 4) : "----";
            EXPECT_EQ(got, want) << name << ", " << chat << ":\n" << text.value_or("");
        }
    }
}

TEST(KnownChats, KnowATemplateByItsWholeText) {
    const std::string source =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    const std::vector<ChatMessage> messages = {{"user", "hi"}};
    const auto render = [&](const std::string& s) {
        return render_known_chat(chat_template_hash(s), {messages, s, {}, {}, {}});
    };
    EXPECT_EQ(render(source), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(render(source + "\n"), render(source)) << "Jinja drops it";
    EXPECT_FALSE(render(source + "\n\n"));
    EXPECT_FALSE(render(source + " "));
    EXPECT_FALSE(render_known_chat(0xe38dc375e4038200, {messages, source, {}, {}, {}})) << "no bos_token to write";
}

}  // namespace
}  // namespace rz
