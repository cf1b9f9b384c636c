#include "llama/data/shard_sums.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/crc32.h"
#include "llama/base/json.h"
#include "llama/base/sum_hash.h"
#include "llama/data/token_shards.h"

namespace rz {

namespace {

constexpr int64_t kPiece = int64_t(4) << 20;    // bytes that are read at once
constexpr int64_t kRound = int64_t(1) << 30;    // between two agreements of the ranks
constexpr uint64_t kTail = 0x632be59bd9b4e019;  // sets the bytes at the end apart from words

// Name, size and time of change of a file; "" for the name of what can't be looked at.
ShardSum look(const std::string& path) {
    struct stat st;
    if (again([&] { return ::stat(path.c_str(), &st); }) != 0) return {};
    return {.name = path.substr(path.rfind('/') + 1),
            .bytes = int64_t(st.st_size),
            .changed = int64_t(st.st_ctim.tv_sec) * 1000000000 + st.st_ctim.tv_nsec};
}

// The sum of one file, read piece by piece.
class FileSum {
   public:
    explicit FileSum(const std::string& path) : file_(open_file(path, O_RDONLY)), before_(look(path)) {}

    // Reads at most so many bytes; whether all is read.
    bool read(int64_t bytes) {
        for (const int64_t end = std::min(before_.bytes, at_ + bytes); at_ < end;) {
            const int64_t count = std::min<int64_t>(kPiece, before_.bytes - at_);
            piece_.resize(size_t(count));
            read_all(file_.fd, at_, piece_.data(), count, file_.path);
            sum_ += sum_hash(piece_.data(), at_ / 8, count / 8, 8);
            for (int64_t i = count / 8 * 8; i < count; ++i)
                sum_ += kTail * uint64_t((unsigned char)piece_[size_t(i)] + 1) * uint64_t(at_ + i + 1);
            const int64_t head = std::clamp<int64_t>(kLlmcHeaderBytes - at_, 0, count);
            crc_ = crc32(std::string_view(piece_.data(), size_t(count)).substr(size_t(head)), crc_);
            at_ += count;
        }
        return at_ >= before_.bytes;
    }
    uint32_t crc() const { return crc_; }  // of all after the header
    // Sum of a file that was read to its end; no name if it changed meanwhile.
    ShardSum result() const {
        ShardSum now = look(file_.path);
        if (!(now == before_)) return {};
        now.sum = sum_;
        return now;
    }

   private:
    OpenFile file_;
    ShardSum before_;
    int64_t at_ = 0;
    uint64_t sum_ = 0;
    uint32_t crc_ = 0;
    std::vector<char> piece_;
};

}  // namespace

ShardSums::File::File(std::string given_path, int64_t place) : path(std::move(given_path)), place(place) {
    std::error_code none;
    const std::filesystem::path parent = std::filesystem::absolute(path, none).parent_path();
    given = replace_invalid_utf8(parent.lexically_normal());
    folder = replace_invalid_utf8(std::filesystem::weakly_canonical(parent, none));
}

ShardSums::ShardSums(std::vector<std::string> paths) {
    for (std::string& path : paths) files_.emplace_back(std::move(path), int64_t(files_.size()));
}

void ShardSums::take(File& file, const ShardSum& sum) const {
    file.sum = sum;
    file.sum.given = file.given, file.sum.folder = file.folder, file.sum.place = file.place;
    file.known = !sum.name.empty();
}

ShardSums::~ShardSums() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
}

