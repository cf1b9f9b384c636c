#include "comm/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "kernels/runtime/request.h"

namespace rz {

const char* environment(const char* name) { return std::getenv(name); }

namespace {

constexpr int kMostRanks = 1 << 20;
constexpr size_t kLongestToken = 4096, kMostNodes = 1 << 16;

std::string text_of(const Environment& env, const char* name) {
    const char* value = env(name);
    return value ? value : "";
}

// A whole number from `least` to `most`; none where the variable is not set.
std::optional<int> number_of(const Environment& env, const char* name, int least, int most) {
    const std::string text = text_of(env, name);
    if (text.empty()) return {};
    const bool digits = text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
    const int value = digits ? std::atoi(text.c_str()) : -1;
    require_request(digits && value >= least && value <= most,
                    "%s=%.40s in the environment: a whole number from %d to %d is expected", name, text.c_str(), least,
                    most);
    return value;
}

// The first of several variables that is set.
std::optional<int> first_of(const Environment& env, std::initializer_list<const char*> names, int least) {
    for (const char* name : names)
        if (const auto value = number_of(env, name, least, kMostRanks)) return value;
    return {};
}

std::string token_of(const Environment& env) {
    const std::string path = text_of(env, "RINGZERO_TOKEN_FILE");
    std::string token = text_of(env, "RINGZERO_TOKEN");
    if (token.empty() && !path.empty()) {
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        token.resize(kLongestToken + 1);
        const ssize_t got = fd < 0 ? -1 : read(fd, token.data(), token.size());
        const int error = errno;
        if (fd >= 0) close(fd);
        require_request(got >= 0, "RINGZERO_TOKEN_FILE=%s: %s", path.c_str(), std::strerror(error));
        token.resize(size_t(got));
        while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back()))) token.pop_back();
        require_request(!token.empty(), "RINGZERO_TOKEN_FILE=%s is empty: write a secret of 16 bytes or more into it",
                        path.c_str());
    }
    require_request(token.size() <= kLongestToken, "RINGZERO_TOKEN has %zu bytes, %zu at most are read", token.size(),
                    kLongestToken);
    require_request(token.empty() || token.size() >= 16,
                    "RINGZERO_TOKEN has %zu bytes and could be guessed: give 16 or more, such as $(openssl rand -hex "
                    "16)",
                    token.size());
    return token;
}

// The parts of a TCP launch that all launchers share. `job` tells this job from others.
Launch over_tcp(const Environment& env, std::string by, int rank, int size, bool one_host, std::string first_host,
                const std::string& job, int default_port) {
    require_request(rank < size, "%s: rank %d of %d ranks", by.c_str(), rank, size);
    Launch l{.rank = rank, .size = size, .by = std::move(by), .one_host = one_host};
    if (size == 1) return l;
    l.how = Launch::How::tcp;
    l.address = text_of(env, "MASTER_ADDR");
    if (l.address.empty()) l.address = std::move(first_host);
    if (one_host) l.address = "127.0.0.1";
    require_request(!l.address.empty(),
                    "%s started %d ranks, and nothing says where rank 0 is\n"
                    "  set MASTER_ADDR to its host and RINGZERO_PORT to a free port there",
                    l.by.c_str(), size);
    const auto own = number_of(env, "RINGZERO_PORT", 1, 65535), master = number_of(env, "MASTER_PORT", 1, 65535);
    const bool taken = text_of(env, "TORCHELASTIC_USE_AGENT_STORE") == "True";  // torchrun listens on it
    l.port = own ? *own : master ? *master + taken : default_port;
    require_request(l.port <= 65535, "MASTER_PORT=65535 is taken by the launcher: set RINGZERO_PORT");
    l.secret = token_of(env);
    l.secret_is_open = l.secret.empty();
    if (l.secret_is_open) l.secret = format("%s of %d", job.c_str(), size);
    return l;
}

std::optional<Launch> by_ranks(const Environment& env) {
    const auto rank = number_of(env, "RINGZERO_RANK", 0, kMostRanks),
               size = number_of(env, "RINGZERO_RANKS", 1, kMostRanks);
    if (!rank || !size) return {};
    Launch l = over_tcp(env, "--ranks", *rank, *size, true, "", "", 0);
    if (*rank == 0) l.listening = number_of(env, "RINGZERO_LISTENING", 0, 1 << 20).value_or(-1);
    l.starter = number_of(env, "RINGZERO_STARTER", 0, 1 << 20).value_or(-1);
    l.secret += text_of(env, "RINGZERO_EPOCH");  // what earlier ranks have sent is nothing to later ones
    return l;
}

std::optional<Launch> by_torchrun(const Environment& env) {
    const auto rank = number_of(env, "RANK", 0, kMostRanks), size = number_of(env, "WORLD_SIZE", 1, kMostRanks);
    if (!size || (!rank && *size > 1)) return {};
    const auto local = number_of(env, "LOCAL_WORLD_SIZE", 1, kMostRanks);
    const std::string job = text_of(env, "TORCHELASTIC_RUN_ID") + "/" + text_of(env, "TORCHELASTIC_RESTART_COUNT");
    return over_tcp(env, "torchrun", rank.value_or(0), *size, local == size, "", job, 29511);
}

