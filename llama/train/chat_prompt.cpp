#include "llama/train/chat_prompt.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"

extern char** environ;

namespace rz {

namespace fs = std::filesystem;

bool has_chat_template(const std::string& folder) {
    if (path_exists(folder + "/chat_template.jinja") || path_exists(folder + "/chat_template.json")) return true;
    const std::string config = folder + "/tokenizer_config.json";
    return path_exists(config) && json_find(read_json(config), "chat_template") != nullptr;
}

// In the tree that the program was built in, or where make install puts it.
static std::string find_script() {
    std::error_code none;
    const fs::path program = fs::read_symlink("/proc/self/exe", none).parent_path();
    for (fs::path at = program; !none && at.has_relative_path(); at = at.parent_path())
        if (const std::string path = (at / "data_prep/chat_prompt.py").string(); path_exists(path)) return path;
    const std::string installed = (program.parent_path() / "share/ringzero/data_prep/chat_prompt.py").string();
    require(path_exists(installed),
            "--chat: data_prep/chat_prompt.py is neither above %s nor in %s\n  make install puts it there",
            program.c_str(), fs::path(installed).parent_path().c_str());
    return installed;
}

namespace {

struct Descriptor {
    int fd = -1;
    ~Descriptor() { close(); }
    void close() {
        if (fd >= 0) ::close(fd);
        fd = -1;
    }
};

}  // namespace

// Runs `arguments` with `input` on its standard input; its standard output.
static std::string run(std::vector<std::string> arguments, const std::string& input, int& status) {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair: %s", std::strerror(errno));
    Descriptor own{ends[0]}, theirs{ends[1]};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.fd, 0);
    posix_spawn_file_actions_adddup2(&actions, theirs.fd, 1);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    theirs.close();
    require(error == 0, "--chat: %s can't be started: %s\n  install Python 3 and its package jinja2", argv[0],
            std::strerror(error));
    for (size_t at = 0; at < input.size();) {  // a child that ended early is seen by its status
        const ssize_t n = ::send(own.fd, input.data() + at, input.size() - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += size_t(n);
    }
    ::shutdown(own.fd, SHUT_WR);
    std::string output;
    char piece[4096];
    for (ssize_t n; (n = ::read(own.fd, piece, sizeof piece)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        output.append(piece, size_t(n));
    }
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return output;
}

std::string render_chat(const std::string& folder, const std::vector<ChatMessage>& messages) {
    require(has_chat_template(folder),
            "--chat: %s has no chat template, so it is a model for plain text\n  leave --chat out", folder.c_str());
    Json list = Json::array();
    for (const ChatMessage& m : messages)
        list.push_back({{"role", m.role}, {"content", replace_invalid_utf8(m.content)}});
    int status = -1;
    std::string text = run({"python3", find_script(), folder, "--messages", "-"}, list.dump(), status);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "--chat: the chat template of %s could not be applied (what chat_prompt.py says stands above)\n"
            "  --raw-prompt takes a text that a template has made",
            folder.c_str());
    return text;
}

}  // namespace rz
