#include "llama/base/folder_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"

namespace rz {

namespace fs = std::filesystem;

static const char* kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

static fs::path real_path(const std::string& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    require(!error, "%s: where it leads can't be found: %s", path.c_str(), error.message().c_str());
    return real;
}

static bool is_cached_blob(const fs::path& real) {
    const fs::path blobs = real.parent_path();
    return blobs.filename() == "blobs" && blobs.parent_path().filename().string().starts_with("models--");
}

bool has_file(const std::string& folder, const std::string& name) {
    const std::string path = folder + "/" + name;
    if (!path_exists(path)) return false;
    struct stat st;
    if (again([&] { return ::stat(path.c_str(), &st); }) != 0) {
        require(errno == ENOENT || errno == ELOOP || errno == ENOTDIR, "%s: stat failed: %s", path.c_str(),
                std::strerror(errno));
        fail("%s: is a link that leads nowhere\n  fetch the file itself, or remove the link", path.c_str());
    }
    require(S_ISREG(st.st_mode), "%s: is %s, not a file", path.c_str(), kind_of(st.st_mode));
    const fs::path real = real_path(path), root = real_path(folder);
    const bool inside = std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
    require(
        inside || is_cached_blob(real),
        "%s: is a link out of its folder, to %s\n"
        "  a folder that others have made could read and publish your files that way; if the link is yours, put the "
        "file in its place",
        path.c_str(), real.c_str());
    return true;
}

}  // namespace rz
