#pragma once

#include <cstdint>
#include <string>

namespace rz {

// A read-only mapping of a whole file, which must not shrink meanwhile (the kernel would end the program with SIGBUS).
// The mapping lives as long as the object; moving it keeps addresses.
class MappedFile {
   public:
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();
    const uint8_t* data() const { return data_; }
    int64_t size() const { return size_; }
    // Throws if the file that is mapped was written to since. One that was removed or replaced is mapped as it was.
    void check_unchanged(const std::string& path) const;

   private:
    struct Stamp {
        int64_t device = 0, inode = 0, seconds = 0, nanoseconds = 0;
        bool operator==(const Stamp&) const = default;
    };
    const uint8_t* data_ = nullptr;
    int64_t size_ = 0;
    Stamp stamp_;
};

}  // namespace rz
