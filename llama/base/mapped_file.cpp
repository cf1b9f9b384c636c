#include "llama/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"

namespace rz {

MappedFile::MappedFile(const std::string& path) {
    const OpenFile file(path, again([&] {
                            return ::open(path.c_str(),
                                          O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO would be waited for
                        }));
    if (file.fd < 0) fail("%s: cannot open: %s", path.c_str(), std::strerror(errno));
    struct stat st;
    if (again([&] { return ::fstat(file.fd, &st); }) != 0 || !S_ISREG(st.st_mode))
        fail("%s: not a regular file%s", path.c_str(),
             S_ISDIR(st.st_mode) ? ": it is a folder; name the files in it, as in 'DIR/*_train_*.bin'" : "");
    size_ = st.st_size;
    stamp_ = {int64_t(st.st_dev), int64_t(st.st_ino), st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    if (size_ == 0) return;
    void* p = ::mmap(nullptr, size_t(size_), PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (p == MAP_FAILED) fail("%s: cannot map %ld bytes: %s", path.c_str(), size_, std::strerror(errno));
    data_ = static_cast<const uint8_t*>(p);
}

void MappedFile::check_unchanged(const std::string& path) const {
    struct stat st;
    if (again([&] { return ::stat(path.c_str(), &st); }) != 0) return;  // removed: what is mapped stays
    const Stamp now{int64_t(st.st_dev), int64_t(st.st_ino), st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    if (now.device != stamp_.device || now.inode != stamp_.inode) return;  // replaced by another file: likewise
    require(st.st_size == size_ && now == stamp_,
            "%s: was written to while it is in use (%ld bytes, now %ld)\n"
            "  put the old contents back, then resume from the last checkpoint; to change data, make new files",
            path.c_str(), size_, int64_t(st.st_size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(other.data_), size_(other.size_), stamp_(other.stamp_) {
    other.data_ = nullptr;
    other.size_ = 0;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stamp_, other.stamp_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_) ::munmap(const_cast<uint8_t*>(data_), size_t(size_));
}

}  // namespace rz
