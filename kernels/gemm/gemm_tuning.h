#pragma once
// How cuBLASLt's algorithm is chosen at the first product of each shape. By default the library's own first suggestion,
// which is the same on every run. Measuring gives a few percent more speed, but two measurements may choose differently
// and so give other last bits: a cache file makes the choice permanent.
//
// Ranks that share a cache file use the same algorithm from the first product on: one of them measures a shape, the
// others wait for it and read. So the file has to be one that all ranks see, which on several hosts means a shared file
// system; else each host keeps to its own choices.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

struct GemmTuning {
    bool measure =
        false;  // time the library's suggestions and take the fastest; synchronises the stream at each new shape
    std::string cache_file;  // choices are read from here, and added where they were measured; may not exist yet
    int64_t measured = 0, read = 0;  // shapes decided in either way so far; counted by gemm
};

// Of this rank. To be set before products are enqueued; without CUDA it has no effect.
GemmTuning& gemm_tuning(RankContext&);

// --gemm-tune off|on and --gemm-cache FILE, for the rank of `device`. `on` without a file takes default_gemm_cache(); a
// file without `on` is read and never written. Returns what the user should know: that nothing is tuned on this device,
// or where choices are kept. Throws where the given file can't be written.
std::string set_gemm_tuning(Device device, bool measure, const std::string& cache_file);

// $XDG_CACHE_HOME/ringzero/gemm_tuning.txt, or under ~/.cache; empty if neither variable is set.
std::string default_gemm_cache();

// ---- the cache file: one line per choice. Read as if it came from anywhere: lines that are damaged, of another
// version or too long are passed over, and so is a file that is too big or no regular file. `key` holds no control
// characters but tabs.

using GemmChoice = std::vector<unsigned char>;  // an algorithm, as the library stores it

// Held while a shape is measured, so that others which share the file wait and then read. Ends with the process too.
// After `patience` seconds, or without a file or where none can be made beside it, no lock: every rank measures.
class GemmTuningTurn {
   public:
    explicit GemmTuningTurn(const std::string& cache_file, double patience = 60);
    ~GemmTuningTurn();
    GemmTuningTurn(const GemmTuningTurn&) = delete;
    GemmTuningTurn& operator=(const GemmTuningTurn&) = delete;
    bool held() const { return held_; }

   private:
    int fd_ = -1;
    bool held_ = false;
};

// The choices recorded under `key`, in file order; of `bytes` bytes each.
std::vector<GemmChoice> read_gemm_cache(const std::string& path, const std::string& key, size_t bytes);
// Replaces what `key` has. The file is replaced as a whole, so that a reader sees the old or the new one; several ranks
// may write at the same time.
void write_gemm_cache(const std::string& path, const std::string& key, const GemmChoice&, double microseconds);

}  // namespace rz
