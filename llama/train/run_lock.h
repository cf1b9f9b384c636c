#pragma once
// One run per output folder. The lock is the kernel's (flock on <folder>/run.lock), so it ends with the process that
// holds it, however that ends, and holds between hosts where the file system passes it on (NFS, Lustre -o flock, GPFS).
// On a file system without locks the file <folder>/run.lock.owner is the lock; one left by a dead process of this host
// is then broken, one of another host has to be deleted by hand. Either way looks at the other's file, so that hosts
// which mount the folder with and without locks refuse each other. No link is followed.

#include <cstdint>
#include <string>

namespace rz {

class RunLock {
   public:
    // Creates the folder (and its parents) if need be and proves that files can be written there. Throws if it is a
    // file or can't be written, or naming who holds the lock. A holder that is just ending is given `patience` seconds.
    explicit RunLock(const std::string& folder, double patience = 0.5);
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

    // False once the lock's file was removed or replaced; one that was only removed is made again. At most once a
    // second it is looked at.
    bool held();
    std::string lost() const;  // what to say then

    // Uses the way for file systems without locks, from now on (tests).
    static void pretend_no_flock(bool);

   private:
    bool take_flock(double patience);  // false: this file system has no locks
    void take_file();
    void take_file_alone(const std::string& mine, const std::string& own);
    void sign();
    [[noreturn]] void refuse(const std::string& owner, const std::string& remedy) const;

    std::string path_;
    int fd_ = -1;
    bool by_file_ = false;
    int64_t looked_ = 0;  // seconds of the steady clock
};

}  // namespace rz