// srun without an MPI plugin (--mpi=none), and PALS beside an old Slurm.
std::optional<Launch> by_slurm(const Environment& env) {
    const auto rank = number_of(env, "SLURM_PROCID", 0, kMostRanks);
    const auto size = number_of(env, "SLURM_STEP_NUM_TASKS", 1, kMostRanks);
    if (!rank || !size || *size == 1) return {};
    // Hydra in an allocation: these are its own daemons' numbers.
    if (const auto ranks = number_of(env, "PMI_SIZE", 1, kMostRanks); ranks && ranks != size) return {};
    std::string list = text_of(env, "SLURM_STEP_NODELIST");
    if (list.empty()) list = text_of(env, "SLURM_JOB_NODELIST");
    const std::vector<std::string> nodes = expand_nodelist(list);
    const unsigned job = unsigned(number_of(env, "SLURM_JOB_ID", 0, 999999999).value_or(0));
    const unsigned step = unsigned(number_of(env, "SLURM_STEP_ID", 0, 999999999).value_or(0));
    return over_tcp(env, "Slurm", *rank, *size, nodes.size() == 1, nodes.empty() ? "" : nodes[0],
                    format("%u.%u", job, step), int(20000 + (job * 31 + step) % 10000));
}

// Launchers of an MPI that this program does not have: they number the ranks, and that is enough on one host.
std::optional<Launch> by_other_mpi(const Environment& env) {
    const auto rank = first_of(env, {"OMPI_COMM_WORLD_RANK", "PALS_RANKID", "PMIX_RANK"}, 0);
    const auto size = first_of(env, {"OMPI_COMM_WORLD_SIZE", "PALS_SIZE", "WORLD_SIZE", "PMI_SIZE"}, 1);
    const auto local = first_of(env, {"OMPI_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}, 1);
    if (!rank || !size) return {};
    const bool open_mpi = env("OMPI_COMM_WORLD_RANK");
    return over_tcp(env,
                    open_mpi             ? "Open MPI's mpirun"
                    : env("PALS_RANKID") ? "PALS"
                                         : "PMIx",
                    *rank, *size, local == size, "", text_of(env, "PMIX_NAMESPACE") + text_of(env, "PALS_APID"), 29511);
}

// Ranks of the program's own MPI, if it belongs to the launcher that is there.
std::optional<int> ranks_of_mpi(const Environment& env, const std::string& mpi_library) {
    if (mpi_library.empty()) return {};
    if (const auto size = first_of(env, {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, 1)) return size;
    const auto open_mpi = number_of(env, "OMPI_COMM_WORLD_SIZE", 1, kMostRanks);
    const bool placed =
        env("MASTER_ADDR") || (open_mpi && number_of(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks) == open_mpi);
    if (open_mpi && (mpi_library.find("Open MPI") != std::string::npos || !placed)) return open_mpi;
    if (!open_mpi && env("PMIX_RANK")) return first_of(env, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1).value_or(1);
    return {};
}

}  // namespace

Launch find_launch(const Environment& env, const std::string& mpi_library) {
    if (const auto own = by_ranks(env)) return *own;
    if (const auto size = ranks_of_mpi(env, mpi_library))
        return {.how = Launch::How::mpi, .size = *size, .by = "mpirun"};
    for (const auto& find : {by_torchrun, by_slurm, by_other_mpi})
        if (const auto found = find(env)) return *found;
    const int left = first_of(env, {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, 1).value_or(1);
    require_request(left == 1,
                    "mpirun started %d ranks, and this program has no MPI\n"
                    "  nearest: ./train_llama --ranks %d, torchrun or srun --mpi=none; or install MPI (apt-get install "
                    "mpich libmpich-dev) and, but for the program of make dist, run make again",
                    left, left);
    return {};
}

// ---- node lists -----------------------------------------------------------------------------------------------------

namespace {

[[noreturn]] void bad_nodelist(const std::string& list) {
    refuse("the node list '%.200s' is not understood: names, and numbers such as a[01-03,7], are expected",
           list.c_str());
}

// The numbers of 01-03,7 with their leading zeros.
std::vector<std::string> expand_numbers(const std::string& inside, const std::string& list) {
    std::vector<std::string> all;
    for (size_t at = 0; at <= inside.size();) {
        const size_t end = std::min(inside.find(',', at), inside.size());
        const std::string one = inside.substr(at, end - at);
        const size_t dash = std::min(one.find('-'), one.size());
        const std::string first = one.substr(0, dash), last = dash < one.size() ? one.substr(dash + 1) : first;
        for (const std::string* n : {&first, &last})
            if (n->empty() || n->size() > 9 || n->find_first_not_of("0123456789") != std::string::npos)
                bad_nodelist(list);
        const long from = std::atol(first.c_str()), to = std::atol(last.c_str());
        if (to < from || size_t(to - from) >= kMostNodes) bad_nodelist(list);
        for (long n = from; n <= to; ++n) all.push_back(format("%0*ld", int(first.size()), n));
        if (all.size() > kMostNodes) bad_nodelist(list);
        at = end + 1;
    }
    return all;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& list) {
    std::vector<std::string> names, open = {""};  // of the name that is read: every way to begin it
    const auto close = [&] {
        for (std::string& name : open) {
            if (name.empty()) bad_nodelist(list);
            names.push_back(std::move(name));
        }
        if (names.size() > kMostNodes) bad_nodelist(list);
        open = {""};
    };
    if (list.empty()) return {};
    for (size_t at = 0; at < list.size(); ++at) {
        if (list[at] == ',') {
            close();
        } else if (list[at] == '[') {
            const size_t end = list.find(']', at);
            if (end == std::string::npos) bad_nodelist(list);
            const std::vector<std::string> numbers = expand_numbers(list.substr(at + 1, end - at - 1), list);
            if (numbers.size() * open.size() > kMostNodes) bad_nodelist(list);
            std::vector<std::string> longer;
            for (const std::string& name : open)
                for (const std::string& number : numbers) longer.push_back(name + number);
            open = std::move(longer);
            at = end;
        } else if (std::isalnum(static_cast<unsigned char>(list[at])) || std::strchr("-._", list[at])) {
            for (std::string& name : open) name += list[at];
        } else {
            bad_nodelist(list);
        }
    }
    close();
    return names;
}

}  // namespace rz