std::string ShardSums::compare(const std::vector<ShardSum>& recorded, AxisRank reader, Process& process) {
    using Records = std::vector<const ShardSum*>;
    std::vector<std::pair<size_t, Records>> to_read;  // of this rank: a file, and the records of which it must be one
    for (size_t i = 0; i < files_.size(); ++i) {
        File& file = files_[i];
        const ShardSum now = look(file.path);
        const auto nearness = [&](const ShardSum& r) {
            return r.place < 0               ? 0
                   : r.folder == file.folder ? 4
                   : r.given == file.given   ? 3
                   : r.place == file.place   ? 2
                                             : 1;
        };
        Records nearest;
        for (const ShardSum& r : recorded) {
            if (r.name != now.name || r.bytes != now.bytes) continue;
            if (nearness(r) == 1) continue;  // a file of that name in another set
            if (!nearest.empty() && nearness(r) < nearness(*nearest[0])) continue;
            if (!nearest.empty() && nearness(r) > nearness(*nearest[0])) nearest.clear();
            nearest.push_back(&r);
        }
        if (nearest.empty()) continue;
        const auto as_it_was =
            std::find_if(nearest.begin(), nearest.end(), [&](const ShardSum* r) { return r->changed == now.changed; });
        if (as_it_was != nearest.end()) {
            ShardSum known = now;
            known.sum = (*as_it_was)->sum;
            take(file, known);
            continue;
        }
        if (nearest.size() == 1) {  // what will be found, or the run ends
            ShardSum known = now;
            known.sum = nearest[0]->sum;
            take(file, known);
        }
        if (int(i % size_t(reader.size)) == reader.rank) to_read.emplace_back(i, std::move(nearest));
    }
    std::string problem;
    size_t next = 0;
    std::unique_ptr<FileSum> reading;
    for (;;) {
        try {
            while (problem.empty() && next < to_read.size()) {
                const auto& [i, want] = to_read[next];
                if (!reading) reading = std::make_unique<FileSum>(files_[i].path);
                if (!reading->read(kRound)) break;
                const ShardSum found = reading->result();
                if (std::none_of(want.begin(), want.end(), [&](const ShardSum* r) { return r->sum == found.sum; }))
                    problem =
                        files_[i].path + " has the same size but other contents than when the checkpoint was made";
                take(files_[i], found);
                reading.reset();
                ++next;
            }
        } catch (const Error& error) {
            problem = std::string("!") + error.what();  // could not be read
        }
        const bool done = !problem.empty() || next == to_read.size();
        for (const std::string& of_rank : process.all_gather_text(problem))
            if (!of_rank.empty()) {
                require(of_rank[0] != '!', "%s", of_rank.c_str() + 1);
                return of_rank;
            }
        if (process.max(done ? 0 : 1) == 0) return "";
    }
}

void ShardSums::expect(const std::string& path, uint32_t crc) {
    std::lock_guard lock(mutex_);
    for (File& file : files_)
        if (file.path == path) file.crc = crc;
}

std::string ShardSums::damaged() const {
    std::lock_guard lock(mutex_);
    return damaged_;
}

void ShardSums::start() {
    {
        std::lock_guard lock(mutex_);
        started_ = true;
        if (working_) return;
        working_ = true;
    }
    if (thread_.joinable()) thread_.join();  // it has come to its end
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {  // no thread: the ends of the files are compared all the same
        std::lock_guard lock(mutex_);
        working_ = false;
    }
}

void ShardSums::follow(const std::vector<std::string>& paths) {
    bool more = false;
    {
        std::lock_guard lock(mutex_);
        for (const std::string& path : paths) {
            if (std::any_of(files_.begin(), files_.end(), [&](const File& f) { return f.path == path; })) continue;
            files_.emplace_back(path, int64_t(files_.size()));
            more = started_;
        }
    }
    if (more) start();
}

void ShardSums::work() {
    for (size_t next = 0;; ++next) {
        std::unique_lock begin(mutex_);
        if (next == files_.size()) {
            working_ = false;
            return;
        }
        File& file = files_[next];
        if (file.known) continue;
        begin.unlock();
        try {
            FileSum sum(file.path);
            for (bool all = false; !all;) {
                const auto began = std::chrono::steady_clock::now();
                all = sum.read(16 * kPiece);
                if (ends_) return;
                // As long again for whoever trains; not past the end of the run.
                const auto pause = std::chrono::steady_clock::now() - began;
                if (!all) std::this_thread::sleep_for(std::min<decltype(pause)>(pause, std::chrono::seconds(1)));
            }
            const ShardSum result = sum.result();
            std::lock_guard lock(mutex_);
            take(file, result);
            if (damaged_.empty() && file.known && file.crc >= 0 && sum.crc() != uint32_t(file.crc))
                damaged_ =
                    format("%s: the CRC-32 of its tokens is %u, dataset.json says %u: it is damaged; prepare it again",
                           file.path.c_str(), unsigned(sum.crc()), unsigned(file.crc));
        } catch (const std::exception&) {  // the loader says what is wrong with a file
        }
    }
}

std::vector<ShardSum> ShardSums::known() const {
    std::lock_guard lock(mutex_);
    std::vector<ShardSum> all;
    for (const File& file : files_)
        if (file.known) all.push_back(file.sum);
    return all;
}

}  // namespace rz
