#pragma once
// One run per output folder, by two locks at once.
//
//   run.lock        flock, the kernel's: it ends with the process that holds it, however that ends. Some file systems
//                   have none, and some mounts keep it to one host (NFS local_lock, Lustre localflock).
//   run.lock.owner  a link, which appears whole or not at all on every file system and for every host. It says who
//                   holds it (process, its time of start, host, boot), and a number in it rises every few seconds.
//
// An owner of this boot of this host is dead if its process is. Of any other owner the number is looked at: if it rises
// the run is refused; if it stands still for `lease` seconds the owner is dead and its file is replaced. A link left by
// a program that does not count has to be deleted by hand. No link is followed.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>

namespace rz {

class RunLock {
   public:
    // Creates the folder (and its parents) if need be and proves that files can be written there. Throws if it is a
    // file or can't be written, or naming who holds the lock. A holder that is just ending is given `patience` seconds.
    explicit RunLock(const std::string& folder, double patience = 0.5, double lease = 10);
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

    // False once another run has replaced the owner's file; one that was only removed is made again. At most once a
    // second it is looked at.
    bool held();
    std::string lost() const;  // what to say then

    // This start writes into the folder. One that never says so leaves the folder and run.lock as they were, times and
    // all, or absent.
    void writes() { writes_ = true; }

    // From now on (tests): this file system has no flock, or each process has a flock and a host of its own.
    enum class LockTestMode { nothing, no_flock, own_host };
    static void pretend(LockTestMode);

   private:
    void open_flock(double patience);
    void take_owner(double patience, double lease);
    bool stands_still(const std::string& owner, double lease) const;
    bool replace(const std::string& mine, const std::string& owner, bool elsewhere);
    void publish(const std::string& mine);
    std::string signature() const;
    int create(const std::string& path) const;
    void beat();
    [[noreturn]] void refuse(const std::string& owner, const std::string& remedy) const;

    std::string folder_, path_;  // path_: of the owner's file
    std::string since_;
    int flock_ = -1, fd_ = -1;  // fd_: the owner's file
    bool locked_ = false;       // by flock
    bool writes_ = false;
    struct Before {
        bool there;
        timespec times[2];  // as utimensat takes them
    };
    static Before before(const std::string& path);
    const Before folder_before_, flock_before_;
    int64_t looked_ = 0;  // seconds of the steady clock
    std::atomic<int64_t> beats_ = 0;
    mutable std::mutex mutex_;  // of fd_
    std::condition_variable ends_;
    bool end_ = false;
    std::thread thread_;
};

}  // namespace rz
