#pragma once
// One run per output folder. The lock is the kernel's (flock on <folder>/run.lock), so it ends with the process that
// holds it, however that ends, and holds between hosts where the file system passes it on (NFS, Lustre -o flock, GPFS).
// On a file system without locks the file's existence is the lock; one left by a dead process of this host is then
// broken, one of another host has to be deleted by hand.

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

    // Uses the way for file systems without locks, from now on (tests).
    static void pretend_no_flock(bool);

   private:
    bool take_flock(double patience);  // false: this file system has no locks
    void take_file();
    void sign();

    std::string path_;
    int fd_ = -1;
    bool by_file_ = false;
};

}  // namespace rz
