#pragma once
// Sums over whole data files, so that a resumed run knows that its data are still those. A file is read once: in the
// background of the run that first uses it, and again only where its size or its time of change is another.

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/grid.h"
#include "comm/process.h"

namespace rz {

struct ShardSum {
    std::string name;  // without folders
    int64_t bytes = 0;
    int64_t changed = 0;  // nanoseconds: the file's ctime, which nobody can set back
    uint64_t sum = 0;     // sum_hash of the file as words of 8 bytes, and of the bytes that are left
    // Sets of a mix may have shards of one name: the folder as it was given and as it is, the place among all files.
    std::string given = {}, folder = {};
    int64_t place = -1;
    bool operator==(const ShardSum&) const = default;
};

class ShardSums {
   public:
    // Sums of these files, in this order; none is read yet.
    explicit ShardSums(std::vector<std::string> paths);
    ~ShardSums();
    ShardSums(const ShardSums&) = delete;
    ShardSums& operator=(const ShardSums&) = delete;

    // Compares with a checkpoint's record. A file as it was keeps its sum; of one written since, or moved here,
    // the whole is read. Of records of one name and size, a file's is that of its folder, else that of its place; older
    // ones, which have neither, any.
    // "" or the first file that has other contents. Collective: the ranks, of which this one stands
    // at `reader`, share the files, and agree after every GiB, so that none waits past its deadline.
    std::string compare(const std::vector<ShardSum>& recorded, AxisRank reader, Process& process);
    // Before start(): the CRC-32 of a file's tokens, as dataset.json has it. Of what start() reads, the first file that
    // has another one is damaged().
    void expect(const std::string& path, uint32_t crc);
    std::string damaged() const;  // in words; "": none so far
    // Sums what is not known yet, on a thread.
    void start();
    // Data that grow have further files: those of `paths` that are not here yet. After start() they are summed too.
    void follow(const std::vector<std::string>& paths);
    // Sums known by now; a file that changed while it was read has none.
    std::vector<ShardSum> known() const;

   private:
    struct File {
        File(std::string path, int64_t place);
        std::string path, given, folder;
        int64_t place;
        ShardSum sum;
        bool known = false;
        int64_t crc = -1;  // that it should have; -1: unknown
    };
    void work();
    void take(File& file, const ShardSum& sum) const;

    std::deque<File> files_;  // places stay what they are while more are added
    std::string damaged_;
    bool started_ = false, working_ = false;
    mutable std::mutex mutex_;  // of all above
    std::atomic<bool> ends_ = false;
    std::thread thread_;
};

}  // namespace rz
