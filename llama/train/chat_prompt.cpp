#include "llama/train/chat_prompt.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>

#include "kernels/runtime/check.h"
#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/folder_file.h"
#include "llama/base/json.h"
#include "llama/base/text.h"

extern char** environ;

// The script that renders templates is a part of the program, so there is no file that another could change.
__asm__(
    ".pushsection .rodata\n"
    "rz_chat_template: .incbin \"data_prep/chat_template.py\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char rz_chat_template[];

namespace rz {

namespace fs = std::filesystem;

// ---- the template in a model's folder ----

static Json json_of(const std::string& folder, const char* file) {
    return has_file(folder, file) ? read_json(folder + "/" + file, kTokenizerFile) : Json::object();
}

// The template, of several the one called "default"; "": there is none.
static std::string template_in(const Json& config, const std::string& where) {
    const Json* found = config.is_object() ? json_find(config, "chat_template") : nullptr;
    if (!found) return "";
    if (found->is_string()) return json_string(*found, "chat_template", where);
    require(found->is_array(), "%s: chat_template = %s must be a text or a list", where.c_str(),
            json_excerpt(*found).c_str());
    for (const Json& one : *found)
        if (json_string_at(one, "name", where) == "default") return json_string_at(one, "template", where);
    return "";
}

static std::string chat_template_of(const std::string& folder) {
    if (has_file(folder, "chat_template.jinja")) return read_file(folder + "/chat_template.jinja", kChatTemplate);
    for (const char* file : {"chat_template.json", "tokenizer_config.json"})
        if (const std::string text = template_in(json_of(folder, file), folder + "/" + file); !text.empty()) {
            require(int64_t(text.size()) <= kChatTemplate.bytes, "%s/%s: %zu bytes are too many for %s (at most %s)",
                    folder.c_str(), file, text.size(), kChatTemplate.what, human_bytes(kChatTemplate.bytes).c_str());
            return text;
        }
    return "";
}

bool has_chat_template(const std::string& folder) { return !chat_template_of(folder).empty(); }

static std::optional<std::string> text_in(const Json& object, const char* key) {
    const Json* found = object.is_object() ? json_find(object, key) : nullptr;
    return found && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
}

// bos_token and the like, which templates write.
static Json special_tokens(const std::string& folder) {
    Json tokens = Json::object();
    const Json config = json_of(folder, "tokenizer_config.json");
    for (const auto& [key, value] : config.items()) {
        if (!key.ends_with("_token")) continue;
        if (value.is_string()) tokens[key] = value;
        if (value.is_object() && value.contains("content")) tokens[key] = value["content"];
    }
    return tokens;
}

// ---- the child ----

// True: only root and this user can change what the path leads to.
static bool is_ours(const fs::path& path) {
    bool leaf = true;
    for (fs::path at = path;; at = at.parent_path(), leaf = false) {
        struct stat st;
        if (::lstat(at.c_str(), &st) != 0) return false;
        const bool by_group = (st.st_mode & S_IWGRP) && st.st_gid != 0 && st.st_gid != 50 && st.st_gid != st.st_uid;
        const bool sticky = (st.st_mode & S_ISVTX) && !leaf;  // 50: Debian's staff
        if (st.st_uid != 0 && st.st_uid != ::getuid()) return false;
        if (!S_ISLNK(st.st_mode) && (by_group || (st.st_mode & S_IWOTH)) && !sticky) return false;
        if (!at.has_relative_path()) return true;
    }
}

// The first python3 of PATH.
static std::string find_python() {
    const char* const path = std::getenv("PATH");
    std::string refused;
    for (const std::string& folder : split(path ? path : "/usr/local/bin:/usr/bin:/bin", ':')) {
        const std::string found = folder + "/python3";
        std::error_code none;
        const fs::path real = fs::canonical(found, none);
        if (found[0] != '/' || none || ::access(found.c_str(), X_OK) != 0) continue;
        if (is_ours(fs::path(found).lexically_normal()) && is_ours(real)) return found;
        refused += (refused.empty() ? "" : ", ") + found;
    }
    require_request(refused.empty(),
                    "--chat: other users can change %s, so it is not run\n  put a python3 of yours or root's into PATH",
                    refused.c_str());
    refuse("--chat: there is no python3 in PATH\n  install Python 3 and its package jinja2");
}

namespace {

// A process group whose standard input and output are one end of a socket.
class Child {
   public:
    explicit Child(std::vector<std::string> arguments) {
        int ends[2];
        require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "socketpair: %s",
                std::strerror(errno));
        fd_ = ends[0];
        ::fcntl(ends[1], F_SETFL, 0);
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, ends[1], 0);
        posix_spawn_file_actions_adddup2(&files, ends[1], 1);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        std::vector<char*> argv;
        for (std::string& a : arguments) argv.push_back(a.data());
        argv.push_back(nullptr);
        const int error = ::posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ);
        posix_spawn_file_actions_destroy(&files);
        posix_spawnattr_destroy(&attributes);
        ::close(ends[1]);
        if (error != 0) {
            ::close(fd_);
            fail("--chat: %s can't be started: %s", argv[0], std::strerror(error));
        }
    }
    ~Child() {
        ::close(fd_);
        ::kill(-pid_, SIGKILL);
        while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    Child(const Child&) = delete;

    // Its answer to `input`; false if it takes longer, or writes more than this.
    bool ask(std::string_view input, std::string& output, double seconds, size_t most) {
        for (const double end = monotonic_clock() + seconds;;) {
            const double left = end - monotonic_clock();
            if (left <= 0 || output.size() > most) return false;
            pollfd wait{fd_, short(POLLIN | (input.empty() ? 0 : POLLOUT)), 0};
            if (::poll(&wait, 1, int(1e3 * left) + 1) < 0 && errno != EINTR) return false;
            if (!input.empty() && (wait.revents & POLLOUT)) {
                const ssize_t n = ::send(fd_, input.data(), input.size(), MSG_NOSIGNAL);
                if (n > 0) input.remove_prefix(size_t(n));
                if (n < 0 && errno != EAGAIN && errno != EINTR) input = {};  // it ended early: what it wrote says why
                if (input.empty()) ::shutdown(fd_, SHUT_WR);
            }
            if (!(wait.revents & (POLLIN | POLLHUP | POLLERR))) continue;
            char piece[4096];
            const ssize_t n = ::read(fd_, piece, sizeof piece);
            if (n > 0) output.append(piece, size_t(n));
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
        }
    }

   private:
    int fd_ = -1;
    pid_t pid_ = 0;
};

}  // namespace

std::string render_chat(const std::string& folder, const std::vector<ChatMessage>& messages) {
    const std::string source = chat_template_of(folder);
    require_request(!source.empty(),
                    "--chat: %s has no chat template, so it is a model for plain text\n"
                    "  leave --chat out",
                    folder.c_str());
    require_request(valid_utf8(source), "--chat: the chat template of %s is not UTF-8", folder.c_str());
    std::vector<ChatMessage> valid = messages;
    Json list = Json::array();
    for (ChatMessage& m : valid) {
        m.content = replace_invalid_utf8(m.content);
        list.push_back({{"role", m.role}, {"content", m.content}});
    }
    const Json tokens = special_tokens(folder);
    const std::time_t now = std::time(nullptr);
    Chat chat{valid, source, text_in(tokens, "bos_token"), text_in(tokens, "eos_token"), {}};
    ::localtime_r(&now, &chat.today);
    if (auto text = render_known_chat(chat_template_hash(source), chat)) return *text;
    const Json asked = {
        {"source", source},
        {"variables", tokens},
        {"messages", list},
        {"limits", {{"seconds", kTemplateSeconds}, {"memory", kTemplateMemory}, {"output", kTemplateOutput}}}};
    std::string output;
    constexpr double kPatience = 30;  // on busy cores Python takes seconds to start
    const bool ended = Child({find_python(), "-I", "-c", rz_chat_template})
                           .ask(asked.dump(), output, kPatience, size_t(4 * kTemplateOutput));
    const Json answer = ended ? Json::parse(output, nullptr, /*allow_exceptions=*/false) : Json();
    if (const auto text = text_in(answer, "text")) return *text;
    const std::string why =
        text_in(answer, "error")
            .value_or(format("it takes more than %ld s, or Python failed and says so above", kTemplateSeconds));
    refuse(
        "--chat: the chat template of %s could not be applied: %s\n"
        "  --raw-prompt takes a text that a template has made",
        folder.c_str(), why.c_str());
}

}  // namespace rz
